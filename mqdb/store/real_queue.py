"""The real queue: where a message that waits in a system topic is to go, as it says itself.

RocketMQ: REAL_TOPIC, REAL_QID.
"""

from typing import Any

from sqlalchemy import ColumnElement, Integer, Text, cast, func, literal_column, select
from sqlalchemy.sql import FromClause
from sqlalchemy.sql.selectable import LateralFromClause

from mqdb.property import Property
from mqdb.store.consume_queue import ONE, ZERO
from mqdb.store.tables import queue, topic
from mqdb.topic import HALF_TOPIC


def aim_of(record: FromClause) -> tuple[ColumnElement[Any], ...]:
    """The columns real_topic and real_queue_id of a record that has `properties`."""
    return (
        _property(record, Property.REAL_TOPIC).label("real_topic"),
        cast(_property(record, Property.REAL_QID), Integer).label("real_queue_id"),
    )


def _property(record: FromClause, name: Property) -> ColumnElement[str]:
    return cast(record.c.properties.op("->>")(_constant(name)), Text)


def target_of(record: FromClause) -> LateralFromClause:
    """The queue that a record with these two columns is for; where its topic has become smaller, another one of it.

    Uses topic_topic_key and queue_topic_id_queue_id_key.
    """
    return (
        select(queue.c.queue_key)
        .join(topic, topic.c.topic_id == queue.c.topic_id)
        .where(
            topic.c.topic == record.c.real_topic,
            topic.c.topic != _constant(HALF_TOPIC),
            queue.c.queue_id == func.greatest(record.c.real_queue_id, ZERO) % topic.c.read_queue_nums,
        )
        .limit(ONE)
        .lateral("target")
    )


def _constant(value: str) -> ColumnElement[str]:
    return literal_column(f"'{value}'::text", Text)
