"""Bars: the queues of a topic with the place of each group in them, the lag of a group, and the effect of a reset.

All lengths and places are shares of the longest queue, from 0 to 1.
"""

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean
from typing import Final, NamedTuple

from mqdb_client import OffsetChange, QueueProgress, QueueStats

#: A queue with so many times the mean is worth a sentence, if it has so many messages.
_SKEW: Final = 2.0
_LEAST_MESSAGES: Final = 100


class QueueBar(NamedTuple):
    """A queue of a topic."""

    stats: QueueStats
    share: float
    """Its kept messages."""
    marks: list[float]
    """The places of the groups that have read it."""
    behind: list[tuple[str, int]]
    """The groups that have messages of it to consume, the slowest first, and how many."""

    @property
    def messages(self) -> int:
        """The number of kept messages."""
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
    """The longest queue, and how many times the mean it has; None if messages are spread evenly or are few."""
    if len(bars) < 2:
        return None
    longest, mean = max(bars, key=lambda bar: bar.messages), fmean(bar.messages for bar in bars)
    is_skewed = longest.messages >= _LEAST_MESSAGES and longest.messages > _SKEW * mean
    return (longest, longest.messages / mean) if is_skewed else None


class LagBar(NamedTuple):
    """A queue as a group reads it."""

    progress: QueueProgress
    share: float
    """Its lag, as a share of the greatest lag."""


def lag_bars(progress: Sequence[QueueProgress]) -> list[LagBar]:
    """The bars of the lag of a group in the queues of a topic."""
    most = max((each.lag for each in progress), default=0) or 1
    return [LagBar(each, each.lag / most) for each in progress]


class ResetBar(NamedTuple):
    """The messages of a queue that a reset repeats or skips."""

    change: OffsetChange
    begin: float
    share: float
    """The messages between the old and the new offset."""
    marks: list[float]
    """The old and the new offset."""


def reset_bars(changes: Sequence[OffsetChange], ends: Sequence[int]) -> list[ResetBar]:
    """The bars of a reset. `ends` are the max offsets of the queues of the topic, queue 0 first."""
    end_of = [max(ends[each.queue_id], each.new_offset) if each.queue_id < len(ends) else 0 for each in changes]
    longest = max((end - each.min_offset for each, end in zip(changes, end_of, strict=True)), default=0)
    most = max(longest, 1)
    bars = []
    for each in changes:
        old = each.new_offset if each.old_offset is None else max(each.old_offset, each.min_offset)
        places = sorted((max(offset - each.min_offset, 0) / most) for offset in (old, each.new_offset))
        bars.append(ResetBar(each, places[0], places[1] - places[0], places))
    return bars
