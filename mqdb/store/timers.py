"""Timers: messages with a time of delivery, from the queue in which they are sent to the queue they are for.

    rmq_sys_wheel_timer ──▶ mqdb.timer ──▶ the real queue
             └─────────── due ───────────▶

The queue is dense, so nothing of it is passed over; the table is filled by the deliverer alone. What it delivers is a
range of (deliver_ms, log_pos), and its end stands in the step which is appended in the same transaction: the key of a
step lets nobody take it twice. The step also knows before which time nothing in the table is due, so that the table,
however much it holds, is not even opened until then. RocketMQ: TimerMessageStore, TimerCheckpoint.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Insert,
    Integer,
    Text,
    and_,
    any_,
    bindparam,
    cast,
    delete,
    extract,
    func,
    insert,
    literal_column,
    or_,
    select,
    true,
    tuple_,
)
from sqlalchemy.dialects.postgresql import ARRAY, aggregate_order_by
from sqlalchemy.sql import FromClause

from mqdb.store.commit_log import KEPT, cl, record_of
from mqdb.store.consume_queue import ONE, ZERO
from mqdb.store.engine import driver, text_of
from mqdb.store.real_queue import aim_of, target_of
from mqdb.store.tables import (
    checkpoint,
    commit_log,
    consume_queue,
    queue,
    segment,
    timer,
    timer_recall,
    timer_step,
    topic,
)
from mqdb.store.timer_slots import BEHIND, slot_of
from mqdb.store.timer_steps import Step, newest_step
from mqdb.topic import TIMER_TOPIC

cq = consume_queue.alias("cq")

#: Above all positions.
LAST_POS: Final = 2**63 - 1

_COPIED: Final = (*KEPT, "properties", "reconsume_times")


class Look(NamedTuple):
    """What there is to do, as of one look. The entries are those that are not collected, up to the limit."""

    queue_key: int
    now_ms: int
    seq: int
    next_offset: int
    delivered_ms: int
    delivered_pos: int
    next_due_ms: int
    newest_segment: int
    """That dispatch writes to."""
    entries: int
    past_offset: int | None
    """Behind the last of them; this and all that follow are None without entries."""
    first_segment: int | None
    last_segment: int | None
    first_due_ms: int | None
    next_waiting_ms: int | None
    """When the first one is due that is not due now; None where there is none."""
    slots: list[int] | None
    """To which those belong that are not due."""
    lowest_pos: int | None
    past_pos: int | None


class Due(NamedTuple):
    """What of the table is due, up to the limit: how much, the first and the last of it."""

    messages: int
    first_ms: int
    last_ms: int
    last_pos: int


class Undelivered(NamedTuple):
    """A message that was to be collected or delivered, and was not."""

    log_pos: int
    has_record: bool
    is_recalled: bool
    real_topic: str | None


def _constant(value: str) -> ColumnElement[str]:
    return literal_column(f"'{value}'::text", Text)


def _parameter(name: str) -> ColumnElement[int]:
    return cast(bindparam(name), BigInteger)


def queue_key() -> ColumnElement[int]:
    """The key of the queue in which timers are sent. Sub-selects, for the indexes."""
    topic_id = select(topic.c.topic_id).where(topic.c.topic == _constant(TIMER_TOPIC)).scalar_subquery()
    return select(queue.c.queue_key).where(queue.c.topic_id == topic_id, queue.c.queue_id == ZERO).scalar_subquery()


def now_ms() -> ColumnElement[int]:
    """The broker's clock, rounded down: nothing comes early."""
    seconds = extract("epoch", func.mqdb.now())
    return cast(func.floor(seconds * literal_column("1000")), BigInteger)


def _state() -> FromClause:
    """One row: the newest step, the queue and the time."""
    step = newest_step(*(timer_step.c[name] for name in Step._fields)).subquery("step")
    next_offset = func.greatest(step.c.next_offset, queue.c.base_offset).label("next_offset")
    columns = [step.c[name] if name != "next_offset" else next_offset for name in Step._fields]
    newest = select(checkpoint.c.segment).where(checkpoint.c.service == _constant("dispatch"))
    newest_segment = newest.order_by(checkpoint.c.seq.desc()).limit(ONE).scalar_subquery()
    return (
        select(queue.c.queue_key, now_ms().label("now_ms"), *columns, newest_segment.label("newest_segment"))
        .select_from(step.join(queue, queue.c.queue_key == queue_key()))
        .offset(ZERO)
        .subquery("state")
    )


def _look() -> str:
    """Uses consume_queue_offset; only what is new is read, at most `limit` entries."""
    state = _state()
    # Core correlates one level deep; the entries stand two below the state.
    of_state = {each.name: literal_column(f"state.{each.name}", BigInteger) for each in state.c}
    entry = (
        select(cq.c.queue_offset, cq.c.segment, cq.c.tags_code)
        .where(
            cq.c.queue_key == of_state["queue_key"],
            cq.c.queue_offset >= of_state["next_offset"],
            cq.c.segment >= cast(bindparam("first_segment"), Integer),
        )
        .order_by(cq.c.queue_offset)
        .limit(_parameter("limit"))
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


def _slots() -> ColumnElement[bool]:
    return timer.c.slot == any_(cast(bindparam("slots"), ARRAY(Integer)))


_BEHIND: Final = literal_column(str(BEHIND), Integer)

_key = tuple_(timer.c.deliver_ms, timer.c.log_pos)
_delivered = tuple_(_parameter("delivered_ms"), _parameter("delivered_pos"))
_in_order: Final = (timer.c.deliver_ms, timer.c.log_pos)


def _due() -> str:
    """The range that is due. Uses timer_due of the slots."""
    rows = (
        select(*_in_order)
        .where(_slots(), _key > _delivered, timer.c.deliver_ms <= _parameter("now_ms"))
        .order_by(*_in_order)
        .limit(_parameter("limit"))
        .subquery("due")
    )
    last_pos = func.array_agg(aggregate_order_by(rows.c.log_pos, rows.c.deliver_ms.desc(), rows.c.log_pos.desc()))
    return text_of(select(func.count(), func.min(rows.c.deliver_ms), func.max(rows.c.deliver_ms), last_pos[ONE]))


def _next_due() -> str:
    """The first that waits in some slots, and in slot 0. Uses timer_due.

    The bound is for the other slots: a generic plan goes into them as well, and would read all that waits there.
    """
    is_near = _key > _delivered, timer.c.deliver_ms < _parameter("horizon_ms")
    first = select(timer.c.deliver_ms).where(_slots(), *is_near).order_by(*_in_order).limit(ONE)
    behind = select(timer.c.deliver_ms).where(timer.c.slot == _BEHIND).order_by(*_in_order).limit(ONE)
    return text_of(select(func.least(first.scalar_subquery(), behind.scalar_subquery())))


def _entries(*conditions: ColumnElement[bool]) -> FromClause:
    """The entries to collect, in the order of the queue. Uses consume_queue_offset, bound to it by the order."""
    first, past = _parameter("first_offset"), _parameter("past_offset")
    entries = (
        select(cq.c.queue_offset, cq.c.log_pos, cq.c.tags_code.label("deliver_ms"))
        .where(
            cq.c.queue_key == cast(bindparam("queue_key"), Integer),
            cq.c.queue_offset >= first,
            cq.c.queue_offset < past,
            cq.c.segment >= cast(bindparam("first_segment"), Integer),
            cq.c.segment <= cast(bindparam("last_segment"), Integer),
        )
        .order_by(cq.c.queue_offset)
        .limit(past - first)
        .subquery("entries")
    )
    return select(entries).where(*conditions).subquery("entry")


def _is_recalled(log_pos: ColumnElement[int]) -> ColumnElement[bool]:
    """Uses timer_recall_pkey. A sub-select, which cannot become a join that reads all that was ever recalled."""
    found = select(ONE).where(timer_recall.c.log_pos == log_pos).limit(ONE)
    return found.scalar_subquery().is_not(None)


def _collect() -> str:
    """Entries that are not due go to their slots."""
    deliver_ms = literal_column("entries.deliver_ms", BigInteger)
    entry = _entries(deliver_ms > _parameter("now_ms"))
    record = record_of(entry, *(cl.c[name] for name in (*_COPIED, "store_time")))
    values: dict[str, ColumnElement[Any]] = {name: record.c[name] for name in (*_COPIED, "store_time")}
    values |= {
        "deliver_ms": entry.c.deliver_ms,
        "log_pos": entry.c.log_pos,
        "slot": slot_of(entry.c.deliver_ms, _parameter("now_ms"), _parameter("delivered_ms")),
    }
    rows = select(*values.values()).select_from(entry.join(record, true())).where(~_is_recalled(entry.c.log_pos))
    return text_of(insert(timer).from_select(list(values), rows.order_by(entry.c.queue_offset)))


def _copy(record: FromClause, *order: ColumnElement[Any], sources: FromClause | None = None) -> Insert:
    """Records into the queues that they are for, but those that were recalled."""
    target = target_of(record)
    values: dict[str, ColumnElement[Any]] = {name: record.c[name] for name in _COPIED}
    values |= {"queue_key": target.c.queue_key, "tags_code": func.mqdb.tag_code(record.c.tags)}
    rows = (
        select(*values.values())
        .select_from((record if sources is None else sources).join(target, true()))
        .where(~_is_recalled(record.c.log_pos))
        .order_by(*order)
    )
    return insert(commit_log).from_select(list(values), rows)


def _deliver_entries() -> str:
    """Entries that are due need not go to the table first."""
    entry = _entries(literal_column("entries.deliver_ms", BigInteger) <= _parameter("now_ms"))
    record = record_of(entry, cl.c.log_pos, *(cl.c[name] for name in _COPIED), *aim_of(cl))
    copied = _copy(record, entry.c.deliver_ms, entry.c.queue_offset, sources=entry.join(record, true()))
    return text_of(copied)


def _range() -> list[ColumnElement[bool]]:
    return [_slots(), _key > _delivered, _key <= tuple_(_parameter("last_ms"), _parameter("last_pos"))]


def _deliver_due() -> str:
    columns = (*_in_order, *(timer.c[name] for name in _COPIED), *aim_of(timer))
    record = select(*columns).where(*_range()).order_by(*_in_order).offset(ZERO).subquery("r")
    return text_of(_copy(record, record.c.deliver_ms, record.c.log_pos))


def _deliver_behind() -> str:
    """Rows of slot 0 go one by one, whether there is a queue for them or not. A row for each topic says which."""
    mine = timer.alias("mine")
    taken = (
        select(mine.c.deliver_ms, mine.c.log_pos)
        .where(mine.c.slot == _BEHIND, mine.c.deliver_ms <= _parameter("now_ms"))
        .order_by(mine.c.deliver_ms, mine.c.log_pos)
        .limit(_parameter("limit"))
        .subquery("taken")
    )
    gone = (
        delete(timer)
        .where(timer.c.slot == _BEHIND, timer.c.deliver_ms == taken.c.deliver_ms, timer.c.log_pos == taken.c.log_pos)
        .returning(*_in_order, *(timer.c[name] for name in _COPIED), *aim_of(timer))
        .cte("gone")
    )
    copied = _copy(gone, gone.c.deliver_ms, gone.c.log_pos).cte("copied")
    target = target_of(gone)
    has_queue = target.c.queue_key.is_not(None)
    return text_of(
        select(gone.c.real_topic, has_queue, func.count(), func.min(gone.c.deliver_ms))
        .select_from(gone.outerjoin(target, true()))
        .group_by(gone.c.real_topic, has_queue)
        .add_cte(copied)
    )


def _undelivered_entries() -> str:
    entry = _entries()
    record = record_of(entry, cl.c.log_pos, *aim_of(cl))
    target = target_of(record)
    sources = entry.outerjoin(record, true()).outerjoin(target, true())
    is_recalled = _is_recalled(entry.c.log_pos)
    is_stray = and_(entry.c.deliver_ms <= _parameter("now_ms"), target.c.queue_key.is_(None))
    return text_of(
        select(entry.c.log_pos, record.c.log_pos.is_not(None), is_recalled, record.c.real_topic)
        .select_from(sources)
        .where(or_(is_recalled, is_stray, record.c.log_pos.is_(None)))
    )


def _undelivered_due() -> str:
    columns = (*_in_order, *aim_of(timer))
    record = select(*columns).where(*_range()).order_by(*_in_order).offset(ZERO).subquery("r")
    target = target_of(record)
    is_recalled = _is_recalled(record.c.log_pos)
    return text_of(
        select(record.c.log_pos, true(), is_recalled, record.c.real_topic)
        .select_from(record.outerjoin(target, true()))
        .where(or_(is_recalled, target.c.queue_key.is_(None)))
    )


LOOK: Final = _look()
DUE: Final = _due()
NEXT_DUE: Final = _next_due()
COLLECT: Final = _collect()
DELIVER_ENTRIES: Final = _deliver_entries()
DELIVER_DUE: Final = _deliver_due()
DELIVER_BEHIND: Final = _deliver_behind()
UNDELIVERED_ENTRIES: Final = _undelivered_entries()
UNDELIVERED_DUE: Final = _undelivered_due()


def look(connection: Connection, limit: int, first_segment: int) -> Look:
    """Where timers stand. Nothing is looked for in segments below `first_segment`."""
    row = driver(connection).execute(LOOK, {"limit": limit, "first_segment": first_segment}).fetchone()
    assert row is not None
    return Look(*row)


def find_due(connection: Connection, at: Look, slots: Sequence[int], limit: int) -> Due | None:
    """What the slots hold that is due; None for nothing."""
    row = driver(connection).execute(DUE, _values(at) | {"slots": _array(slots), "limit": limit}).fetchone()
    return Due(*row) if row is not None and row[0] else None


def collect(connection: Connection, at: Look) -> int:
    """Put the entries that are not due into the slots that `Look.slots` names; returns how many were not recalled."""
    return driver(connection).execute(COLLECT, _values(at)).rowcount


def deliver_entries(connection: Connection, at: Look) -> int:
    """Copy the entries that are due to their queues; returns how many."""
    return driver(connection).execute(DELIVER_ENTRIES, _values(at)).rowcount


def deliver_due(connection: Connection, at: Look, slots: Sequence[int], due: Due) -> int:
    """Copy what is due of the slots to its queues; returns how many."""
    return driver(connection).execute(DELIVER_DUE, _range_values(at, slots, due)).rowcount


class Released(NamedTuple):
    """Messages of slot 0 for one topic: copied, or for no queue."""

    real_topic: str | None
    has_queue: bool
    messages: int
    first_ms: int


def deliver_behind(connection: Connection, at: Look, limit: int) -> list[Released]:
    """Copy what is due of slot 0 to its queues, the first to be due first, and forget it."""
    return [Released(*row) for row in driver(connection).execute(DELIVER_BEHIND, _values(at) | {"limit": limit})]


def undelivered_entries(connection: Connection, at: Look) -> list[Undelivered]:
    """The entries that neither `collect` nor `deliver_entries` has taken, in no order."""
    return [Undelivered(*row) for row in driver(connection).execute(UNDELIVERED_ENTRIES, _values(at))]


def undelivered_due(connection: Connection, at: Look, slots: Sequence[int], due: Due) -> list[Undelivered]:
    """What `deliver_due` has not copied."""
    return [Undelivered(*row) for row in driver(connection).execute(UNDELIVERED_DUE, _range_values(at, slots, due))]


def next_due_ms(connection: Connection, slots: Sequence[int], step: Step, horizon_ms: int) -> int | None:
    """When the first message is due before `horizon_ms`, in the slots, or in slot 0, behind what is delivered."""
    values = {
        "slots": _array(slots),
        "delivered_ms": step.delivered_ms,
        "delivered_pos": step.delivered_pos,
        "horizon_ms": horizon_ms,
    }
    row = driver(connection).execute(NEXT_DUE, values).fetchone()
    assert row is not None
    due_ms: int | None = row[0]
    return due_ms


def _values(at: Look) -> dict[str, Any]:
    return at._asdict() | {"first_offset": at.next_offset}


def _range_values(at: Look, slots: Sequence[int], due: Due) -> Mapping[str, Any]:
    return _values(at) | {"slots": _array(slots), "last_ms": due.last_ms, "last_pos": due.last_pos}


def _array(numbers: Sequence[int]) -> str:
    # As text: the driver would take the smallest type for the numbers, and prepare the statement for each anew.
    return "{" + ",".join(map(str, numbers)) + "}"
