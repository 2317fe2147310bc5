"""The schedule topic: the messages waiting in its queues, one per delay level, and the progress of delivery.

The consume queue holds a message's time of delivery in tags_code, so due messages are found without reading the log. A
queue is delivered in order: messages behind a waiting message wait, too.
RocketMQ: ScheduleMessageService.
"""

from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Integer,
    Interval,
    Row,
    TableValuedAlias,
    Text,
    bindparam,
    case,
    cast,
    exists,
    extract,
    func,
    literal_column,
    or_,
    select,
    true,
)
from sqlalchemy.sql import FromClause

from mqdb.common.topic import SCHEDULE_TOPIC
from mqdb.errors import MessageMissing
from mqdb.store.dispatch.consume_queue import ONE, ZERO
from mqdb.store.dispatch.entries import LAST_OFFSET, entries, holds
from mqdb.store.dispatch.queues import max_offset
from mqdb.store.engine import driver, text_of, translates
from mqdb.store.schedule.delay_levels import delivery_time
from mqdb.store.tables import checkpoint, commit_log, delay_level, delay_offset, queue, queue_run, segment, topic

run = queue_run.alias("run")

#: A message that would wait longer than its level's delay was stored before the clock was set back or the level
#: shortened, and is due now. The clock may step back by this much without that effect, as with NTP, because nothing may
#: be delivered early.
_CLOCK_STEP = literal_column("interval '1 second'", Interval)


class Head(NamedTuple):
    """The state of a level at one moment; offsets are those of its queue in the schedule topic."""

    level: int
    queue_key: int
    seq: int
    """The number of the level's newest step."""
    next_offset: int
    """The offset of the first undelivered message, even if it does not exist yet."""
    queue_offset: int | None
    """The offset of the first entry at `next_offset` or later: it is later if entries are missing. None without
    entries."""
    segment: int | None
    """The segment of this entry."""
    due_to: int | None
    """The offset after the last due message; this and the next three fields are None if no message is due."""
    last_segment: int | None
    """The segment of the last due message."""
    lowest_pos: int | None
    past_pos: int | None
    waits_ms: int | None
    """The time until the first message that is not due yet will be due; None if no such message was found."""


def _constant(value: str) -> ColumnElement[str]:
    return literal_column(f"'{value}'::text", Text)


def _levels() -> FromClause:
    """One row per queue of the topic, even for levels that are no longer in the table."""
    step = (
        select(delay_offset.c.seq, delay_offset.c.next_offset)
        .where(delay_offset.c.level == queue.c.queue_id + ONE)
        .order_by(delay_offset.c.seq.desc())
        .limit(ONE)
        .lateral("step")
    )
    clock = select(func.mqdb.now().label("now")).offset(ZERO).subquery("clock")
    now_ms = cast(func.floor(extract("epoch", clock.c.now) * literal_column("1000")), BigInteger)
    # A sub-select, to force the index; with a join, all queues might be read while there are few.
    schedule_topic = select(topic.c.topic_id).where(topic.c.topic == _constant(SCHEDULE_TOPIC)).scalar_subquery()
    return (
        select(
            (queue.c.queue_id + ONE).label("level"),
            queue.c.queue_key,
            func.coalesce(step.c.seq, ZERO).label("seq"),
            func.greatest(step.c.next_offset, queue.c.base_offset).label("next_offset"),
            now_ms.label("now_ms"),
            delivery_time(clock.c.now, delay_level.c.delay + _CLOCK_STEP).label("latest_ms"),
        )
        .select_from(
            queue.join(clock, true())
            .outerjoin(step, true())
            .outerjoin(delay_level, delay_level.c.level == queue.c.queue_id + ONE)
        )
        .where(queue.c.topic_id == schedule_topic)
        .offset(ZERO)
        .subquery("l")
    )


def _entries(level: FromClause, past: ColumnElement[int] = LAST_OFFSET) -> TableValuedAlias:
    """The waiting entries of a level, in order."""
    first_segment = cast(bindparam("first_segment"), Integer)
    return entries(level.c.queue_key, level.c.next_offset, past, first_segment, name="cq")


@cache
def look_text() -> str:
    """The query for the head of each level and its due range, at most `limit` messages. Uses queue_run_offset.

    Reads only the due messages and the first message behind them.
    """
    level = _levels()
    cq = _entries(level)
    head = select(cq.c.queue_offset, cq.c.tags_code, cq.c.segment).order_by(cq.c.last_offset).limit(ONE).lateral("head")

    def is_due(tags_code: ColumnElement[int]) -> ColumnElement[bool]:
        # The delay of a removed level is unknown.
        return or_(tags_code <= level.c.now_ms, func.coalesce(tags_code > level.c.latest_ms, literal_column("false")))

    limit = level.c.next_offset + cast(bindparam("limit"), BigInteger)
    cq = _entries(level, limit)
    waiting = (
        select(cq.c.queue_offset, cq.c.tags_code)
        .where(~is_due(cq.c.tags_code), is_due(head.c.tags_code))
        .order_by(cq.c.last_offset)
        .limit(ONE)
        .lateral("waiting")
    )
    past = func.coalesce(waiting.c.queue_offset, limit)
    its_last = func.least(run.c.last_offset, past - ONE)
    last = (
        select(its_last.label("queue_offset"), run.c.segment)
        .where(run.c.queue_key == level.c.queue_key, run.c.segment >= cast(bindparam("first_segment"), Integer))
        .where(*holds(run, level.c.next_offset, past), is_due(head.c.tags_code))
        .order_by(run.c.last_offset.desc())
        .limit(ONE)
        .lateral("last")
    )
    bounds = (
        select(func.min(segment.c.lowest_log_pos).label("lowest_pos"), func.max(segment.c.end_pos).label("past_pos"))
        .where(segment.c.segment >= head.c.segment, segment.c.segment <= last.c.segment)
        .lateral("bounds")
    )
    sources = level.outerjoin(head, true()).outerjoin(waiting, true()).outerjoin(last, true()).outerjoin(bounds, true())
    first_waiting = func.coalesce(waiting.c.tags_code, case((~is_due(head.c.tags_code), head.c.tags_code)))
    columns = (
        *(level.c[name] for name in ("level", "queue_key", "seq", "next_offset")),
        head.c.queue_offset,
        head.c.segment,
        last.c.queue_offset + ONE,
        last.c.segment,
        bounds.c.lowest_pos,
        bounds.c.past_pos,
        first_waiting - level.c.now_ms,
        _newest_segment(),
    )
    return text_of(select(*columns).select_from(sources).order_by(head.c.tags_code, level.c.level))


def _newest_segment() -> ColumnElement[int]:
    """The segment to which dispatch writes."""
    newest = select(checkpoint.c.segment).where(checkpoint.c.service == _constant("dispatch"))
    return newest.order_by(checkpoint.c.seq.desc()).limit(ONE).scalar_subquery()


def look(connection: Connection, limit: int, first_segment: int) -> tuple[list[Head], int]:
    """All levels, the longest overdue first, and the segment to which dispatch writes.

    At most `limit` messages of a level count as due. Segments below `first_segment` are not searched.
    """
    rows = driver(connection).execute(look_text(), {"limit": limit, "first_segment": first_segment}).fetchall()
    return [Head(*row[:-1]) for row in rows], rows[0][-1]


class LevelStanding(NamedTuple):
    """The waiting messages of a level; offsets are those of its queue in the schedule topic."""

    level: int
    delay: timedelta | None
    """The delay; None if the level is no longer in the table."""
    waiting: int
    due_at: datetime | None
    """When the first waiting message is due; this and the next field are None if no message waits, or its entry is
    lost."""
    late: timedelta | None
    """The time since the first waiting message became due; negative before that."""
    lost: MessageMissing | None
    """The first waiting message, if the log has lost it: messages behind it are not delivered."""
    seq: int
    """The number of the level's newest step."""


@translates
def list_delays(connection: Connection) -> list[LevelStanding]:
    """All levels that have a queue, level 1 first. Uses queue_run_offset and commit_log_pkey."""
    level = _levels()
    cq = entries(level.c.queue_key, level.c.next_offset, name="cq")
    head = select(cq.c.queue_offset, cq.c.log_pos, cq.c.tags_code).order_by(cq.c.last_offset).limit(ONE).lateral("head")
    columns = (
        level.c.level,
        level.c.queue_key,
        level.c.seq,
        level.c.next_offset,
        level.c.now_ms,
        delay_level.c.delay,
        max_offset().label("max_offset"),
        head.c.queue_offset,
        head.c.log_pos,
        head.c.tags_code,
        exists().where(commit_log.c.log_pos == head.c.log_pos).label("has_record"),
    )
    sources = (
        level.join(queue, queue.c.queue_key == level.c.queue_key)
        .outerjoin(delay_level, delay_level.c.level == level.c.level)
        .outerjoin(head, true())
    )
    rows = connection.execute(select(*columns).select_from(sources).order_by(level.c.level))
    return [_standing(row) for row in rows]


def _standing(row: Row[Any]) -> LevelStanding:
    # Offsets have no gaps.
    has_entry = row.queue_offset == row.next_offset
    is_lost = row.queue_offset is not None and not (has_entry and row.has_record)
    missing = MessageMissing(row.queue_key, row.next_offset, row.log_pos if has_entry else 0)
    return LevelStanding(
        row.level,
        row.delay,
        max(row.max_offset - row.next_offset, 0),
        datetime.fromtimestamp(row.tags_code / 1000, UTC) if has_entry else None,
        timedelta(milliseconds=row.now_ms - row.tags_code) if has_entry else None,
        missing if is_lost else None,
        row.seq,
    )
