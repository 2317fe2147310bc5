"""Bars for the queues of a topic with the offsets of its groups, for the lag of a group, and for a reset of offsets.

All lengths and places are numbers from 0 to 1: shares of the longest queue or of the greatest lag.
"""

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean
from typing import Final, NamedTuple

from mqdb_client import OffsetChange, QueueProgress, QueueStats

#: The page mentions a queue that is this many times longer than the mean, and has at least this many messages.
_SKEW: Final = 2.0
_LEAST_MESSAGES: Final = 100


class QueueBar(NamedTuple):
    """The bar of a queue of a topic."""

    stats: QueueStats
    share: float
    """The number of stored messages, as a share of the longest queue."""
    marks: list[float]
    """The places of the groups that read the queue."""
    behind: list[tuple[str, int]]
    """The groups with a lag in the queue, and the lag of each group, greatest lag first."""

    @property
    def messages(self) -> int:
        """The number of stored messages."""
        return self.stats.max_offset - self.stats.min_offset


def queue_bars(queues: Sequence[QueueStats], progress: Sequence[QueueProgress]) -> list[QueueBar]:
    """The bars of all queues of a topic, queue 0 first."""
    most = max((each.max_offset - each.min_offset for each in queues), default=0) or 1
    by_queue = defaultdict(list)
    for each in progress:
        by_queue[each.queue_id].append(each)
    bars = []
    for queue in queues:
        readers = by_queue[queue.queue_id]
        places = {max(each.next_offset - queue.min_offset, 0) / most for each in readers}
        behind = sorted(((each.group, each.lag) for each in readers if each.lag), key=lambda pair: (-pair[1], pair[0]))
        bars.append(QueueBar(queue, (queue.max_offset - queue.min_offset) / most, sorted(places), behind))
    return bars


def skewed(bars: Sequence[QueueBar]) -> tuple[QueueBar, float] | None:
    """The longest queue, and its length in multiples of the mean; None if messages are few or spread evenly."""
    if len(bars) < 2:
        return None
    longest, mean = max(bars, key=lambda bar: bar.messages), fmean(bar.messages for bar in bars)
    is_skewed = longest.messages >= _LEAST_MESSAGES and longest.messages > _SKEW * mean
    return (longest, longest.messages / mean) if is_skewed else None


class LagBar(NamedTuple):
    """The bar of a group's lag in a queue."""

    progress: QueueProgress
    share: float
    """The lag in the queue, as a share of the greatest lag."""


def lag_bars(progress: Sequence[QueueProgress]) -> list[LagBar]:
    """The bars of a group's lag in the queues of a topic."""
    most = max((each.lag for each in progress), default=0) or 1
    return [LagBar(each, each.lag / most) for each in progress]


class ResetBar(NamedTuple):
    """The bar of the messages of a queue that a reset repeats or skips."""

    change: OffsetChange
    begin: float
    share: float
    """The messages between the old and the new offset, as a share of the longest queue."""
    marks: list[float]
    """The places of the old and the new offset, in ascending order."""


def reset_bars(changes: Sequence[OffsetChange], ends: Sequence[int]) -> list[ResetBar]:
    """The bars of a reset. `ends` are the max offsets of the topic's queues, queue 0 first."""
    end_of = [max(ends[each.queue_id], each.new_offset) if each.queue_id < len(ends) else 0 for each in changes]
    longest = max((end - each.min_offset for each, end in zip(changes, end_of, strict=True)), default=0)
    most = max(longest, 1)
    bars = []
    for each in changes:
        old = each.new_offset if each.old_offset is None else max(each.old_offset, each.min_offset)
        places = sorted((max(offset - each.min_offset, 0) / most) for offset in (old, each.new_offset))
        bars.append(ResetBar(each, places[0], places[1] - places[0], places))
    return bars
