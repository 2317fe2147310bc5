"""The records of one message, and the state of each: in its queue, on the schedule, in its transaction.

All copies of a message have its unique id. One statement finds them and reads everything about them, so that all data
are from one moment. The statement uses the indexes of `mqdb.find_records`, timer_msg_id, commit_log_pkey and
queue_run_offset. In SQL: `mqdb/sql/acl/is_own.sql`, `mqdb/sql/log/find_records.sql`.
"""

from datetime import datetime
from functools import cache
from typing import Any, Final, NamedTuple
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    FromClause,
    Integer,
    Select,
    Text,
    bindparam,
    cast,
    column,
    false,
    func,
    literal_column,
    null,
    select,
    true,
    union_all,
)
from sqlalchemy.dialects.postgresql import UUID as PgUUID
from sqlalchemy.dialects.postgresql import array

from mqdb.common.property import FailureProperty, Property
from mqdb.store import acl
from mqdb.store.dispatch.consume_queue import ONE, ZERO, cl, run
from mqdb.store.schedule.timer_steps import newest_step
from mqdb.store.tables import delay_offset, half_message, queue, timer, timer_recall, timer_step, topic


class TracedRecord(NamedTuple):
    """A record of a message. Fields that the role may not see are None.

    The fields from `slot` on are only for the owner of the broker.
    """

    log_pos: int
    queue_key: int | None
    topic: str | None
    """None if its topic is deleted, or if the log has dropped the record and `timer` has the message."""
    queue_id: int | None
    queue_offset: int | None
    segment: int | None
    """The segment of the record's entry; `xid` is the transaction of the entry's row."""
    xid: str | None
    store_time: datetime | None
    reconsume_times: int | None
    tags: str | None
    producer_group: str | None
    """For a half message, its producer group."""
    exception: str | None
    """This and the next two fields describe the latest failure, like `FailureProperty`."""
    error: str | None
    host: str | None
    is_placed: bool | None
    """Whether its append has assigned its offset."""
    real_topic: str | None
    """The topic to which a waiting record goes."""
    tags_code: int | None
    """For a waiting record, the time when it is due, in milliseconds since 1970."""
    slot: int | None
    """The slot in `timer`, if the message was collected."""
    is_recalled: bool | None
    collected_to: int | None
    """The offset in the queue of timers before which all are collected; the next two fields show how far they are
    delivered."""
    delivered_ms: int | None
    delivered_pos: int | None
    level_delivered_to: int | None
    """The offset in the queue of the delay level before which all messages are delivered."""
    half_state: str | None
    """Also None for a half message without a row, which is PREPARED."""
    half_check_times: int | None
    half_check_at: datetime | None
    half_check_client: str | None
    half_ended_at: datetime | None
    half_copy_pos: int | None
    half_stored_at: datetime | None


def find(connection: Connection, unique_id: UUID) -> list[TracedRecord]:
    """The records with a unique id, dispatched or not, in the order in which they were stored."""
    rows = connection.execute(_records(acl.is_guest(connection)), {"unique_id": unique_id})
    return [TracedRecord(*row) for row in rows]


_ID: Final = bindparam("unique_id", type_=PgUUID())
#: The properties that are read, by the names of their fields.
_PROPERTIES: Final = {
    "producer_group": Property.PGROUP,
    "exception": FailureProperty.EXCEPTION,
    "error": FailureProperty.MESSAGE,
    "host": FailureProperty.HOST,
}
_HALF: Final = ("state", "check_times", "check_at", "check_client", "ended_at", "copy_pos", "stored_at")


@cache
def _records(is_guest: bool) -> Select[Any]:
    wanted = _wanted(is_guest)
    record = _one(
        select(*_told(cl))
        .where(cl.c.log_pos >= wanted.c.log_pos, cl.c.log_pos <= wanted.c.log_pos)
        .order_by(cl.c.log_pos),
        "record",
    )
    aimed = func.mqdb.find_aim(wanted.c.log_pos)
    aim = aimed.table_valued(column("topic", Text), column("tags_code", BigInteger)).lateral("aim")
    placed = func.mqdb.find_queue_offset(wanted.c.queue_key, wanted.c.log_pos, null(), null())
    place = placed.table_valued(column("queue_offset", BigInteger)).render_derived("place").lateral("place")
    its_run = _one(
        select(run.c.segment, cast(literal_column("run.xmin"), Text).label("xid"))
        .where(run.c.queue_key == wanted.c.queue_key, run.c.last_offset >= place.c.queue_offset)
        .order_by(run.c.last_offset),
        "its_run",
    )
    sources: FromClause = (
        wanted.outerjoin(queue, queue.c.queue_key == wanted.c.queue_key)
        .outerjoin(topic, topic.c.topic_id == queue.c.topic_id)
        .outerjoin(record, true())
        .outerjoin(aim, true())
        .outerjoin(place, true())
        .outerjoin(its_run, true())
    )
    columns: list[ColumnElement[Any]] = [*wanted.c, topic.c.topic, queue.c.queue_id, place.c.queue_offset]
    columns += [its_run.c.segment, its_run.c.xid]
    if is_guest:
        fields = TracedRecord._fields
        columns += [*record.c, aim.c.topic, aim.c.tags_code, *(null() for _ in fields[fields.index("slot") :])]
    else:
        sources, rest = _with_states(wanted, sources, record, aim)
        columns += rest
    return select(*columns).select_from(sources).order_by(wanted.c.log_pos)


def _wanted(is_guest: bool) -> FromClause:
    """log_pos and queue_key of each record once; without a queue if only `timer` still has the message."""
    found = func.mqdb.find_records(array([_ID]), cast(ZERO, BigInteger)).table_valued(
        column("msg_id", PgUUID), column("log_pos", BigInteger), column("queue_key", Integer)
    )
    positions: Any = select(found.c.log_pos, found.c.queue_key)
    if not is_guest:
        collected = select(timer.c.log_pos, cast(null(), Integer)).where(timer.c.msg_id == _ID)
        positions = union_all(positions, collected)
    position = positions.subquery("position")
    key = func.max(position.c.queue_key).label("queue_key")
    return select(position.c.log_pos, key).group_by(position.c.log_pos).subquery("wanted")


def _with_states(
    wanted: FromClause, sources: FromClause, record: FromClause, aim: FromClause
) -> tuple[FromClause, list[ColumnElement[Any]]]:
    """The sources of `_records`, joined with tables without grants to roles, and the columns from `store_time` on."""
    waiting = _one(
        select(
            *_told(timer), timer.c.slot, timer.c.deliver_ms, _property(timer, Property.REAL_TOPIC, "real_topic")
        ).where(timer.c.msg_id == _ID, timer.c.log_pos == wanted.c.log_pos),
        "waiting",
    )
    half = _one(
        select(*(half_message.c[name] for name in _HALF)).where(half_message.c.log_pos == wanted.c.log_pos), "half"
    )
    step = newest_step(timer_step.c.next_offset, timer_step.c.delivered_ms, timer_step.c.delivered_pos).subquery("step")
    level = (
        select(delay_offset.c.next_offset)
        .where(delay_offset.c.level == queue.c.queue_id + ONE)
        .order_by(delay_offset.c.seq.desc())
        .limit(ONE)
        .correlate(queue)
        .scalar_subquery()
    )
    # Not with EXISTS, for which the planner may read all recalls into a hash.
    recall = select(timer_recall.c.log_pos).where(timer_recall.c.log_pos == wanted.c.log_pos).scalar_subquery()
    real_topic = func.mqdb.own_name(waiting.c.real_topic, type_=Text)
    columns = [
        *(func.coalesce(each, waiting.c[each.name]) for each in record.c),
        func.coalesce(aim.c.topic, real_topic),
        func.coalesce(aim.c.tags_code, waiting.c.deliver_ms),
        waiting.c.slot,
        recall.is_not(None),
        *step.c,
        level,
        *half.c,
    ]
    return sources.outerjoin(waiting, true()).outerjoin(half, true()).outerjoin(step, true()), columns


def _told(record: FromClause) -> list[ColumnElement[Any]]:
    """The columns that are read from a record itself."""
    columns = (record.c[name] for name in ("store_time", "reconsume_times", "tags"))
    properties = (_property(record, each, name) for name, each in _PROPERTIES.items())
    is_placed = cl.c.xid.is_(None) if record is cl else false()
    return [*columns, *properties, is_placed.label("is_placed")]


def _property(record: FromClause, name: str, label: str) -> ColumnElement[Any]:
    value: ColumnElement[Any] = record.c.properties[literal_column(f"'{name}'::text", Text)].astext
    return value.label(label)


def _one(rows: Select[Any], name: str) -> Any:
    return rows.limit(ONE).lateral(name)
