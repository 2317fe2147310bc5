"""Members: the connected clients, their groups and their connections.

Request codes 34, 35, 38 and 46, and 40 to clients.

A client is identified by its id and its connection: after a lost connection, it connects again and identifies itself
with its next heartbeat, up to 30 s later. It stays a member for that time. Its row in the database counts as connected
while the front is connected (`membership.adopt`).
RocketMQ: ClientManageProcessor, ConsumerManageProcessor, ConsumerManager, ProducerManager.
"""

import logging
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from functools import partial
from typing import Final, Protocol

from sqlalchemy import Connection as DatabaseConnection

from mqdb.broker.clients import membership
from mqdb.broker.filters.filters import check_filters
from mqdb.common.topic import retry_topic
from mqdb.errors import MessageModelConflict, MqdbError, ParameterInvalid, ResponseCode, SubscriptionConflict
from mqdb.fronts.database import Database
from mqdb.fronts.known_names import broadcasting_id, id_with_key, is_of_key, own_id
from mqdb.fronts.repeating import repeat
from mqdb.remoting.session.client import Client, Consumer, consumer_of, filter_of
from mqdb.remoting.session.connection import Connection
from mqdb.remoting.wire.answers import Answer
from mqdb.remoting.wire.bodies import as_json, parsed_object
from mqdb.remoting.wire.codes import RequestCode
from mqdb.remoting.wire.frame import Frame
from mqdb.remoting.wire.heartbeat import Heartbeat, HeartbeatSubscription
from mqdb.store.clients.clients import ClientKind, Registration, members_of
from mqdb.store.topics.topics import find_topics
from mqdb.store.transactions.open_halves import unasked_groups
from mqdb_client.outage import level_of

logger = logging.getLogger(__name__)

#: Time for which a client is kept after its connection was closed: clients send a heartbeat every 30 s.
GRACE_SECONDS: Final = 30.0

#: Interval between writes of the received heartbeats.
_BEAT_SECONDS: Final = 10.0

#: Maximum number of groups that a front remembers for one client. A program has a few groups, and RocketMQ's clients
#: refuse longer names.
_MOST_GROUPS: Final = 1_000
_MOST_OF_A_GROUP: Final = 255

#: The group of each Java client's internal producer. Source: MixAll.CLIENT_INNER_PRODUCER_GROUP.
_INNER_GROUP: Final = "CLIENT_INNER_PRODUCER"


class MemberListener(Protocol):
    """Receives events about the consumers of a front, in the front's event loop."""

    async def entered(self, consumer: Consumer) -> None:
        """The broker has registered a consumer; its client has not received the answer yet."""

    async def left(self, client: Client, group: str) -> None:
        """A client leaves a group; called before it is unregistered at the broker."""


class FrontMembers:
    """The clients of one front. Use it in the front's event loop only."""

    def __init__(self, database: Database, listener: MemberListener) -> None:
        self._database = database
        self._instance = database.instance
        self._listener = listener
        self.clients: dict[str, Client] = {}
        database.spawn(repeat(lambda: _BEAT_SECONDS, self._beat, "renew heartbeats of clients"))

    def close(self) -> None:
        """Stop waiting for lost clients, because the event loop ends."""
        for client in self.clients.values():
            if client.grace is not None:
                client.grace.cancel()
        self.clients.clear()  # so that lost connections start no new timers

    def client_of(self, connection: Connection) -> Client | None:
        """The client whose last heartbeat arrived on this connection, or None."""
        return None if connection.client_id is None else self.clients.get(connection.client_id)

    def consumer_of(self, connection: Connection, group: str) -> tuple[Client, Consumer] | None:
        """The client on a connection as a member of a group; None before its heartbeat.

        A client whose request has timed out opens a new connection, but its next heartbeat may be 30 s away. Before a
        heartbeat on the connection, the client is therefore taken to be the only member of the group from the same host
        that has lost its connection, if there is exactly one.
        """
        client = self.client_of(connection)
        if connection.client_id is None:
            host = connection.peer.rpartition(":")[0]
            lost = [each for each, _ in self.consumers_of(group) if each.connection is None and each.host == host]
            client = lost[0] if len(lost) == 1 else None
        consumer = None if client is None else client.consumers.get(group)
        return None if client is None or consumer is None else (client, consumer)

    def consumers_of(self, group: str) -> Iterable[tuple[Client, Consumer]]:
        """The clients of this front that are members of a group."""
        return [(each, each.consumers[group]) for each in self.clients.values() if group in each.consumers]

    def retry_topic_of(self, connection: Connection, topic: str) -> str:
        """The retry topic that the client on a connection means; any other topic is returned unchanged.

        For pops, RocketMQ has a retry topic for each topic of a group, `%RETRY%group_topic`. Clients that leave
        rebalancing to the broker query its route. Here they read nothing from it.
        """
        client = self.client_of(connection)
        for group, consumer in () if client is None else client.consumers.items():
            own = retry_topic(group)
            if topic.startswith(own) and topic.removeprefix(f"{own}_") in consumer.filters:
                return own
        return topic

    # -- 34, 35 -------------------------------------------------------------------------------

    async def heartbeat(self, connection: Connection, frame: Frame) -> Answer:
        """Code 34: a client reports that it is alive, and its groups.

        If the broker refuses a consumer, the pulls of that consumer get code 25.

        Raises the errors of `Heartbeat`, and ParameterInvalid for too many groups, all of which are then ignored.
        """
        said = Heartbeat(frame.body)
        client_id = said.client_id
        if said.is_broadcasting:
            client_id = broadcasting_id(client_id, connection.peer)
        client_id = id_with_key(client_id, connection.access_key)
        client = self.clients.get(client_id)
        consumers = {each.group: consumer_of(each) for each in said.consumers}
        groups = consumers.keys() | (client.consumers.keys() if client else ())
        if len(groups) > _MOST_GROUPS:
            raise ParameterInvalid("consumerDataSet", len(groups), f"a client can have at most {_MOST_GROUPS:,} groups")
        is_new = client is None
        if client is None:
            client = self.clients[client_id] = Client(client_id, connection, "", frame.language, str(frame.version))
            self._instance.guests.add(client_id)
        self._connect(client, connection)
        if is_new:
            with suppress(MqdbError):  # the database is down: `_renew` follows
                await self._adopt([client_id])
        for group, consumer in consumers.items():
            registration = consumer.registration._replace(
                client_id=client_id, language=client.language, version=client.version
            )
            consumer.registration = registration
            known = client.consumers.get(group)
            if consumer.fault is not None:
                await self._leave(client, group, ClientKind.CONSUMER)
            elif known is not None and known.registration == registration and known.why_not is None:
                continue
            client.consumers[group] = consumer
            if consumer.is_member:
                await self._enter(client, consumer)
            self._log_refusal(registration, known, consumer)
        for group in said.producers:
            if _has_room(client.producers, group):
                client.producers.setdefault(group, False)
        for group in list(connection.transaction_groups):
            await self.ask_about_transactions(connection, group)
        return Answer()

    async def unregister(self, connection: Connection, frame: Frame) -> Answer:
        """Code 35: a client leaves a group."""
        client = self.client_of(connection)
        if client is not None:
            if (group := frame.fields.get("consumerGroup")) is not None:
                await self._leave(client, group, ClientKind.CONSUMER)
            if (group := frame.fields.get("producerGroup")) is not None:
                await self._leave(client, group, ClientKind.PRODUCER)
        return Answer()

    async def ask_about_transactions(self, connection: Connection, group: str) -> None:
        """Let a client receive checks of half messages of a group, from now on or from its first heartbeat on."""
        client = self.client_of(connection)
        if client is None:
            if _has_room(connection.transaction_groups, group):
                connection.transaction_groups.add(group)
            return
        connection.transaction_groups.discard(group)
        if not client.producers.get(group) and _has_room(client.producers, group):
            client.producers[group] = True
            await self._register(self._checker(client, group))

    def lost(self, connection: Connection) -> None:
        """A connection was closed: its client is kept for a while."""
        client = self.client_of(connection)
        if client is not None and client.connection is connection:
            client.connection = None
            client.grace = self._database.loop.call_later(
                GRACE_SECONDS, lambda: self._database.spawn(self._forget(client))
            )

    # -- 38, 46 -------------------------------------------------------------------------------

    async def members(self, _connection: Connection, frame: Frame) -> Answer:
        """Code 38: the ids of all members of a group, whichever front they are connected to."""
        group = frame.fields.get("consumerGroup", "")
        found = await self._database.run(partial(members_of, group=group))
        ids = sorted({own_id(client_id) for client_id in found})
        if not ids:
            return Answer(ResponseCode.SYSTEM_ERROR, remark=f"no consumer for this group, {group}")
        return Answer(body=as_json({"consumerIdList": ids}))

    async def check_client(self, _connection: Connection, frame: Frame) -> Answer:
        """Code 46: check whether a filter is valid. Raises the errors of parsing the filter, and FilterDisabled."""
        found = parsed_object(frame.body).get("subscriptionData")
        if not isinstance(found, dict):
            raise ParameterInvalid("subscriptionData", found, "is missing")
        asked = HeartbeatSubscription.of(found)
        chosen = filter_of(asked.expression_type, asked.expression)
        await self._database.run(partial(check_filters, expression_types={chosen.expression_type}))
        return Answer()

    # -- how ----------------------------------------------------------------------------------

    def _connect(self, client: Client, connection: Connection) -> None:
        if connection.client_id not in (None, client.client_id):
            self.lost(connection)  # for the client that used another id on this connection
        client.heard_at = time.monotonic()
        client.connection, client.host = connection, connection.peer.rpartition(":")[0]
        connection.client_id = client.client_id
        if client.grace is not None:
            client.grace.cancel()
            client.grace = None
        if not connection.is_open:  # it was closed in between
            self.lost(connection)

    async def _adopt(self, client_ids: list[str]) -> None:
        host = self._instance.client_id
        await self._database.run(lambda connection: membership.adopt(connection, client_ids, host))

    async def _enter(self, client: Client, consumer: Consumer) -> None:
        """Register a consumer, and note the reason if the broker refuses it.

        A killed client still counts for a while after it has been restarted, possibly with other subscriptions. A
        member that has lost its connection and has the same host is therefore removed first.
        """
        registration, group = consumer.registration, consumer.registration.group
        consumer.refusal = await self._register(registration)
        with suppress(MqdbError):
            there = await self._database.run(partial(find_topics, names=list(consumer.filters)))
            consumer.awaited = consumer.filters.keys() - there.keys()
        if isinstance(consumer.refusal, SubscriptionConflict | MessageModelConflict):
            members = [each for each, _ in self.consumers_of(group)]
            killed = [each for each in members if each.connection is None and each.host == client.host]
            for each in killed:
                await self._leave(each, group, ClientKind.CONSUMER)
            if killed:
                consumer.refusal = await self._register(registration)
        if consumer.refusal is None:
            await self._listener.entered(consumer)

    async def _enter_again(self, client: Client, group: str) -> None:
        """Register a refused client again, because the reason may no longer exist."""
        consumer = client.consumers.get(group)
        if consumer is not None and consumer.refusal is not None:
            try:
                await self._enter(client, consumer)
            except MqdbError as error:
                fields = {"group": group, "client_id": client.client_id, "reason": str(error)}
                sentence = (
                    "could not re-register client %(client_id)s in group %(group)s; will retry at its next heartbeat: "
                    "%(reason)s"
                )
                logger.log(level_of(error), sentence, fields, extra=fields)

    async def _register(self, registration: Registration) -> MqdbError | None:
        try:
            await self._database.run(partial(membership.register, registration=registration))
        except MqdbError as error:
            return error
        return None

    def _log_refusal(self, registration: Registration, before: Consumer | None, now: Consumer) -> None:
        """Log a refusal once, not at each heartbeat."""
        if now.why_not is not None and (before is None or str(before.why_not) != str(now.why_not)):
            fields = {"group": registration.group, "client_id": registration.client_id, "reason": str(now.why_not)}
            sentence = "the broker refused client %(client_id)s in group %(group)s: %(reason)s"
            logger.warning(sentence, fields, extra=fields)

    def _checker(self, client: Client, group: str) -> Registration:
        return Registration(
            client.client_id,
            ClientKind.PRODUCER,
            client.group_of_halves(group),
            client.version,
            language=client.language,
            checks_transactions=True,
        )

    async def _leave(self, client: Client, group: str, kind: ClientKind) -> None:
        if kind is ClientKind.CONSUMER:
            if client.consumers.pop(group, None) is None:
                return
        elif not client.producers.pop(group, False):  # it has no row
            return
        if kind is ClientKind.CONSUMER:
            await self._listener.left(client, group)
        await self._database.run(partial(self._unregister, client=client, group=group, kind=kind))

    def _unregister(self, connection: DatabaseConnection, client: Client, group: str, kind: ClientKind) -> None:
        """Remove a client from a group, unless it has moved to another front since, as after a lost connection."""
        if kind is ClientKind.PRODUCER:
            group = client.group_of_halves(group)
        if membership.is_guest(connection, client.client_id, self._instance.client_id):
            membership.unregister(connection, client.client_id, group, kind)

    async def _forget(self, client: Client) -> None:
        """Remove a client that has not come back."""
        if self.clients.get(client.client_id) is client:
            del self.clients[client.client_id]
            self._instance.guests.discard(client.client_id)
        leaving = [(group, ClientKind.CONSUMER) for group in client.consumers]
        for group, kind in [*leaving, *((group, ClientKind.PRODUCER) for group in client.producers)]:
            try:
                await self._leave(client, group, kind)
            except MqdbError as error:  # the broker removes it after its expiry
                fields = {"group": group, "client_id": client.client_id, "reason": str(error)}
                sentence = "could not remove client %(client_id)s from group %(group)s: %(reason)s"
                logger.log(level_of(error), sentence, fields, extra=fields)

    def changed(self, group: str | None) -> None:
        """A group has other members or free queues; None, after a lost connection, stands for any group."""
        if group is None:
            self._database.spawn(self._try_to_renew(list(self.clients.values())))
        for client in self.clients.values():
            for name, consumer in client.consumers.items():
                if group in (None, name) and consumer.shares and client.connection is not None:
                    client.connection.tell(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": name})
                if group == name and consumer.refusal is not None:
                    self._database.spawn(self._enter_again(client, name))

    async def _try_to_renew(self, clients: list[Client]) -> None:
        try:
            await self._renew(clients)
        except MqdbError as error:
            fields = {"reason": str(error)}
            logger.log(level_of(error), "could not re-register clients; will retry: %(reason)s", fields, extra=fields)

    async def _renew(self, clients: list[Client]) -> None:
        """Register clients again, because the broker has lost them, or this front has lost the broker.

        Clients without a connection are left out, because they may have moved to another front.
        """
        clients = [each for each in clients if each.connection is not None]
        if not clients:
            return
        await self._adopt([client.client_id for client in clients])
        for client in clients:
            for consumer in list(client.consumers.values()):
                if consumer.refusal is not None:
                    await self._enter(client, consumer)
                elif consumer.is_member:
                    await self._register(consumer.registration._replace(is_renewal=True))
            for group, is_asked in list(client.producers.items()):
                if is_asked:
                    await self._register(self._checker(client, group))

    async def _beat(self) -> None:
        expired = time.monotonic() - membership.CLIENT_EXPIRY.total_seconds()
        for client in [each for each in self.clients.values() if each.heard_at < expired]:
            if client.connection is not None:
                client.connection.close()
            await self._forget(client)
        present = {each.client_id: each for each in self.clients.values() if each.has_row}
        known = await self._database.run(partial(membership.heartbeat_all, client_ids=list(present)))
        await self._renew([client for client_id, client in present.items() if client_id not in known])
        await self._ask_others()

    async def _ask_others(self) -> None:
        """Let clients receive checks of their groups' half messages from other clients, which may be gone."""
        idle = [
            (client, group)
            for client in self.clients.values()
            for group, is_asked in client.producers.items()
            if client.connection is not None and not is_asked and group != _INNER_GROUP
        ]
        groups = {client.group_of_halves(group) for client, group in idle}
        found = await self._database.run(partial(unasked_groups, groups=groups)) if groups else set()
        for client, group in idle:
            if client.group_of_halves(group) in found and client.connection is not None:
                await self.ask_about_transactions(client.connection, group)


def _has_room(groups: Collection[str], group: str) -> bool:
    """Whether a front can remember one more producer group of a client. No real program exceeds the limits."""
    if group in groups:
        return True
    return len(group) <= _MOST_OF_A_GROUP and len(groups) < _MOST_GROUPS and not is_of_key(group)
