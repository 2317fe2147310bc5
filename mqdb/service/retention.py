"""Decisions of retention: the size of the next segments, and the old segments that are dropped.

Messages are dropped by age, read or not, a whole segment at a time. RocketMQ: MessageStoreConfig (fileReservedTime,
deleteWhen, diskMaxUsedSpaceRatio), DefaultMessageStore.CleanCommitLogService.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from itertools import islice, takewhile
from math import sqrt
from typing import Final

from mqdb.store.segments.segments import Log, Segment, SegmentState

#: The rate is observed for a day, to average over its hours. At first, messages from less than an hour count as the
#: traffic of a whole hour, because they may have been a burst.
_OBSERVATION: Final = timedelta(days=1)
_SHORTEST_OBSERVATION: Final = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class SegmentSizing:
    """The number of segments of the retained log.

    With fewer segments, too much would be dropped at once; with more, every statement would be slower.
    """

    fewest: int = 24
    most: int = 60
    smallest: int = 262_144
    """The minimum number of records in a segment, however few are sent."""


@dataclass(frozen=True, slots=True)
class RetentionRules:
    """The rules for dropping messages."""

    file_reserved_time: timedelta = timedelta(hours=72)
    delete_when: tuple[int, ...] = (4,)
    """The hours of the day at which old segments are dropped."""
    time_zone: tzinfo | None = None
    """The time zone of these hours; None means that of this machine."""
    disk_max_used_space_percent: float = 75
    """From this usage on, old segments are dropped at any hour."""
    disk_clean_forcibly_percent: float = 85
    """From this usage on, the oldest segment is dropped, whatever its age."""

    @property
    def longest_kept(self) -> timedelta:
        """The maximum age of a message, given that segments are dropped only at certain hours."""
        hours = sorted(self.delete_when)
        gaps = [(after - before - 1) % 24 + 1 for before, after in zip(hours, [*hours[1:], hours[0]], strict=True)]
        return self.file_reserved_time + timedelta(hours=max(gaps))


def segment_size(sizing: SegmentSizing, rules: RetentionRules, log: Log, segments: Sequence[Segment]) -> int:
    """The number of records in the next segment, so that the kept messages fill a suitable number of segments.

    The size follows the rate of the last day, and is not changed while that gives a suitable number of segments.
    """
    reserved = rules.file_reserved_time
    since, position = _start_of_observation(log, segments, log.now - min(_OBSERVATION, reserved))
    observed = max(log.now - since, min(_SHORTEST_OBSERVATION, reserved))
    upper = (log.last_pos - position) * (reserved / observed) / sizing.fewest
    # Messages fill two segments only partly: the oldest and the newest. If segments are dropped so rarely that no
    # number is suitable at all times of the day, it should be suitable right after a drop.
    lower = min(upper * (rules.longest_kept / reserved) * sizing.fewest / (sizing.most - 2), upper * 0.9)
    if max(lower, sizing.smallest) <= log.segment_size <= upper:
        return log.segment_size
    return max(round(sqrt(lower * upper)), sizing.smallest)


def _start_of_observation(log: Log, segments: Sequence[Segment], wished: datetime) -> tuple[datetime, int]:
    """The last time before `wished` for which the position of the log is known, or else the first such time."""
    ends = sorted((segment.closed_at, segment.end_pos) for segment in segments if segment.closed_at is not None)
    first_pos = min((segment.start_pos for segment in segments), default=1)
    known = [(log.created_at, 1), *ends] if first_pos == 1 else ends
    before = [point for point in known if point[0] <= wished]
    return before[-1] if before else min(known, default=(log.now, log.last_pos))


def expired(
    rules: RetentionRules, now: datetime, segments: Sequence[Segment], writes_to: int, disk_used_percent: float | None
) -> list[int]:
    """The numbers of the segments to drop by age, oldest first. `writes_to` is the segment to which dispatch writes."""
    is_time = now.astimezone(rules.time_zone).hour in rules.delete_when
    if not is_time and (disk_used_percent is None or disk_used_percent <= rules.disk_max_used_space_percent):
        return []
    before = now - rules.file_reserved_time
    complete = takewhile(lambda segment: segment.was_closed_before(before), _complete(segments, writes_to))
    return [segment.number for segment in complete]


def to_make_room(
    rules: RetentionRules, segments: Sequence[Segment], writes_to: int, disk_used_percent: float | None
) -> list[int]:
    """The number of the segment to drop, whatever its age, because the disk is nearly full: the oldest, or none."""
    if disk_used_percent is None or disk_used_percent <= rules.disk_clean_forcibly_percent:
        return []
    return [segment.number for segment in islice(_complete(segments, writes_to), 1)]


def before_delays(going: Sequence[int], first_undelivered: int) -> list[int]:
    """The segments that may be dropped: messages waiting for delivery are kept, however full the disk is.

    `first_undelivered` is the segment of the first such message.
    """
    return [number for number in going if number < first_undelivered]


def _complete(segments: Sequence[Segment], writes_to: int) -> Iterator[Segment]:
    """The sealed segments behind dispatch, up to the first other segment, because queues must not have gaps."""
    retained = (segment for segment in segments if segment.state is not SegmentState.DRAINED)
    return takewhile(lambda segment: segment.state is SegmentState.SEALED and segment.number < writes_to, retained)
