"""Route: the queues of a topic, and the creation of topics when they are needed."""

from sqlalchemy import Connection

from mqdb.common.topic import (
    DEFAULT_TOPIC_QUEUE_NUMS,
    TEMPLATE_TOPIC,
    Perm,
    TopicConfig,
    check_topic_name,
    dlq_topic,
    reply_topic,
    retry_topic,
)
from mqdb.errors import TopicNotFound
from mqdb.store import acl
from mqdb.store.acl import Access, Resource, ResourceType
from mqdb.store.consumers.send_back import retry_queue_nums
from mqdb.store.engine import transaction, translates
from mqdb.store.topics import topics
from mqdb.store.topics.topics import TopicRoute


@translates
def create_topic_automatically(
    connection: Connection, name: str, queue_nums: int = DEFAULT_TOPIC_QUEUE_NUMS
) -> TopicRoute:
    """The topic with this name, created from the template TBW102 if it does not exist.

    A new topic has the smaller of `queue_nums` and the template's number of queues, and the template's permission
    without INHERIT.
    Raises NameInvalid, AccessDenied for a role that may not send to it, and TopicNotFound if the template forbids it
    (automatic topics are disabled on this broker). Source: TopicConfigManager.createTopicInSendMessageMethod.
    """
    check_topic_name(name)
    template = topics.find_topic(connection, TEMPLATE_TOPIC)
    if template is None or not template.config.perm & Perm.INHERIT:
        raise TopicNotFound(name)
    acl.require(connection, Resource(Access.SEND, ResourceType.TOPIC, name))
    nums = min(queue_nums, template.config.write_queue_nums)
    return _create(connection, TopicConfig(name, nums, nums, template.config.perm & ~Perm.INHERIT))


def find_or_create_reply_topic(connection: Connection, cluster_name: str) -> TopicRoute:
    """The reply topic, created with one queue if it does not exist, even if automatic topics are disabled.

    Raises NameInvalid if the name of the cluster is too long. Source: TopicConfigManager.
    """
    return _find_or_create(connection, TopicConfig(reply_topic(cluster_name), 1, 1))


@translates
def find_or_create_retry_topic(connection: Connection, group: str) -> TopicRoute:
    """The topic that brings failed messages back to a group.

    A missing topic is created with the group's retry_queue_nums, or with one queue if the group does not exist. Raises
    NameInvalid. Source: TopicConfigManager.createTopicInSendMessageBackMethod.
    """
    nums = retry_queue_nums(connection, group) or 1
    return _find_or_create(connection, TopicConfig(retry_topic(group), nums, nums))


def find_or_create_dlq_topic(connection: Connection, group: str) -> TopicRoute:
    """The dead letter queue of a group, created with one queue if it is missing; readable, as since RocketMQ 4.9.2."""
    return _find_or_create(connection, TopicConfig(dlq_topic(group), 1, 1))


@translates
def _find_or_create(connection: Connection, config: TopicConfig) -> TopicRoute:
    return topics.find_topic(connection, config.name) or _create(connection, config)


def _create(connection: Connection, config: TopicConfig) -> TopicRoute:
    with transaction(connection):  # two clients at once: one creates the topic, the other waits and finds it
        topics.create(connection, config)
    return topics.existing_topic(connection, config.name)
