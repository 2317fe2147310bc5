"""Topic ranges: what a reader in bulk has to know to plan, and the statements that its processes run.

RocketMQ has no such request: its readers in bulk pull like all others.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sqlalchemy import Connection

from mqdb.store.engine import transaction, translates
from mqdb.store.segments import segments
from mqdb.store.topics import topic_ranges
from mqdb.store.topics.topic_ranges import Choice, OffsetRange, Part, SegmentBounds, Span


class Layout(NamedTuple):
    """Where ranges lie: their spans by segment and queue, all segments by number, and how far the log is filled."""

    spans: list[Span]
    segments: dict[int, SegmentBounds]
    last_pos: int


class Statements(NamedTuple):
    """A statement for each part, one for the min offsets of all their queues, and one for the max offsets."""

    reads: list[str]
    min_offsets: str
    max_offsets: str


@translates
def layout(connection: Connection, ranges: Iterable[OffsetRange], first_segment: int = 0) -> Layout:
    """Where these ranges lie, from a segment on."""
    with transaction(connection):
        # Spans first: what dispatch adds to a segment meanwhile lowers nothing that they need.
        spans = topic_ranges.spans(connection, ranges, first_segment)
        by_number = {each.number: each for each in topic_ranges.segment_bounds(connection)}
        return Layout(spans, by_number, segments.log(connection).last_pos)


@translates
def statements(connection: Connection, parts: Sequence[Part], columns: Sequence[str], choice: Choice) -> Statements:
    """The statements that read these parts, and those that check before and after whether all was there."""
    keys = sorted({span.queue_key for part in parts for span in part.spans})
    return Statements(
        topic_ranges.read_texts(connection, parts, columns, choice),
        topic_ranges.text_with_values(connection, topic_ranges.min_offsets(keys)),
        topic_ranges.text_with_values(connection, topic_ranges.max_offsets(keys)),
    )
