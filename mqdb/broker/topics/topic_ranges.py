"""Topic ranges: the data with which a bulk reader plans, and the statements that its processes run.

RocketMQ has no such request: its bulk readers pull like all other consumers.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sqlalchemy import Connection

from mqdb.store.engine import transaction, translates
from mqdb.store.segments import segments
from mqdb.store.topics import topic_ranges
from mqdb.store.topics.topic_ranges import Choice, OffsetRange, Part, SegmentRange, Span


class Layout(NamedTuple):
    """The layout of ranges: their spans by segment and queue, all segments by number, and the last position of the log.

    `missing` is the first range, or part of a range, that no segment contains.
    """

    spans: list[Span]
    segments: dict[int, SegmentRange]
    last_pos: int
    missing: OffsetRange | None = None


class Statements(NamedTuple):
    """A statement for each part, one for the min offsets of all their queues, and one for the max offsets."""

    reads: list[str]
    min_offsets: str
    max_offsets: str


@translates
def layout(connection: Connection, ranges: Sequence[OffsetRange], first_segment: int = 0) -> Layout:
    """The layout of these ranges, in segments from `first_segment` on, or in all segments if these are not enough."""
    with transaction(connection):
        # Spans first: entries that dispatch adds to a segment in the meantime do not affect them.
        spans = topic_ranges.spans(connection, ranges, first_segment)
        missing = missing_range(ranges, spans)
        if missing is not None and first_segment:
            spans = topic_ranges.spans(connection, ranges, 0)
            missing = missing_range(ranges, spans)
        by_number = {each.number: each for each in topic_ranges.segment_bounds(connection)}
        return Layout(spans, by_number, segments.log(connection).last_pos, missing)


def missing_range(wanted: Iterable[OffsetRange], spans: Iterable[Span]) -> OffsetRange | None:
    """The first range that the spans do not cover, without its covered beginning."""
    reached = {each.queue_key: each.first for each in wanted}
    for span in sorted(spans):
        if reached.get(span.queue_key) == span.first:
            reached[span.queue_key] = span.past
    for each in wanted:
        if reached[each.queue_key] < each.past:
            return each._replace(first=reached[each.queue_key])
    return None


@translates
def statements(connection: Connection, parts: Sequence[Part], columns: Sequence[str], choice: Choice) -> Statements:
    """The statements that read these parts, and those that check, before and after, that no message is missing."""
    keys = sorted({span.queue_key for part in parts for span in part.spans})
    return Statements(
        topic_ranges.read_texts(connection, parts, columns, choice),
        topic_ranges.text_with_values(connection, topic_ranges.min_offsets(keys)),
        topic_ranges.text_with_values(connection, topic_ranges.max_offsets(keys)),
    )
