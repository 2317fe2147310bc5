"""Steps of the delivery of delayed messages: each copies what is due of a level, and says how far the level is then.

A step is one row of `delay_offset`, appended in the transaction that makes the copies. Its key (level, seq) lets
nobody take the same step twice. RocketMQ: ScheduleMessageService, delayOffset.json.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Integer,
    SmallInteger,
    TableValuedAlias,
    Text,
    bindparam,
    case,
    cast,
    delete,
    func,
    insert,
    literal_column,
    select,
    true,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.sql import FromClause
from sqlalchemy.sql.selectable import LateralFromClause
from sqlalchemy.types import TypeEngine

from mqdb.property import Property
from mqdb.store import locks
from mqdb.store.commit_log import KEPT, cl, record_of
from mqdb.store.consume_queue import ONE, ZERO
from mqdb.store.engine import driver, text_of
from mqdb.store.tables import commit_log, consume_queue, delay_offset, queue, topic
from mqdb.topic import HALF_TOPIC

cq = consume_queue.alias("cq")


class Step(NamedTuple):
    """Messages of one level to deliver: offsets `first_offset` to before `past_offset`."""

    level: int
    queue_key: int
    seq: int
    """Of this step: one more than the level's last."""
    first_offset: int
    past_offset: int


class Window(NamedTuple):
    """Where the messages of some steps are: segments, both included, and positions."""

    first_segment: int
    last_segment: int
    lowest_pos: int
    past_pos: int


class Stray(NamedTuple):
    """A message of a step that cannot be delivered: its record is missing, or it is for no topic."""

    level: int
    queue_key: int
    queue_offset: int
    log_pos: int
    has_record: bool
    real_topic: str | None


_TYPES: Final[dict[str, TypeEngine[Any]]] = {
    "level": SmallInteger(),
    "queue_key": Integer(),
    "seq": BigInteger(),
    "first_offset": BigInteger(),
    "past_offset": BigInteger(),
}

_KEPT: Final = (*KEPT, "properties", "reconsume_times")


def _constant(value: str) -> ColumnElement[str]:
    return literal_column(f"'{value}'::text", Text)


def _property(name: Property) -> ColumnElement[str]:
    return cast(cl.c.properties.op("->>")(_constant(name)), Text)


#: Which queue a message is for, as it says itself.
_AIM: Final = (
    _property(Property.REAL_TOPIC).label("real_topic"),
    cast(_property(Property.REAL_QID), Integer).label("real_queue_id"),
)


def _steps(name: str) -> TableValuedAlias:
    arrays = (cast(bindparam(column), ARRAY(type_)) for column, type_ in _TYPES.items())
    return func.unnest(*arrays).table_valued(*_TYPES, with_ordinality="ordinal").render_derived(name)


def _entries() -> FromClause:
    """The messages of the steps, in the order of the steps and of each queue. Uses consume_queue_offset.

    Bound to it by the limit, which is a fence: joined, a plan that was made while a segment is empty reads all of it.
    """
    step = _steps("step")
    of_step = (
        select(cq.c.queue_offset, cq.c.log_pos)
        .where(
            cq.c.queue_key == step.c.queue_key,
            cq.c.queue_offset >= step.c.first_offset,
            cq.c.queue_offset < step.c.past_offset,
            cq.c.segment >= cast(bindparam("first_segment"), Integer),
            cq.c.segment <= cast(bindparam("last_segment"), Integer),
        )
        .order_by(cq.c.queue_offset)
        .limit(step.c.past_offset - step.c.first_offset)
        .lateral("of_step")
    )
    return (
        select(step.c.ordinal, step.c.level, step.c.queue_key, of_step.c.queue_offset, of_step.c.log_pos)
        .select_from(step.join(of_step, true()))
        .order_by(step.c.ordinal, of_step.c.queue_offset)
        .offset(ZERO)
        .subquery("entry")
    )


def _target_of(record: FromClause) -> LateralFromClause:
    """The queue that a message is for; where its topic has become smaller, another one of it.

    Uses topic_topic_key and queue_topic_id_queue_id_key.
    """
    return (
        select(queue.c.queue_key)
        .join(topic, topic.c.topic_id == queue.c.topic_id)
        .where(
            topic.c.topic == record.c.real_topic,
            topic.c.topic != _constant(HALF_TOPIC),
            queue.c.queue_id == func.greatest(record.c.real_queue_id, ZERO) % topic.c.read_queue_nums,
        )
        .limit(ONE)
        .lateral("target")
    )


def _take() -> str:
    """One statement for the steps and for the copies that they account for."""
    step = _steps("step")
    columns = {
        "level": step.c.level,
        "seq": step.c.seq,
        "next_offset": step.c.past_offset,
        "messages": step.c.past_offset - step.c.first_offset,
    }
    taken = insert(delay_offset).from_select(list(columns), select(*columns.values())).cte("taken")
    entry = _entries()
    record = record_of(entry, *(cl.c[name] for name in _KEPT), *_AIM)
    target = _target_of(record)
    values: dict[str, ColumnElement[Any]] = {name: record.c[name] for name in _KEPT}
    values |= {"queue_key": target.c.queue_key, "tags_code": func.mqdb.tag_code(record.c.tags)}
    sources = entry.join(record, true()).join(target, true())
    rows = select(*values.values()).select_from(sources).order_by(entry.c.ordinal, entry.c.queue_offset)
    return text_of(insert(commit_log).from_select(list(values), rows).add_cte(taken))


def _strays() -> str:
    entry = _entries()
    record = record_of(entry, cl.c.log_pos, *_AIM)
    target = _target_of(record)
    columns = (
        *(entry.c[name] for name in ("level", "queue_key", "queue_offset", "log_pos")),
        record.c.log_pos.is_not(None),
        record.c.real_topic,
    )
    sources = entry.outerjoin(record, true()).outerjoin(target, true())
    return text_of(
        select(*columns)
        .select_from(sources)
        .where(target.c.queue_key.is_(None))
        .order_by(entry.c.ordinal, entry.c.queue_offset)
    )


TAKE: Final = _take()
STRAYS: Final = _strays()


def begin(connection: Connection) -> bool:
    """Be the one who takes steps, until the end of the transaction; False while another session is.

    The transaction then commits durably, whatever the session has chosen: a step that is lost is taken twice.
    """
    name = "synchronous_commit"
    is_lax = func.current_setting(name).in_(["off", "local", "remote_write"])
    durable = case((is_lax, func.set_config(name, "on", True)))
    is_mine = func.pg_try_advisory_xact_lock(locks.LOCK_CLASS, locks.DELAY)
    return bool(connection.execute(select(is_mine, durable)).scalar_one())


def take(connection: Connection, steps: Sequence[Step], window: Window) -> int:
    """Take the steps: copy their messages to the queues that they are for; returns how many have one.

    Raises psycopg's UniqueViolation when somebody else has taken one of the steps.
    """
    return driver(connection).execute(TAKE, _parameters(steps, window)).rowcount


def find_strays(connection: Connection, steps: Sequence[Step], window: Window) -> list[Stray]:
    """The messages of the steps that cannot be delivered, in the order of the steps and of each queue."""
    return [Stray(*row) for row in driver(connection).execute(STRAYS, _parameters(steps, window))]


def prune(connection: Connection, level: int, first: int, past: int) -> int:
    """Remove the steps of a level with `first` <= seq < `past`; returns how many there were."""
    old = delay_offset.c.level == level, delay_offset.c.seq >= first, delay_offset.c.seq < past
    return connection.execute(delete(delay_offset).where(*old)).rowcount


def _parameters(steps: Sequence[Step], window: Window) -> Mapping[str, object]:
    columns = zip(Step._fields, zip(*steps, strict=True), strict=True)
    # As text: the driver would take the smallest type for the numbers, and prepare the statement for each anew.
    arrays = {name: "{" + ",".join(map(str, values)) + "}" for name, values in columns}
    return arrays | window._asdict()
