"""Offset store: where a consumer keeps how far it has come, and what makes a queue its own.

    BrokerOffsetStore           clustering: rows in the broker, one owner a queue, fenced by its epoch
    LockedOffsetStore           orderly: the same, under a lock that expires
    ExactlyOnceOffsetStore      exactly once: offsets are committed by the listeners' transactions
    LocalFileOffsetStore        broadcasting: a file; every member reads every queue

RocketMQ: OffsetStore, RemoteBrokerOffsetStore, LocalFileOffsetStore.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from sqlalchemy import Connection

from mqdb.broker.consumers import offsets
from mqdb.common.group import StartingPoint
from mqdb.common.message import MessageQueue
from mqdb.store.consumers.consumer_offsets import OwnedQueue, owned_epochs


@dataclass(frozen=True, slots=True)
class Lease:
    """How long a queue stays its owner's without a sign of life. Source: RebalanceLockManager, ProcessQueue."""

    #: Between renewals.
    renew_every: timedelta = timedelta(seconds=20)
    #: So long after it asked for the last one that succeeded, the owner starts no listener any more.
    client_expiry: timedelta = timedelta(seconds=30)
    #: So long after it, another member may take the queue.
    broker_expiry: timedelta = timedelta(seconds=60)


class OffsetStore(Protocol):
    """The offsets of one consumer on one broker. Each method is one request, in a transaction of its own.

    It raises what `mqdb.store.engine.translate` makes of the driver's errors, and has changed nothing then, or
    what the next call finds.
    """

    @property
    def lease(self) -> Lease | None:
        """None where ownership does not expire."""

    def take(
        self, connection: Connection, wanted: Mapping[int, MessageQueue], start: StartingPoint, *, force: bool
    ) -> list[OwnedQueue]:
        """Own those of the wanted queues, by their keys, that are free; `start` is for queues without an offset.

        `force` does not wait until the owner gives a queue back.
        """

    def take_again(self, connection: Connection, held: Mapping[int, MessageQueue]) -> list[OwnedQueue]:
        """Own queues that this member believes to be its own, as far as they are free."""

    def epochs(self, connection: Connection) -> dict[int, int]:
        """The queues that the broker believes to be this member's, and under which epochs."""

    def commit(self, connection: Connection, owned: Sequence[OwnedQueue]) -> list[OwnedQueue]:
        """Store how far each is read; returns those that were lost to another owner."""

    def correct(self, connection: Connection, owned: OwnedQueue) -> bool:
        """Store another offset, which may lie before the stored one; False when the queue was lost."""

    def renew(self, connection: Connection, owned: Sequence[OwnedQueue]) -> set[int]:
        """Renew the lease; returns the keys of the queues that are still this member's."""

    def release(self, connection: Connection, owned: Sequence[OwnedQueue]) -> None:
        """Give queues back, and tell the members who wait for them."""


class BrokerOffsetStore:
    """Rows of `consumer_offset`. Whoever owns a queue keeps it until it gives it back or is no member any more."""

    lease: Lease | None = None

    def __init__(self, group: str, client_id: str) -> None:
        self._group = group
        self._client_id = client_id

    def take(
        self, connection: Connection, wanted: Mapping[int, MessageQueue], start: StartingPoint, *, force: bool
    ) -> list[OwnedQueue]:
        """By one UPDATE, which raises the epoch."""
        return offsets.take_queues(connection, self._group, self._client_id, list(wanted), start, force=force)

    def take_again(self, connection: Connection, held: Mapping[int, MessageQueue]) -> list[OwnedQueue]:
        """As `take`."""
        return offsets.take_queues(connection, self._group, self._client_id, list(held))

    def epochs(self, connection: Connection) -> dict[int, int]:
        """From the rows."""
        return owned_epochs(connection, self._group, self._client_id)

    def commit(self, connection: Connection, owned: Sequence[OwnedQueue]) -> list[OwnedQueue]:
        """Only forward."""
        return offsets.commit_offsets(connection, self._group, owned)

    def correct(self, connection: Connection, owned: OwnedQueue) -> bool:
        """Also back."""
        return offsets.correct_offset(connection, self._group, owned)

    def renew(self, connection: Connection, owned: Sequence[OwnedQueue]) -> set[int]:
        """There is nothing to renew."""
        return {queue.queue_key for queue in owned}

    def release(self, connection: Connection, owned: Sequence[OwnedQueue]) -> None:
        """They have no owner then."""
        offsets.release_queues(connection, self._group, owned)
