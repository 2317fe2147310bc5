"""Message statistics: the statements that count the messages of some topics, one per segment.

The statements are run later, one by one, and together count the messages that were dispatched when the statements were
made. RocketMQ counts messages as they are put and got (StatsItemSet), and has no figures for the past.
"""

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import Connection

from mqdb.errors import TopicNotFound
from mqdb.store.engine import transaction, translates
from mqdb.store.log import message_statistics
from mqdb.store.log.message_statistics import Wanted
from mqdb.store.segments import segments
from mqdb.store.topics import topic_ranges
from mqdb.store.topics.topic_ranges import OffsetRange, SegmentRange


class SegmentCount(NamedTuple):
    """A segment, and the statement that counts its messages and returns the rows of `message_statistics.hourly`."""

    segment: int
    statement: str


@translates
def count_by_segment(
    connection: Connection, topics: Sequence[str], since: datetime | None = None, until: datetime | None = None
) -> list[SegmentCount]:
    """The statements that count the messages stored from `since` to before `until`. Raises TopicNotFound."""
    with transaction(connection):
        # In this order, because dispatch may add batches and segments in the meantime, but none is then missing.
        queues = {bounds.queue_key: bounds for bounds in topic_ranges.bounds(connection, topics)}
        for name in topics:
            if name not in {bounds.topic for bounds in queues.values()}:
                raise TopicNotFound(name)
        batches = message_statistics.batches(connection)
        ranges = [OffsetRange(key, bounds.min_offset, bounds.max_offset) for key, bounds in queues.items()]
        wanted: dict[int, list[Wanted]] = defaultdict(list)
        for number, *span in topic_ranges.spans(connection, ranges, _first_segment(connection, since)):
            wanted[number].append(Wanted(queues[span[0]].topic, OffsetRange(*span)))
        known = topic_ranges.segment_bounds(connection)
        return [
            SegmentCount(
                number,
                topic_ranges.text_with_values(
                    connection,
                    message_statistics.hourly(
                        number, _log_segments(known, number), here, batches.get(number, ()), since, until
                    ),
                ),
            )
            for number, here in wanted.items()
        ]


def _first_segment(connection: Connection, since: datetime | None) -> int:
    """The first segment that may contain messages from this time."""
    if since is None:
        return 0
    young = (each.number for each in segments.find_all(connection) if not each.was_closed_before(since))
    return min(young, default=0)


def _log_segments(known: Sequence[SegmentRange], number: int) -> list[int]:
    """The segments of the log to which the entries of a segment point: its own, and older ones for late committers."""
    lowest, end = next((each.lowest_log_pos, each.end_pos) for each in known if each.number == number)
    return [each.number for each in known if each.start_pos < end and each.end_pos > lowest]
