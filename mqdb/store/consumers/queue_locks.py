"""Queue locks: the client that consumes a queue in order, and the time until which it may do so exclusively.

Ownership of a queue ends with its owner's membership, within a second of its death. This is too early for a queue that
is consumed in order: the owner may only have lost its connection, and be in the middle of a message. So there is also a
lock. A lock ends when its owner releases it, or when it expires without having been renewed, which the owner also
notices.

Taking queues and giving them back first locks the rows of `consumer_offset` and then those of the locks; a renewal
locks only the rows of the locks. RocketMQ: RebalanceLockManager. In SQL: `mqdb/sql/consumers/unlock_queues.sql`.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from sqlalchemy import (
    BigInteger,
    Connection,
    Interval,
    and_,
    cast,
    exists,
    func,
    literal,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY, insert

from mqdb.store.consumers.consumer_offsets import OwnedQueue
from mqdb.store.engine import translates
from mqdb.store.fragments import OWNED_QUEUE, array_of, given, group_id, is_ahead
from mqdb.store.log.history import is_current
from mqdb.store.tables import consumer_offset, queue_lock

_lock: Final = queue_lock.c


def free(connection: Connection, group: str, client_id: str, queue_keys: Sequence[int]) -> list[int]:
    """The queues that no other client has locked or can lock before the transaction ends.

    Queues that another session is taking or giving back, and queues without an offset of the group, are left out.
    """
    stored = consumer_offset.c
    is_foreign = and_(_lock.owner != client_id, is_ahead(_lock.expires_at, _lock.expiry))
    # This excludes most locked queues without taking row locks.
    is_locked = exists().where(_lock.group_id == stored.group_id, _lock.queue_key == stored.queue_key, is_foreign)
    held = connection.scalars(
        select(stored.queue_key)
        .where(stored.group_id == group_id(group), stored.queue_key == func.any(array_of(queue_keys)), ~is_locked)
        .order_by(stored.queue_key)
        .with_for_update(skip_locked=True)
    ).all()
    # Also the expired rows: their owner could renew them until they are overwritten.
    locks = connection.execute(
        select(_lock.queue_key, is_foreign.label("is_foreign"))
        .where(_lock.group_id == group_id(group), _lock.queue_key == func.any(array_of(held)))
        .order_by(_lock.queue_key)
        .with_for_update()
    )
    foreign = {row.queue_key for row in locks if row.is_foreign}
    return [key for key in held if key not in foreign]


@translates
def has_locks(connection: Connection, group: str) -> bool:
    """Whether the members of a group lock queues, because they consume in order."""
    return bool(connection.scalar(select(exists().where(_lock.group_id == group_id(group)))))


def put(connection: Connection, group: str, client_id: str, owned: Sequence[OwnedQueue], expiry: timedelta) -> None:
    """Lock queues that were `free` and that this transaction has claimed."""
    own = given(OWNED_QUEUE, owned)
    length = literal(expiry, Interval())
    rows = select(group_id(group), own.c.queue_key, literal(client_id), own.c.epoch, func.mqdb.now() + length, length)
    names = ["group_id", "queue_key", "owner", "epoch", "expires_at", "expiry"]
    inserting = insert(queue_lock).from_select(names, rows)
    values = {name: inserting.excluded[name] for name in names[2:]}
    connection.execute(inserting.on_conflict_do_update(constraint="queue_lock_pkey", set_=values))


def renew(
    connection: Connection, group: str, client_id: str, owned: Sequence[OwnedQueue], expiry: timedelta
) -> set[int]:
    """Lock queues for `expiry` from now on; returns the queues whose locks the caller still holds, expired or not."""
    own = given(OWNED_QUEUE, owned)
    mine = (
        select(_lock.queue_key)
        .join(own, and_(own.c.queue_key == _lock.queue_key, own.c.epoch == _lock.epoch))
        .where(_lock.group_id == group_id(group), _lock.owner == client_id, is_current(own.c.history))
        .order_by(_lock.queue_key)  # as in `free`: takers of expired locks wait for us, without a deadlock
        .with_for_update(of=queue_lock)
    )
    renewed = (
        update(queue_lock)
        .where(_lock.group_id == group_id(group), _lock.queue_key.in_(mine))
        .values(expires_at=func.mqdb.now() + literal(expiry, Interval()), expiry=expiry)
    )
    return set(connection.scalars(renewed.returning(_lock.queue_key)))


def remove(connection: Connection, group: str, client_id: str, owned: Sequence[OwnedQueue]) -> None:
    """Unlock queues if the caller holds their locks."""
    epochs = cast([queue.epoch for queue in owned], ARRAY(BigInteger))
    keys = array_of([queue.queue_key for queue in owned])
    connection.execute(select(func.mqdb.unlock_queues(group, client_id, keys, epochs)))
