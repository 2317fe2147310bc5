"""Queries on timers: what is new in their queue, which messages in the table are due, and when the next will be.

The step row contains the time before which nothing in the table is due, so that the table, however large, is not even
opened until then.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any, Final, NamedTuple

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Integer,
    Text,
    any_,
    bindparam,
    cast,
    extract,
    func,
    literal_column,
    or_,
    select,
    true,
    tuple_,
    type_coerce,
)
from sqlalchemy.dialects.postgresql import ARRAY, aggregate_order_by
from sqlalchemy.sql import FromClause

from mqdb.common.topic import TIMER_TOPIC
from mqdb.store.dispatch.consume_queue import ONE, ZERO
from mqdb.store.dispatch.entries import LAST_OFFSET, entries
from mqdb.store.engine import driver, text_of
from mqdb.store.log.commit_log import copied_bytes, fits
from mqdb.store.schedule.timer_slots import BEHIND, slot_of
from mqdb.store.schedule.timer_steps import TimerStep, newest_step
from mqdb.store.tables import checkpoint, queue, segment, timer, timer_step, topic

#: Above all positions.
LAST_POS: Final = 2**63 - 1


class Look(NamedTuple):
    """The work to do, as found by one query. The entries are those not collected yet, up to the limit."""

    queue_key: int
    now_ms: int
    seq: int
    next_offset: int
    delivered_ms: int
    delivered_pos: int
    next_due_ms: int
    waiting: int
    """The number of messages in the table, as in the step."""
    newest_segment: int
    """The segment to which dispatch writes."""
    entries: int
    past_offset: int | None
    """The offset after the last entry; this and all following fields are None without entries."""
    first_segment: int | None
    last_segment: int | None
    first_due_ms: int | None
    next_waiting_ms: int | None
    """The time when the next entry that is not due yet will be due; None without such an entry."""
    slots: list[int] | None
    """The slots of the entries that are not due."""
    lowest_pos: int | None
    past_pos: int | None


class Due(NamedTuple):
    """The due messages in the table, up to the limits of a transaction: their number, the first and the last."""

    messages: int
    first_ms: int
    last_ms: int
    last_pos: int
    is_full: bool
    """Whether a limit was reached, so that there may be more."""


def _constant(value: str) -> ColumnElement[str]:
    return literal_column(f"'{value}'::text", Text)


def parameter(name: str) -> ColumnElement[int]:
    """A number that is passed at execution."""
    return cast(bindparam(name), BigInteger)


def queue_key() -> ColumnElement[int]:
    """The key of the queue in which timers are sent. Sub-selects force the indexes."""
    topic_id = select(topic.c.topic_id).where(topic.c.topic == _constant(TIMER_TOPIC)).scalar_subquery()
    return select(queue.c.queue_key).where(queue.c.topic_id == topic_id, queue.c.queue_id == ZERO).scalar_subquery()


def now_ms() -> ColumnElement[int]:
    """The broker's clock, rounded down because nothing may be early."""
    seconds = extract("epoch", func.mqdb.now())
    return cast(func.floor(seconds * literal_column("1000")), BigInteger)


def _state() -> FromClause:
    """One row: the newest step, the queue and the time."""
    step = newest_step(*(timer_step.c[name] for name in TimerStep._fields)).subquery("step")
    next_offset = func.greatest(step.c.next_offset, queue.c.base_offset).label("next_offset")
    columns = [step.c[name] if name != "next_offset" else next_offset for name in TimerStep._fields]
    newest = select(checkpoint.c.segment).where(checkpoint.c.service == _constant("dispatch"))
    newest_segment = newest.order_by(checkpoint.c.seq.desc()).limit(ONE).scalar_subquery()
    return (
        select(queue.c.queue_key, now_ms().label("now_ms"), *columns, newest_segment.label("newest_segment"))
        .select_from(step.join(queue, queue.c.queue_key == queue_key()))
        .offset(ZERO)
        .subquery("state")
    )


@cache
def look_text() -> str:
    """The query for the work to do. Uses queue_run_offset; reads only new entries, at most `limit`."""
    state = _state()
    # Core correlates only one level deep, but the entries are two levels below the state.
    of_state = {each.name: literal_column(f"state.{each.name}", each.type) for each in state.c}
    first_segment = cast(bindparam("first_segment"), Integer)
    cq = entries(of_state["queue_key"], of_state["next_offset"], LAST_OFFSET, first_segment, name="cq")
    entry = (
        select(cq.c.queue_offset, cq.c.segment, cq.c.tags_code)
        .order_by(cq.c.last_offset)
        .limit(parameter("limit"))
        .subquery("entry")
    )
    deliver_ms, waits = entry.c.tags_code, entry.c.tags_code > of_state["now_ms"]
    slot = slot_of(deliver_ms, of_state["now_ms"], of_state["delivered_ms"])
    found = (
        select(
            func.count().label("entries"),
            (func.max(entry.c.queue_offset) + ONE).label("past_offset"),
            func.min(entry.c.segment).label("first_segment"),
            func.max(entry.c.segment).label("last_segment"),
            func.min(deliver_ms).filter(~waits).label("first_due_ms"),
            func.min(deliver_ms).filter(waits).label("next_waiting_ms"),
            func.array_agg(slot.distinct()).filter(waits).label("slots"),
        )
        .select_from(entry)
        .lateral("found")
    )
    bounds = (
        select(func.min(segment.c.lowest_log_pos).label("lowest_pos"), func.max(segment.c.end_pos).label("past_pos"))
        .where(segment.c.segment >= found.c.first_segment, segment.c.segment <= found.c.last_segment)
        .lateral("bounds")
    )
    named = {column.name: column for source in (state, found, bounds) for column in source.c}
    columns = [named[name] for name in Look._fields]
    return text_of(select(*columns).select_from(state.join(found, true()).join(bounds, true())))


def in_slots() -> ColumnElement[bool]:
    """Whether a row is in one of the slots that are passed at execution."""
    return timer.c.slot == any_(cast(bindparam("slots"), ARRAY(Integer)))


BEHIND_SLOT: Final = literal_column(str(BEHIND), Integer)

#: Deliveries proceed in this order; a step contains the last one.
KEY: Final = tuple_(timer.c.deliver_ms, timer.c.log_pos)
DELIVERED: Final = tuple_(parameter("delivered_ms"), parameter("delivered_pos"))
IN_ORDER: Final = (timer.c.deliver_ms, timer.c.log_pos)


@cache
def due_text() -> str:
    """The query for the due range. Uses timer_due of the slots."""
    found = (
        select(*IN_ORDER, copied_bytes(timer).label("size"))
        .where(in_slots(), KEY > DELIVERED, timer.c.deliver_ms <= parameter("now_ms"))
        .order_by(*IN_ORDER)
        .limit(parameter("limit"))
        .subquery("found")
    )
    order = found.c.deliver_ms, found.c.log_pos
    rows = select(*order, fits(found.c.size, *order).label("is_fitting")).subquery("due")
    fitting = rows.c.is_fitting
    positions = func.array_agg(aggregate_order_by(rows.c.log_pos, rows.c.deliver_ms.desc(), rows.c.log_pos.desc()))
    last_pos = type_coerce(positions.filter(fitting), ARRAY(BigInteger))[ONE]
    last_ms = func.max(rows.c.deliver_ms).filter(fitting)
    is_full = or_(func.count() == parameter("limit"), ~func.bool_and(fitting))
    return text_of(select(func.count().filter(fitting), func.min(rows.c.deliver_ms), last_ms, last_pos, is_full))


@cache
def next_due_text() -> str:
    """The query for the first waiting message in some slots and in slot 0. Uses timer_due.

    The bound is for the other slots: a generic plan also searches them, and would read all messages waiting there.
    """
    is_near = KEY > DELIVERED, timer.c.deliver_ms < parameter("horizon_ms")
    first = select(timer.c.deliver_ms).where(in_slots(), *is_near).order_by(*IN_ORDER).limit(ONE)
    behind = select(timer.c.deliver_ms).where(timer.c.slot == BEHIND_SLOT).order_by(*IN_ORDER).limit(ONE)
    return text_of(select(func.least(first.scalar_subquery(), behind.scalar_subquery())))


def look(connection: Connection, limit: int, first_segment: int) -> Look:
    """Find the work to do. Segments below `first_segment` are not read."""
    row = driver(connection).execute(look_text(), {"limit": limit, "first_segment": first_segment}).fetchone()
    assert row is not None
    return Look(*row)


def find_due(connection: Connection, at: Look, slots: Sequence[int], limit: int) -> Due | None:
    """The due messages in these slots, or None."""
    row = driver(connection).execute(due_text(), values_of(at) | {"slots": array(slots), "limit": limit}).fetchone()
    return Due(*row) if row is not None and row[0] else None


def next_due_ms(connection: Connection, slots: Sequence[int], step: TimerStep, horizon_ms: int) -> int | None:
    """When the first undelivered message in the slots or in slot 0 is due, if before `horizon_ms`."""
    values = {
        "slots": array(slots),
        "delivered_ms": step.delivered_ms,
        "delivered_pos": step.delivered_pos,
        "horizon_ms": horizon_ms,
    }
    row = driver(connection).execute(next_due_text(), values).fetchone()
    assert row is not None
    due_ms: int | None = row[0]
    return due_ms


def values_of(at: Look) -> dict[str, Any]:
    """The parameters for the following statements."""
    return at._asdict() | {"first_offset": at.next_offset}


def array(numbers: Sequence[int]) -> str:
    """A list of numbers as a parameter."""
    # As text: otherwise the driver takes the smallest type for the numbers, and prepares a statement for each.
    return "{" + ",".join(map(str, numbers)) + "}"
