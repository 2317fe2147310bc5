"""Append a batch that Spark tasks have staged, exactly once.

    one transaction    ledger row ── new? ──▶ the staged messages into the log, task by task ──▶ the stage cleared
                           └── already there: an earlier run stored it, and nothing is appended

A query commits its batches in order, and after a crash reruns only the last batch. If a query sends an earlier number,
its checkpoint was set back, or is not the one with which the sink was written. If the previous batch is missing, the
database was set back, and the batches that the query has written since are not in the log.

The ledger row and the messages are stored together or not at all, so a caller that has not received the outcome can
call again. Queues are not locked: dispatch assigns the offsets later. If two processes commit a batch at the same time,
the second process waits at the ledger row and then finds the batch there.

A batch that is too large for one transaction is appended in parts, which several sessions move at the same time:

    one transaction    ledger row ── new? ──▶ a row for each task's attempt: these messages are the batch
    one after another, each in a transaction    a task's next messages ──▶ the log, in their order; noted in that row
    one transaction    all parts are in the log? ──▶ their rows cleared

From the first transaction on, the batch consists of the rows staged by then. A later run continues with these rows,
whatever its own tasks have staged, so the stage has to survive a crash (`is_durable`).

Unlike other verbs these take a psycopg connection in autocommit: `mqdb.store.log.sink` explains why. RocketMQ has no
counterpart.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar
from uuid import UUID

import psycopg
from psycopg import errors as pg

from mqdb.common.topic import Perm
from mqdb.errors import BY_SQLSTATE, SegmentSealed, TopicNotFound, TopicNotWritable
from mqdb.store.log import sink as statements

Connection: TypeAlias = "psycopg.Connection[tuple[Any, ...]]"

_Result = TypeVar("_Result")


class SinkBatch(NamedTuple):
    """A batch of a sink. `query_id` is that of the checkpoint to which `batch_id` belongs; None for a batch job.

    If the batch goes to several brokers, `brokers` names all of them, and `checksum` is that of this broker's rows.
    """

    sink_id: str
    batch_id: int
    query_id: str | None = None
    checksum: int | None = None
    brokers: list[str] | None = None


class StagedWrite(NamedTuple):
    """The messages that one task has staged."""

    write_id: UUID
    messages: int
    waits: bool
    """Whether some of its messages have a delay level or a time of delivery."""
    topics: tuple[str, ...]


class AppendOutcome(StrEnum):
    """The outcome of a batch."""

    APPENDED = "APPENDED"
    REPEATED = "REPEATED"  #: it was in the log already
    OPEN = "OPEN"  #: it is being appended in parts, by `move_part` and `close_parts`
    TAKEN = "TAKEN"  #: another query has written to this sink; nothing is appended
    PASSED = "PASSED"  #: a later batch of the query is in the log; nothing is appended
    LISTED = "LISTED"  #: the sink has written to a list of brokers, and this batch does not; nothing is appended
    GAP = "GAP"  #: the previous batch is not in the log; nothing is appended
    INCOMPLETE = "INCOMPLETE"  #: fewer messages are staged than the tasks wrote; nothing is appended


class AppendResult(NamedTuple):
    """The outcome of an append. `messages` is the number of messages of `batch_id` in the log or, if incomplete, found.

    `batch_id` differs from the given batch if another batch is in the way; before a gap it is the newest batch, if any.
    """

    outcome: AppendOutcome
    batch_id: int | None
    messages: int


#: Others take positions at the same time, so a segment may be full this many times when we get to it.
_TRIES: Final = 5

#: Higher than any seq of a task's message.
_PAST_ALL: Final = 2**31 - 1

#: The approximate size of the rows that a role stages in one statement.
_STAGED_BYTES: Final = 8 * 2**20
_STAGED_ROWS: Final = 5_000


def has_sink(connection: Connection) -> bool:
    """Whether the schema exists and is new enough."""
    row = connection.execute(statements.IS_THERE).fetchone()
    return row is not None and row[0]


def write_queue_keys(connection: Connection, topic: str) -> tuple[int, ...]:
    """The keys of a topic's write queues, queue 0 first. Raises TopicNotFound, TopicNotWritable.

    Raises psycopg's form of AccessDenied for a role that may not send to the topic, whether it exists or not.
    """
    row = connection.execute(statements.FIND_TOPIC, {"topic": topic}).fetchone()
    if row is None or not row[3]:
        connection.execute(statements.CHECK_RIGHT, {"topic": topic})
        raise TopicNotFound(topic)
    perm, write_queue_nums, queue_keys, _ = row
    if not perm & Perm.WRITE:
        raise TopicNotWritable(topic, perm)
    return tuple(queue_keys[:write_queue_nums])


def stage_own(connection: Connection, rows: Sequence[tuple[Any, ...]]) -> None:
    """Stage rows for a role that does not own the broker and so cannot use COPY. The row of their write must exist."""
    begin = 0
    while begin < len(rows):
        past, size = begin, 0
        while past < len(rows) and (past == begin or size < _STAGED_BYTES) and past - begin < _STAGED_ROWS:
            size += len(rows[past][-1])
            past += 1
        columns = dict(zip(statements.STAGE_COLUMNS, map(list, zip(*rows[begin:past], strict=True)), strict=True))
        # The binary form starts with a version.
        columns["properties"] = [properties[1:].decode() for properties in columns["properties"]]
        connection.execute(statements.OWN_STAGE, columns)
        begin = past


def append_batch(
    connection: Connection,
    batch: SinkBatch,
    writes: Sequence[StagedWrite],
    *,
    may_skip: bool = False,
    is_guest: bool = False,
    part_messages: int | None = None,
) -> AppendResult:
    """Append the staged messages of the tasks in order, or nothing.

    With `may_skip` earlier batches may be missing.

    `is_guest` means that the role does not own the broker. A batch with more than `part_messages` messages is only
    begun, in parts; None means no limit. If the batch is in the log afterwards, its staged rows are deleted, and so are
    those of failed attempts for it and for the batches before it.
    Raises TopicNotFound if a queue is gone, MessageIllegal for a delivery time beyond the broker's limit, and psycopg's
    form of AccessDenied if the role may no longer send. psycopg's OperationalError means that the outcome is unknown;
    the call can then be repeated.
    """
    messages = sum(write.messages for write in writes)
    if part_messages is not None and messages > part_messages:
        return _append_batch(connection, batch, writes, may_skip, is_guest, in_parts=True)
    append = partial(_append_batch, connection, batch, writes, may_skip, is_guest)
    try:
        return _with_segments(connection, messages, is_guest, append)
    except psycopg.Error as error:
        refusal = BY_SQLSTATE.get(error.sqlstate or "")
        if not isinstance(error, pg.InsufficientPrivilege) and refusal is not TopicNotFound:
            raise
        topics = list(dict.fromkeys(name for write in writes for name in write.topics))
        for topic in topics if is_guest else ():
            connection.execute(statements.CHECK_RIGHT, {"topic": topic})
        if isinstance(error, pg.InsufficientPrivilege):
            raise
        raise TopicNotFound(", ".join(topics)) from error  # a queue is gone, or no longer visible to the role


def is_durable(connection: Connection) -> bool:
    """Whether the stage survives a crash of PostgreSQL, as required by batches in parts."""
    row = connection.execute(statements.IS_DURABLE).fetchone()
    return row is not None and bool(row[0])


def move_part(connection: Connection, batch: SinkBatch, part_messages: int | None) -> int | None:
    """Move the next messages of one task of an open batch into the log, at most `part_messages` unless that is None.

    Returns the number of these messages; 0 if all others are in the log or being moved by other sessions; None if they
    are not in the stage. Raises the errors of `append_batch`; nothing was moved in this case.
    """
    return _with_segments(connection, part_messages or 0, False, partial(_move, connection, batch, part_messages))


def close_parts(connection: Connection, batch: SinkBatch) -> bool:
    """Forget the parts of a batch that is completely in the log, and clear its stage. False if it is incomplete.

    Waits for other sessions that move its parts, such as those of a driver that is believed to be dead.
    """
    named = batch._asdict()
    with connection.transaction():
        connection.execute(statements.SETTINGS)
        row = connection.execute(statements.ARE_MOVED, named).fetchone()
        if row is not None and row[0] is False:
            return False
        connection.execute(statements.CLOSE_PARTS, named)
        connection.execute(statements.FORGET_BATCHES, named)
        connection.execute(statements.CLEAR_BATCHES, named)
    return True


def _with_segments(connection: Connection, messages: int, is_guest: bool, append: Callable[[], _Result]) -> _Result:
    """The result of `append`, a transaction that appends about `messages` messages; retried if a segment is missing."""
    for tries in range(1, _TRIES + 1):
        _ensure_segments(connection, messages, is_guest)
        try:
            return append()
        except pg.CheckViolation:  # there is no partition for a position
            if tries == _TRIES:
                raise
        except psycopg.Error as error:
            if BY_SQLSTATE.get(error.sqlstate or "") is not SegmentSealed or tries == _TRIES:
                raise
    raise AssertionError("the last try returns or raises")


def clear_writes(connection: Connection, writes: Sequence[StagedWrite], *, is_guest: bool = False) -> None:
    """Delete the rows that tasks have staged for an abandoned batch."""
    text = statements.OWN_CLEAR_WRITES if is_guest else statements.CLEAR_WRITES
    with connection.transaction():
        connection.execute(statements.SETTINGS)
        connection.execute(text, {"write_ids": [write.write_id for write in writes]})


def sweep(connection: Connection, forgotten_sink: str | None = None, *, is_guest: bool = False) -> None:
    """Delete rows staged for more than a day, and the ledger of a forgotten sink, whose name is not used again.

    The owner does this for all roles, another role only for itself.
    """
    with connection.transaction():
        connection.execute(statements.SETTINGS)
        if is_guest:
            connection.execute(statements.OWN_CLEAR_WRITES, {"write_ids": []})
        else:
            connection.execute(statements.SWEEP)
    if forgotten_sink is not None:
        text = statements.OWN_FORGET_SINK if is_guest else statements.FORGET_SINK
        connection.execute(text, {"sink_id": forgotten_sink})


@contextmanager
def translated(target: str) -> Iterator[None]:
    """Translate errors as `mqdb.store.engine.translated` does, but import SQLAlchemy only after an error."""
    try:
        yield
    except psycopg.Error as error:
        from mqdb.store.engine import translate

        raise translate(error, target) from error


def _ensure_segments(connection: Connection, messages: int, is_guest: bool) -> None:
    """Make segments, each in a transaction of its own, because dispatch has to wait until such a transaction ends.

    Only the owner may make more than two; the keeper of `mqdb serve` makes them while a large batch is appended.
    """
    row = connection.execute(statements.SEGMENTS_FOR, {"messages": messages}).fetchone()
    assert row is not None, "mqdb.broker has one row"
    for ahead in range(1, (min(row[0], 2) if is_guest else row[0]) + 1):
        connection.execute(statements.ENSURE_SEGMENTS, {"ahead": ahead})


def _append_batch(
    connection: Connection,
    batch: SinkBatch,
    writes: Sequence[StagedWrite],
    may_skip: bool,
    is_guest: bool,
    in_parts: bool = False,
) -> AppendResult:
    named = batch._asdict() | {"may_skip": may_skip}
    messages = sum(write.messages for write in writes)
    result = AppendResult(AppendOutcome.APPENDED, batch.batch_id, messages)
    with connection.transaction():
        connection.execute(statements.SETTINGS)
        if connection.execute(statements.RECORD_BATCH, named | {"messages": messages}).rowcount:
            if in_parts:
                _record_parts(connection, batch, writes)
                return result._replace(outcome=AppendOutcome.OPEN)
            found = _append_writes(connection, writes)
            if found != messages:
                result = AppendResult(AppendOutcome.INCOMPLETE, batch.batch_id, found)
                raise psycopg.Rollback
            connection.execute(statements.OWN_FORGET_BATCHES if is_guest else statements.FORGET_BATCHES, named)
        else:
            result = _find_newest(connection, batch, named)
            if result.outcome is AppendOutcome.OPEN:
                return result
            if result.outcome is not AppendOutcome.REPEATED:
                raise psycopg.Rollback  # the staged rows may belong to the rightful query
        connection.execute(statements.OWN_CLEAR_BATCHES if is_guest else statements.CLEAR_BATCHES, named)
    return result


def _append_writes(connection: Connection, writes: Sequence[StagedWrite]) -> int:
    found = 0
    for write in writes:
        if write.messages:
            found += _append(connection, write.write_id, 0, _PAST_ALL, write.waits)
    return found


def _append(connection: Connection, write_id: UUID, first: int, past: int, waits: bool) -> int:
    text = statements.APPEND_WAITING if waits else statements.APPEND
    return connection.execute(text, {"write_id": write_id, "first": first, "past": past}).rowcount


def _record_parts(connection: Connection, batch: SinkBatch, writes: Sequence[StagedWrite]) -> None:
    for part, write in enumerate(writes):
        if write.messages:
            named = {"part": part, "write_id": write.write_id, "messages": write.messages, "waits": write.waits}
            connection.execute(statements.RECORD_PART, batch._asdict() | named)


def _move(connection: Connection, batch: SinkBatch, part_messages: int | None) -> int | None:
    found: int | None = 0
    with connection.transaction():
        connection.execute(statements.SETTINGS)
        row = connection.execute(statements.TAKE_PART, batch._asdict()).fetchone()
        if row is not None:
            write_id, messages, moved, first, waits = row
            wanted = min(messages - moved, part_messages or messages)
            named = {"write_id": write_id, "first": first, "messages": wanted}
            end = connection.execute(statements.PART_END, named).fetchone()
            named["past"] = _PAST_ALL if end is None else end[0]
            found = _append(connection, write_id, first, named["past"], waits)
            if found != wanted:
                found = None
                raise psycopg.Rollback
            connection.execute(statements.RECORD_MOVE, named)
            connection.execute(statements.CLEAR_MOVED, named)
    return found


def _find_newest(connection: Connection, batch: SinkBatch, named: Mapping[str, object]) -> AppendResult:
    row = connection.execute(statements.FIND_NEWEST, named).fetchone()
    if row is None:
        return AppendResult(AppendOutcome.GAP, None, 0)
    query_id, batch_id, messages, brokers, is_open = row
    outcome = AppendOutcome.OPEN if is_open else AppendOutcome.REPEATED
    if query_id != batch.query_id:
        outcome = AppendOutcome.TAKEN
    elif brokers is not None and batch.brokers is None:
        outcome = AppendOutcome.LISTED
    elif batch_id != batch.batch_id:
        outcome = AppendOutcome.PASSED if batch_id > batch.batch_id else AppendOutcome.GAP
    return AppendResult(outcome, batch_id, messages)
