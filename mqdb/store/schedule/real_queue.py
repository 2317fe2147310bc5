"""The real queue: the target of a message waiting in a system topic, as named in the message.

Any role that may insert into the log can store a record there without a queue, or with one of a system topic. Such a
record counts as unreadable: it has no target, and the services skip it. RocketMQ: REAL_TOPIC, REAL_QID.
"""

from typing import Any, Final

from sqlalchemy import BigInteger, ColumnElement, Text, and_, cast, func, literal_column, select
from sqlalchemy.sql import FromClause
from sqlalchemy.sql.selectable import LateralFromClause

from mqdb.common.property import TAGS_CODE, Property
from mqdb.common.topic import NOT_ALLOWED_SEND
from mqdb.store.dispatch.consume_queue import ONE
from mqdb.store.tables import queue, topic
from mqdb.store.topics.deleted_topics import went_along


def aim_of(record: FromClause) -> tuple[ColumnElement[Any], ...]:
    """The columns real_topic and real_queue_id of a record with `properties`; NULL if the properties are missing."""
    real_topic = cast(record.c.properties.op("->>")(_constant(Property.REAL_TOPIC)), Text)
    return real_topic.label("real_topic"), real_queue_id(record.c.properties).label("real_queue_id")


def real_queue_id(properties: ColumnElement[Any]) -> ColumnElement[int]:
    """The number in REAL_QID; NULL unless it is a number of up to 18 digits."""
    return func.mqdb.property_number(properties, _constant(Property.REAL_QID), type_=BigInteger)


def is_readable(record: FromClause) -> ColumnElement[bool]:
    """Whether a record with the two columns names a queue to which messages may be sent."""
    says_queue = and_(record.c.real_topic.is_not(None), record.c.real_queue_id.is_not(None))
    return and_(says_queue, record.c.real_topic.not_in(BROKERS_OWN))


def target_of(record: FromClause) -> LateralFromClause:
    """The target queue of a record with these two columns; another queue if its topic now has fewer queues.

    Uses topic_topic_key and queue_topic_id_queue_id_key.
    """
    return (
        select(queue.c.queue_key)
        .join(topic, topic.c.topic_id == queue.c.topic_id)
        .where(
            topic.c.topic == record.c.real_topic,
            topic.c.topic.not_in(BROKERS_OWN),
            queue.c.queue_id == record.c.real_queue_id % topic.c.read_queue_nums,
        )
        .limit(ONE)
        .lateral("target")
    )


def has_target(record: FromClause, target: FromClause, log_pos: ColumnElement[int]) -> ColumnElement[bool]:
    """Whether a record at a position has a target queue. False if it was deleted with an older topic of this name.

    This is not part of `target_of`, whose results PostgreSQL caches by queue: the same position is never looked up
    twice.
    """
    return and_(target.c.queue_key.is_not(None), ~went_along(record.c.real_topic, log_pos))


def delivered(record: FromClause, deliver_ms: ColumnElement[int]) -> dict[str, ColumnElement[Any]]:
    """The columns that differ between a record that waited until `deliver_ms` and its copy in the real queue."""
    properties: ColumnElement[Any] = record.c.properties
    return {
        "tags_code": func.mqdb.copied_code(deliver_ms, record.c.tags, properties),
        "properties": properties.op("-")(_constant(TAGS_CODE)),
    }


def _constant(value: str) -> ColumnElement[str]:
    return literal_column(f"'{value}'::text", Text)


#: Topics to which only the broker writes: a copy there would wait again for ever, or be taken for a half message.
BROKERS_OWN: Final = tuple(_constant(name) for name in sorted(NOT_ALLOWED_SEND))
