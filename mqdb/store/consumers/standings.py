"""Standings of groups in some queues: their offsets, their filters on the topics, and how their members consume."""

from collections import defaultdict
from collections.abc import Collection
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, Connection, Integer, Select, Text, any_, column, select, table, tuple_

from mqdb.store import acl
from mqdb.store.clients.clients import ClientKind
from mqdb.store.consumers.consumer_offsets import effective_offset
from mqdb.store.fragments import array_of
from mqdb.store.tables import client, consumer_offset, subscription, subscription_group

#: For roles that do not own the broker: the policy of consumer_offset lets only members see rows, the view also
#: operators.
_lag = table(
    "consumer_lag",
    column("group_name", Text),
    column("topic", Text),
    column("queue_id", Integer),
    column("next_offset", BigInteger),
    schema="mqdb",
)


class QueuePlace(NamedTuple):
    """A queue of a topic, by the name that the role uses."""

    queue_key: int
    topic: str
    queue_id: int


class QueueStanding(NamedTuple):
    """A group that has an offset in a queue, or a subscription to its topic."""

    group: str
    next_offset: int | None
    """None if the group has not started to read the queue, or its members keep their own offsets."""
    expression_type: str | None
    """The type of the group's filter; None without a subscription."""
    expression: str | None
    message_models: frozenset[str]
    """The message models of the group's members; empty without members."""


def find(connection: Connection, places: Collection[QueuePlace]) -> dict[int, list[QueueStanding]]:
    """The groups of each queue, by queue key, sorted by name.

    A role gets only groups on which it has a right.
    """
    if not places:
        return {}
    offsets = _offsets(connection, places)
    rows = connection.execute(_filters({place.topic for place in places}))
    filters = {(group, topic): (expression_type, expression) for group, topic, expression_type, expression in rows}
    subscribed = {(group, place) for group, topic in filters for place in places if place.topic == topic}
    pairs = sorted(offsets.keys() | subscribed)
    models: dict[str, set[str]] = defaultdict(set)
    if pairs:
        for group, model in connection.execute(_models({group for group, _ in pairs})):
            models[group].add(model)
    found: dict[int, list[QueueStanding]] = defaultdict(list)
    for group, place in pairs:
        its_filter = filters.get((group, place.topic), (None, None))
        standing = QueueStanding(group, offsets.get((group, place)), *its_filter, frozenset(models[group]))
        found[place.queue_key].append(standing)
    return found


def _offsets(connection: Connection, places: Collection[QueuePlace]) -> dict[tuple[str, QueuePlace], int]:
    """The offsets of groups, by group name and queue."""
    if acl.is_guest(connection):
        by_name = {(place.topic, place.queue_id): place for place in places}
        rows = connection.execute(select(_lag).where(tuple_(_lag.c.topic, _lag.c.queue_id).in_(by_name)))
        return {(group, by_name[topic, queue_id]): offset for group, topic, queue_id, offset in rows}
    by_key = {place.queue_key: place for place in places}
    its_group = subscription_group.c.group_id == consumer_offset.c.group_id
    stored = (
        select(subscription_group.c.group_name, consumer_offset.c.queue_key, effective_offset())
        .join_from(consumer_offset, subscription_group, its_group)
        .where(consumer_offset.c.queue_key == any_(array_of(list(by_key))))
    )
    return {(group, by_key[queue_key]): offset for group, queue_key, offset in connection.execute(stored)}


def _filters(topics: Collection[str]) -> Select[Any]:
    columns = subscription.c.topic, subscription.c.expression_type, subscription.c.expression
    return (
        select(subscription_group.c.group_name, *columns)
        .join_from(subscription, subscription_group, subscription_group.c.group_id == subscription.c.group_id)
        .where(subscription.c.topic.in_(topics))
    )


def _models(groups: Collection[str]) -> Select[Any]:
    is_consumer = client.c.kind == ClientKind.CONSUMER
    return select(client.c.group_name, client.c.message_model).where(is_consumer, client.c.group_name.in_(groups))
