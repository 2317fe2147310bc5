"""Exactly-once offset store: offsets that were already committed by the listeners' transactions.

The store wraps another store, and differs from that store only in reading and writing offsets. Every few seconds, and
when a queue is taken, the offsets that transactions have committed are merged into the queue's row, which other
sessions read.
"""

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection

from mqdb.broker.consumers import exactly_once
from mqdb.common.group import StartingPoint
from mqdb.common.message import MessageQueue
from mqdb.store.consumers.consumer_offsets import OwnedQueue
from mqdb_client.consumer.offsets.offset_store import Lease, OffsetStore


class ExactlyOnceOffsetStore:
    """The offsets of an exactly-once consumer. `store` decides ownership: with locks if the consumer is orderly."""

    def __init__(self, group: str, store: OffsetStore) -> None:
        self._group = group
        self._store = store

    @property
    def lease(self) -> Lease | None:
        """The lease of the wrapped store."""
        return self._store.lease

    def take(
        self, connection: Connection, wanted: Mapping[int, MessageQueue], start: StartingPoint, *, force: bool
    ) -> list[OwnedQueue]:
        """Take free queues through the wrapped store, except queues in which a transaction is being committed."""
        return self._store.take(connection, wanted, start, force=force)

    def take_again(self, connection: Connection, held: Mapping[int, MessageQueue]) -> list[OwnedQueue]:
        """Retake held queues through the wrapped store."""
        return self._store.take_again(connection, held)

    def epochs(self, connection: Connection) -> dict[int, int]:
        """The epochs of this member's queues, from the wrapped store."""
        return self._store.epochs(connection)

    def commit(self, connection: Connection, owned: Sequence[OwnedQueue]) -> list[OwnedQueue]:
        """Commit offsets past messages that were skipped because they did not match. Offsets only move forward."""
        return exactly_once.commit_offsets(connection, self._group, owned)

    def correct(self, connection: Connection, owned: OwnedQueue) -> bool:
        """Store another, possibly lower, offset through the wrapped store; returns False if the queue was lost."""
        correct = self._store.correct
        return exactly_once.correct_offset(connection, self._group, owned.queue_key, lambda: correct(connection, owned))

    def renew(self, connection: Connection, owned: Sequence[OwnedQueue]) -> set[int]:
        """Renew the lease through the wrapped store; returns the keys of the queues that this member still owns."""
        return self._store.renew(connection, owned)

    def release(self, connection: Connection, owned: Sequence[OwnedQueue]) -> None:
        """Give queues back through the wrapped store."""
        self._store.release(connection, owned)
