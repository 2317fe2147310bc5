"""Members: the clients of a front, and their groups.

A client is identified by its id. Each of its calls is a sign of life, including a heartbeat every 10 s, and its stream
stays open as long as it lives. Serving a client does not depend on its earlier requests: after a restart of this front,
or on another front, its calls are answered from the database.
RocketMQ: ClientActivity, ConsumerManager, ProducerManager.
"""

import logging
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

from sqlalchemy import Connection

from mqdb.broker.clients import membership
from mqdb.common.group import ConsumeMode
from mqdb.errors import BrokerUnavailable, MqdbError
from mqdb.fronts.database import Database
from mqdb.fronts.known_groups import KnownGroups
from mqdb.fronts.repeating import repeat
from mqdb.grpc.calls import Call
from mqdb.grpc.traffic import CallTraffic
from mqdb.grpc.wire.rocketmq_pb2 import Code, TelemetryCommand
from mqdb.grpc.wire.status import CallRefused
from mqdb.selector.subscription import MessageFilter, SubscriptionData, stored_form
from mqdb.store.clients.clients import ClientKind, Registration
from mqdb.store.transactions.open_halves import unasked_groups
from mqdb_client.outage import level_of

logger = logging.getLogger(__name__)

#: Interval between writes of the received signs of life; it equals the interval of an SDK's heartbeats.
_BEAT_SECONDS: Final = 10.0

#: A client without a stream counts as alive for this long after its last call.
_ALIVE_SECONDS: Final = 12.0

#: After this time, the client counts as gone, and leaves its groups.
_GONE_SECONDS: Final = 30.0

#: Maximum number of clients of one front. A client that needs no key may choose any id.
MOST_CLIENTS: Final = 20_000

#: Maximum number of clients with one access key, so that clients with other keys find room.
_MOST_OF_A_KEY: Final = 10_000

#: Maximum number of groups and topics that a front remembers for one client.
_MOST_NAMES: Final = 1_000


class Stream(Protocol):
    """The telemetry stream of a client."""

    def tell(self, command: TelemetryCommand) -> None:
        """Send a command, if the client is reading."""


@dataclass(slots=True, eq=False)
class SdkClient:
    """A client that has made a call."""

    call: Call
    heard_at: float
    stream: Stream | None = None
    #: The time at which the stream was opened, by the monotonic clock.
    attached_at: float = 0.0
    consumers: dict[str, Registration] = field(default_factory=dict)
    #: The registrations that the broker refused, with the reasons, by group.
    refused: dict[str, tuple[Registration, MqdbError]] = field(default_factory=dict)
    #: Topics to which the client sends; the value is True for topics about whose half messages it is asked.
    topics: dict[str, bool] = field(default_factory=dict)

    def check(self, group: str) -> None:
        """Raise the reason why the client may not consume for a group, if any."""
        if (refused := self.refused.get(group)) is not None:
            raise refused[1].with_traceback(None)  # a traceback would grow with each raise, and keep its frames alive

    def subscriptions(self, group: str) -> Collection[SubscriptionData]:
        """The subscriptions of the client as a member of a group; empty if it is not a member."""
        return self.consumers[group].subscriptions if group in self.consumers else ()

    @property
    def has_row(self) -> bool:
        """Whether the database has a row for the client."""
        return bool(self.consumers) or any(self.topics.values())


class SdkMembers:
    """The clients of one front. Call it from the event loop only."""

    def __init__(self, database: Database, traffic: CallTraffic) -> None:
        self._traffic = traffic
        self._database = database
        self._instance = database.instance
        self.clients: dict[str, SdkClient] = {}
        self._groups = KnownGroups(database)
        self._of_keys = Counter[str]()
        database.spawn(repeat(lambda: _BEAT_SECONDS, self._beat, "renew heartbeats of SDKs"))

    def heard(self, call: Call) -> SdkClient:
        """Note a call of a client, and return the client. Raises CallRefused if there are too many clients."""
        client = self.clients.get(call.client_id)
        if client is None:
            if len(self.clients) >= MOST_CLIENTS:
                raise CallRefused(Code.TOO_MANY_REQUESTS, f"there are already {MOST_CLIENTS:,} clients")
            key = call.access_key
            if key and self._of_keys[key] >= _MOST_OF_A_KEY:
                reason = f"the access key already has {_MOST_OF_A_KEY:,} clients"
                raise CallRefused(Code.TOO_MANY_REQUESTS, reason)
            self._of_keys[key] += 1
            client = self.clients[call.client_id] = SdkClient(call, time.monotonic())
            self._instance.guests.add(call.client_id)
            self._traffic.clients = len(self.clients)
        client.heard_at = time.monotonic()
        return client

    def attach(self, call: Call, stream: Stream) -> SdkClient:
        """A client has opened its stream."""
        client = self.heard(call)
        client.stream, client.attached_at = stream, time.monotonic()
        self._traffic.streams += 1
        return client

    def detach(self, client: SdkClient, stream: Stream) -> float:
        """A stream was closed; the client may have another one.

        Returns the start time of the other stream, or the current time if there is no other.
        """
        client.heard_at = time.monotonic()
        self._traffic.streams -= 1
        if client.stream is stream:
            client.stream = None
        return client.heard_at if client.stream is None else client.attached_at

    def is_alive(self, client_id: str) -> bool:
        """Whether a client is alive, so that its messages may stay in flight."""
        client = self.clients.get(client_id)
        if client is None:
            return False
        return client.stream is not None or time.monotonic() - client.heard_at < _ALIVE_SECONDS

    async def enter(self, client: SdkClient, group: str, filters: Mapping[str, MessageFilter]) -> bool:
        """Register a client as a consumer of a group, which is created if needed.

        If the broker refuses the client, the reason is noted.

        Returns whether the client was already a member with other subscriptions.
        """
        return await self._enter(client, self._consumer(client, group, stored_form(filters)))

    async def agree(self, client: SdkClient, group: str, topic: str, filter: MessageFilter) -> bool:
        """Register a client that receives with a filter, with the corresponding subscription.

        If the broker refuses the client, the reason is noted.

        A filter that the other members do not have would skip their messages. After a restart of this front, a client
        that has not sent its subscriptions yet is served if its group has this subscription. Returns whether the client
        was already a member with other subscriptions.
        """
        wanted = SubscriptionData(topic, str(filter.expression_type), filter.canonical_text)
        given = client.subscriptions(group)
        if group in client.refused:
            if wanted in client.refused[group][0].subscriptions:
                return False
        elif wanted in given or (group not in client.consumers and await self._groups.subscribes(group, wanted)):
            return False
        others = (each for each in given if each.topic != topic)
        return await self._enter(client, self._consumer(client, group, (*others, wanted)))

    async def ask_about_transactions(self, client: SdkClient, topic: str) -> None:
        """Let a client receive checks of half messages for a topic from now on."""
        if client.topics.get(topic) or (topic not in client.topics and len(client.topics) >= _MOST_NAMES):
            return
        refusal = await self._register(client, self._checker(client, topic))
        if refusal is not None:
            raise refusal
        client.topics[topic] = True

    def note_topic(self, client: SdkClient, topic: str) -> None:
        """A client sends to a topic: it may be asked about half messages of other clients."""
        if len(client.topics) < _MOST_NAMES:
            client.topics.setdefault(topic, False)

    def note_alive(self, client_id: str) -> None:
        """Note a call of a client, if the client is known."""
        if (client := self.clients.get(client_id)) is not None:
            client.heard_at = time.monotonic()

    async def leave(self, client: SdkClient, group: str | None) -> None:
        """A client leaves a group, or all its groups."""
        groups = list(client.consumers) if group is None else [group] if group in client.consumers else []
        topics = [topic for topic, is_asked in client.topics.items() if is_asked] if group is None else []
        for each in list(client.refused) if group is None else [group]:
            client.refused.pop(each, None)
        for each in groups:
            client.consumers.pop(each, None)
            await self._unregister(client, each, ClientKind.CONSUMER)
        for topic in topics:
            client.topics[topic] = False
            await self._unregister(client, client.call.producer_group(topic), ClientKind.PRODUCER)

    async def forget(self, client: SdkClient) -> None:
        """A client is gone: remove it, and let it leave its groups."""
        if self.clients.get(client.call.client_id) is client:
            del self.clients[client.call.client_id]
            self._of_keys[client.call.access_key] -= 1
            self._traffic.clients = len(self.clients)
            self._instance.guests.discard(client.call.client_id)
        try:
            await self.leave(client, None)
        except MqdbError as error:  # the broker removes it after its expiry
            fields = {"client_id": client.call.client_id, "reason": str(error)}
            sentence = "could not remove client %(client_id)s from its groups: %(reason)s"
            logger.log(level_of(error), sentence, fields, extra=fields)

    # -- how ----------------------------------------------------------------------------------

    def _consumer(self, client: SdkClient, group: str, subscriptions: Iterable[SubscriptionData]) -> Registration:
        call = client.call
        return Registration(
            call.client_id,
            ClientKind.CONSUMER,
            group,
            call.version,
            language=call.language,
            subscriptions=tuple(sorted(subscriptions)),
            consume_mode=ConsumeMode.POP,
        )

    async def _enter(self, client: SdkClient, registration: Registration) -> bool:
        group = registration.group
        before = client.consumers.get(group)
        if before == registration:
            client.refused.pop(group, None)
            return False
        if len(client.consumers) >= _MOST_NAMES or len(registration.subscriptions) > _MOST_NAMES:
            raise CallRefused(Code.TOO_MANY_REQUESTS, f"a client can have at most {_MOST_NAMES:,} groups and topics")
        self._note(client, registration, await self._register(client, registration))
        if before is not None and group in client.refused:
            # A refused member reads nothing. Once it has left, the other members can change their subscriptions as it
            # did, and then it is accepted.
            del client.consumers[group]
            await self._unregister(client, group, ClientKind.CONSUMER)
        return before is not None

    async def _try_again(self, client: SdkClient, registration: Registration) -> None:
        group = registration.group
        if group not in client.refused:
            return
        refusal = await self._register(client, registration)
        if client.refused.get(group, (None,))[0] is registration:
            self._note(client, registration, refusal)
        elif refusal is None and group not in client.consumers:  # it has left in between
            await self._unregister(client, group, ClientKind.CONSUMER)

    def _note(self, client: SdkClient, registration: Registration, refusal: MqdbError | None) -> None:
        """Note whether the broker accepts a client. Raises BrokerUnavailable if this is unknown."""
        group = registration.group
        if refusal is None:
            client.consumers[group] = registration
            client.refused.pop(group, None)
            return
        if isinstance(refusal, BrokerUnavailable):
            raise refusal
        if str(refusal) != str(client.refused.get(group, ("", ""))[1]):
            fields = {"group": group, "client_id": client.call.client_id, "reason": str(refusal)}
            sentence = "the broker refused client %(client_id)s in group %(group)s: %(reason)s"
            logger.warning(sentence, fields, extra=fields)
        client.refused[group] = (registration, refusal)

    def _checker(self, client: SdkClient, topic: str) -> Registration:
        call = client.call
        return Registration(
            call.client_id,
            ClientKind.PRODUCER,
            client.call.producer_group(topic),
            call.version,
            language=call.language,
            checks_transactions=True,
        )

    async def _register(self, client: SdkClient, registration: Registration) -> MqdbError | None:
        def adopted(connection: Connection) -> None:
            membership.adopt(connection, [client.call.client_id], self._instance.client_id)
            membership.register(connection, registration)

        try:
            await self._database.run(adopted)
        except MqdbError as error:
            return error
        return None

    async def _unregister(self, client: SdkClient, group: str, kind: ClientKind) -> None:
        """Remove a client from a group, unless it has moved to another front since."""
        client_id, host = client.call.client_id, self._instance.client_id

        def left(connection: Connection) -> None:
            if membership.is_guest(connection, client_id, host):
                membership.unregister(connection, client_id, group, kind)

        await self._database.run(left)

    async def _beat(self) -> None:
        expired = time.monotonic() - _GONE_SECONDS
        for client in [each for each in self.clients.values() if each.stream is None and each.heard_at < expired]:
            await self.forget(client)
        present = {each.call.client_id: each for each in self.clients.values() if each.has_row}
        known = await self._database.run(partial(membership.heartbeat_all, client_ids=list(present)))
        for client in [client for client_id, client in present.items() if client_id not in known]:
            await self._renew(client)
        for client in list(self.clients.values()):
            for registration, _ in list(client.refused.values()):  # the member that caused the refusal may have left
                await self._try_again(client, registration)
        await self._ask_about_orphans()

    async def _renew(self, client: SdkClient) -> None:
        """Register a client again, because the broker has lost it, or this front has lost the broker."""
        for registration in list(client.consumers.values()):
            await self._register(client, registration._replace(is_renewal=True))
        for topic, is_asked in list(client.topics.items()):
            if is_asked:
                await self._register(client, self._checker(client, topic))

    async def _ask_about_orphans(self) -> None:
        """Let clients receive checks of half messages that other clients sent, because those may be gone."""
        idle = [
            (client, topic)
            for client in self.clients.values()
            for topic, is_asked in client.topics.items()
            if client.stream is not None and not is_asked
        ]
        groups = {client.call.producer_group(topic) for client, topic in idle}
        found = await self._database.run(partial(unasked_groups, groups=groups)) if groups else set()
        for client, topic in idle:
            if client.call.producer_group(topic) in found:
                await self.ask_about_transactions(client, topic)
