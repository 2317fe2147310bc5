"""Exactly once: the writes of a listener, its sends and the offset of its group are one transaction.

    begin ──▶ statements and sends of the listener ──▶ commit: the offset, under the owner's epoch, and COMMIT
                                                  └──▶ failed: ROLLBACK, then send_back: copies, and the offset

If a commit is not answered, its outcome is unknown. The queue is then taken again, which is possible once the old
transaction is over or can no longer commit. The new owner continues after the committed messages.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

import psycopg
from psycopg import errors as pg
from psycopg.pq import TransactionStatus
from sqlalchemy import Connection

from mqdb.broker.consumers import send_back as sending_back
from mqdb.broker.consumers.send_back import SendBackRequest, SentBack
from mqdb.common.message import MessageQueue
from mqdb.errors import BrokerUnavailable, QueueLost, TransactionEnded
from mqdb.store.consumers import offset_commits
from mqdb.store.consumers.consumer_offsets import OwnedQueue
from mqdb.store.consumers.offset_commits import NOT_OWNED, OffsetCommit
from mqdb.store.engine import driver, target_of, transaction, translates
from mqdb.store.tables import offset_commit


class ConsumedBatch(NamedTuple):
    """The messages consumed by a transaction, with their group and consumer."""

    group: str
    client_id: str
    queue: MessageQueue
    commit: OffsetCommit


# -- the transaction of a listener --------------------------------------------------------------


@translates
def begin(connection: Connection) -> None:
    """Begin a transaction, on a connection that is not in AUTOCOMMIT.

    This function reads nothing, so the isolation level can still be changed.
    """
    driver(connection).execute(offset_commits.MARK)


@translates
def commit(connection: Connection, batch: ConsumedBatch) -> None:
    """Commit the open transaction, together with the offset.

    Raises QueueLost and TransactionEnded, and StorageRefused with the text of a deferred constraint or a serialization
    failure: nothing was committed, except commits by the listener itself. BrokerUnavailable means that the outcome is
    unknown.
    """
    _require_open(connection)
    below = driver(connection)
    # In one message: a process that stops between the two would block its queue for all others.
    with _refusals(batch), below.pipeline():
        offset_commits.append(below, batch.group, batch.client_id, batch.commit, is_marked=True)
        below.execute("COMMIT")


def _require_open(connection: Connection) -> None:
    if connection.closed:
        raise TransactionEnded("closed the connection of")
    if connection.invalidated or not connection.in_transaction():
        raise TransactionEnded("rolled back")
    status = driver(connection).info.transaction_status
    if status is TransactionStatus.UNKNOWN:
        raise BrokerUnavailable(target_of(connection), "the connection was lost before the commit")
    if status is not TransactionStatus.INTRANS:
        raise TransactionEnded(_ENDS[status])


_ENDS: Final = {
    TransactionStatus.IDLE: "ended",
    TransactionStatus.INERROR: "let a statement fail in",
    TransactionStatus.ACTIVE: "left a statement running in",
}


@contextmanager
def _refusals(batch: ConsumedBatch) -> Iterator[None]:
    """Translate the errors with which the table of commits refuses an offset."""
    group, _, queue, refused = batch
    try:
        yield
    except psycopg.Error as error:
        if error.sqlstate == NOT_OWNED or _has_been_consumed(error):
            raise QueueLost(group, str(queue), refused.epoch) from error
        raise


def _has_been_consumed(error: psycopg.Error) -> bool:
    """Whether another transaction has just committed the same offset. Errors in other tables are up to the listener."""
    table = error.diag.schema_name, error.diag.table_name
    return isinstance(error, pg.UniqueViolation) and table == (offset_commit.schema, offset_commit.name)


# -- failed messages ----------------------------------------------------------------------------


@translates
def send_back(
    connection: Connection,
    batch: ConsumedBatch,
    requests: Sequence[SendBackRequest],
    max_reconsume_times: int | None = None,
) -> list[SentBack]:
    """Send messages back and commit their offset in one transaction: they are retried once, and the queue continues.

    Raises the errors of `mqdb.broker.consumers.send_back`, and QueueLost. BrokerUnavailable means that the outcome is
    unknown.
    """
    group, client_id, _, consumed = batch
    with _refusals(batch), transaction(connection):
        results = sending_back.send_back(connection, group, requests, max_reconsume_times)
        offset_commits.append(driver(connection), group, client_id, consumed, is_marked=False)
    return results


# -- ownership ----------------------------------------------------------------------------------


@translates
def commit_offsets(connection: Connection, group: str, owned: Sequence[OwnedQueue]) -> list[OwnedQueue]:
    """Store the offset of each queue; returns the queues that were lost to a newer owner.

    The offset is that of the last transaction, or `next_offset` if that is higher: messages that do not match the
    filter are skipped.
    """
    if not owned:
        return []
    with transaction(connection):
        stored = offset_commits.lock(connection, group, owned)
        offset_commits.fold(connection, group, [queue for queue in owned if queue.queue_key in stored], stored)
    return [queue for queue in owned if queue.queue_key not in stored]


@translates
def correct_offset(connection: Connection, group: str, queue_key: int, correct: Callable[[], bool]) -> bool:
    """Let `correct` set the offset of a queue on this connection, whatever transactions have committed.

    Returns False if the queue was lost.
    """
    with transaction(connection):
        is_corrected = correct()
        if is_corrected:
            offset_commits.take(connection, group, {queue_key: 0})
        return is_corrected
