"""Transactions: the end of a half message, by its producer or by hand.

    end        by a producer's report on its local transaction, immediately or when it is asked
    resolve    by a person, if the producer of a half message does not report

A commit is one statement: it writes the row of the half message and the copy in its real topic, or neither. Delays do
not apply: the client removes them, so the copy is available to consumers after the commit. RocketMQ:
EndTransactionProcessor. In SQL: `mqdb/sql/segments/ensure_segments.sql`.
"""

from collections.abc import Sequence
from contextlib import suppress
from enum import StrEnum
from functools import partial
from typing import Final, NamedTuple
from uuid import UUID

from psycopg import errors as pg
from sqlalchemy import Connection, column, literal, select, table, union_all

from mqdb.common.transaction import EVENT_OF, HalfEvent, HalfState, LocalTransactionState, immunity_of
from mqdb.common.transaction import target_of as next_of
from mqdb.common.unique_id import format_unique_id, parse_unique_id
from mqdb.errors import (
    HalfMessageClosed,
    HalfMessageMismatch,
    HalfMessageNotFound,
    ImmunityOver,
    TopicNotFound,
)
from mqdb.store import acl, operations
from mqdb.store.engine import driver, transaction, translates
from mqdb.store.log.queue_fence import refusals_name
from mqdb.store.operations import Verb
from mqdb.store.tables import half_message
from mqdb.store.transactions import half_checks, half_messages, own_halves
from mqdb.store.transactions.half_messages import HalfKey, HalfMessage, HalfRecord

_view = table(
    "half_messages",
    *map(
        column,
        ("transaction_id", "log_pos", "producer_group", "topic", "state", "check_times", "stored_at", "check_at",
         "check_client", "ended_at", "copy_pos"),
    ),
    schema="mqdb",
)  # fmt: skip


class EndTransaction(NamedTuple):
    """A producer's report on a half message: its position, its group, and the outcome of its transaction."""

    group: str
    log_pos: int
    unique_id: UUID
    state: LocalTransactionState
    asked_client: str | None = None
    """The client that was asked; None if the producer reports on its own."""


class Ended(NamedTuple):
    """The result of a report."""

    has_changed: bool
    """Whether this report ended the half message: False if it had already ended, and for UNKNOWN."""
    state: HalfState
    copy_pos: int | None
    """The position of the copy that this report created in the real topic."""


class Resolution(StrEnum):
    """The actions of an operator on a half message."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    RESUME = "resume"


_EVENTS: Final = {Resolution.COMMIT: HalfEvent.COMMIT, Resolution.ROLLBACK: HalfEvent.ROLLBACK}


@translates
def end(connection: Connection, request: EndTransaction) -> Ended:
    """Commit or roll back a half message. A second call has no effect, and the result says so.

    UNKNOWN changes nothing; as an answer to a check it allows the next check.
    Raises HalfMessageNotFound, and HalfMessageMismatch for another group or id than that of the half message;
    ImmunityOver for a half message older than its immunity, unless its producer was asked; TopicNotFound if the real
    topic is gone, AccessDenied for a commit by a role that may not send there. After an error the half message is
    unchanged.
    """
    if acl.is_guest(connection):
        return _end_own(connection, request)
    event, is_answer = EVENT_OF.get(request.state), request.asked_client is not None
    if event is not None:
        # In most cases this is all, so a commit costs one round trip.
        key = HalfKey(request.log_pos, request.group, request.unique_id)
        with suppress(TopicNotFound), refusals_name(""):
            has_changed, copy_pos = _end(connection, event, key, may_be_immune=is_answer)
            if has_changed:
                return Ended(has_changed, next_of(event), copy_pos)
    half = _find(connection, request.log_pos)
    _check_owner(half, request)
    if event is not None:
        if not is_answer:
            _check_immunity(half)
        return _happen(connection, event, half)
    if request.asked_client is not None:
        half_checks.forget_question(connection, request.log_pos, request.asked_client)
    return Ended(has_changed=False, state=half.state or HalfState.PREPARED, copy_pos=None)


def _end_own(connection: Connection, request: EndTransaction) -> Ended:
    """End a half message for a role that does not own the broker. The role cannot see messages of other roles."""
    key = HalfKey(request.log_pos, request.group, request.unique_id)
    end_it = partial(own_halves.end, connection, key, request.state, request.asked_client)
    try:
        return Ended(*end_it())
    except pg.CheckViolation:  # as below
        if driver(connection).info.transaction_status:
            raise
        connection.exec_driver_sql("SELECT mqdb.ensure_segments(2)")
        return Ended(*end_it())


def _find(connection: Connection, log_pos: int) -> HalfRecord:
    halves = half_messages.find(connection, [log_pos])
    if not halves:
        raise HalfMessageNotFound(log_pos)
    return halves[0]


def _check_owner(half: HalfRecord, request: EndTransaction) -> None:
    if half.producer_group != request.group:
        raise HalfMessageMismatch(half.log_pos, "producer group", request.group)
    if half.msg_id != request.unique_id:
        raise HalfMessageMismatch(half.log_pos, "transaction id", format_unique_id(request.unique_id))


def _check_immunity(half: HalfRecord) -> None:
    immunity, age = immunity_of(half.immunity), half.now - half.stored_at
    if immunity is not None and age > immunity:
        raise ImmunityOver(half.log_pos, age.total_seconds(), immunity.total_seconds())


def _happen(connection: Connection, event: HalfEvent, half: HalfRecord) -> Ended:
    with refusals_name(half.topic):
        has_changed, copy_pos = _end(connection, event, half.key, may_be_immune=True)
    return Ended(has_changed, half_messages.state_of(connection, half.log_pos), copy_pos)


def _end(connection: Connection, event: HalfEvent, half: HalfKey, *, may_be_immune: bool) -> tuple[bool, int | None]:
    try:
        return half_messages.end(connection, event, half, may_be_immune=may_be_immune)
    except pg.CheckViolation:
        # There is no partition for the copy: producers outran a broker without keeper and consumers.
        if driver(connection).info.transaction_status:
            raise
        connection.exec_driver_sql("SELECT mqdb.ensure_segments(2)")
        return half_messages.end(connection, event, half, may_be_immune=may_be_immune)


# -- by hand ----------------------------------------------------------------------------------


@translates
def list_halves(
    connection: Connection, states: Sequence[HalfState] = (), group: str | None = None, limit: int = 1_000
) -> list[HalfMessage]:
    """Half messages in these states, or in all states, optionally of one group; oldest first.

    A role that does not own the broker gets only half messages for topics that it may operate, once the checker has
    found them.
    """
    if acl.is_guest(connection):
        return own_halves.operated(connection, states, group, limit)
    rows = select(*(_view.c[name] for name in HalfMessage._fields))
    if group is not None:
        rows = rows.where(_view.c.producer_group == group)
    # Each state as a constant: open and given-up half messages have their own index, and nearly all have ended.
    wanted = [literal(each.value, literal_execute=True) for each in dict.fromkeys(states)]
    of_states = [rows.where(_view.c.state == each) for each in wanted]
    found = union_all(*(of_states or [rows])).subquery()
    return [HalfMessage(*row) for row in connection.execute(select(found).order_by(found.c.log_pos).limit(limit))]


@translates
def resolve(
    connection: Connection, transaction_id: str, resolution: Resolution, *, actor: str | None = None
) -> HalfMessage:
    """End a half message by hand, or resume the checks of one that was given up; returns its new state.

    A half message that was given up can also be committed or rolled back. A resumed half message starts with 0 checks,
    and is checked for as long as one stored now.
    Raises HalfMessageNotFound, also if the record is no longer in the log; HalfMessageClosed for one that has ended,
    and when resuming one that was not given up; TopicNotFound if the real topic is gone; ParameterInvalid if the id is
    malformed. A role that may operate the topic sees its half messages from the checker's first scan until their end,
    and does not see those of other topics.
    """
    if acl.is_guest(connection):
        with transaction(connection):
            has_changed, half_now = own_halves.resolve(connection, transaction_id, resolution, actor)
        if not has_changed:
            raise HalfMessageClosed(transaction_id, resolution, HalfState(half_now.state))
        return half_now
    with transaction(connection):
        # In the log, not in its row: without its record it could neither be ended nor checked. The record is kept until
        # the transaction ends, because a reader of a segment blocks its removal.
        half = half_messages.find_named(connection, parse_unique_id(transaction_id))
        if half is None:
            raise HalfMessageNotFound(transaction_id)
        before = half_messages.state_of(connection, half.log_pos)
        was_discarded = half_messages.resume(connection, half.log_pos)
        if resolution is not Resolution.RESUME:
            ended = _happen(connection, _EVENTS[resolution], half)
            has_changed, state = ended.has_changed, ended.state
        else:
            has_changed, state = was_discarded, half_messages.state_of(connection, half.log_pos)
        if not has_changed:
            raise HalfMessageClosed(transaction_id, resolution, state)
        operations.record(
            connection,
            Verb.TRANSACTION_RESOLVE,
            actor,
            topics=[half.topic],
            object=format_unique_id(half.msg_id),
            before={"state": before},
            after={"state": state},
        )
        row = select(*(half_message.c[name] for name in HalfMessage._fields[1:]))
        resolved = connection.execute(row.where(half_message.c.log_pos == half.log_pos)).one()
        return HalfMessage(format_unique_id(half.msg_id), *resolved)
