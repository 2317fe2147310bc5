"""Queue locks: take queues for orderly consumption, renew the locks, give the queues back.

The functions of this module are the counterparts of `offsets.take_queues` and `release_queues`. A queue whose owner is
gone, or that is taken by force, is taken only when its lock has expired. RocketMQ: LOCK_BATCH_MQ, UNLOCK_BATCH_MQ.
"""

from collections.abc import Sequence
from datetime import timedelta

from sqlalchemy import Connection

from mqdb.common.group import FROM_LAST_OFFSET, StartingPoint
from mqdb.store.clients import clients
from mqdb.store.consumers import consumer_offsets, offset_commits, queue_locks
from mqdb.store.consumers.consumer_offsets import OwnedQueue
from mqdb.store.engine import transaction, translates


@translates
def take_queues(
    connection: Connection,
    group: str,
    client_id: str,
    queue_keys: Sequence[int],
    start: StartingPoint | None = FROM_LAST_OFFSET,
    *,
    expiry: timedelta,
    force: bool = False,
) -> list[OwnedQueue]:
    """Take and lock, for `expiry`, the queues that are free and not locked by another client.

    A group that is new to a topic starts at `start`. Without `start` only queues in which the group has an offset are
    taken.
    """
    if not queue_keys:
        return []
    with transaction(connection):
        if start is not None:
            consumer_offsets.begin(connection, group, queue_keys, start)
        free = queue_locks.free(connection, group, client_id, queue_keys)
        owned = consumer_offsets.take(connection, group, client_id, free, force) if free else []
        if owned:
            queue_locks.put(connection, group, client_id, owned, expiry)
        return offset_commits.fold_taken(connection, group, owned)


@translates
def renew_queues(
    connection: Connection, group: str, client_id: str, owned: Sequence[OwnedQueue], *, expiry: timedelta
) -> set[int]:
    """Lock queues for `expiry` from now on; returns the keys of the queues that the caller still owns.

    An expired lock is renewed unless another client has taken it.
    """
    if not owned:
        return set()
    return queue_locks.renew(connection, group, client_id, owned, expiry)


@translates
def release_queues(connection: Connection, group: str, client_id: str, owned: Sequence[OwnedQueue]) -> None:
    """Give queues back, unlock them, and notify the group."""
    if not owned:
        return
    with transaction(connection):
        released = consumer_offsets.release(connection, group, owned)
        queue_locks.remove(connection, group, client_id, owned)
        if released:
            clients.notify_group(connection, group)
