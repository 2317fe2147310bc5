"""Group offsets: offsets that are read and committed without owning the queues.

Such a reader must not disturb the owners of queues: its commit changes no row that a member owns. A commit raises the
epoch of each row that it changes, so a member that was removed and returns continues at the committed offset. If the
offset was reset since the reader began to read, its commit is refused. RocketMQ has no such fence.
In SQL: `mqdb/sql/consumers/next_epoch.sql`, `mqdb/sql/topics/make_topic.sql`.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    DateTime,
    Integer,
    and_,
    exists,
    false,
    func,
    or_,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.types import TypeEngine

from mqdb.store.consumers import offset_commits
from mqdb.store.consumers.consumer_offsets import effective_offset
from mqdb.store.engine import translates
from mqdb.store.fragments import array_of, given, group_id, is_ahead
from mqdb.store.log.history import History, is_current
from mqdb.store.tables import client, consumer_offset, queue, queue_lock, subscription_group


class ReadQueue(NamedTuple):
    """A queue that is read by a reader that does not own it, and the offset at which to continue."""

    queue_key: int
    next_offset: int
    segment: int
    reset_at: datetime | None
    """The time of the last reset of the group's offset before the reading began; None without a reset."""
    history: History | None = None
    """The history of the log in which the offset was found; None means any history."""


_READ_QUEUE: Final[Mapping[str, TypeEngine[Any]]] = {
    "queue_key": Integer(),
    "next_offset": BigInteger(),
    "segment": Integer(),
    "reset_at": DateTime(timezone=True),
    "history": BigInteger(),
}

_stored: Final = consumer_offset.c


@translates
def committed_positions(connection: Connection, group: str, queue_keys: Sequence[int]) -> list[ReadQueue]:
    """The group's positions in those of the given queues in which it has an offset."""
    columns = _stored.queue_key, effective_offset(), _stored.segment, _stored.reset_at
    rows = connection.execute(select(*columns).where(*_are_rows(group, queue_keys)))
    return [ReadQueue(*row) for row in rows]


def ensure_group(connection: Connection, group: str) -> None:
    """Create the group if it does not exist."""
    is_there = select(subscription_group.c.group_id).where(subscription_group.c.group_name == group)
    if connection.scalar(is_there) is None:
        connection.execute(select(func.mqdb.make_group(group)))


def commit(connection: Connection, group: str, positions: Sequence[ReadQueue]) -> set[int]:
    """Set the offsets of a group, forward or back, in queues without an owner; returns their keys.

    This runs in the caller's transaction. Queues whose offset was reset since they were read, and queues that no longer
    exist, are also left out.
    """
    _begin(connection, group, positions)
    free = _lock_free(connection, group, positions)
    read = given(_READ_QUEUE, [position for position in positions if position.queue_key in free])
    connection.execute(
        update(consumer_offset)
        .where(_stored.group_id == group_id(group), _stored.queue_key == read.c.queue_key)
        .values(
            next_offset=read.c.next_offset,
            segment=read.c.segment,
            owner=None,
            epoch=func.mqdb.next_epoch(_stored.epoch),
            updated_at=func.mqdb.now(),
        )
    )
    # Commits by exactly-once consumers and polls beyond it would count, too.
    offset_commits.take(connection, group, dict.fromkeys(free, 0))
    return free


def _begin(connection: Connection, group: str, positions: Sequence[ReadQueue]) -> None:
    read = given(_READ_QUEUE, positions)
    rows = (
        select(group_id(group), read.c.queue_key, read.c.next_offset, read.c.segment, false())
        .join_from(read, queue, queue.c.queue_key == read.c.queue_key)
        .where(is_current(read.c.history))
        .order_by(read.c.queue_key)  # concurrent sessions that do this wait for each other without a deadlock
    )
    columns = ["group_id", "queue_key", "next_offset", "segment", "begun"]
    connection.execute(insert(consumer_offset).from_select(columns, rows).on_conflict_do_nothing())


def _lock_free(connection: Connection, group: str, positions: Sequence[ReadQueue]) -> set[int]:
    read = given(_READ_QUEUE, positions)
    free = (
        select(_stored.queue_key)
        .join(read, read.c.queue_key == _stored.queue_key)
        .where(_stored.group_id == group_id(group), ~_is_taken(group))
        .where(or_(_stored.reset_at.is_(None), _stored.reset_at == read.c.reset_at), is_current(read.c.history))
        .order_by(_stored.queue_key)
    )
    return set(connection.scalars(free.with_for_update(of=consumer_offset)))


def reset_since(connection: Connection, group: str, positions: Sequence[ReadQueue]) -> set[int]:
    """The keys of the queues whose offset was reset since they were read."""
    read_at = {position.queue_key: position.reset_at for position in positions}
    found = select(_stored.queue_key, _stored.reset_at).where(*_are_rows(group, list(read_at)))
    rows = connection.execute(found.where(_stored.reset_at.is_not(None)))
    return {row.queue_key for row in rows if row.reset_at != read_at[row.queue_key]}


def owners(connection: Connection, group: str, queue_keys: Sequence[int]) -> dict[int, str]:
    """The owners of the given queues; queues that no member owns are left out."""
    locked_by = select(queue_lock.c.owner).where(_is_lock_of_row()).correlate(consumer_offset).scalar_subquery()
    rows = connection.execute(
        select(_stored.queue_key, func.coalesce(_stored.owner, locked_by).label("owner")).where(
            *_are_rows(group, queue_keys), _is_taken(group)
        )
    )
    return {row.queue_key: row.owner for row in rows}


def _are_rows(group: str, queue_keys: Sequence[int]) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return _stored.group_id == group_id(group), _stored.queue_key == func.any(array_of(queue_keys))


def _is_taken(group: str) -> ColumnElement[bool]:
    """Whether a row's queue is owned by a member, or still locked by a former member."""
    is_owned = exists().where(
        client.c.client_id == _stored.owner, client.c.group_name == group, client.c.kind == "CONSUMER"
    )
    is_locked = exists().where(_is_lock_of_row(), is_ahead(queue_lock.c.expires_at, queue_lock.c.expiry))
    return or_(is_owned, is_locked)


def _is_lock_of_row() -> ColumnElement[bool]:
    return and_(queue_lock.c.group_id == _stored.group_id, queue_lock.c.queue_key == _stored.queue_key)
