"""Exactly-once offset store: offsets that the transactions of listeners have committed already.

It changes what another store does only where an offset is read or written. Every few seconds, and when a queue is
taken, what the transactions have committed is folded into the row that everybody looks at.
"""

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection

from mqdb.broker.consumers import exactly_once
from mqdb.common.group import StartingPoint
from mqdb.common.message import MessageQueue
from mqdb.store.consumers.consumer_offsets import OwnedQueue
from mqdb_client.consumer.offsets.offset_store import Lease, OffsetStore


class ExactlyOnceOffsetStore:
    """Offsets of an exactly-once consumer, owned as `store` has it: with a lock, if it is that of an orderly one."""

    def __init__(self, group: str, store: OffsetStore) -> None:
        self._group = group
        self._store = store

    @property
    def lease(self) -> Lease | None:
        """The other store's."""
        return self._store.lease

    def take(
        self, connection: Connection, wanted: Mapping[int, MessageQueue], start: StartingPoint, *, force: bool
    ) -> list[OwnedQueue]:
        """A queue in which a transaction is being committed right now is left out."""
        return self._store.take(connection, wanted, start, force=force)

    def take_again(self, connection: Connection, held: Mapping[int, MessageQueue]) -> list[OwnedQueue]:
        """As `take`."""
        return self._store.take_again(connection, held)

    def epochs(self, connection: Connection) -> dict[int, int]:
        """As the other store."""
        return self._store.epochs(connection)

    def commit(self, connection: Connection, owned: Sequence[OwnedQueue]) -> list[OwnedQueue]:
        """Only forward. What is not consumed may be passed by as well: messages that nobody has asked for."""
        return exactly_once.commit_offsets(connection, self._group, owned)

    def correct(self, connection: Connection, owned: OwnedQueue) -> bool:
        """As the other store."""
        correct = self._store.correct
        return exactly_once.correct_offset(connection, self._group, owned.queue_key, lambda: correct(connection, owned))

    def renew(self, connection: Connection, owned: Sequence[OwnedQueue]) -> set[int]:
        """As the other store."""
        return self._store.renew(connection, owned)

    def release(self, connection: Connection, owned: Sequence[OwnedQueue]) -> None:
        """As the other store."""
        self._store.release(connection, owned)
