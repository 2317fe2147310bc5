"""Steps of the delivery of delayed messages: each copies the due messages of a level, and stores the level's progress.

A step is one row of `delay_offset`, appended in the transaction that makes the copies. The key of the row (level, seq)
prevents a step from being taken twice. RocketMQ: ScheduleMessageService, delayOffset.json.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Integer,
    SmallInteger,
    TableValuedAlias,
    Text,
    and_,
    any_,
    bindparam,
    cast,
    delete,
    exists,
    func,
    insert,
    literal_column,
    select,
    true,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.sql import FromClause
from sqlalchemy.types import TypeEngine

from mqdb.common.topic import RETRY_PREFIX
from mqdb.store import locks
from mqdb.store.dispatch.consume_queue import ZERO
from mqdb.store.dispatch.entries import entries
from mqdb.store.engine import Timed, driver, run_timed, text_of
from mqdb.store.log.commit_log import KEPT, cl, copied_bytes, fits, record_of
from mqdb.store.schedule.real_queue import aim_of, delivered, has_target, is_readable, target_of
from mqdb.store.tables import commit_log, delay_offset, subscription_group
from mqdb.store.topics.deleted_topics import went_along


class DelayStep(NamedTuple):
    """The messages of one level to deliver: offsets from `first_offset` to before `past_offset`."""

    level: int
    queue_key: int
    seq: int
    """The number of this step, one more than the level's last step."""
    first_offset: int
    past_offset: int


class DelayWindow(NamedTuple):
    """The place of the messages of some steps: segments, both included, and positions."""

    first_segment: int
    last_segment: int
    lowest_pos: int
    past_pos: int


class Stray(NamedTuple):
    """A message of a step that cannot be delivered: it is lost, or its topic or group does not exist.

    `log_pos` is 0 if its entry is also lost.
    """

    level: int
    queue_key: int
    queue_offset: int
    log_pos: int
    has_record: bool
    real_topic: str | None
    is_readable: bool
    """Whether it names a queue to which messages may be sent."""
    has_group: bool
    """Whether it is a retry for an existing group, so that only the topic is missing."""


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


def _steps(name: str) -> TableValuedAlias:
    arrays = (cast(bindparam(column), ARRAY(type_)) for column, type_ in _TYPES.items())
    return func.unnest(*arrays).table_valued(*_TYPES, with_ordinality="ordinal").render_derived(name)


def _entries() -> FromClause:
    """The messages of the steps, in the order of the steps and of each queue. Uses queue_run_offset.

    The limit is a fence that forces the index: otherwise a plan made while a segment is empty could read all of it.
    """
    step = _steps("step")
    first_segment, last_segment = (cast(bindparam(name), Integer) for name in ("first_segment", "last_segment"))
    cq = entries(step.c.queue_key, step.c.first_offset, step.c.past_offset, first_segment, last_segment, name="cq")
    of_step = (
        select(cq.c.queue_offset, cq.c.log_pos)
        .order_by(cq.c.last_offset)
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


def _is_reached(entry: FromClause, record: FromClause, target: FromClause) -> ColumnElement[bool]:
    """Whether the queue of a message exists. Retries of a deleted group do not go to a new group with the same name.

    Few groups, usually none, are newer than the waiting messages: only retries of these are looked up individually.
    Uses subscription_group_created_pos.
    """
    its_group = subscription_group.c
    young = select(_constant(RETRY_PREFIX) + its_group.group_name).where(
        its_group.created_pos >= cast(bindparam("lowest_pos"), BigInteger)
    )
    may_be_older = record.c.real_topic == any_(func.array(young.scalar_subquery()))
    is_older = and_(may_be_older, exists().where(_is_group_of(record), its_group.created_pos >= entry.c.log_pos))
    return and_(has_target(record, target, entry.c.log_pos), ~is_older)


def _is_group_of(record: FromClause) -> ColumnElement[bool]:
    """Whether a message is a retry of the row's group."""
    real_topic = record.c.real_topic
    name = func.substr(real_topic, literal_column(str(len(RETRY_PREFIX) + 1)))
    return and_(func.starts_with(real_topic, _constant(RETRY_PREFIX)), subscription_group.c.group_name == name)


@cache
def take_text() -> str:
    """The statement that takes the steps and makes their copies."""
    step = _steps("step")
    columns = {
        "level": step.c.level,
        "seq": step.c.seq,
        "next_offset": step.c.past_offset,
        "messages": step.c.past_offset - step.c.first_offset,
    }
    taken = insert(delay_offset).from_select(list(columns), select(*columns.values())).cte("taken")
    entry = _entries()
    record = record_of(entry, *(cl.c[name] for name in _KEPT), cl.c.tags_code, *aim_of(cl))
    target = target_of(record)
    values: dict[str, ColumnElement[Any]] = {name: record.c[name] for name in _KEPT}
    values |= {"queue_key": target.c.queue_key, **delivered(record, record.c.tags_code)}
    sources = entry.join(record, true()).join(target, true())
    rows = select(*values.values()).select_from(sources).where(_is_reached(entry, record, target))
    rows = rows.order_by(entry.c.ordinal, entry.c.queue_offset)
    return text_of(insert(commit_log).from_select(list(values), rows).add_cte(taken))


@cache
def fitting_text() -> str:
    entry = _entries()
    record = record_of(entry, cl.c.body, cl.c.properties)
    is_fitting = fits(copied_bytes(record), entry.c.ordinal, entry.c.queue_offset).label("is_fitting")
    measured = select(is_fitting).select_from(entry.outerjoin(record, true())).subquery("measured")
    return text_of(select(func.count()).select_from(measured).where(measured.c.is_fitting))


@cache
def strays_text() -> str:
    entry = _entries()
    record = record_of(entry, cl.c.log_pos, *aim_of(cl))
    target = target_of(record)
    columns = (
        *(entry.c[name] for name in ("level", "queue_key", "queue_offset", "log_pos")),
        record.c.log_pos.is_not(None),
        record.c.real_topic,
        func.coalesce(is_readable(record), literal_column("false")),
        and_(
            exists().where(_is_group_of(record), subscription_group.c.created_pos < entry.c.log_pos),
            ~went_along(record.c.real_topic, entry.c.log_pos),
        ),
    )
    sources = entry.outerjoin(record, true()).outerjoin(target, true())
    return text_of(
        select(*columns)
        .select_from(sources)
        .where(~_is_reached(entry, record, target))
        .order_by(entry.c.ordinal, entry.c.queue_offset)
    )


@cache
def held_text() -> str:
    entry = _entries()
    return text_of(select(entry.c.level, entry.c.queue_offset))


def begin(connection: Connection) -> bool:
    """Acquire the right to take steps until the end of the transaction, which is durable;

    False while another session has it.
    """
    return locks.take_durably(connection, "delay")


def count_fitting(connection: Connection, steps: Sequence[DelayStep], window: DelayWindow) -> int:
    """The number of messages of the steps, in order, that one transaction may copy."""
    row = driver(connection).execute(fitting_text(), _parameters(steps, window)).fetchone()
    assert row is not None
    return int(row[0])


def take(connection: Connection, steps: Sequence[DelayStep], window: DelayWindow) -> Timed:
    """Take the steps: copy their messages to their queues. The result has rows for the messages that have a queue.

    Raises psycopg's UniqueViolation if another session has taken one of the steps.
    """
    return run_timed(connection, take_text(), _parameters(steps, window))


def find_strays(connection: Connection, steps: Sequence[DelayStep], window: DelayWindow) -> list[Stray]:
    """The messages of the steps that cannot be delivered, in the order of the steps and of each queue."""
    return [Stray(*row) for row in driver(connection).execute(strays_text(), _parameters(steps, window))]


def find_gaps(connection: Connection, steps: Sequence[DelayStep], window: DelayWindow) -> list[Stray]:
    """For each step that has such a message, the first message without an entry.

    Nothing else is known about the message.
    """
    held = set(driver(connection).execute(held_text(), _parameters(steps, window)))
    gaps = []
    for step in steps:
        offsets = range(step.first_offset, step.past_offset)
        if (gap := next((offset for offset in offsets if (step.level, offset) not in held), None)) is not None:
            gaps.append(
                Stray(
                    step.level, step.queue_key, gap, 0,
                    has_record=False, real_topic=None, is_readable=False, has_group=False,
                )
            )  # fmt: skip
    return gaps


def step_over(connection: Connection, level: int, seq: int, queue_offset: int) -> None:
    """Take a step that delivers nothing and skips the message at this offset.

    Raises SQLAlchemy's IntegrityError if another session has taken the step of that number.
    """
    step = {"level": level, "seq": seq, "next_offset": queue_offset + 1, "messages": 0}
    connection.execute(insert(delay_offset).values(step))


def prune(connection: Connection, level: int, first: int, past: int) -> int:
    """Remove the steps of a level with `first` <= seq < `past`; returns how many there were."""
    old = delay_offset.c.level == level, delay_offset.c.seq >= first, delay_offset.c.seq < past
    return connection.execute(delete(delay_offset).where(*old)).rowcount


def _parameters(steps: Sequence[DelayStep], window: DelayWindow) -> Mapping[str, object]:
    columns = zip(DelayStep._fields, zip(*steps, strict=True), strict=True)
    # As text: otherwise the driver takes the smallest type for the numbers, and prepares a statement for each.
    arrays = {name: "{" + ",".join(map(str, values)) + "}" for name, values in columns}
    return arrays | window._asdict()
