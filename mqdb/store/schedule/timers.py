"""Timers: messages with a time of delivery, on their way from the queue to which they were sent to their real queue.

    rmq_sys_wheel_timer ──▶ mqdb.timer ──▶ the real queue
             └─────────── due ───────────▶

The queue is dense, so none of its messages is missed; only the deliverer fills the table. A delivery is a range of
(deliver_ms, log_pos), and its end is in the step that is appended in the same transaction: the key of a step prevents
it from being taken twice. `timer_looks` finds the work to do.
RocketMQ: TimerMessageStore, TimerCheckpoint.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import cache
from typing import Any, Final, NamedTuple

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Insert,
    Integer,
    and_,
    bindparam,
    cast,
    delete,
    func,
    insert,
    literal_column,
    or_,
    select,
    true,
    tuple_,
)
from sqlalchemy.sql import FromClause

from mqdb.store.dispatch.consume_queue import ONE, ZERO
from mqdb.store.dispatch.entries import entries
from mqdb.store.engine import Timed, driver, run_timed, text_of
from mqdb.store.log.commit_log import KEPT, cl, copied_bytes, fits, record_of
from mqdb.store.schedule.real_queue import aim_of, delivered, has_target, is_readable, target_of
from mqdb.store.schedule.timer_looks import (
    BEHIND_SLOT,
    DELIVERED,
    IN_ORDER,
    KEY,
    Due,
    Look,
    array,
    in_slots,
    parameter,
    values_of,
)
from mqdb.store.schedule.timer_slots import slot_of
from mqdb.store.tables import commit_log, timer, timer_recall

_COPIED: Final = (*KEPT, "properties", "reconsume_times")


class Undelivered(NamedTuple):
    """A message that should have been collected or delivered but was not."""

    log_pos: int
    has_record: bool
    is_recalled: bool
    real_topic: str | None
    is_readable: bool
    """Whether it names a queue to which messages may be sent."""


def _entries(*conditions: ColumnElement[bool]) -> FromClause:
    """The entries to collect, in the order of the queue, which forces the index queue_run_offset."""
    first, past = parameter("first_offset"), parameter("past_offset")
    first_segment, last_segment = (cast(bindparam(name), Integer) for name in ("first_segment", "last_segment"))
    cq = entries(cast(bindparam("queue_key"), Integer), first, past, first_segment, last_segment, name="cq")
    in_range = (
        select(cq.c.queue_offset, cq.c.log_pos, cq.c.tags_code.label("deliver_ms"))
        .order_by(cq.c.last_offset)
        .limit(past - first)
        .subquery("entries")
    )
    return select(in_range).where(*conditions).subquery("entry")


def _is_readable(record: FromClause) -> ColumnElement[bool]:
    return func.coalesce(is_readable(record), literal_column("false"))


def _is_recalled(log_pos: ColumnElement[int]) -> ColumnElement[bool]:
    """Whether a message was recalled.

    Uses timer_recall_pkey. A sub-select, because a join could read all recalls ever made.
    """
    found = select(ONE).where(timer_recall.c.log_pos == log_pos).limit(ONE)
    return found.scalar_subquery().is_not(None)


@cache
def collect_text() -> str:
    """The statement that puts entries that are not due into their slots."""
    deliver_ms = literal_column("entries.deliver_ms", BigInteger)
    entry = _entries(deliver_ms > parameter("now_ms"))
    record = record_of(entry, *(cl.c[name] for name in (*_COPIED, "store_time")))
    values: dict[str, ColumnElement[Any]] = {name: record.c[name] for name in (*_COPIED, "store_time")}
    values |= {
        "deliver_ms": entry.c.deliver_ms,
        "log_pos": entry.c.log_pos,
        "slot": slot_of(entry.c.deliver_ms, parameter("now_ms"), parameter("delivered_ms")),
    }
    rows = select(*values.values()).select_from(entry.join(record, true())).where(~_is_recalled(entry.c.log_pos))
    return text_of(insert(timer).from_select(list(values), rows.order_by(entry.c.queue_offset)))


def _copy(record: FromClause, *order: ColumnElement[Any], sources: FromClause | None = None) -> Insert:
    """The insert of records into their target queues, except recalled records."""
    target = target_of(record)
    values: dict[str, ColumnElement[Any]] = {name: record.c[name] for name in _COPIED}
    values |= {"queue_key": target.c.queue_key, **delivered(record, record.c.deliver_ms)}
    rows = (
        select(*values.values())
        .select_from((record if sources is None else sources).join(target, true()))
        .where(has_target(record, target, record.c.log_pos), ~_is_recalled(record.c.log_pos))
        .order_by(*order)
    )
    return insert(commit_log).from_select(list(values), rows)


@cache
def deliver_entries_text() -> str:
    """The statement that delivers due entries, which need not go through the table."""
    entry = _entries(literal_column("entries.deliver_ms", BigInteger) <= parameter("now_ms"))
    deliver_ms = cl.c.tags_code.label("deliver_ms")
    record = record_of(entry, cl.c.log_pos, deliver_ms, *(cl.c[name] for name in _COPIED), *aim_of(cl))
    copied = _copy(record, entry.c.deliver_ms, entry.c.queue_offset, sources=entry.join(record, true()))
    return text_of(copied)


def _range() -> list[ColumnElement[bool]]:
    return [in_slots(), KEY > DELIVERED, tuple_(parameter("last_ms"), parameter("last_pos")) >= KEY]


@cache
def deliver_due_text() -> str:
    columns = (*IN_ORDER, *(timer.c[name] for name in _COPIED), *aim_of(timer))
    record = select(*columns).where(*_range()).order_by(*IN_ORDER).offset(ZERO).subquery("r")
    return text_of(_copy(record, record.c.deliver_ms, record.c.log_pos))


@cache
def deliver_behind_text() -> str:
    """The statement that removes due rows of slot 0, whether they have a queue or not.

    The statement returns one row per topic.
    """
    mine = timer.alias("mine")
    found = (
        select(mine.c.deliver_ms, mine.c.log_pos, copied_bytes(mine).label("size"))
        .where(mine.c.slot == BEHIND_SLOT, mine.c.deliver_ms <= parameter("now_ms"))
        .order_by(mine.c.deliver_ms, mine.c.log_pos)
        .limit(parameter("limit"))
        .subquery("found")
    )
    order = found.c.deliver_ms, found.c.log_pos
    rows = select(*order, fits(found.c.size, *order).label("is_fitting")).subquery("rows")
    taken = select(rows.c.deliver_ms, rows.c.log_pos).where(rows.c.is_fitting).subquery("taken")
    gone = (
        delete(timer)
        .where(
            timer.c.slot == BEHIND_SLOT, timer.c.deliver_ms == taken.c.deliver_ms, timer.c.log_pos == taken.c.log_pos
        )
        .returning(*IN_ORDER, *(timer.c[name] for name in _COPIED), *aim_of(timer))
        .cte("gone")
    )
    copied = _copy(gone, gone.c.deliver_ms, gone.c.log_pos).cte("copied")
    target = target_of(gone)
    has_queue, can_be_read = has_target(gone, target, gone.c.log_pos), _is_readable(gone)
    return text_of(
        select(
            gone.c.real_topic,
            has_queue,
            can_be_read,
            func.count(),
            func.min(gone.c.deliver_ms),
            func.min(gone.c.log_pos),
        )
        .select_from(gone.outerjoin(target, true()))
        .group_by(gone.c.real_topic, has_queue, can_be_read)
        .add_cte(copied)
    )


@cache
def fitting_text() -> str:
    entry = _entries()
    record = record_of(entry, cl.c.body, cl.c.properties)
    is_fitting = fits(copied_bytes(record), entry.c.queue_offset).label("is_fitting")
    measured = select(is_fitting).select_from(entry.outerjoin(record, true())).subquery("measured")
    return text_of(select(func.count()).select_from(measured).where(measured.c.is_fitting))


@cache
def undelivered_entries_text() -> str:
    entry = _entries()
    record = record_of(entry, cl.c.log_pos, *aim_of(cl))
    target = target_of(record)
    sources = entry.outerjoin(record, true()).outerjoin(target, true())
    is_recalled = _is_recalled(entry.c.log_pos)
    is_stray = and_(entry.c.deliver_ms <= parameter("now_ms"), ~has_target(record, target, entry.c.log_pos))
    return text_of(
        select(entry.c.log_pos, record.c.log_pos.is_not(None), is_recalled, record.c.real_topic, _is_readable(record))
        .select_from(sources)
        .where(or_(is_recalled, is_stray, record.c.log_pos.is_(None)))
    )


@cache
def undelivered_due_text() -> str:
    columns = (*IN_ORDER, *aim_of(timer))
    record = select(*columns).where(*_range()).order_by(*IN_ORDER).offset(ZERO).subquery("r")
    target = target_of(record)
    is_recalled = _is_recalled(record.c.log_pos)
    return text_of(
        select(record.c.log_pos, true(), is_recalled, record.c.real_topic, _is_readable(record))
        .select_from(record.outerjoin(target, true()))
        .where(or_(is_recalled, ~has_target(record, target, record.c.log_pos)))
    )


def count_fitting(connection: Connection, at: Look) -> int:
    """The number of entries that one transaction may copy."""
    row = driver(connection).execute(fitting_text(), values_of(at)).fetchone()
    assert row is not None
    return int(row[0])


def collect(connection: Connection, at: Look) -> Timed:
    """Put the entries that are not due into the slots in `Look.slots`; returns rows for those not recalled."""
    return run_timed(connection, collect_text(), values_of(at))


def deliver_entries(connection: Connection, at: Look) -> Timed:
    """Copy the due entries to their queues."""
    return run_timed(connection, deliver_entries_text(), values_of(at))


def deliver_due(connection: Connection, at: Look, slots: Sequence[int], due: Due) -> Timed:
    """Copy the due messages of the slots to their queues."""
    return run_timed(connection, deliver_due_text(), _range_values(at, slots, due))


class Released(NamedTuple):
    """Messages of slot 0 for one topic, which were copied or had no queue."""

    real_topic: str | None
    has_queue: bool
    is_readable: bool
    messages: int
    first_ms: int
    first_pos: int


def deliver_behind(connection: Connection, at: Look, limit: int) -> tuple[list[Released], timedelta]:
    """Copy the due messages of slot 0 to their queues, in the order of due times, and remove them.

    Returns these messages, and how long the server took.
    """
    released = run_timed(connection, deliver_behind_text(), values_of(at) | {"limit": limit})
    return [Released(*row) for row in released.cursor], released.took


def undelivered_entries(connection: Connection, at: Look) -> list[Undelivered]:
    """The entries that neither `collect` nor `deliver_entries` has taken, in no particular order."""
    return [Undelivered(*row) for row in driver(connection).execute(undelivered_entries_text(), values_of(at))]


def undelivered_due(connection: Connection, at: Look, slots: Sequence[int], due: Due) -> list[Undelivered]:
    """The messages that `deliver_due` has not copied."""
    return [
        Undelivered(*row) for row in driver(connection).execute(undelivered_due_text(), _range_values(at, slots, due))
    ]


def _range_values(at: Look, slots: Sequence[int], due: Due) -> Mapping[str, Any]:
    return values_of(at) | {"slots": array(slots), "last_ms": due.last_ms, "last_pos": due.last_pos}
