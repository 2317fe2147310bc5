"""Subscriptions: what a group reads of each topic. All members have to agree on it.

Members with different filters lose messages: a queue's messages are filtered by whoever happens to read it. RocketMQ
keeps what the latest heartbeat said. RocketMQ: SubscriptionData, ConsumerManager.
"""

from collections.abc import Collection
from typing import Final, NamedTuple

from sqlalchemy import Connection, Text, delete, literal, select, update
from sqlalchemy.dialects.postgresql import insert

from mqdb.selector.subscription import SubscriptionData
from mqdb.store.fragments import given
from mqdb.store.tables import subscription, subscription_group

_COLUMNS: Final = {name: Text() for name in SubscriptionData._fields}


class StoredSubscriptions(NamedTuple):
    """A group's subscriptions, and the version that its members announced."""

    group_id: int
    version: int
    consume_enable: bool
    consume_broadcast_enable: bool
    subscriptions: frozenset[SubscriptionData]


def lock(connection: Connection, group: str) -> StoredSubscriptions:
    """What a group has subscribed to; nobody else changes it until the transaction ends. A new group is made."""
    settings = (
        select(
            subscription_group.c.group_id,
            subscription_group.c.subscription_version,
            subscription_group.c.consume_enable,
            subscription_group.c.consume_broadcast_enable,
        )
        .where(subscription_group.c.group_name == group)
        .with_for_update()
    )
    row = None
    while row is None:  # it may be deleted between the two
        connection.execute(insert(subscription_group).values(group_name=group).on_conflict_do_nothing())
        row = connection.execute(settings).one_or_none()
    columns = (subscription.c[field] for field in SubscriptionData._fields)
    stored = connection.execute(select(*columns).where(subscription.c.group_id == row.group_id))
    return StoredSubscriptions(*row, subscriptions=frozenset(SubscriptionData(*each) for each in stored))


def replace(connection: Connection, group_id: int, version: int, wanted: Collection[SubscriptionData]) -> None:
    """Store what a group subscribes to from now on, in the place of what it did."""
    connection.execute(delete(subscription).where(subscription.c.group_id == group_id))
    new = given(_COLUMNS, wanted)
    rows = select(literal(group_id), literal(version), *(new.c[name] for name in _COLUMNS))
    connection.execute(insert(subscription).from_select(["group_id", "version", *_COLUMNS], rows))
    connection.execute(
        update(subscription_group).where(subscription_group.c.group_id == group_id).values(subscription_version=version)
    )
