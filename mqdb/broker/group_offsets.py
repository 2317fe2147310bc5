"""Group offsets: read and commit how far a group has come, without owning its queues.

For consumers that choose their queues themselves, and for commits that go back as well as forward.
RocketMQ: DefaultLitePullConsumer, RemoteBrokerOffsetStore.
"""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Connection

from mqdb.broker.offsets import start_offsets
from mqdb.group import ConsumeFromWhere
from mqdb.store import consumer_offsets, group_offsets, queues
from mqdb.store.consumer_offsets import OwnedQueue
from mqdb.store.engine import target_of, transaction, translated
from mqdb.store.queues import Ends


def queue_ends(connection: Connection, queue_key: int) -> Ends | None:
    """Min and max offset of a queue; None where there is none of that key."""
    with translated(target_of(connection)):
        return queues.ends(connection, [queue_key]).get(queue_key)


def find_positions(
    connection: Connection,
    group: str,
    queue_keys: Sequence[int],
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.LAST_OFFSET,
    consume_timestamp: datetime | None = None,
) -> list[OwnedQueue]:
    """Where a group reads on in each of the queues, under epoch 0; where it has no offset, where it says.

    Nothing is written: who does not commit leaves no trace. Queues that do not exist are left out.
    Raises ParameterInvalid under TIMESTAMP for a `consume_timestamp` without a time zone.
    """
    with translated(target_of(connection)):
        known = group_offsets.positions(connection, group, queue_keys)
    new = sorted(set(queue_keys) - {position.queue_key for position in known})
    starts = start_offsets(connection, new, consume_from_where, consume_timestamp)
    return known + [OwnedQueue(key, 0, offset, 0) for key, offset in starts.items()]


def commit_without_owner(connection: Connection, group: str, positions: Sequence[OwnedQueue]) -> dict[int, str]:
    """Set the offsets of a group, forward or back, where no member has the queue; the group is made if need be.

    Returns the queues that were refused, and the members that have them.
    """
    if not positions:
        return {}
    with translated(target_of(connection)), transaction(connection):
        group_offsets.ensure_group(connection, group)
        done = group_offsets.commit(connection, group, positions)
        refused = [position.queue_key for position in positions if position.queue_key not in done]
        return group_offsets.owners(connection, group, refused) if refused else {}


def commit_positions(connection: Connection, group: str, owned: Sequence[OwnedQueue]) -> list[OwnedQueue]:
    """As `offsets.commit_offsets`, but back as well as forward; returns the queues that were lost to a newer owner."""
    if not owned:
        return []
    with translated(target_of(connection)):
        done = consumer_offsets.commit(connection, group, owned, may_go_back=True)
    return [queue for queue in owned if queue.queue_key not in done]
