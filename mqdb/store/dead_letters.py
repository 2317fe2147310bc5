"""Dead letters: the view mqdb.dlq, and the redrives that sent some of them again.

A dead letter is a record of a topic `%DLQ%group`; the view shows the contents of its properties. `mqdb.dlq_redrive`
copies it to a retry topic or another topic, and records the outcome. In SQL: `mqdb/sql/dead_letters/dlq_at.sql`,
`mqdb/sql/dead_letters/dlq_outline.sql`, `mqdb/sql/dead_letters/dlq_redrive.sql`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeVar

import psycopg
from sqlalchemy import (
    BigInteger,
    Boolean,
    ColumnElement,
    Connection,
    DateTime,
    FromClause,
    Integer,
    LargeBinary,
    Select,
    Text,
    bindparam,
    cast,
    column,
    delete,
    func,
    literal_column,
    select,
    table,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, aggregate_order_by
from sqlalchemy.types import TypeEngine

from mqdb.common.topic import DLQ_PREFIX
from mqdb.store.dispatch.queues import queue_ends
from mqdb.store.engine import translates
from mqdb.store.tables import operation, redrive_result, segment, topic


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead letter in a list. The fields are columns of mqdb.dlq, whose comments explain them."""

    group: str
    topic: str | None
    msg_id: str
    tags: str | None
    keys: str | None
    attempts: int
    failed_at: datetime | None
    exception: str | None
    error: str | None
    redriven_at: datetime | None
    host: str | None
    origin_queue_id: int | None
    origin_queue_offset: int | None
    origin_log_pos: int | None
    queue_offset: int
    log_pos: int
    store_time: datetime


@dataclass(frozen=True, slots=True)
class WholeDeadLetter(DeadLetter):
    """A dead letter in full; `body` is as stored, compressed if `sys_flag` says so."""

    born_time: datetime
    born_host: str
    flag: int
    sys_flag: int
    properties: dict[str, str]
    traceback: str | None
    body: bytes


class CauseOfDeath(NamedTuple):
    """The dead letters of a group with the same topic and exception."""

    group: str
    topic: str | None
    exception: str | None
    messages: int
    redriven: int
    first_died: datetime
    last_died: datetime
    newest_id: str
    """The unique id of the latest dead letter."""


class DeathsByHour(NamedTuple):
    """The dead letters of one topic with one exception that died in one hour."""

    topic: str | None
    exception: str | None
    hours_ago: int
    """0 for the last 60 minutes."""
    messages: int


class GroupLetters(NamedTuple):
    """The number of dead letters of a group in kept segments, including redriven letters."""

    group: str
    letters: int


class RedriveStatus(StrEnum):
    """The outcome of redriving a message, real or planned."""

    REDRIVEN = "REDRIVEN"
    #: Already redriven, by this redrive or another one.
    SKIPPED = "SKIPPED"
    FAILED = "FAILED"
    #: A dry run: it would be redriven.
    READY = "READY"


class RedriveResult(NamedTuple):
    """A message and the outcome of redriving it. `msg_id` and the group are None if the message no longer exists."""

    status: RedriveStatus
    msg_id: str | None
    group: str | None
    topic: str | None
    error: str | None
    log_pos: int
    new_log_pos: int | None
    operation_id: int | None


class PastRedrive(NamedTuple):
    """An earlier redrive of a dead letter.

    Without a `target_topic` the message went to the group that had failed to consume it.

    If retention has removed the operation, `principal` and the fields after it are None.
    """

    operation_id: int
    redriven_at: datetime
    status: RedriveStatus
    new_log_pos: int | None
    error: str | None
    principal: str | None
    actor: str | None
    target_topic: str | None
    body_edited: bool | None
    condition: str | None


_TYPES: Final[dict[str, TypeEngine[Any]]] = {
    "group_name": Text(),
    "topic": Text(),
    "msg_id": Text(),
    "tags": Text(),
    "keys": Text(),
    "attempts": Integer(),
    "failed_at": DateTime(timezone=True),
    "exception": Text(),
    "error": Text(),
    "redriven_at": DateTime(timezone=True),
    "host": Text(),
    "origin_queue_id": BigInteger(),
    "origin_queue_offset": BigInteger(),
    "origin_log_pos": BigInteger(),
    "queue_offset": BigInteger(),
    "log_pos": BigInteger(),
    "store_time": DateTime(timezone=True),
    "born_time": DateTime(timezone=True),
    "born_host": Text(),
    "flag": Integer(),
    "sys_flag": Integer(),
    "compression": Text(),
    "properties": JSONB(),
    "text": Text(),
    "traceback": Text(),
    "body": LargeBinary(),
}

#: The view, column by column.
dlq: Final = table("dlq", *(column(name, type_) for name, type_ in _TYPES.items()), schema="mqdb")

Letter = TypeVar("Letter", bound=DeadLetter)

#: The number of whole letters fetched at a time: a body may have 4 MiB.
_STREAM_ROWS: Final = 50


def where(condition: str | None, outline_of: str | None = None, positions: Sequence[int] | None = None) -> FromClause:
    """The dead letters that meet an SQL expression over the columns of the view; all if there is no expression.

    With `outline_of`, those of this group are returned without their contents, for a role that may operate the group
    but not read it. With `positions`, only letters at these positions are returned: finding them in the view would mean
    reading every letter.

    The condition is in its own sub-select, so that no expression can affect the rest of the statement, whatever
    brackets, ORs and UNIONs it contains. `check_condition` checks that it is a single expression.
    """
    columns = [column(name, type_) for name, type_ in _TYPES.items()]
    letters: FromClause = dlq
    if outline_of is not None:
        letters = func.mqdb.dlq_outline(outline_of).table_valued(*columns).alias("dlq")
        if positions is not None:
            letters = select(letters).where(letters.c.log_pos.in_(positions)).subquery("dlq")
    elif positions is not None:
        given = cast(list(positions), ARRAY(BigInteger))
        letters = func.mqdb.dlq_at(given).table_valued(*columns).alias("dlq")
    if condition is None:
        return letters
    return select(letters).where(literal_column(f"(\n{condition}\n)", Boolean)).subquery("dlq")


_CHECK_BEFORE, _CHECK_AFTER = "SELECT FROM mqdb.dlq WHERE (\n", "\n) LIMIT 0"

#: The start of the condition in the text of `check_condition`, as PostgreSQL counts: in characters, from 1.
CONDITION_POSITION: Final = len(_CHECK_BEFORE) + 1


def check_condition(connection: "psycopg.Connection[Any]", condition: str) -> None:
    """Let the server parse and plan a condition without reading messages.

    This uses a prepared statement, which cannot contain several statements. Raises psycopg's errors.
    """
    connection.execute(f"{_CHECK_BEFORE}{condition}{_CHECK_AFTER}".encode(), prepare=True)


def find(
    connection: Connection, kind: type[Letter], source: FromClause, *conditions: ColumnElement[bool], limit: int | None
) -> list[Letter]:
    """At most `limit` dead letters, newest first."""
    chosen = _letters(kind, source).where(*conditions).order_by(source.c.log_pos.desc()).limit(limit)
    return [kind(*row) for row in connection.execute(chosen)]


def stream(connection: Connection, source: FromClause, *conditions: ColumnElement[bool]) -> Iterator[WholeDeadLetter]:
    """Any number of dead letters, oldest first. Needs a transaction that stays open while the letters are read."""
    chosen = _letters(WholeDeadLetter, source).where(*conditions).order_by(source.c.log_pos)
    options = {"stream_results": True, "yield_per": _STREAM_ROWS}
    with connection.execute(chosen, execution_options=options) as rows:
        for row in rows:
            yield WholeDeadLetter(*row)


def _letters(kind: type[DeadLetter], source: FromClause) -> Select[Any]:
    # GROUP is an SQL keyword, so a column with this name would need quotes.
    return select(*(source.c["group_name" if field.name == "group" else field.name] for field in fields(kind)))


def count(connection: Connection, source: FromClause, *conditions: ColumnElement[bool]) -> int:
    """The number of dead letters that meet the conditions."""
    return connection.execute(select(func.count()).select_from(source).where(*conditions)).scalar_one()


@translates
def count_by_group(connection: Connection) -> list[GroupLetters]:
    """The groups with dead letters, by name. Reads only the ends of queues, not the letters."""
    letters = cast(func.sum(queue_ends.c.max_offset - queue_ends.c.min_offset), BigInteger)
    counted = (
        select(topic.c.topic, letters)
        .join_from(topic, queue_ends, queue_ends.c.topic_id == topic.c.topic_id)
        .where(topic.c.topic.startswith(DLQ_PREFIX, autoescape=True))
        .group_by(topic.c.topic)
        .having(letters > 0)
        .order_by(topic.c.topic)
    )
    return [GroupLetters(name.removeprefix(DLQ_PREFIX), count) for name, count in connection.execute(counted)]


def causes(connection: Connection, source: FromClause, *conditions: ColumnElement[bool]) -> list[CauseOfDeath]:
    """The number of dead letters by group, topic and exception, the most frequent of each group first."""
    what = (source.c.group_name, source.c.topic, source.c.exception)
    died = source.c.store_time
    newest = func.array_agg(aggregate_order_by(source.c.msg_id, source.c.log_pos.desc()), type_=ARRAY(Text))[1]
    counted = select(*what, func.count(), func.count(source.c.redriven_at), func.min(died), func.max(died), newest)
    order = (what[0], func.count().desc(), *what[1:])
    rows = connection.execute(counted.select_from(source).where(*conditions).group_by(*what).order_by(*order))
    return [CauseOfDeath(*row) for row in rows]


def deaths_by_hour(
    connection: Connection, source: FromClause, *conditions: ColumnElement[bool], hours: int
) -> list[DeathsByHour]:
    """The number of dead letters of the last hours by topic, exception and hour; empty hours are left out."""
    age = func.extract("epoch", select(func.mqdb.now()).scalar_subquery() - source.c.store_time)
    hours_ago = cast(func.floor(func.greatest(age, 0) / 3_600), Integer).label("hours_ago")
    what = (source.c.topic, source.c.exception, hours_ago)
    counted = select(*what, func.count()).select_from(source).where(*conditions, hours_ago < hours)
    return [DeathsByHour(*row) for row in connection.execute(counted.group_by(*what))]


def positions(connection: Connection, source: FromClause, *conditions: ColumnElement[bool]) -> list[tuple[int, bool]]:
    """The position of each letter, oldest first, and whether it was already redriven."""
    chosen = select(source.c.log_pos, source.c.redriven_at.is_not(None)).where(*conditions).order_by(source.c.log_pos)
    return [(log_pos, is_redriven) for log_pos, is_redriven in connection.execute(chosen)]


@translates
def past_redrives(connection: Connection, log_pos: int) -> list[PastRedrive]:
    """The earlier redrives of the letter at a position, the oldest first."""
    result, how = redrive_result.c, operation.c.after
    columns = (
        *(result[name] for name in ("operation_id", "redriven_at", "status", "new_log_pos", "error")),
        operation.c.principal,
        operation.c.actor,
        how["target_topic"].astext,
        how["body_edited"].astext.cast(Boolean),
        how["condition"].astext,
    )
    tried = select(*columns).outerjoin_from(redrive_result, operation, operation.c.operation_id == result.operation_id)
    rows = connection.execute(tried.where(result.log_pos == log_pos).order_by(result.operation_id))
    return [PastRedrive(*row)._replace(status=RedriveStatus(row.status)) for row in rows]


@translates
def redriven_at(connection: Connection, positions: Sequence[int]) -> dict[int, datetime]:
    """When the letters at these positions were last redriven; letters never redriven are left out."""
    result = redrive_result.c
    times = select(result.log_pos, func.max(result.redriven_at).label("redriven_at")).where(
        result.log_pos == func.any(cast(list(positions), ARRAY(BigInteger))), result.status == RedriveStatus.REDRIVEN
    )
    return {row.log_pos: row.redriven_at for row in connection.execute(times.group_by(result.log_pos))}


_ARGUMENTS: Final[dict[str, TypeEngine[Any]]] = {
    "positions": ARRAY(BigInteger),
    "target_topic": Text(),
    "body": LargeBinary(),
    "again": Boolean(),
    "dry_run": Boolean(),
    "condition": Text(),
    "actor": Text(),
}
_REDRIVE: Final = select(
    func.mqdb.dlq_redrive(*(cast(bindparam(name), type_) for name, type_ in _ARGUMENTS.items()))
    .table_valued(*RedriveResult._fields)
    .render_derived("result")
)


def redrive_letters(connection: Connection, positions: Sequence[int], **arguments: Any) -> list[RedriveResult]:
    """Call mqdb.dlq_redrive once; returns a row for each message, ordered by position."""
    rows = connection.execute(_REDRIVE, {"positions": list(positions), **arguments})
    return [RedriveResult(*row)._replace(status=RedriveStatus(row.status)) for row in rows]


def prune_redrives(connection: Connection) -> int:
    """Remove the redrives of dead letters that retention has dropped; returns their number.

    Such a redrive happened before the oldest segment of the log was made, and its copy is gone. The dead letter is
    older than its copy, so it is gone, too.
    """
    oldest = select(func.min(segment.c.created_at), func.min(segment.c.start_pos)).cte("oldest")
    created_at, first_pos = (select(column).select_from(oldest).scalar_subquery() for column in oldest.c)
    is_gone = func.coalesce(redrive_result.c.new_log_pos, literal_column("0")) < first_pos
    return connection.execute(delete(redrive_result).where(redrive_result.c.redriven_at < created_at, is_gone)).rowcount
