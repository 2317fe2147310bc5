"""Offsets set by operators: the group continues at the new offset, whatever it has consumed.

The epoch of a queue rises with the change, and its owner is removed. So messages that a member still holds no longer
count, and the next owner starts at the new offset. A reader that does not own the queue notices the change by the time
stored with the offset. RocketMQ: ConsumerOffsetManager.assignResetOffset. In SQL: `mqdb/sql/consumers/set_offsets.sql`.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import BigInteger, Connection, Integer, Text, cast, column, func, select
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.sql.selectable import TableValuedAlias

from mqdb.store.dispatch.queues import max_offset
from mqdb.store.fragments import array_of
from mqdb.store.operations import Verb
from mqdb.store.tables import queue, topic


class GroupStanding(NamedTuple):
    """The offset of a group in a queue, and the bounds of the queue.

    `next_offset` is None if the group has no offset.
    """

    queue_key: int
    topic: str
    queue_id: int
    next_offset: int | None
    min_offset: int
    max_offset: int


class Note(NamedTuple):
    """The data about a change that mqdb.operation keeps in addition to the offsets.

    `source` is the group whose offsets were cloned.
    """

    source: str | None
    object: str
    reason: str
    actor: str | None


class OffsetChange(NamedTuple):
    """The change of an offset in one queue. `old_offset` is None if the group had no offset there."""

    topic: str
    queue_id: int
    old_offset: int | None
    new_offset: int
    min_offset: int

    @property
    def repeated(self) -> int:
        """The number of consumed messages that are delivered again."""
        return 0 if self.old_offset is None else max(self.old_offset - max(self.new_offset, self.min_offset), 0)

    @property
    def skipped(self) -> int:
        """The number of messages that were not consumed and will not be."""
        return 0 if self.old_offset is None else max(self.new_offset - max(self.old_offset, self.min_offset), 0)


def standings(connection: Connection, group: str, queue_keys: Sequence[int]) -> list[GroupStanding]:
    """The state of a group, which need not exist, in each of these queues, by topic and queue."""
    mine = _offsets(group)
    columns = queue.c.queue_key, topic.c.topic, queue.c.queue_id, mine.c.next_offset, queue.c.base_offset, max_offset()
    rows = connection.execute(
        select(*columns)
        .join_from(queue, topic, topic.c.topic_id == queue.c.topic_id)
        .outerjoin(mine, mine.c.queue_key == queue.c.queue_key)
        .where(queue.c.queue_key == func.any(array_of(queue_keys)))
        .order_by(topic.c.topic, queue.c.queue_id)
    )
    return [GroupStanding(*row) for row in rows]


def queues_read(connection: Connection, group: str) -> list[int]:
    """The keys of all queues in which the group has an offset."""
    mine = _offsets(group)
    return list(connection.scalars(select(mine.c.queue_key).order_by(mine.c.queue_key)))


def _offsets(group: str) -> TableValuedAlias:
    """queue_key and next_offset of each queue that the group has read, also visible to roles that operate the group."""
    columns = column("queue_key", Integer), column("next_offset", BigInteger)
    return func.mqdb.group_offsets(cast(group, Text)).table_valued(*columns).render_derived("mine")


def overwrite(
    connection: Connection, verb: Verb, group: str, offsets: Mapping[int, int], note: Note
) -> dict[int, int | None]:
    """Set the group's offset in each queue, and free the queue; returns the previous offsets, or None without one.

    This runs in the caller's transaction, in which it also records the operation; a missing group is created. The rows
    are locked in the order of their keys. A commit of several queues may use another order, so the caller limits its
    wait. A queue that the role may not see is left out.
    """
    arguments = (
        cast(verb, Text),
        cast(group, Text),
        cast(note.source, Text),
        array_of(list(offsets)),
        cast(list(offsets.values()), ARRAY(BigInteger)),
        cast(note.object, Text),
        cast(note.reason, Text),
        cast(note.actor, Text),
    )
    columns = column("queue_key", Integer), column("old_offset", BigInteger)
    before = func.mqdb.set_offsets(*arguments).table_valued(*columns).render_derived("before")
    return {row.queue_key: row.old_offset for row in connection.execute(select(before))}
