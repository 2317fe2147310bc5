"""Offsets: take queues, commit how far they are read, give them back."""

from collections.abc import Sequence

from sqlalchemy import Connection

from mqdb.errors import NotSupported
from mqdb.group import ConsumeFromWhere
from mqdb.store import clients, consumer_offsets
from mqdb.store.consumer_offsets import OwnedQueue
from mqdb.store.engine import target_of, transaction, translated


def take_queues(
    connection: Connection,
    group: str,
    client_id: str,
    queue_keys: Sequence[int],
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.LAST_OFFSET,
    *,
    force: bool = False,
) -> list[OwnedQueue]:
    """Own those of the queues that are free; a group that is new to a topic starts where it says.

    A queue is free when nobody owns it or its owner is no longer a member: its owner gives it back when rebalance
    takes it away, after the listeners that hold its messages have returned. `force` does not wait for that; what
    the old owner commits is then refused, and its unfinished messages come a second time.
    """
    if consume_from_where is ConsumeFromWhere.TIMESTAMP:
        raise NotSupported("consume_from_where=TIMESTAMP")
    if not queue_keys:
        return []
    with translated(target_of(connection)), transaction(connection):
        consumer_offsets.begin(connection, group, queue_keys, consume_from_where)
        return consumer_offsets.take(connection, group, client_id, queue_keys, force)


def owned_epochs(connection: Connection, group: str, client_id: str) -> dict[int, int]:
    """The queues that a member owns as the broker sees it, and under which epochs."""
    with translated(target_of(connection)):
        return consumer_offsets.epochs(connection, group, client_id)


def commit_offsets(connection: Connection, group: str, owned: Sequence[OwnedQueue]) -> list[OwnedQueue]:
    """Commit `next_offset` and `segment` of each queue; returns the queues that were lost to a newer owner."""
    if not owned:
        return []
    with translated(target_of(connection)):
        done = consumer_offsets.commit(connection, group, owned)
    return [queue for queue in owned if queue.queue_key not in done]


def correct_offset(connection: Connection, group: str, owned: OwnedQueue) -> bool:
    """Set the offset of one queue, back as well as forward, where the stored one does not exist; False when lost."""
    with translated(target_of(connection)):
        return bool(consumer_offsets.commit(connection, group, [owned], may_go_back=True))


def release_queues(connection: Connection, group: str, owned: Sequence[OwnedQueue]) -> None:
    """Give queues back and tell the group, so that the members that wait for them take them at once."""
    if not owned:
        return
    with translated(target_of(connection)), transaction(connection):
        if consumer_offsets.release(connection, group, owned):
            clients.notify_group(connection, group)


def committed_offsets(connection: Connection, group: str, queue_keys: Sequence[int]) -> dict[int, int]:
    """The next offset of a group on each of the queues that it has ever taken."""
    with translated(target_of(connection)):
        return consumer_offsets.committed(connection, group, queue_keys)
