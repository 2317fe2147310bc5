"""Segments: ranges of the log that are created, closed, sealed and dropped as a whole.

    open ──▶ closed ──▶ sealed ──▶ drained ──▶ (no row)

    open      takes records, now or later
    closed    all its positions are taken; transactions in progress may still write to it
    sealed    no transaction can still write to it, and all of it is dispatched and indexed
    drained   below the min offset of every queue: its consume queue and key index are being removed, its log
              is kept as long as the consume queue of a newer segment points into it

A segment is drained in the same statement that raises the min offsets. Later steps only remove data that is no longer
visible, so they can be interrupted anywhere and continued by the next leader. In SQL:
`mqdb/sql/segments/ensure_segments.sql`, `mqdb/sql/segments/seal_segment.sql`.
"""

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from psycopg import errors as pg
from sqlalchemy import Connection, Float, cast, column, delete, extract, func, select, table, true, update
from sqlalchemy.exc import OperationalError

from mqdb.store.tables import broker, commit_log, id_span, queue, queue_run, segment

_log_pos = table("log_pos", column("last_value"), schema="mqdb")
_last_pos = select(_log_pos.c.last_value).scalar_subquery()


class SegmentState(StrEnum):
    """The states in the CHECK constraint of the schema."""

    OPEN = "open"
    CLOSED = "closed"
    SEALED = "sealed"
    DRAINED = "drained"


class Segment(NamedTuple):
    """The positions from `start_pos` to before `end_pos`; the consume queue points to `lowest_log_pos` and above."""

    number: int
    start_pos: int
    end_pos: int
    lowest_log_pos: int
    state: SegmentState
    closed_at: datetime | None

    def was_closed_before(self, time: datetime) -> bool:
        """Whether all its records are older than a time; late committers count from their dispatch."""
        return self.closed_at is not None and self.closed_at < time


class Log(NamedTuple):
    """The log as a whole: its last position, the current time, and the size of the next segment."""

    now: datetime
    last_pos: int
    segment_size: int
    created_at: datetime


def find_all(connection: Connection) -> list[Segment]:
    """All segments, oldest first."""
    columns = segment.c.segment, segment.c.start_pos, segment.c.end_pos, segment.c.lowest_log_pos
    rows = connection.execute(select(*columns, segment.c.state, segment.c.closed_at).order_by(segment.c.segment))
    return [Segment(*row[:4], SegmentState(row.state), row.closed_at) for row in rows]


def log(connection: Connection) -> Log:
    """The state of the log."""
    columns = func.mqdb.now(), _last_pos, broker.c.segment_size, broker.c.created_at
    return Log(*connection.execute(select(*columns)).one())


def needed_from(segments: Sequence[Segment]) -> int:
    """The lowest position to which the consume queues of retained segments point; the log below it is not needed."""
    return min((each.lowest_log_pos for each in segments if each.state is not SegmentState.DRAINED), default=0)


def room(segments: Sequence[Segment], last_pos: int) -> int:
    """The number of free positions in existing segments, after the last used position."""
    return max(max((each.end_pos for each in segments), default=0) - last_pos - 1, 0)


def oldest_seconds(connection: Connection) -> float | None:
    """The age of the first kept record; None if the log is empty. Uses commit_log_pkey."""
    first = select(commit_log.c.store_time).order_by(commit_log.c.log_pos).limit(1).scalar_subquery()
    age: float | None = connection.scalars(select(cast(extract("epoch", func.mqdb.now() - first), Float))).one()
    return age


def resize(connection: Connection, records: int) -> None:
    """Set the size of future segments in records."""
    connection.execute(update(broker).values(segment_size=records))


def ensure(connection: Connection, ahead: int) -> int:
    """Make sure that `ahead` segments exist ahead of the log; returns how many were created."""
    made: int = connection.execute(select(func.mqdb.ensure_segments(ahead))).scalar_one()
    return made


def close_passed(connection: Connection) -> list[int]:
    """Close the open segments whose positions are all taken; returns their numbers."""
    passed = update(segment).where(segment.c.state == SegmentState.OPEN, segment.c.end_pos <= _last_pos + 1)
    closed = passed.values(state=SegmentState.CLOSED, closed_at=func.mqdb.now()).returning(segment.c.segment)
    return sorted(connection.scalars(closed))


def seal(connection: Connection, number: int) -> bool:
    """Seal a closed segment;

    False while a transaction may write to it, or it is not completely dispatched and indexed.
    """
    return bool(connection.scalar(select(func.mqdb.seal_segment(number))))


def drain(connection: Connection, number: int) -> bool:
    """Raise the min offsets past a sealed segment and drain it, in one statement; False if a lock prevents it.

    Uses queue_run_offset: the last offset of each queue, not a scan of the segment.
    """
    given_up = (
        update(segment)
        .where(segment.c.segment == number, segment.c.state == SegmentState.SEALED)
        .values(state=SegmentState.DRAINED)
        .returning(segment.c.segment)
        .cte("given_up")
    )
    past = (
        select(func.max(queue_run.c.last_offset) + 1)
        .where(queue_run.c.segment == number, queue_run.c.queue_key == queue.c.queue_key)
        .correlate(queue)
        .scalar_subquery()
    )
    # A join, so that nothing is raised past a segment that another session has already dropped.
    ends = select(queue.c.queue_key, past.label("past")).select_from(queue.join(given_up, true())).subquery("ends")
    raised = (
        update(queue)
        .where(queue.c.queue_key == ends.c.queue_key, ends.c.past > queue.c.base_offset)
        .values(base_offset=ends.c.past)
    )
    try:
        connection.execute(raised)
    except OperationalError as error:
        if isinstance(error.orig, pg.LockNotAvailable):
            return False
        raise
    return True


def forget(connection: Connection, number: int) -> None:
    """Remove the row of a drained segment whose partitions are gone, and the spans of ids in it."""
    gone = select(segment.c.start_pos, segment.c.end_pos).where(segment.c.segment == number).subquery("gone")
    connection.execute(
        delete(id_span).where(id_span.c.first_pos >= gone.c.start_pos, id_span.c.first_pos < gone.c.end_pos)
    )
    connection.execute(delete(segment).where(segment.c.segment == number, segment.c.state == SegmentState.DRAINED))


def bounds(connection: Connection) -> list[tuple[int, int, int]]:
    """The number, the lowest position and the position past the end of each segment that has a consume queue."""
    live = select(segment.c.segment, segment.c.lowest_log_pos, segment.c.end_pos)
    rows = connection.execute(live.where(segment.c.state != SegmentState.DRAINED))
    return [(row.segment, row.lowest_log_pos, row.end_pos) for row in rows]
