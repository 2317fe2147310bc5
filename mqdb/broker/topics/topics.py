"""Admin: create, change, delete and show topics. RocketMQ: AdminBrokerProcessor, mqadmin."""

from dataclasses import replace
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection

from mqdb.broker.log.query import broker_info
from mqdb.common.topic import MessageType, TopicConfig, is_system_topic, reply_topic
from mqdb.errors import NameInvalid, ParameterInvalid, TopicExists, TopicInUse, TopicNotFound
from mqdb.store import acl
from mqdb.store.acl import Access, Resource, ResourceType
from mqdb.store.consumers import groups
from mqdb.store.consumers.groups import QueueProgress
from mqdb.store.dispatch import queues
from mqdb.store.dispatch.queues import QueueStats
from mqdb.store.engine import transaction, translates
from mqdb.store.topics import topic_uses, topics
from mqdb.store.topics.topic_uses import TopicUses
from mqdb.store.topics.topics import TopicRoute


class TopicDetails(NamedTuple):
    """A topic, its queues, and the progress of each group in each queue that it has read."""

    config: TopicConfig
    queues: list[QueueStats]
    progress: list[QueueProgress]


class Unread(NamedTuple):
    """The number of messages that a group has not consumed in a queue that is no longer read.

    `group` is None if no group has read the topic.
    """

    queue_id: int
    group: str | None
    messages: int


@translates
def create_topic(connection: Connection, config: TopicConfig, *, actor: str | None = None) -> TopicRoute:
    """Create a topic. Creating the same topic again changes nothing.

    Raises TopicExists if it exists with other settings, NameInvalid for a system topic, AccessDenied.
    """
    _check_not_system(config.name)
    with transaction(connection):
        created = topics.create_by_hand(connection, config, actor)
        route = topics.existing_topic(connection, config.name)
    if not created and route.config != config:
        raise TopicExists(config.name)
    return route


@translates
def update_topic(
    connection: Connection,
    name: str,
    *,
    read_queue_nums: int | None = None,
    write_queue_nums: int | None = None,
    perm: int | None = None,
    order: bool | None = None,
    message_type: MessageType | None = None,
    actor: str | None = None,
) -> TopicRoute:
    """Change the given settings of a topic.

    Queues are added, never removed: a lower number only means that producers choose from fewer queues, or that
    consumers read fewer. The messages in the other queues are kept, with their offsets if the queues are used again.
    Like RocketMQ, this allows reading fewer queues than are written; `unread_messages` counts the messages that this
    hides.
    Raises TopicNotFound; ParameterInvalid for a value out of bounds, and if no setting is given; NameInvalid for a
    system topic or the reply topic; AccessDenied.
    """
    given = {
        "read_queue_nums": read_queue_nums,
        "write_queue_nums": write_queue_nums,
        "perm": perm,
        "order": order,
        "message_type": message_type,
    }
    changes: dict[str, Any] = {setting: value for setting, value in given.items() if value is not None}
    if not changes:
        raise ParameterInvalid("topic", name, f"nothing to change is given; the topic has {', '.join(given)}")
    _check_not_system(name)
    with transaction(connection):
        acl.require(connection, Resource(Access.ADMIN, ResourceType.TOPIC, name))
        _check_not_for_replies(connection, name)
        wanted = replace(topics.existing_topic(connection, name).config, **changes)  # it checks its values
        columns = {_COLUMNS.get(setting, setting): getattr(wanted, setting) for setting in changes}
        if not topics.change(connection, name, columns, actor):
            raise TopicNotFound(name)
        return topics.existing_topic(connection, name)


@translates
def find_uses(connection: Connection, name: str) -> TopicUses:
    """The crons, scheduled messages and half messages that use a topic. Raises AccessDenied, TopicNotFound."""
    acl.require(connection, Resource(Access.ADMIN, ResourceType.TOPIC, name))
    return topic_uses.find(connection, topics.existing_topic(connection, name).config.name)


@translates
def delete_topic(
    connection: Connection, name: str, *, force: bool = False, actor: str | None = None
) -> TopicUses | None:
    """Delete a topic, its queues and all groups' offsets in them; returns None if the topic does not exist.

    Raises NameInvalid for a topic of the broker, AccessDenied.
    Raises TopicInUse while the topic is in use. With `force` the uses end in the same transaction, and are returned:
    crons are removed, half messages rolled back, and scheduled messages never delivered, not even to a newer topic with
    the same name. If the role does not own the broker, half messages that the checker has not found yet are kept, but
    cannot be committed.
    """
    _check_not_system(name)
    with transaction(connection):
        found = topic_uses.delete_topic(connection, name, force, actor)
    if found is None:
        return None
    was_deleted, uses = found
    if not was_deleted:
        raise TopicInUse(name, *uses)
    return uses


@translates
def topic_details(connection: Connection, name: str) -> TopicDetails:
    """The settings, queues and readers of a topic. Raises TopicNotFound. RocketMQ: topicStatus, consumerProgress."""
    route = topics.existing_topic(connection, name)
    stats = queues.stats(connection, route.topic_id)
    return TopicDetails(route.config, stats, groups.progress_in(connection, route.config.name))


@translates
def topic_stats(connection: Connection, name: str) -> list[QueueStats]:
    """The statistics of each queue of a topic, queue 0 first. Raises TopicNotFound."""
    return queues.stats(connection, topics.existing_topic(connection, name).topic_id)


@translates
def unread_messages(connection: Connection, name: str) -> list[Unread]:
    """The messages in queues excluded by read_queue_nums, for each group that has not consumed all of them.

    The result is sorted by queue and group. Only dispatched messages count, and only groups whose offsets the broker
    stores, so broadcasting groups are left out.
    Raises TopicNotFound.
    """
    with transaction(connection):
        route = topics.existing_topic(connection, name)
        stats = queues.stats(connection, route.topic_id)
        left_out = [each for each in stats if each.queue_id >= route.config.read_queue_nums]
        progress = groups.progress_in(connection, route.config.name) if left_out else []
    next_offsets = {(each.group, each.queue_id): each.next_offset for each in progress}
    names: list[str | None] = [*sorted({each.group for each in progress})] or [None]
    found = [
        # A group without an offset there would start at the min offset, because it already knows the topic.
        Unread(queue_id, group, max_offset - max(min_offset, next_offsets.get((group or "", queue_id), 0)))
        for queue_id, min_offset, max_offset, _ in left_out
        for group in names
    ]
    return [each for each in found if each.messages > 0]


@translates
def group_progress(connection: Connection, name: str) -> list[QueueProgress]:
    """The progress of each group in each queue of a topic. Raises TopicNotFound. RocketMQ: consumerProgress."""
    return groups.progress_in(connection, topics.existing_topic(connection, name).config.name)


#: Settings whose columns have other names.
_COLUMNS: Final = {"order": "ordered"}


def _check_not_system(name: str) -> None:
    if is_system_topic(name):
        raise NameInvalid("topic", name, "belongs to the broker, so it cannot be created, changed or deleted")


def _check_not_for_replies(connection: Connection, name: str) -> None:
    # Requesters find its queues at their first request, so replies through a new queue would never reach them.
    if name == reply_topic(broker_info(connection).cluster_name):
        raise NameInvalid(
            "topic", name, "brings replies to requesters, which read the queues with which it was created"
        )
