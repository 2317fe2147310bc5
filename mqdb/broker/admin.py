"""Admin: create, change, delete and look at topics. RocketMQ: AdminBrokerProcessor, mqadmin."""

from datetime import datetime
from typing import NamedTuple

from sqlalchemy import Connection

from mqdb.errors import NameInvalid, TopicExists, TopicNotFound
from mqdb.store import consumer_offsets, queues, topics
from mqdb.store.consumer_offsets import Progress
from mqdb.store.engine import target_of, transaction, translated
from mqdb.store.topics import TopicRoute
from mqdb.topic import TopicConfig, is_system_topic


class QueueStats(NamedTuple):
    """Where a queue begins and ends, and when its newest message was stored."""

    queue_id: int
    min_offset: int
    max_offset: int
    last_store_time: datetime | None


def create_topic(connection: Connection, config: TopicConfig) -> TopicRoute:
    """Create a topic. The same topic once more changes nothing.

    Raises TopicExists when it is there with other settings, NameInvalid for a system topic.
    """
    _check_not_system(config.name)
    with translated(target_of(connection)), transaction(connection):
        created = topics.create(connection, config)
        route = _found(connection, config.name)
    if not created and route.config != config:
        raise TopicExists(config.name)
    return route


def update_topic(connection: Connection, config: TopicConfig) -> TopicRoute:
    """Replace the settings of a topic; queues are added, never taken away. Raises TopicNotFound, NameInvalid."""
    _check_not_system(config.name)
    with translated(target_of(connection)), transaction(connection):
        _found(connection, config.name)
        topics.change(connection, config)
        return _found(connection, config.name)


def delete_topic(connection: Connection, name: str) -> bool:
    """Delete a topic, its queues and all groups' offsets there; False where there was none. Raises NameInvalid."""
    _check_not_system(name)
    with translated(target_of(connection)):
        return topics.remove(connection, name)


def list_topics(connection: Connection) -> list[TopicRoute]:
    """All topics by name, those of the system included."""
    with translated(target_of(connection)):
        return topics.find_all(connection)


def topic_stats(connection: Connection, name: str) -> list[QueueStats]:
    """Each queue of a topic, queue 0 first. Raises TopicNotFound."""
    with translated(target_of(connection)):
        route = _found(connection, name)
        return [QueueStats._make(row) for row in queues.stats(connection, route.topic_id)]


def group_progress(connection: Connection, name: str) -> list[Progress]:
    """Where each group stands on each queue of a topic. Raises TopicNotFound. RocketMQ: consumerProgress."""
    with translated(target_of(connection)):
        return consumer_offsets.of_topic(connection, _found(connection, name).topic_id)


def _found(connection: Connection, name: str) -> TopicRoute:
    route = topics.find(connection, name)
    if route is None:
        raise TopicNotFound(name)
    return route


def _check_not_system(name: str) -> None:
    if is_system_topic(name):
        raise NameInvalid("topic", name, "belongs to the broker; nobody may create, change or delete it")
