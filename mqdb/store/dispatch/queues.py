"""The ends of queues: min offset, max offset, the newest message."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import BigInteger, ColumnElement, Connection, Integer, cast, column, func, select, table
from sqlalchemy.dialects.postgresql import ARRAY

from mqdb.store.dispatch.entries import entries
from mqdb.store.engine import translates
from mqdb.store.tables import commit_log, queue, topic

queue_ends = table(
    "queue_ends",
    column("queue_key", Integer),
    column("topic_id", Integer),
    column("queue_id", Integer),
    column("min_offset", BigInteger),
    column("max_offset", BigInteger),
    schema="mqdb",
)


def max_offset() -> ColumnElement[int]:
    """The next offset that dispatch will assign in the row's queue, as a column of a select from `queue`."""
    return (
        select(queue_ends.c.max_offset)
        .where(queue_ends.c.queue_key == queue.c.queue_key)
        .correlate(queue)
        .scalar_subquery()
    )


class Ends(NamedTuple):
    """The offsets of a queue: the lowest kept offset, and the next one that dispatch will assign."""

    min_offset: int
    max_offset: int


def ends(connection: Connection, queue_keys: Sequence[int]) -> dict[int, Ends]:
    """The min and max offset of each existing queue, by key."""
    columns = queue_ends.c.queue_key, queue_ends.c.min_offset, queue_ends.c.max_offset
    rows = connection.execute(select(*columns).where(_is_one_of(queue_ends.c.queue_key, queue_keys)))
    return {queue_key: Ends(*offsets) for queue_key, *offsets in rows}


def ends_of_topics(connection: Connection) -> dict[str, int]:
    """The total number of messages ever dispatched to each topic: the sum of the ends of its queues."""
    taken = cast(func.sum(queue_ends.c.max_offset), BigInteger).label("taken")
    rows = select(topic.c.topic, taken).join_from(queue_ends, topic, topic.c.topic_id == queue_ends.c.topic_id)
    return {row.topic: row.taken for row in connection.execute(rows.group_by(topic.c.topic))}


class QueueTaken(NamedTuple):
    """The total number of messages ever dispatched to a queue."""

    topic: str
    queue_id: int
    messages: int


def ends_in_topics(connection: Connection, topics: Sequence[str]) -> list[QueueTaken]:
    """The totals of each queue of these topics, by topic and queue."""
    columns = topic.c.topic, queue_ends.c.queue_id, queue_ends.c.max_offset
    rows = select(*columns).join_from(queue_ends, topic, topic.c.topic_id == queue_ends.c.topic_id)
    found = connection.execute(rows.where(topic.c.topic.in_(topics)).order_by(*columns[:2]))
    return [QueueTaken(*row) for row in found]


@translates
def topics_created_at(connection: Connection, queue_keys: Sequence[int]) -> dict[int, datetime]:
    """The creation time of each queue's topic, by queue key. Two topics with the same name never have the same time."""
    columns = queue.c.queue_key, topic.c.created_at
    rows = select(*columns).join(topic, topic.c.topic_id == queue.c.topic_id)
    found = connection.execute(rows.where(_is_one_of(queue.c.queue_key, queue_keys)))
    return {row.queue_key: row.created_at for row in found}


def _is_one_of(key: ColumnElement[int], queue_keys: Sequence[int]) -> ColumnElement[bool]:
    return key == func.any(cast(list(queue_keys), ARRAY(Integer)))


class QueueStats(NamedTuple):
    """The bounds of a queue, and the store time of its newest message."""

    queue_id: int
    min_offset: int
    max_offset: int
    last_store_time: datetime | None


def stats(connection: Connection, topic_id: int) -> list[QueueStats]:
    """The statistics of each queue of a topic, queue 0 first."""
    entry = entries(queue_ends.c.queue_key, queue_ends.c.max_offset - 1, queue_ends.c.max_offset)
    position = select(entry.c.log_pos).select_from(entry).correlate(queue_ends).scalar_subquery()
    columns = queue_ends.c.queue_id, queue_ends.c.min_offset, queue_ends.c.max_offset
    of_topic = select(*columns, position.label("log_pos")).where(queue_ends.c.topic_id == topic_id).subquery("of_topic")
    # One lookup per queue, because a join might read the whole log.
    newest = select(commit_log.c.store_time).where(commit_log.c.log_pos == of_topic.c.log_pos).scalar_subquery()
    found = of_topic.c.queue_id, of_topic.c.min_offset, of_topic.c.max_offset, newest.label("last_store_time")
    rows = select(*found).order_by(of_topic.c.queue_id)
    return list(map(QueueStats._make, connection.execute(rows)))
