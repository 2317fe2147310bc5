"""The ends of queues: min offset, max offset, the newest message."""

from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, func, select

from mqdb.store.tables import checkpoint, commit_log, consume_queue, queue


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
