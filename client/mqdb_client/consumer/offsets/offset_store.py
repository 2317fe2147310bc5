"""Offset store: it stores the offsets of a consumer, and decides which queues the consumer owns.

    BrokerOffsetStore           clustering: rows in the broker, one owner per queue, fenced by its epoch
    LockedOffsetStore           orderly: these rows, under a lock that expires
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
    """The durations for which a queue keeps its owner without a renewal. Source: RebalanceLockManager, ProcessQueue."""

    #: The time between renewals.
    renew_every: timedelta = timedelta(seconds=20)
    #: The time after the last successful renewal was sent, from which on the owner starts no more listeners.
    client_expiry: timedelta = timedelta(seconds=30)
    #: The time after the renewal, from which on another member may take the queue.
    broker_expiry: timedelta = timedelta(seconds=60)


class OffsetStore(Protocol):
    """The offsets of one consumer on one broker.

    Each method sends one request, in its own transaction, and raises the errors of `mqdb.store.engine.translate`. After
    an error, either nothing has changed, or the next call finds the change.
    """

    @property
    def lease(self) -> Lease | None:
        """The lease of a queue; None if ownership does not expire."""

    def take(
        self, connection: Connection, wanted: Mapping[int, MessageQueue], start: StartingPoint, *, force: bool
    ) -> list[OwnedQueue]:
        """Take the wanted queues (a dict by key) that are free; `start` applies to queues that have no offset.

        With `force`, queues are taken before their owners give them back.
        """

    def take_again(self, connection: Connection, held: Mapping[int, MessageQueue]) -> list[OwnedQueue]:
        """Retake queues that this member has not given back, if they are free."""

    def epochs(self, connection: Connection) -> dict[int, int]:
        """The epochs of the queues that this member owns according to the broker."""

    def commit(self, connection: Connection, owned: Sequence[OwnedQueue]) -> list[OwnedQueue]:
        """Store the offsets of queues; returns the queues that were lost to another owner."""

    def correct(self, connection: Connection, owned: OwnedQueue) -> bool:
        """Store another offset, which may be lower than the stored offset; returns False if the queue was lost."""

    def renew(self, connection: Connection, owned: Sequence[OwnedQueue]) -> set[int]:
        """Renew the lease; returns the keys of the queues that this member still owns."""

    def release(self, connection: Connection, owned: Sequence[OwnedQueue]) -> None:
        """Give queues back, and notify the members that wait for them."""


class BrokerOffsetStore:
    """Offsets stored in rows of `consumer_offset`.

    An owner keeps a queue until it gives the queue back or is no longer a member.
    """

    lease: Lease | None = None

    def __init__(self, group: str, client_id: str) -> None:
        self._group = group
        self._client_id = client_id

    def take(
        self, connection: Connection, wanted: Mapping[int, MessageQueue], start: StartingPoint, *, force: bool
    ) -> list[OwnedQueue]:
        """Take free queues with one UPDATE, which raises their epochs."""
        return offsets.take_queues(connection, self._group, self._client_id, list(wanted), start, force=force)

    def take_again(self, connection: Connection, held: Mapping[int, MessageQueue]) -> list[OwnedQueue]:
        """Retake held queues with one UPDATE, which raises their epochs."""
        return offsets.take_queues(connection, self._group, self._client_id, list(held))

    def epochs(self, connection: Connection) -> dict[int, int]:
        """The epochs of this member's queues, as stored in their rows."""
        return owned_epochs(connection, self._group, self._client_id)

    def commit(self, connection: Connection, owned: Sequence[OwnedQueue]) -> list[OwnedQueue]:
        """Store offsets of queues, which only move forward; returns the queues that were lost to another owner."""
        return offsets.commit_offsets(connection, self._group, owned)

    def correct(self, connection: Connection, owned: OwnedQueue) -> bool:
        """Store another offset, which may be lower than the stored offset; returns False if the queue was lost."""
        return offsets.correct_offset(connection, self._group, owned)

    def renew(self, connection: Connection, owned: Sequence[OwnedQueue]) -> set[int]:
        """Return all queues, because their ownership does not expire."""
        return {queue.queue_key for queue in owned}

    def release(self, connection: Connection, owned: Sequence[OwnedQueue]) -> None:
        """Give queues back, so that they have no owner."""
        offsets.release_queues(connection, self._group, owned)
