"""Groups: show them, change their settings, delete them.

RocketMQ: AdminBrokerProcessor, mqadmin updateSubGroup, deleteSubGroup, consumerProgress.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import NamedTuple

from sqlalchemy import Connection

from mqdb.common.group import ConsumeFromWhere, ConsumeMode, check_group
from mqdb.errors import GroupInUse, GroupNotFound
from mqdb.store.clients import clients
from mqdb.store.consumers import groups, waiting_retries
from mqdb.store.consumers.groups import GroupSettings, MemberInfo, QueueProgress, StoredSubscription, TopicLag
from mqdb.store.consumers.waiting_retries import RetryStep
from mqdb.store.engine import steps_back, transaction, translates


class GroupDetails(NamedTuple):
    """Everything that the broker stores about a group."""

    group: str
    settings: GroupSettings
    subscriptions: list[StoredSubscription]
    members: list[MemberInfo]
    progress: list[QueueProgress]


@translates
def show_group(connection: Connection, name: str, topic: str | None = None) -> GroupDetails:
    """The settings, subscriptions and members of a group, and its progress in one topic or in all.

    Raises GroupNotFound.
    """
    settings = groups.existing(connection, name)
    return GroupDetails(
        name,
        settings,
        groups.subscriptions(connection, name),
        groups.list_members(connection, name),
        groups.progress(connection, name, topic),
    )


@translates
def show_topics(connection: Connection, name: str) -> list[TopicLag]:
    """The number of messages that a group has yet to consume, by topic. Raises GroupNotFound."""
    groups.existing(connection, name)
    return groups.lags(connection, name)


@translates
def show_retries(connection: Connection, name: str) -> list[RetryStep]:
    """The waiting retries of a group, by the number of the retry. Raises GroupNotFound."""
    groups.existing(connection, name)
    return waiting_retries.by_step(connection, name)


@translates
def update_group(
    connection: Connection,
    name: str,
    *,
    consume_enable: bool | None = None,
    consume_broadcast_enable: bool | None = None,
    retry_queue_nums: int | None = None,
    retry_max_times: int | None = None,
    consume_mode: ConsumeMode | None = None,
    consume_message_orderly: bool | None = None,
    retry_delays: Sequence[timedelta] | None = None,
    consume_from_where: ConsumeFromWhere | None = None,
    actor: str | None = None,
) -> GroupSettings:
    """Change the given settings; a missing group is created.

    Raises NameInvalid, ParameterInvalid, AccessDenied.
    `retry_max_times` counts the deliveries after the first one. `retry_delays` are the delays after a message has
    failed once, twice, and so on; the last delay repeats. Without them the delay levels apply.
    RocketMQ: SubscriptionGroupConfig.
    """
    given: dict[str, object] = {
        "consume_enable": consume_enable,
        "consume_broadcast_enable": consume_broadcast_enable,
        "retry_queue_nums": retry_queue_nums,
        "retry_max_times": retry_max_times,
        "consume_mode": consume_mode,
        "consume_message_orderly": consume_message_orderly,
        "retry_delays": None if retry_delays is None else list(retry_delays),
        "consume_from_where": consume_from_where,
    }
    changes = {setting: value for setting, value in given.items() if value is not None}
    check_group(name, retry_queue_nums, retry_max_times, retry_delays, consume_from_where)
    return _save(connection, name, changes, actor)


# A change of the consume mode waits for pops, and registering members wait for the change.
@steps_back
def _save(connection: Connection, name: str, changes: Mapping[str, object], actor: str | None) -> GroupSettings:
    groups.save(connection, name, changes, actor)
    clients.notify_group(connection, name)
    return groups.existing(connection, name)


@translates
def delete_group(
    connection: Connection, name: str, *, with_topics: bool = False, actor: str | None = None
) -> list[str]:
    """Delete a group with its offsets and subscriptions; returns the topics that were deleted with it.

    These topics are the group's retry topic and its DLQ, with all their messages.
    Raises GroupNotFound, GroupInUse, AccessDenied.
    """
    with transaction(connection):
        deletion = groups.delete(connection, name, with_topics, actor)
    if deletion is None:
        raise GroupNotFound(name)
    if not deletion.was_deleted:
        raise GroupInUse(name, deletion.members)
    return deletion.topics
