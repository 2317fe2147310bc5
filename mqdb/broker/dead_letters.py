"""Dead letters: choose messages that groups have given up on, show them, and send them again.

A choice may be an SQL expression over the columns of the view mqdb.dlq. PostgreSQL checks it with the rights of the
caller, in a transaction that cannot write. RocketMQ: queryDlqMessage, resendDlqMessage of the dashboard.
In SQL: `mqdb/sql/segments/ensure_segments.sql`.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Final, NamedTuple
from uuid import UUID

import psycopg
from psycopg import errors as pg
from sqlalchemy import ColumnElement, Connection, DateTime, FromClause, cast, func, select, text
from sqlalchemy.exc import DBAPIError

from mqdb.common.argument_types import check_fields
from mqdb.common.clock import check_moment
from mqdb.common.topic import dlq_topic
from mqdb.common.unique_id import format_unique_id
from mqdb.errors import GroupNotFound, ParameterInvalid
from mqdb.selector.tags import parse_tag_expression
from mqdb.store import acl, dead_letters
from mqdb.store.acl import Access, Resource, ResourceType
from mqdb.store.consumers import groups
from mqdb.store.dead_letters import (
    CONDITION_POSITION,
    CauseOfDeath,
    DeadLetter,
    DeathsByHour,
    Letter,
    RedriveResult,
    WholeDeadLetter,
)
from mqdb.store.engine import driver, transaction, translated, translates
from mqdb.store.log import message_index
from mqdb.store.topics import topics

_READ_ONLY = text("SET TRANSACTION READ ONLY")
_ENSURE_SEGMENTS = select(func.mqdb.ensure_segments(2))

#: SQLSTATE classes of errors in a condition itself: it is not valid SQL or refers to missing objects, fails on a value,
#: uses an unsupported feature, or tries to write.
_FAULTS_OF_CONDITION: Final = ("42", "22", "0A", "2F", "25", "54")
_INSUFFICIENT_PRIVILEGE: Final = "42501"


@dataclass(frozen=True, slots=True)
class DeadLetterFilter:
    """A selection of dead letters, which meet all given conditions. A time is a moment, or a duration before now.

    Durations are by the broker's clock. Raises ParameterInvalid for a value of a wrong type, a string with the
    character NUL, and a time without a zone or too long ago; TagExpressionInvalid.
    """

    group: str | None = None
    topic: str | None = None
    """The topic to which the message was first sent."""
    tag: str | None = None
    """A tag expression."""
    since: datetime | timedelta | None = None
    """Only messages that became dead letters at this time or later."""
    until: datetime | timedelta | None = None
    """Only messages that became dead letters before this time."""
    exception: str | None = None
    """A part of the exception's name, in upper or lower case."""
    ids: tuple[UUID, ...] = ()
    """The unique ids, if any are given."""
    where: str | None = None
    """An SQL expression over the columns of mqdb.dlq."""

    def __post_init__(self) -> None:
        check_fields(self)
        parse_tag_expression(self.tag)
        for name, time in (("since", self.since), ("until", self.until)):
            if time is not None:
                check_moment(name, time)

    def __str__(self) -> str:
        """The filter, written as options of the command line."""
        options = []
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "ids":
                options += [f"--id {format_unique_id(one)}" for one in value]
            elif value is not None:
                shown = f"{value} ago" if isinstance(value, timedelta) else str(value)
                options.append(shown if field.name == "group" else f"--{field.name} {shown!r}")
        return " ".join(options) or "all"


class Chosen(NamedTuple):
    """Dead letters to redrive, by position, oldest first."""

    positions: tuple[int, ...]
    left_out: int
    """The number of other messages that matched the filter but were redriven before."""


class Redrive(NamedTuple):
    """The way in which messages are sent again: to the group that failed to consume them, or to a topic as new ones."""

    condition: str
    """The condition by which the letters were chosen, for the record."""
    target_topic: str | None = None
    body: bytes | None = None
    """A new body for one message, sent uncompressed."""
    again: bool = False
    """Whether to include letters that were redriven before."""


def count_dead_letters(connection: Connection, wanted: DeadLetterFilter) -> int:
    """Number of chosen dead letters. Raises GroupNotFound, ParameterInvalid for the condition."""
    with _chosen(connection, wanted) as (source, conditions):
        return dead_letters.count(connection, source, *conditions)


def causes_of_death(connection: Connection, wanted: DeadLetterFilter) -> list[CauseOfDeath]:
    """Number of dead letters by group, topic and exception.

    Raises GroupNotFound, ParameterInvalid for the condition.
    """
    with _chosen(connection, wanted) as (source, conditions):
        return dead_letters.causes(connection, source, *conditions)


def deaths_by_hour(connection: Connection, wanted: DeadLetterFilter, hours: int) -> list[DeathsByHour]:
    """Number of dead letters of the last hours by topic, exception and hour.

    Raises GroupNotFound, ParameterInvalid for the condition.
    """
    with _chosen(connection, wanted) as (source, conditions):
        return dead_letters.deaths_by_hour(connection, source, *conditions, hours=hours)


def list_dead_letters(connection: Connection, wanted: DeadLetterFilter, limit: int | None = None) -> list[DeadLetter]:
    """List the dead letters, newest first. Raises GroupNotFound, ParameterInvalid for the condition."""
    return _find(connection, DeadLetter, wanted, limit)


def show_dead_letters(connection: Connection, wanted: DeadLetterFilter) -> list[WholeDeadLetter]:
    """Load all matching dead letters, with their bodies, into memory; newest first.

    Raises GroupNotFound, ParameterInvalid for the condition.
    """
    return _find(connection, WholeDeadLetter, wanted, None)


def read_dead_letters(connection: Connection, wanted: DeadLetterFilter) -> Iterator[WholeDeadLetter]:
    """Any number of dead letters, read a few at a time, oldest first, in a transaction that lasts until all are read.

    Raises GroupNotFound, ParameterInvalid for the condition.
    """
    with _chosen(connection, wanted, whole=True) as (source, conditions):
        yield from dead_letters.stream(connection, source, *conditions)


def choose(
    connection: Connection, wanted: DeadLetterFilter, *, again: bool = False, limit: int | None = None
) -> Chosen:
    """The messages for a redrive: at most `limit`, oldest first; redriven letters only with `again`.

    Raises GroupNotFound, ParameterInvalid for the condition.
    """
    with _chosen(connection, wanted) as (source, conditions):
        found = dead_letters.positions(connection, source, *conditions)
    positions = [log_pos for log_pos, is_redriven in found if again or not is_redriven]
    return Chosen(tuple(positions[:limit]), len(found) - len(positions))


@translates
def plan_redrive(connection: Connection, positions: Sequence[int], redrive: Redrive) -> list[RedriveResult]:
    """The results that `redrive` would have for these messages. Changes nothing, and raises the same errors."""
    with transaction(connection):
        connection.execute(_READ_ONLY)
        return dead_letters.redrive_letters(connection, positions, dry_run=True, actor=None, **redrive._asdict())


@translates
def redrive_messages(
    connection: Connection, positions: Sequence[int], redrive: Redrive, *, actor: str | None = None
) -> list[RedriveResult]:
    """Send messages of dead letter queues again, in one transaction, with a result for each.

    Each copy keeps its id, and starts with all its retries. Waits for a concurrent redrive.
    Raises MessageIllegal for a body, TopicNotAllowed, and TopicNotFound for a topic that is deleted at this moment. A
    problem with a single message, such as a missing topic, only gives the result FAILED.
    """
    try:
        return _redrive(connection, positions, redrive, actor)
    except DBAPIError as error:
        # There is no partition for the position: as in `send.append`.
        if not (isinstance(error.orig, pg.CheckViolation) and driver(connection).autocommit):
            raise
        connection.execute(_ENSURE_SEGMENTS)
        return _redrive(connection, positions, redrive, actor)


def _redrive(
    connection: Connection, positions: Sequence[int], redrive: Redrive, actor: str | None
) -> list[RedriveResult]:
    arguments = redrive._asdict() | {"actor": actor, "dry_run": False}
    return dead_letters.redrive_letters(connection, positions, **arguments)


# -- the selection --------------------------------------------------------------------------------


def _find(connection: Connection, kind: type[Letter], wanted: DeadLetterFilter, limit: int | None) -> list[Letter]:
    with _chosen(connection, wanted, whole=kind is WholeDeadLetter) as (source, conditions):
        return dead_letters.find(connection, kind, source, *conditions, limit=limit)


@contextmanager
def _chosen(
    connection: Connection, wanted: DeadLetterFilter, *, whole: bool = False
) -> Iterator[tuple[FromClause, list[ColumnElement[bool]]]]:
    """A read-only transaction, with the letters as a source and conditions for statements in it.

    `whole` means that the contents of the letters are needed. In this case a role that may only operate the group gets
    AccessDenied.
    """
    with translated(connection):
        if wanted.group is not None:
            _check_group(connection, wanted.group)
        outlined = _outlined(connection, wanted.group)
        if outlined is not None and whole:
            acl.require(connection, Resource(Access.READ, ResourceType.GROUP, outlined))
        source = dead_letters.where(wanted.where, outlined, _positions(connection, wanted.ids))
        conditions = list(_conditions(wanted, source))
        with _blaming(wanted.where), transaction(connection):
            connection.execute(_READ_ONLY)
            if wanted.where is not None:
                dead_letters.check_condition(driver(connection), wanted.where)
            yield source, conditions


def _outlined(connection: Connection, group: str | None) -> str | None:
    """The group, if the current role may operate on it but may not read it; otherwise None."""
    if group is None or acl.has(connection, Resource(Access.READ, ResourceType.GROUP, group)):
        return None
    may_operate = acl.has(connection, Resource(Access.OPERATE, ResourceType.GROUP, group))
    return group if may_operate else None


def _check_group(connection: Connection, group: str) -> None:
    """Raise GroupNotFound for a group that neither exists nor has left dead letters."""
    if groups.find(connection, group) is None and topics.find_topic(connection, dlq_topic(group)) is None:
        raise GroupNotFound(group)


def _positions(connection: Connection, ids: Sequence[UUID]) -> list[int] | None:
    """The positions of the records with one of the ids, by the key index; None if no ids are given."""
    if not ids:
        return None
    with transaction(connection):
        return [log_pos for _, log_pos, _ in message_index.find(connection, ids, after_pos=0)]


def _conditions(wanted: DeadLetterFilter, source: FromClause) -> Iterator[ColumnElement[bool]]:
    letter = source.c
    if wanted.group is not None:
        yield letter.group_name == wanted.group
    if wanted.topic is not None:
        yield letter.topic == wanted.topic
    expression = parse_tag_expression(wanted.tag)
    if not expression.matches_all:
        yield letter.tags.in_(sorted(expression.tags))
    if wanted.since is not None:
        yield letter.store_time >= _moment(wanted.since)
    if wanted.until is not None:
        yield letter.store_time < _moment(wanted.until)
    if wanted.exception is not None:
        yield letter.exception.icontains(wanted.exception, autoescape=True)


def _moment(time: datetime | timedelta) -> ColumnElement[datetime]:
    if isinstance(time, datetime):
        return cast(time, DateTime(timezone=True))
    # A sub-select, so that the clock is read once and not for each letter.
    return select(func.mqdb.now() - time).scalar_subquery()


@contextmanager
def _blaming(where: str | None) -> Iterator[None]:
    """Turn PostgreSQL's errors in a condition into ParameterInvalid."""
    try:
        yield
    except (psycopg.Error, DBAPIError) as error:
        fault = error.orig if isinstance(error, DBAPIError) else error
        if where is None or not isinstance(fault, psycopg.Error) or not _is_fault_of_condition(fault):
            raise
        raise ParameterInvalid("where", where, _described(fault, where)) from error


def _is_fault_of_condition(error: psycopg.Error) -> bool:
    sqlstate = error.sqlstate or ""
    return sqlstate.startswith(_FAULTS_OF_CONDITION) and sqlstate != _INSUFFICIENT_PRIVILEGE


def _described(error: psycopg.Error, where: str) -> str:
    """The message and hint of PostgreSQL's error, with the position in the condition if there is one."""
    reason = error.diag.message_primary or str(error)
    if error.diag.statement_position is not None:
        position = int(error.diag.statement_position) - CONDITION_POSITION + 1
        if 1 <= position <= len(where):
            reason += f", at character {position}"
    return f"{reason}; {error.diag.message_hint}" if error.diag.message_hint else reason
