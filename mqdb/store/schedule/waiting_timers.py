"""Waiting timers as shown to operators: those due first, or last.

The view mqdb.scheduled shows them all, which is slow for millions of them.
"""

from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    column,
    exists,
    func,
    literal_column,
    select,
    table,
    true,
    tuple_,
    union_all,
)

from mqdb.store import acl
from mqdb.store.dispatch.entries import entries
from mqdb.store.engine import translates
from mqdb.store.schedule.real_queue import aim_of
from mqdb.store.schedule.timer_looks import queue_key
from mqdb.store.schedule.timer_slots import BEHIND
from mqdb.store.tables import commit_log, timer, timer_recall, timer_step
from mqdb.store.topics.deleted_topics import went_along

scheduled = table(
    "scheduled",
    *map(column, ("topic", "queue_id", "due_at", "delay_level", "msg_id", "tags", "keys", "store_time", "log_pos")),
    schema="mqdb",
)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class WaitingTimer(NamedTuple):
    """A message that waits for its time of delivery."""

    due_at: datetime
    topic: str
    queue_id: int
    msg_id: UUID
    tags: str | None
    keys: str | None
    store_time: datetime
    """The time when it was sent."""


@translates
def list_timers(
    connection: Connection, topic: str | None = None, limit: int = 100, *, last: bool = False
) -> list[WaitingTimer]:
    """Up to `limit` messages for a topic or for all: those due first, soonest first; or those due last, latest first.

    A role that does not own the broker gets only messages for topics that it may operate, administer or read.
    Uses timer_due, and reads all messages that are not collected yet.
    """
    if acl.is_guest(connection):
        return _list_scheduled(connection, topic, limit, last)
    step = select(timer_step).order_by(timer_step.c.seq.desc()).limit(1).subquery("step")
    delivered = tuple_(*(select(step.c[name]).scalar_subquery() for name in ("delivered_ms", "delivered_pos")))
    key = tuple_(timer.c.deliver_ms, timer.c.log_pos)
    collected = _branch(timer, timer.c.deliver_ms, topic, last).where(timer.c.slot != BEHIND, key > delivered)
    behind = _branch(timer, timer.c.deliver_ms, topic, last).where(timer.c.slot == BEHIND)
    reached = select(queue_key().label("queue_key"), step.c.next_offset).subquery("reached")
    entry = entries(reached.c.queue_key, reached.c.next_offset)
    records = reached.join(entry, true()).join(commit_log, commit_log.c.log_pos == entry.c.log_pos)
    new = _branch(commit_log, entry.c.tags_code, topic, last).select_from(records)
    parts = [select(part.limit(limit).subquery()) for part in (collected, behind, new)]
    found = union_all(*parts).subquery("found")
    rows = connection.execute(select(found).order_by(*_order(last, found.c.deliver_ms, found.c.log_pos)).limit(limit))
    return [WaitingTimer(_time(row.deliver_ms), *row[2:]) for row in rows]


def _list_scheduled(connection: Connection, topic: str | None, limit: int, last: bool) -> list[WaitingTimer]:
    """The waiting timers from the view, for roles to which row security hides the tables."""
    its = scheduled.c
    columns = its.due_at, its.topic, func.coalesce(its.queue_id, literal_column("0")), its.msg_id, its.tags, its["keys"]
    found = select(*columns, its.store_time).where(its.delay_level.is_(None))
    if topic is not None:
        found = found.where(its.topic == topic)
    rows = connection.execute(found.order_by(*_order(last, its.due_at, its.log_pos)).limit(limit))
    return [WaitingTimer(*row)._replace(msg_id=UUID(row.msg_id)) for row in rows]


def _branch(record: Any, deliver_ms: ColumnElement[int], topic: str | None, last: bool) -> Select[Any]:
    real_topic, real_queue_id = aim_of(record)
    columns = deliver_ms.label("deliver_ms"), record.c.log_pos, func.coalesce(real_topic, literal_column("''"))
    rest = (record.c[name] for name in ("msg_id", "tags", "keys", "store_time"))
    found = select(*columns, func.coalesce(real_queue_id, literal_column("0")), *rest)
    found = found.where(
        ~exists().where(timer_recall.c.log_pos == record.c.log_pos), ~went_along(real_topic, record.c.log_pos)
    )
    found = found.order_by(*_order(last, deliver_ms, record.c.log_pos))
    return found if topic is None else found.where(real_topic == topic)


def _order(last: bool, *columns: ColumnElement[Any]) -> tuple[ColumnElement[Any], ...]:
    return tuple(column.desc() for column in columns) if last else columns


def _time(milliseconds: int) -> datetime:
    try:
        return _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)
