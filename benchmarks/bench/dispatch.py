"""`do.py bench dispatch`: how fast a backlog gets its queue offsets and its key index entries.

    dispatch   batches of mqdb.dispatch from the first to the last message, by one session
    index      batches of mqdb.index_keys for the same messages

The reference point of both reads the same records in log order, and copies the columns of a consume-queue entry into a
table without an index, in committed batches of the same size. The reference assigns no offsets, keeps no order and
announces nothing: no dispatch could do less. The reference runs second, when the pages are already in memory.
"""

import time
from collections.abc import Callable, Generator
from functools import partial
from itertools import count
from typing import Final

from benchmarks.bench import machine, message_sample, reference
from benchmarks.bench.comparison import Side, SideComparison
from benchmarks.bench.figures import Goal, Measurement
from benchmarks.bench.testbed import Testbed, Topic
from mqdb.broker.dispatch import MAX_ROWS

NAMES: Final = ("dispatch", "index")
UNIT: Final = "messages/s"
_QUEUES: Final = 8

_INDEX_BATCH: Final = "SELECT messages FROM mqdb.index_keys(%s)"
_INDEX_BACKLOG: Final = """
SELECT last_value - (SELECT done_pos FROM mqdb.checkpoint WHERE service = 'index' ORDER BY seq DESC LIMIT 1)
FROM mqdb.log_pos
"""


def comparisons(testbed: Testbed, *, messages: int) -> Generator[SideComparison, None, None]:
    """The comparisons, one after another. Raises ParameterInvalid if `mqdb serve` already does the work."""
    testbed.check_unserved("do.py bench dispatch")
    topic = testbed.topic("dispatch", _QUEUES)
    copy = Side("INSERT ... SELECT of the entries, without index", partial(_copy, testbed, messages))
    yield SideComparison(
        "dispatch",
        UNIT,
        Side(
            f"dispatch of {messages:,} messages in {_QUEUES} queues",
            partial(_dispatch, testbed, topic, messages),
            [Goal(250_000)],
        ),
        [copy],
    )
    yield SideComparison(
        "index", UNIT, Side(f"key index of {messages:,} messages", partial(_index, testbed, topic, messages)), [copy]
    )


def _dispatch(testbed: Testbed, topic: Topic, messages: int) -> Measurement:
    testbed.dispatch_all()
    message_sample.fill(testbed.below, topic.queue_keys, messages)
    return _timed(testbed, testbed.dispatch_all)


def _index(testbed: Testbed, topic: Topic, messages: int) -> Measurement:
    # What the rounds of dispatch have left, if there were any.
    (backlog,) = testbed.below.execute(_INDEX_BACKLOG).fetchone() or (0,)
    if backlog < messages:
        message_sample.fill(testbed.below, topic.queue_keys, messages)

    def index() -> int:
        done = 0
        while done < messages:
            (batch,) = testbed.below.execute(_INDEX_BATCH, (min(MAX_ROWS, messages - done),)).fetchone() or (0,)
            done += batch
        return done

    return _timed(testbed, index)


def _copy(testbed: Testbed, messages: int) -> Measurement:
    reference.clear(testbed.below)
    (last,) = testbed.below.execute("SELECT last_value FROM mqdb.log_pos").fetchone() or (0,)

    def copy() -> int:
        done = 0
        for first in count(last - messages, MAX_ROWS):
            if first >= last:
                return done
            values = {"after": first, "up_to": min(first + MAX_ROWS, last)}
            done += testbed.below.execute(reference.COPY_ENTRIES, values).rowcount
        return done

    return _timed(testbed, copy)


def _timed(testbed: Testbed, work: Callable[[], int]) -> Measurement:
    """Messages per second, and per CPU second of the only session that does the work."""
    backend = machine.ProcessClock(machine.backend_pid(testbed.below))
    cpu_began, began = backend.seconds(), time.perf_counter()
    messages = work()
    elapsed, cpu_ended = time.perf_counter() - began, backend.seconds()
    details = {}
    if cpu_began is not None and cpu_ended is not None and cpu_ended > cpu_began:
        details["server_cpu_us"] = (cpu_ended - cpu_began) / messages * 1e6
        details["messages_per_cpu_second"] = messages / (cpu_ended - cpu_began)
    return Measurement(messages / elapsed, details)
