"""Locked offset store: an orderly consumer's offsets and queue locks. RocketMQ: RebalanceImpl.lock, lockAll, unlock.

Each owned queue has a lock that expires. A member that seems to have died in the middle of a message may only be
disconnected. So its queue goes to another member only when the lock has expired, not already when the broker considers
the member dead. By then, the member has not called its listener for a while, because the member treats its lock as
expired earlier than the broker does.
"""

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection

from mqdb.broker.consumers import queue_locks
from mqdb.common.group import FROM_LAST_OFFSET, StartingPoint
from mqdb.common.message import MessageQueue
from mqdb.store.consumers.consumer_offsets import OwnedQueue
from mqdb_client.consumer.offsets.offset_store import BrokerOffsetStore, Lease


class LockedOffsetStore(BrokerOffsetStore):
    """Offsets as in BrokerOffsetStore. A queue can be taken by force only after its lock has expired."""

    def __init__(self, group: str, client_id: str, lease: Lease | None = None) -> None:
        super().__init__(group, client_id)
        self.lease: Lease = lease or Lease()

    def take(
        self, connection: Connection, wanted: Mapping[int, MessageQueue], start: StartingPoint, *, force: bool
    ) -> list[OwnedQueue]:
        """Take free queues together with their locks in one transaction."""
        return queue_locks.take_queues(
            connection,
            self._group,
            self._client_id,
            list(wanted),
            start,
            expiry=self.lease.broker_expiry,
            force=force,
        )

    def take_again(self, connection: Connection, held: Mapping[int, MessageQueue]) -> list[OwnedQueue]:
        """Take held queues again.

        The locks of these queues may have expired, or may still be valid although the broker considered this member
        dead.
        """
        return self.take(connection, held, FROM_LAST_OFFSET, force=False)

    def renew(self, connection: Connection, owned: Sequence[OwnedQueue]) -> set[int]:
        """Renew the locks of all queues with one UPDATE."""
        return queue_locks.renew_queues(
            connection, self._group, self._client_id, owned, expiry=self.lease.broker_expiry
        )

    def release(self, connection: Connection, owned: Sequence[OwnedQueue]) -> None:
        """Give queues and their locks back."""
        queue_locks.release_queues(connection, self._group, self._client_id, owned)
