"""Subscriptions: what a group reads of each topic. All members of a group must have the same subscriptions.

Members with different filters would lose messages: a queue's messages are filtered by the member that happens to read
it. Popping members do not own queues, and may read different topics. RocketMQ keeps the subscriptions of the latest
heartbeat.
RocketMQ: SubscriptionData, ConsumerManager.
In SQL: `mqdb/sql/consumers/replace_subscriptions.sql`, `mqdb/sql/topics/make_topic.sql`.
"""

from collections.abc import Collection
from typing import NamedTuple

from sqlalchemy import ColumnElement, Connection, Text, cast, func, select
from sqlalchemy.dialects.postgresql import ARRAY

from mqdb.common.group import ConsumeMode
from mqdb.selector.subscription import SubscriptionData
from mqdb.store.engine import translates
from mqdb.store.tables import subscription, subscription_group


class StoredSubscriptions(NamedTuple):
    """A group's subscriptions, and the version that its members announced."""

    group_id: int
    version: int
    consume_enable: bool
    consume_broadcast_enable: bool
    consume_mode: ConsumeMode
    subscriptions: frozenset[SubscriptionData]


def lock(connection: Connection, group: str, mode: ConsumeMode | None = None) -> StoredSubscriptions:
    """The subscriptions of a group, locked until the transaction ends.

    A missing group is created with this consume mode, by default PULL.
    """
    settings = (
        select(
            subscription_group.c.group_id,
            subscription_group.c.subscription_version,
            subscription_group.c.consume_enable,
            subscription_group.c.consume_broadcast_enable,
            subscription_group.c.consume_mode,
        )
        .where(subscription_group.c.group_name == group)
        .with_for_update()
    )
    row = None
    while row is None:  # it may be deleted between the two statements
        row = connection.execute(settings).one_or_none()
        if row is None:
            connection.execute(select(func.mqdb.make_group(group, mode or ConsumeMode.PULL)))
    stored = _of(connection, subscription.c.group_id == row.group_id)
    return StoredSubscriptions(*row, subscriptions=stored)._replace(consume_mode=ConsumeMode(row.consume_mode))


@translates
def find(connection: Connection, group: str) -> frozenset[SubscriptionData]:
    """The subscriptions of a group; empty if it does not exist."""
    its_id = select(subscription_group.c.group_id).where(subscription_group.c.group_name == group)
    return _of(connection, subscription.c.group_id == its_id.scalar_subquery())


def _of(connection: Connection, which: ColumnElement[bool]) -> frozenset[SubscriptionData]:
    columns = (subscription.c[field] for field in SubscriptionData._fields)
    return frozenset(SubscriptionData(*each) for each in connection.execute(select(*columns).where(which)))


def replace(connection: Connection, group: str, version: int, wanted: Collection[SubscriptionData]) -> None:
    """Replace the subscriptions of a group."""
    columns = [cast([each[field] for each in wanted], ARRAY(Text)) for field in range(len(SubscriptionData._fields))]
    connection.execute(select(func.mqdb.replace_subscriptions(group, version, *columns)))
