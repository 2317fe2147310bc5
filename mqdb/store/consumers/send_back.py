"""Messages that are sent back: found in the log by position, and copied to a waiting queue or the DLQ.

A copy is made in the database: the client names the record, so body and properties are not transferred.
"""

from collections.abc import Collection, Sequence
from datetime import timedelta
from functools import cache
from typing import Any, NamedTuple

from psycopg.types.numeric import Int8
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Integer,
    ScalarSelect,
    SmallInteger,
    Text,
    bindparam,
    case,
    cast,
    func,
    insert,
    literal_column,
    select,
    true,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, aggregate_order_by
from sqlalchemy.types import TypeEngine

from mqdb.common.property import TAGS_CODE, Property
from mqdb.common.topic import SCHEDULE_TOPIC, TIMER_TOPIC, dlq_topic, retry_topic
from mqdb.store.dispatch.consume_queue import ZERO
from mqdb.store.engine import driver, text_of
from mqdb.store.fragments import full_group, full_topic
from mqdb.store.log.commit_log import KEPT, cl, record_of
from mqdb.store.log.history import History
from mqdb.store.log.queue_fence import or_refused
from mqdb.store.schedule.delay_levels import delivery_time
from mqdb.store.tables import broker, commit_log, delay_level, queue, subscription_group, topic


class Found(NamedTuple):
    """The data that is needed to send messages of a group back."""

    retry_max_times: int
    retry_delays: Sequence[timedelta] | None
    """The group's own delays; None means the delay levels."""
    delay_levels: int
    """The number of delay levels."""
    schedule_keys: list[int]
    """The keys of the queues of SCHEDULE_TOPIC_XXXX, level 1 first."""
    retry_perm: int | None
    """The permission of the retry topic. This and the next field are None if the topic does not exist."""
    retry_write_queue_nums: int | None
    dlq_key: int | None
    """The queue of the DLQ; None if it does not exist."""
    history: History
    """The history of the log."""
    full_names: dict[str, str]
    """The complete names of the retry topic and of the given topics, as in messages."""
    reconsume_times: list[int | None]
    """The number of failures of each message, in the given order; None if the log has lost the message."""


class TimerQueue(NamedTuple):
    """The queue of messages that wait for their own delivery time."""

    queue_key: int
    max_delay_ms: int | None
    """None means no limit."""


class Copy(NamedTuple):
    """A copy to make of the record at `log_pos`; it waits in another topic first if `level` or `delay_ms` is set."""

    log_pos: int
    queue_key: int
    level: int | None
    delay_ms: int | None
    reconsume_times: int
    properties_once: str
    """JSON of the properties that are added to the copy unless it already has them."""
    properties: str
    """JSON of the properties that are set on the copy in any case."""


_COPY_TYPES: dict[str, TypeEngine[Any]] = {
    "log_pos": BigInteger(),
    "queue_key": Integer(),
    "level": SmallInteger(),
    "delay_ms": BigInteger(),
    "reconsume_times": Integer(),
    "properties_once": Text(),
    "properties": Text(),
}

# Constants of the text, not parameters.
_SCHEDULE_TOPIC = literal_column(f"'{SCHEDULE_TOPIC}'", Text)
_TIMER_TOPIC = literal_column(f"'{TIMER_TOPIC}'", Text)
_DELAY = literal_column(f"'{Property.DELAY}'::text", Text)
_TAGS_CODE = literal_column(f"'{TAGS_CODE}'::text", Text)


def _id_of(name: ColumnElement[str]) -> ScalarSelect[int]:
    # A sub-select, to force the index on queue; with a join, all queues might be read while there are few.
    return select(topic.c.topic_id).where(topic.c.topic == name).scalar_subquery()


@cache
def find_text() -> str:
    """Uses subscription_group_group_name_key, topic_topic_key, queue_topic_id_queue_id_key and commit_log_pkey."""
    positions = cast(bindparam("positions"), ARRAY(BigInteger))
    wanted = func.unnest(positions).table_valued("log_pos", with_ordinality="ordinal").render_derived("wanted")
    record = record_of(wanted, cl.c.reconsume_times)
    retry = topic.alias("retry")
    asked = func.unnest(cast(bindparam("topics"), ARRAY(Text))).column_valued("asked")
    levels = select(func.max(delay_level.c.level)).scalar_subquery()
    schedule_keys = (
        select(func.array_agg(aggregate_order_by(queue.c.queue_key, queue.c.queue_id)))
        .where(queue.c.topic_id == _id_of(_SCHEDULE_TOPIC))
        .scalar_subquery()
    )
    dlq_key = (
        select(queue.c.queue_key)
        .where(queue.c.topic_id == _id_of(full_topic(cast(bindparam("dlq_topic"), Text))), queue.c.queue_id == ZERO)
        .scalar_subquery()
    )
    group = (
        select(
            subscription_group.c.retry_max_times,
            subscription_group.c.retry_delays,
            levels.label("delay_levels"),
            schedule_keys.label("schedule_keys"),
            retry.c.perm,
            retry.c.write_queue_nums,
            dlq_key.label("dlq_key"),
            func.mqdb.history().label("history"),
            func.array(select(full_topic(asked)).scalar_subquery()).label("full_names"),
        )
        .select_from(
            subscription_group.outerjoin(retry, retry.c.topic == full_topic(cast(bindparam("retry_topic"), Text)))
        )
        .where(subscription_group.c.group_name == full_group(cast(bindparam("group"), Text)))
        .offset(ZERO)  # a fence: runs once, not for each message
        .subquery("g")
    )
    rows = select(group, record.c.reconsume_times).select_from(wanted.join(group, true()).outerjoin(record, true()))
    return text_of(rows.order_by(wanted.c.ordinal))


@cache
def copy_text() -> str:
    """The statement that makes the copies in the given order. Uses commit_log_pkey."""
    arrays = (cast(bindparam(name), ARRAY(type_)) for name, type_ in _COPY_TYPES.items())
    given = func.unnest(*arrays).table_valued(*_COPY_TYPES, with_ordinality="ordinal").render_derived("given")
    record = record_of(given, *(cl.c[name] for name in KEPT), cl.c.tags_code, cl.c.properties)
    now = select(func.mqdb.now().label("now")).offset(ZERO).subquery("clock")
    target = select(queue.c.queue_key).where(queue.c.queue_key == given.c.queue_key).scalar_subquery()
    waits = func.coalesce(cast(given.c.level, BigInteger), given.c.delay_ms).is_not(None)
    asked = func.make_interval(ZERO, ZERO, ZERO, ZERO, ZERO, ZERO, given.c.delay_ms / literal_column("1000.0"))
    code = func.mqdb.copied_code(record.c.tags_code, record.c.tags, record.c.properties)
    properties = (
        cast(given.c.properties_once, JSONB)
        .concat(record.c.properties.op("-")(_DELAY))
        .concat(cast(given.c.properties, JSONB))
    )
    said = func.jsonb_build_object(_TAGS_CODE, cast(code, Text))
    values: dict[str, Any] = {name: record.c[name] for name in KEPT} | {
        "queue_key": or_refused(target),
        "store_time": now.c.now,
        "tags_code": func.coalesce(delivery_time(now.c.now, func.coalesce(delay_level.c.delay, asked)), code),
        "reconsume_times": given.c.reconsume_times,
        "properties": case((waits, properties.concat(said)), else_=properties),
    }
    sources = given.join(record, true()).join(now, true())
    sources = sources.outerjoin(delay_level, delay_level.c.level == given.c.level)
    rows = select(*values.values()).select_from(sources).order_by(given.c.ordinal)
    return text_of(insert(commit_log).from_select(list(values), rows))


def find(connection: Connection, group: str, positions: Sequence[int], topics: Collection[str]) -> Found | None:
    """The data for sending back a group's messages at these positions; None if the group does not exist.

    The records are kept until the end of the transaction, which holds a lock on their partitions.
    """
    names = [retry_topic(group), *topics]
    parameters: dict[str, object] = {
        "group": group,
        "retry_topic": retry_topic(group),
        "dlq_topic": dlq_topic(group),
        "topics": names,
        "positions": _array(positions),
    }
    rows = driver(connection).execute(find_text(), parameters | _bounds(positions)).fetchall()
    if not rows:
        return None
    *of_group, full_names, _ = rows[0]
    return Found._make((*of_group, dict(zip(names, full_names, strict=True)), [row[-1] for row in rows]))


def copy(connection: Connection, copies: Sequence[Copy]) -> None:
    """Append the copies in the given order, all or none. A missing queue raises the error of `queue_fence`."""
    columns: dict[str, Any] = dict(zip(Copy._fields, map(list, zip(*copies, strict=True)), strict=True))
    bounds = _bounds(columns["log_pos"])
    columns |= {name: _array(columns[name]) for name, type_ in _COPY_TYPES.items() if isinstance(type_, Integer)}
    driver(connection).execute(copy_text(), columns | bounds)


def timer_queue(connection: Connection) -> TimerQueue:
    """The queue of timers, and the largest delay that is allowed for them."""
    timers = select(queue.c.queue_key, broker.c.timer_max_delay_ms).select_from(queue.join(broker, true()))
    found = timers.where(queue.c.topic_id == _id_of(_TIMER_TOPIC), queue.c.queue_id == ZERO)
    return TimerQueue._make(connection.execute(found).one())


def retry_queue_nums(connection: Connection, group: str) -> int | None:
    """The number of queues for the retry topic of a group; None if the group does not exist."""
    return connection.scalar(
        select(subscription_group.c.retry_queue_nums).where(subscription_group.c.group_name == group)
    )


def _bounds(positions: Sequence[int]) -> dict[str, object]:
    return {"lowest_pos": min(positions), "past_pos": max(positions) + 1}


def _array(numbers: Sequence[int | None]) -> list[Int8 | None]:
    # Otherwise the driver takes the smallest type for the numbers, and prepares a statement for each.
    return [None if number is None else Int8(number) for number in numbers]
