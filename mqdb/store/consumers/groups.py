"""Consumer groups: settings, subscriptions, members, and progress. RocketMQ: SubscriptionGroupManager.

In SQL: `mqdb/sql/acl/administer.sql`.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, NamedTuple

from sqlalchemy import (
    BigInteger,
    Boolean,
    Connection,
    Float,
    Integer,
    Text,
    and_,
    cast,
    column,
    extract,
    func,
    select,
    table,
)
from sqlalchemy.dialects.postgresql import ARRAY

from mqdb.common.group import ConsumeFromWhere, ConsumeMode
from mqdb.errors import GroupNotFound
from mqdb.store.clients.clients import ClientKind
from mqdb.store.dispatch.entries import entries
from mqdb.store.engine import translates
from mqdb.store.tables import client, commit_log, consumer_offset, queue, subscription, subscription_group, topic

_lag = table(
    "consumer_lag",
    column("group_name", Text),
    column("topic", Text),
    column("queue_id", Integer),
    column("next_offset", BigInteger),
    column("max_offset", BigInteger),
    column("lag", BigInteger),
    column("lag_seconds", Float),
    column("oldest_pos", BigInteger),
    column("waiting", BigInteger),
    column("in_flight", BigInteger),
    column("consume_mode", Text),
    column("owner", Text),
    column("epoch", BigInteger),
    column("updated_at"),
    schema="mqdb",
)


class GroupSettings(NamedTuple):
    """The settings of a group."""

    consume_enable: bool
    consume_broadcast_enable: bool
    retry_queue_nums: int
    retry_max_times: int
    consume_mode: ConsumeMode
    #: For a popping group: whether a queue returns its next messages only after the previous ones are acknowledged.
    consume_message_orderly: bool
    #: The delays after a message has failed once, twice, and so on; if empty, the delay levels apply.
    retry_delays: tuple[timedelta, ...]
    #: Where it starts in a topic, if its consumers do not specify it.
    consume_from_where: ConsumeFromWhere
    #: The version of the subscriptions on which the members have to agree; a rolling change announces a higher one.
    subscription_version: int
    created_at: datetime


class StoredSubscription(NamedTuple):
    """The filter of a group on a topic."""

    topic: str
    expression_type: str
    expression: str
    version: int


class MemberInfo(NamedTuple):
    """A consumer that is registered in a group."""

    group: str
    client_id: str
    message_model: str
    language: str
    version: str
    registered_at: datetime
    #: The time since its last heartbeat.
    silent_seconds: float
    #: The number of queues that it reads for the group.
    queues: int
    #: The role with which it has logged in. The same client id with another role is another client.
    principal: str


class QueueProgress(NamedTuple):
    """A row of mqdb.consumer_lag."""

    group: str
    topic: str
    queue_id: int
    next_offset: int
    max_offset: int
    lag: int
    lag_seconds: float | None
    oldest_pos: int | None
    waiting: int
    in_flight: int
    """The number of messages that were popped but not acknowledged."""
    consume_mode: str
    owner: str | None
    epoch: int
    updated_at: datetime


class TopicLag(NamedTuple):
    """The messages of a topic that a group has yet to consume."""

    group: str
    topic: str
    lag: int
    lag_seconds: float
    """The age of the unread message with the lowest position; 0 without unread messages."""
    waiting: int
    """The number of the topic's messages that the group has failed to consume and that wait for their retry."""
    in_flight: int
    """The number of the topic's messages that the group has popped but not acknowledged."""
    committed: int
    """The sum of the group's offsets in the queues of the topic."""
    unowned_queues: int
    """The number of queues that no member reads; 0 in a popping group."""


class QueueLag(NamedTuple):
    """The messages of a queue that a group has yet to consume."""

    group: str
    topic: str
    queue_id: int
    lag: int
    committed: int


class GroupSummary(NamedTuple):
    """A group, summarized in one line.

    `message_model` names the models of its members: None without members, both if they differ.
    """

    group: str
    members: int
    message_model: str | None
    topics: int
    lag: int
    lag_seconds: float
    waiting: int


@translates
def find(connection: Connection, name: str) -> GroupSettings | None:
    """The settings of the group with this name."""
    columns = (subscription_group.c[field] for field in GroupSettings._fields)
    row = connection.execute(select(*columns).where(subscription_group.c.group_name == name)).one_or_none()
    return None if row is None else _settings(row)


def existing(connection: Connection, name: str) -> GroupSettings:
    """The settings of a group. Raises GroupNotFound."""
    settings = find(connection, name)
    if settings is None:
        raise GroupNotFound(name)
    return settings


@translates
def find_all(connection: Connection) -> dict[str, GroupSettings]:
    """The settings of all groups, by name."""
    columns = (subscription_group.c[field] for field in ("group_name", *GroupSettings._fields))
    rows = connection.execute(select(*columns).order_by(subscription_group.c.group_name))
    return {name: _settings(settings) for name, *settings in rows}


def _settings(row: Iterable[Any]) -> GroupSettings:
    settings = GroupSettings(*row)
    return settings._replace(
        consume_mode=ConsumeMode(settings.consume_mode),
        retry_delays=tuple(settings.retry_delays or ()),
        consume_from_where=ConsumeFromWhere(settings.consume_from_where),
    )


def save(connection: Connection, name: str, changes: Mapping[str, Any], actor: str | None = None) -> None:
    """Change settings of the group, and record the operation. A missing group is created."""
    columns = (subscription_group.c[setting] for setting in SET_BY_PEOPLE)
    values = (cast(changes.get(each.name), each.type) for each in columns)
    connection.execute(select(func.mqdb.set_group(cast(name, Text), *values, cast(actor, Text))))


#: As the functions of the schema take them.
SET_BY_PEOPLE: Final = (
    "consume_enable",
    "consume_broadcast_enable",
    "retry_queue_nums",
    "retry_max_times",
    "consume_mode",
    "consume_message_orderly",
    "retry_delays",
    "consume_from_where",
)


class Deletion(NamedTuple):
    """The result of deleting a group. A group with live members is not deleted."""

    was_deleted: bool
    members: tuple[str, ...]
    topics: list[str]
    """The topics that were deleted with the group."""


def delete(connection: Connection, name: str, with_topics: bool, actor: str | None) -> Deletion | None:
    """Delete the group with its offsets, locks and subscriptions, and record this; None if the group does not exist."""
    columns = column("was_deleted", Boolean), column("members", ARRAY(Text)), column("topics", ARRAY(Text))
    arguments = cast(name, Text), with_topics, cast(actor, Text)
    deleted = func.mqdb.delete_group(*arguments).table_valued(*columns).render_derived("deleted")
    was_deleted, members, topics = connection.execute(select(deleted)).one()
    return None if was_deleted is None else Deletion(was_deleted, tuple(members), topics or [])


def subscriptions(connection: Connection, name: str) -> list[StoredSubscription]:
    """The subscriptions of a group, sorted by topic."""
    rows = connection.execute(
        select(*(subscription.c[field] for field in StoredSubscription._fields))
        .join(subscription_group, subscription_group.c.group_id == subscription.c.group_id)
        .where(subscription_group.c.group_name == name)
        .order_by(subscription.c.topic)
    )
    return [StoredSubscription(*row) for row in rows]


@translates
def list_members(connection: Connection, name: str | None = None) -> list[MemberInfo]:
    """The registered consumers of a group or of all groups, sorted by group and client id."""
    owned = (
        select(func.count())
        .join_from(consumer_offset, subscription_group, subscription_group.c.group_id == consumer_offset.c.group_id)
        .where(subscription_group.c.group_name == client.c.group_name, consumer_offset.c.owner == client.c.client_id)
        .correlate(client)
        .scalar_subquery()
    )
    rows = select(
        client.c.group_name,
        client.c.client_id,
        client.c.message_model,
        client.c.language,
        client.c.version,
        client.c.registered_at,
        cast(extract("epoch", func.mqdb.now() - client.c.heartbeat_at), Float),
        owned,
        client.c.principal,
    ).where(client.c.kind == ClientKind.CONSUMER)
    if name is not None:
        rows = rows.where(client.c.group_name == name)
    return [MemberInfo(*row) for row in connection.execute(rows.order_by(client.c.group_name, client.c.client_id))]


def progress(connection: Connection, name: str, topic: str | None = None) -> list[QueueProgress]:
    """The group's progress in each queue in which it has an offset, in one topic or all, by topic and queue."""
    rows = select(_lag).where(_lag.c.group_name == name).order_by(_lag.c.topic, _lag.c.queue_id)
    if topic is not None:
        rows = rows.where(_lag.c.topic == topic)
    return [QueueProgress(*row) for row in connection.execute(rows)]


def consumed_at(connection: Connection, name: str) -> dict[tuple[str, int], datetime]:
    """The store time of the newest message that the group has consumed in each queue, by topic and queue.

    A queue is left out if no message that the group has consumed there is still kept.
    """
    entry = entries(queue.c.queue_key, _lag.c.next_offset - 1, _lag.c.next_offset)
    position = select(entry.c.log_pos).select_from(entry).correlate(queue, _lag).scalar_subquery()
    its_queue = and_(queue.c.topic_id == topic.c.topic_id, queue.c.queue_id == _lag.c.queue_id)
    last = (
        select(_lag.c.topic, _lag.c.queue_id, position.label("log_pos"))
        .join_from(_lag, topic, topic.c.topic == _lag.c.topic)
        .join(queue, its_queue)
        .where(_lag.c.group_name == name)
    ).subquery("last")
    # One lookup per queue, because a join might read the whole log.
    stored = select(commit_log.c.store_time).where(commit_log.c.log_pos == last.c.log_pos).scalar_subquery()
    rows = connection.execute(select(last.c.topic, last.c.queue_id, stored))
    return {(topic_name, queue_id): time for topic_name, queue_id, time in rows if time is not None}


def progress_in(connection: Connection, topic: str) -> list[QueueProgress]:
    """The progress in each queue of the topic in which a group has an offset, by group and queue."""
    rows = select(_lag).where(_lag.c.topic == topic).order_by(_lag.c.group_name, _lag.c.queue_id)
    return [QueueProgress(*row) for row in connection.execute(rows)]


def switched_off(connection: Connection) -> frozenset[str]:
    """The groups whose members get no messages, because of their setting `consume_enable`."""
    off = select(subscription_group.c.group_name).where(subscription_group.c.consume_enable.is_(False))
    return frozenset(connection.scalars(off))


def lags(connection: Connection, name: str | None = None) -> list[TopicLag]:
    """The lag in each topic in which a group has an offset, by group and topic; for one group or all.

    Reads one record of the log per topic, whatever its number of queues; the view consumer_lag would read one per
    queue.
    """
    queues = select(
        _lag.c.group_name,
        _lag.c.topic,
        cast(func.sum(_lag.c.lag), BigInteger).label("lag"),
        func.min(_lag.c.oldest_pos).label("oldest_pos"),
        cast(func.sum(_lag.c.waiting), BigInteger).label("waiting"),
        cast(func.sum(_lag.c.in_flight), BigInteger).label("in_flight"),
        cast(func.sum(_lag.c.next_offset), BigInteger).label("committed"),
        func.count().filter(_lag.c.owner.is_(None), _lag.c.consume_mode == "PULL").label("unowned_queues"),
    ).group_by(_lag.c.group_name, _lag.c.topic)
    if name is not None:
        queues = queues.where(_lag.c.group_name == name)
    behind = queues.subquery("behind")
    stored = select(commit_log.c.store_time).where(commit_log.c.log_pos == behind.c.oldest_pos).scalar_subquery()
    age = cast(extract("epoch", func.mqdb.now() - stored), Float)
    # greatest() ignores NULL: without an unread message, or without its record, the age is 0.
    columns = behind.c.group_name, behind.c.topic, behind.c.lag, func.greatest(age, 0.0), behind.c.waiting
    rest = behind.c.in_flight, behind.c.committed, behind.c.unowned_queues
    rows = connection.execute(select(*columns, *rest).order_by(behind.c.group_name, behind.c.topic))
    return [TopicLag(*row) for row in rows]


def queue_lags(connection: Connection, topics: Sequence[str]) -> list[QueueLag]:
    """The lag in each queue of these topics in which a group has an offset, by group, topic and queue."""
    columns = _lag.c.group_name, _lag.c.topic, _lag.c.queue_id
    rows = select(*columns, _lag.c.lag, _lag.c.next_offset).where(_lag.c.topic.in_(topics)).order_by(*columns)
    return [QueueLag(*row) for row in connection.execute(rows)]


@translates
def list_groups(connection: Connection) -> list[GroupSummary]:
    """All groups, by name."""
    is_member = and_(client.c.group_name == subscription_group.c.group_name, client.c.kind == ClientKind.CONSUMER)
    rows = connection.execute(
        select(
            subscription_group.c.group_name,
            func.count(client.c.client_id),
            func.string_agg(client.c.message_model.distinct(), ", "),
        )
        .outerjoin_from(subscription_group, client, is_member)
        .group_by(subscription_group.c.group_name)
        .order_by(subscription_group.c.group_name)
    ).all()
    by_group = {group: list(found) for group, found in groupby(lags(connection), attrgetter("group"))}
    return [_summary(group, members, model, by_group.get(group, [])) for group, members, model in rows]


def _summary(group: str, members: int, message_model: str | None, topics: Sequence[TopicLag]) -> GroupSummary:
    return GroupSummary(
        group,
        members,
        message_model,
        topics=len(topics),
        lag=sum(each.lag for each in topics),
        lag_seconds=max((each.lag_seconds for each in topics), default=0.0),
        waiting=sum(each.waiting for each in topics),
    )
