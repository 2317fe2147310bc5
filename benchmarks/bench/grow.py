"""`do.py bench grow`: the cost of each action in a log of one size, and in a log ten times as large.

    send, send-100          a producer: one message, and a batch of 100
    dispatch, index         a batch of 1,000 messages; dispatch-idle: a dispatch that finds nothing
    pull-end                8 queues x 32 messages at the end of the log; pull-beginning: at its beginning
    pull-first              the first pull of a new session, whose plan covers all segments
    time                    the offsets of a time in the 8 queues of a topic
    key, id                 the messages with a key, and those with a unique id
    groups, doctor          `mqdb group list`, `mqdb doctor`
    overview, storage       pages of the dashboard with all their parts; messages, group: one page each
    serve                   from the start of the services until they have dispatched a waiting message
    adopt                   the comparison after a restore
    retention               the oldest segment is dropped

The log grows in steps. Segments have the size that `mqdb serve` would choose if the log were three days of traffic.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from benchmarks.bench.figures import Figure, Goal, Measurement, Series
from benchmarks.bench.grow_items import Item, items
from benchmarks.bench.grow_log import GrowingLog
from benchmarks.bench.testbed import Testbed

NAMES: Final = (
    "send",
    "send-100",
    "dispatch",
    "dispatch-idle",
    "index",
    "pull-end",
    "pull-beginning",
    "pull-first",
    "time",
    "key",
    "id",
    "groups",
    "doctor",
    "overview",
    "storage",
    "messages",
    "group",
    "serve",
    "adopt",
    "retention",
)

#: Up to 1.2 times of what it costs in the smallest log. A ratio is turned round: above 1 is better.
FLAT: Final = Goal(1 / 1.2)

#: Says how far a step has come: what it does, how much of how much.
Announce: TypeAlias = Callable[[str, int, int], None]


class GrowStep(NamedTuple):
    """The log at one size: how it was made, and the measurements by item name."""

    messages: int
    fill_seconds: float
    segments: int
    bytes: int
    found: Mapping[str, Series]

    @property
    def sentence(self) -> str:
        """A sentence for the notes of a report."""
        gibibytes = self.bytes / 1024**3
        return (
            f"{self.messages:,} messages: {self.segments} segments, {gibibytes:.1f} GiB; "
            f"the step to it took {self.fill_seconds:,.0f} s, with dispatch and key index"
        )


def steps(
    testbed: Testbed,
    sizes: Sequence[int],
    wanted: Sequence[str],
    rounds: int,
    announce: Announce,
    segment_records: int | None = None,
) -> Iterator[GrowStep]:
    """Grows the log to one size after another, and measures at each size."""
    log = GrowingLog(testbed, segment_records)
    for size in sizes:
        began = time.perf_counter()
        log.grow_to(size, partial(_fills, announce, size))
        fill_seconds = time.perf_counter() - began
        log.settle()
        segments, total = log.extent()
        found = {}
        with ExitStack() as stack:
            chosen = [item for item in items(log, stack) if item.name in wanted]
            for number, item in enumerate(chosen):
                announce(f"measures {size:,} messages: {item.name}", number, len(chosen))
                found[item.name] = Series(f"{item.label}, {size:,} messages", _measured(item, rounds))
        yield GrowStep(size, fill_seconds, segments, total, found)


def figures(steps: Sequence[GrowStep]) -> list[Figure]:
    """A figure for each item and size, compared with the first size."""
    first, *others = steps
    if not others:
        return [Figure(name, "ms", series, lower_is_better=True) for name, series in first.found.items()]
    return [
        Figure(name, "ms", step.found[name], [Series(series.label, series.rounds, [FLAT])], lower_is_better=True)
        for name, series in first.found.items()
        for step in others
        if name in step.found and len(step.found[name].rounds) == len(series.rounds)
    ]


def _fills(announce: Announce, size: int, done: int) -> None:
    announce(f"fills {size:,} messages", done, size)


def _measured(item: Item, rounds: int) -> list[Measurement]:
    """The mean of the calls in each round. Items with many calls are first called once to warm up."""
    if item.warm_up:
        item.call()
    found = []
    for _ in range(min(rounds, item.most_rounds)):
        took = [item.call() for _ in range(item.calls)]
        found.append(Measurement(sum(took) / len(took) * 1e3, {"longest_ms": max(took) * 1e3}))
    return found
