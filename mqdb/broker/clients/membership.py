"""Membership: clients register, send heartbeats, and leave. Each change is announced to the group.

Membership does not wait for a standby: after a failover clients register again, and a hanging standby must not prevent
clients from registering and leaving.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

from sqlalchemy import Connection, func, select

from mqdb.broker.filters.filters import check_filters
from mqdb.broker.topics.route import find_or_create_retry_topic
from mqdb.common.group import ConsumeMode, MessageModel
from mqdb.errors import (
    BrokerUnavailable,
    ClientIdInUse,
    ConsumeModeConflict,
    ConsumptionForbidden,
    MessageModelConflict,
    SubscriptionConflict,
)
from mqdb.selector.subscription import SubscriptionData
from mqdb.store import acl
from mqdb.store.acl import Access, Resource, ResourceType
from mqdb.store.clients import clients
from mqdb.store.clients.clients import ClientKind, Registration
from mqdb.store.consumers import groups, subscriptions
from mqdb.store.consumers.subscriptions import StoredSubscriptions
from mqdb.store.engine import target_of, transaction, translated, translates

#: A client silent for longer is gone. Source: ConsumerManager.CHANNEL_EXPIRED_TIMEOUT.
CLIENT_EXPIRY = timedelta(seconds=120)


def announce(connection: Connection, client_id: str) -> None:
    """Make this connection the client's connection for notifications; to be called before `register`.

    Raises ClientIdInUse while the client has another connection: the client id is in use, or the server has not yet
    noticed that the client's own connection is lost.
    """
    with _changing(connection):
        if not clients.announce(connection, client_id):
            raise ClientIdInUse(f"client {client_id}", "in use")


def register(connection: Connection, registration: Registration) -> StoredSubscriptions | None:
    """Register a client in a group, which is created if it does not exist, and notify the group.

    Returns the group's subscriptions that were replaced, or None if they are unchanged.
    Raises SubscriptionConflict for a consumer whose subscriptions differ from those of its group (or, if it can only
    pop, that filters a topic in another way); MessageModelConflict for another way to share messages,
    ConsumeModeConflict for another way to share queues; AccessDenied for a group or a topic that the role has no right
    to read; ConsumptionForbidden if the group is switched off; and FilterDisabled for an SQL92 filter if the broker
    has disabled them.
    """
    replaced = None
    with _changing(connection):
        if registration.kind is ClientKind.CONSUMER:
            replaced = _agree(connection, registration)
            if registration.message_model is MessageModel.CLUSTERING:
                find_or_create_retry_topic(connection, registration.group)
            clients.notify_group(connection, registration.group)
        clients.add(connection, registration)
    return replaced


def take_back(connection: Connection, registration: Registration, replaced: StoredSubscriptions) -> None:
    """Restore the subscriptions that the registration of a member has replaced, unless they have changed since.

    Members that registered in between stay, like the old members in a rolling change.
    """
    with _changing(connection):
        stored = subscriptions.lock(connection, registration.group)
        announced = frozenset(registration.subscriptions), registration.subscription_version
        if (stored.subscriptions, stored.version) == announced:
            subscriptions.replace(connection, registration.group, replaced.version, replaced.subscriptions)


def _agree(connection: Connection, registration: Registration) -> StoredSubscriptions | None:
    """Subscriptions change if there are no other members, or when a member announces a higher version.

    Members that can only pop may subscribe to different topics, because each of them takes only messages of its own
    topics. The group then subscribes to all of these topics, and all members use the same filter for a topic. A member
    that follows the mode of its group may later own queues, which are shared among all members.

    A member that renews its registration stays a member: in a rolling change the old members continue until they are
    replaced. If the database was set back to a time before the group existed, the first of them stores their
    subscriptions.
    """
    group, given = registration.group, frozenset(registration.subscriptions)
    topics = (Resource(Access.READ, ResourceType.TOPIC, each.topic) for each in given)
    acl.require(connection, Resource(Access.READ, ResourceType.GROUP, group), *topics)
    mode = registration.consume_mode
    stored = subscriptions.lock(connection, group, mode)
    # In broadcasting, members do not own queues, and keep their own offsets.
    if mode is not None and mode != stored.consume_mode and registration.message_model is MessageModel.CLUSTERING:
        raise ConsumeModeConflict(group, stored.consume_mode.lower(), mode.lower())
    if registration.is_renewal:
        if not stored.subscriptions:
            subscriptions.replace(connection, group, registration.subscription_version, given)
        return None
    if not stored.consume_enable:
        raise ConsumptionForbidden(group, "consume_enable")
    if registration.message_model is MessageModel.BROADCASTING and not stored.consume_broadcast_enable:
        raise ConsumptionForbidden(group, "consume_broadcast_enable")
    check_filters(connection, {each.expression_type for each in given})
    version = registration.subscription_version
    others = clients.live_models(connection, group, but=registration.client_id)
    for client_id, model in others.items():
        if model is not registration.message_model:
            raise MessageModelConflict(group, model, registration.message_model, client_id)
    if stored.subscriptions == given and stored.version == version:
        return None
    if others and version <= stored.version:
        united = stored.subscriptions | given
        if mode is not ConsumeMode.POP or len(_by_topic(united)) < len(united):
            ours, theirs = _by_topic(given), _by_topic(stored.subscriptions)
            raise SubscriptionConflict(group, theirs, stored.version, ours, version)
        if united == stored.subscriptions:
            return None
        given, version = united, stored.version
    subscriptions.replace(connection, group, version, given)
    return stored


def _by_topic(given: Iterable[SubscriptionData]) -> dict[str, tuple[str, str]]:
    return {each.topic: (each.expression_type, each.expression) for each in given}


def heartbeat(connection: Connection, client_id: str) -> bool:
    """Record a client's heartbeat for all its groups;

    False if the broker has removed it, so that it must register again.
    """
    with _changing(connection):
        return bool(clients.beat(connection, [client_id]))


def adopt(connection: Connection, client_ids: Sequence[str], host: str) -> None:
    """Count clients as connected while `host`, through which they connect, is connected; called before `register`.

    Raises BrokerUnavailable if the host has lost its connection for notifications and the broker has noticed this.
    """
    with _changing(connection):
        if not clients.adopt(connection, client_ids, host):
            raise BrokerUnavailable(target_of(connection), "the connection for notifications does not exist yet")


def heartbeat_all(connection: Connection, client_ids: Sequence[str]) -> set[str]:
    """Record heartbeats of several clients; returns the ids of the clients that are still registered."""
    if not client_ids:
        return set()
    with _changing(connection):
        return clients.beat(connection, client_ids)


@translates
def is_guest(connection: Connection, client_id: str, host: str) -> bool:
    """Whether a client still counts as connected through `host`: it may have switched to another host."""
    return clients.is_guest(connection, client_id, host)


def unregister(connection: Connection, client_id: str, group: str, kind: ClientKind) -> None:
    """Remove a client from a group; a consumer's queues are free immediately, and the group is notified."""
    with _changing(connection):
        clients.remove(connection, client_id, group, kind)
        if kind is ClientKind.CONSUMER:
            clients.notify_group(connection, group)


@translates
def may_consume(connection: Connection, group: str) -> bool:
    """Whether the group is switched on; True for a group that does not exist."""
    settings = groups.find(connection, group)
    return settings is None or settings.consume_enable


def reap(connection: Connection, expiry: timedelta = CLIENT_EXPIRY) -> list[str]:
    """Remove clients that are silent or whose connection is closed, and notify their groups; returns the groups."""
    with translated(connection):
        return clients.reap(connection, expiry)


@contextmanager
def _changing(connection: Connection) -> Iterator[None]:
    with translated(connection), transaction(connection):
        connection.execute(select(func.set_config("synchronous_commit", "local", True)))
        yield
