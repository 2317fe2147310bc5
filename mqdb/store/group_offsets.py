"""Group offsets: offsets that are read and committed by one who owns no queue.

Such a reader must not disturb those who own queues: its commit changes no row that a member has, and raises the epoch
of each row that it does change, so that a member who comes back from having been given up reads on from there.
RocketMQ has no such fence.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Integer,
    ScalarSelect,
    and_,
    cast,
    delete,
    exists,
    func,
    or_,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY, insert
from sqlalchemy.sql.selectable import TableValuedAlias

from mqdb.store.consumer_offsets import OwnedQueue
from mqdb.store.offset_commits import effective_offset
from mqdb.store.tables import client, consumer_offset, offset_commit, queue, queue_lock, subscription_group


def positions(connection: Connection, group: str, queue_keys: Sequence[int]) -> list[OwnedQueue]:
    """Where the group reads on in those of the queues on which it has an offset, under epoch 0."""
    columns = consumer_offset.c.queue_key, effective_offset(), consumer_offset.c.segment
    rows = connection.execute(
        select(*columns).where(
            consumer_offset.c.group_id == _group_id(group), consumer_offset.c.queue_key == func.any(_keys(queue_keys))
        )
    )
    return [OwnedQueue(queue_key, 0, next_offset, segment) for queue_key, next_offset, segment in rows]


def ensure_group(connection: Connection, group: str) -> None:
    """Make the group where there is none."""
    is_there = select(subscription_group.c.group_id).where(subscription_group.c.group_name == group)
    if connection.scalar(is_there) is None:
        connection.execute(insert(subscription_group).values(group_name=group).on_conflict_do_nothing())


def commit(connection: Connection, group: str, positions: Sequence[OwnedQueue]) -> set[int]:
    """Set the offsets of a group, forward or back, on those of the queues that no member has; returns their keys.

    In the caller's transaction. Queues that do not exist any more are left out.
    """
    _begin(connection, group, positions)
    free = _lock_free(connection, group, [position.queue_key for position in positions])
    given = _given([position for position in positions if position.queue_key in free])
    connection.execute(
        update(consumer_offset)
        .where(consumer_offset.c.group_id == _group_id(group), consumer_offset.c.queue_key == given.c.queue_key)
        .values(
            next_offset=given.c.next_offset,
            segment=given.c.segment,
            owner=None,
            epoch=consumer_offset.c.epoch + 1,
            updated_at=func.mqdb.now(),
        )
    )
    # What exactly-once consumers have committed beyond it would count as well.
    done = offset_commit.c.group_id == _group_id(group), offset_commit.c.queue_key == func.any(_keys(sorted(free)))
    connection.execute(delete(offset_commit).where(*done))
    return free


def _begin(connection: Connection, group: str, positions: Sequence[OwnedQueue]) -> None:
    given = _given(positions)
    rows = (
        select(_group_id(group), given.c.queue_key, given.c.next_offset, given.c.segment)
        .join_from(given, queue, queue.c.queue_key == given.c.queue_key)
        .order_by(given.c.queue_key)  # two that do this at the same time wait for each other, not in a circle
    )
    columns = ["group_id", "queue_key", "next_offset", "segment"]
    connection.execute(insert(consumer_offset).from_select(columns, rows).on_conflict_do_nothing())


def _lock_free(connection: Connection, group: str, queue_keys: Sequence[int]) -> set[int]:
    stored = consumer_offset.c
    wanted = and_(stored.group_id == _group_id(group), stored.queue_key == func.any(_keys(queue_keys)))
    free = select(stored.queue_key).where(wanted, ~_is_taken(group)).order_by(stored.queue_key)
    return set(connection.scalars(free.with_for_update()))


def owners(connection: Connection, group: str, queue_keys: Sequence[int]) -> dict[int, str]:
    """Those of the queues that a member has, and which one."""
    locked_by = select(queue_lock.c.owner).where(_is_lock_of_row()).correlate(consumer_offset).scalar_subquery()
    rows = connection.execute(
        select(consumer_offset.c.queue_key, func.coalesce(consumer_offset.c.owner, locked_by).label("owner")).where(
            consumer_offset.c.group_id == _group_id(group),
            consumer_offset.c.queue_key == func.any(_keys(queue_keys)),
            _is_taken(group),
        )
    )
    return {row.queue_key: row.owner for row in rows}


def _is_taken(group: str) -> ColumnElement[bool]:
    """Whether a row's queue is a member's, or is still locked by one who has gone."""
    is_owned = exists().where(
        client.c.client_id == consumer_offset.c.owner, client.c.group_name == group, client.c.kind == "CONSUMER"
    )
    is_locked = exists().where(_is_lock_of_row(), queue_lock.c.expires_at > func.mqdb.now())
    return or_(is_owned, is_locked)


def _is_lock_of_row() -> ColumnElement[bool]:
    stored = consumer_offset.c
    return and_(queue_lock.c.group_id == stored.group_id, queue_lock.c.queue_key == stored.queue_key)


def _group_id(group: str) -> ScalarSelect[int]:
    return select(subscription_group.c.group_id).where(subscription_group.c.group_name == group).scalar_subquery()


def _keys(queue_keys: Sequence[int]) -> ColumnElement[Any]:
    return cast(list(queue_keys), ARRAY(Integer))


def _given(positions: Sequence[OwnedQueue]) -> TableValuedAlias:
    keys = [position.queue_key for position in positions]
    offsets = cast([position.next_offset for position in positions], ARRAY(BigInteger))
    segments = cast([position.segment for position in positions], ARRAY(Integer))
    given = func.unnest(_keys(keys), offsets, segments).table_valued(
        "queue_key", "next_offset", "segment", name="given"
    )
    return given.render_derived("given")
