"""Offsets that people set: where a group goes on, whatever it has consumed.

The epoch of a queue rises with its offset, and its owner is taken away. So nothing that its member has in hand counts
any more, and the next owner begins at the new offset. Who reads the queue without owning it knows it by the time that
is noted with the offset. RocketMQ: ConsumerOffsetManager.assignResetOffset.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from sqlalchemy import BigInteger, Connection, Integer, cast, delete, func, select, update
from sqlalchemy.dialects.postgresql import insert

from mqdb.store.consumers.consumer_offsets import effective_offset
from mqdb.store.dispatch.queues import max_offset
from mqdb.store.fragments import array_of, given, group_id
from mqdb.store.tables import consumer_offset, offset_commit, queue, queue_lock, topic

_OFFSET: Final = {"queue_key": Integer(), "next_offset": BigInteger()}


class Standing(NamedTuple):
    """Where a group stands in a queue. `next_offset` is None where it has never been."""

    queue_key: int
    topic: str
    queue_id: int
    next_offset: int | None
    min_offset: int
    max_offset: int


class OffsetChange(NamedTuple):
    """What setting an offset does to one queue. `old_offset` is None where the group had none."""

    topic: str
    queue_id: int
    old_offset: int | None
    new_offset: int
    min_offset: int

    @property
    def repeated(self) -> int:
        """Messages that have been consumed, and come again."""
        return 0 if self.old_offset is None else max(self.old_offset - max(self.new_offset, self.min_offset), 0)

    @property
    def skipped(self) -> int:
        """Messages that have not been consumed, and will not be."""
        return 0 if self.old_offset is None else max(self.new_offset - max(self.old_offset, self.min_offset), 0)


def standings(connection: Connection, group: str, queue_keys: Sequence[int]) -> list[Standing]:
    """The group in each of these queues, by topic and queue; also a group that does not exist."""
    mine = (
        select(consumer_offset.c.queue_key, effective_offset().label("next_offset"))
        .where(consumer_offset.c.group_id == group_id(group))
        .subquery("mine")
    )
    columns = queue.c.queue_key, topic.c.topic, queue.c.queue_id, mine.c.next_offset, queue.c.base_offset, max_offset()
    rows = connection.execute(
        select(*columns)
        .join_from(queue, topic, topic.c.topic_id == queue.c.topic_id)
        .outerjoin(mine, mine.c.queue_key == queue.c.queue_key)
        .where(queue.c.queue_key == func.any(array_of(queue_keys)))
        .order_by(topic.c.topic, queue.c.queue_id)
    )
    return [Standing(*row) for row in rows]


def queues_read(connection: Connection, group: str) -> list[int]:
    """The keys of all queues that the group has an offset in."""
    return list(
        connection.scalars(
            select(consumer_offset.c.queue_key)
            .where(consumer_offset.c.group_id == group_id(group))
            .order_by(consumer_offset.c.queue_key)
        )
    )


def overwrite(connection: Connection, group: str, offsets: Mapping[int, int]) -> dict[int, int | None]:
    """Set the group's offset in each queue, and free it; returns the offsets before, None where there was none.

    In the caller's transaction. It locks the rows in the order of their keys; whoever commits several queues may have
    another order, so the caller limits how long it waits.
    """
    its_id = group_id(group)
    new = given(_OFFSET, offsets.items())
    key, offset = cast(new.c.queue_key, Integer), cast(new.c.next_offset, BigInteger)
    rows = select(its_id, key, offset).order_by(key)
    added = insert(consumer_offset).from_select(["group_id", "queue_key", "next_offset"], rows)
    fresh = set(connection.scalars(added.on_conflict_do_nothing().returning(consumer_offset.c.queue_key)))

    its_rows = consumer_offset.c.group_id == its_id, consumer_offset.c.queue_key.in_(select(key))
    connection.execute(
        select(consumer_offset.c.queue_key).where(*its_rows).order_by(consumer_offset.c.queue_key).with_for_update()
    )
    # Not by the statement that has waited for the locks: it does not see what was committed meanwhile.
    before = connection.execute(select(consumer_offset.c.queue_key, effective_offset()).where(*its_rows)).all()
    connection.execute(
        update(consumer_offset)
        .where(consumer_offset.c.group_id == its_id, consumer_offset.c.queue_key == key)
        .values(
            next_offset=offset,
            segment=0,
            owner=None,
            epoch=consumer_offset.c.epoch + 1,
            reset_at=func.mqdb.now(),
            updated_at=func.mqdb.now(),
        )
    )
    for table in (offset_commit, queue_lock):
        is_of_queue = table.c.group_id == its_id, table.c.queue_key.in_(select(key))
        connection.execute(delete(table).where(*is_of_queue))
    return {row.queue_key: None if row.queue_key in fresh else row[1] for row in before}
