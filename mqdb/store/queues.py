"""The ends of queues: min offset, max offset, the newest message."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Integer, Row, cast, func, select
from sqlalchemy.dialects.postgresql import ARRAY

from mqdb.store.tables import checkpoint, commit_log, consume_queue, queue, topic


def max_offset() -> ColumnElement[int]:
    """Next offset that dispatch will give to the row's queue, as a column of a select from `queue`.

    It is found in the segment that dispatch writes to, else in end_offset, which was written for all queues when
    dispatch entered that segment.
    """
    newest = (
        select(checkpoint.c.segment)
        .where(checkpoint.c.service == "dispatch")
        .order_by(checkpoint.c.seq.desc())
        .limit(1)
        .scalar_subquery()
    )
    last = (
        select(consume_queue.c.queue_offset + 1)
        .where(consume_queue.c.queue_key == queue.c.queue_key, consume_queue.c.segment >= newest)
        .order_by(consume_queue.c.queue_offset.desc())
        .limit(1)
        .correlate(queue)
        .scalar_subquery()
    )
    return func.coalesce(last, queue.c.end_offset)


class Ends(NamedTuple):
    """The offsets of a queue: the lowest one that is kept, and the next one that dispatch will give."""

    min_offset: int
    max_offset: int


def ends(connection: Connection, queue_keys: Sequence[int]) -> dict[int, Ends]:
    """Min and max offset of each of the queues that exist, by their keys."""
    rows = connection.execute(
        select(queue.c.queue_key, queue.c.base_offset, max_offset()).where(_is_one_of(queue_keys))
    )
    return {queue_key: Ends(*offsets) for queue_key, *offsets in rows}


def topics_created_at(connection: Connection, queue_keys: Sequence[int]) -> dict[int, datetime]:
    """When the topic of each of the queues was created, by their keys: never the same for two topics of one name."""
    columns = queue.c.queue_key, topic.c.created_at
    rows = connection.execute(
        select(*columns).join(topic, topic.c.topic_id == queue.c.topic_id).where(_is_one_of(queue_keys))
    )
    return {row.queue_key: row.created_at for row in rows}


def _is_one_of(queue_keys: Sequence[int]) -> ColumnElement[bool]:
    return queue.c.queue_key == func.any(cast(list(queue_keys), ARRAY(Integer)))


def stats(connection: Connection, topic_id: int) -> list[Row[Any]]:
    """queue_id, min offset, max offset and newest store time of each queue of a topic."""
    ends = (
        select(queue.c.queue_key, queue.c.queue_id, queue.c.base_offset, max_offset().label("max_offset"))
        .where(queue.c.topic_id == topic_id)
        .subquery("ends")
    )
    newest = (
        select(commit_log.c.store_time)
        .join(consume_queue, consume_queue.c.log_pos == commit_log.c.log_pos)
        .where(consume_queue.c.queue_key == ends.c.queue_key, consume_queue.c.queue_offset == ends.c.max_offset - 1)
        .correlate(ends)
        .scalar_subquery()
    )
    columns = (ends.c.queue_id, ends.c.base_offset, ends.c.max_offset, newest.label("last_store_time"))
    return list(connection.execute(select(*columns).order_by(ends.c.queue_id)))
