"""Telemetry: the stream of each client, which carries its settings, the broker's settings, and transaction checks.

RocketMQ: ClientActivity, GrpcClientChannel.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterable
from datetime import timedelta
from typing import Final, Protocol

from mqdb.errors import MqdbError
from mqdb.fronts.access_keys import AccessKeys, group_right, topic_right
from mqdb.fronts.database import Database
from mqdb.fronts.receiving import WaitingLists
from mqdb.grpc.calls import Call
from mqdb.grpc.in_flight import SdkInFlight
from mqdb.grpc.members import SdkClient, SdkMembers
from mqdb.grpc.questions import SdkQuestions
from mqdb.grpc.routes import SdkRoutes, group_of, topic_of
from mqdb.grpc.wire.messages import filter_of
from mqdb.grpc.wire.rocketmq_pb2 import (
    Code,
    HeartbeatRequest,
    HeartbeatResponse,
    NotifyClientTerminationRequest,
    NotifyClientTerminationResponse,
    Settings,
    SubscriptionEntry,
    TelemetryCommand,
)
from mqdb.grpc.wire.settings import consumer_settings, producer_settings
from mqdb.grpc.wire.status import OK, CallRefused, status_of
from mqdb.selector.subscription import MessageFilter
from mqdb.store.acl import Access
from mqdb.store.schedule import delay_levels

logger = logging.getLogger(__name__)

#: Limits for a client that does not read its commands: Python's SDK stops reading after its first settings.
_MOST_UNREAD: Final = 1_024
_MOST_UNREAD_BYTES: Final = 16 * 2**20

#: Maximum size of a client's settings: a thousand topics with their filters.
_MOST_SETTINGS_BYTES: Final = 256 * 1024


#: Retries in a group that does not exist yet. Source: SubscriptionGroupConfig.retryMaxTimes.
_MAX_RETRIES: Final = 16


class Writer(Protocol):
    """The part of grpc.aio.ServicerContext that is used here."""

    async def write(self, message: TelemetryCommand) -> None:
        """Send a message, and wait while the client does not read."""


class _Stream:
    """The commands to one client, sent in order."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._unread: asyncio.Queue[TelemetryCommand] = asyncio.Queue(_MOST_UNREAD)
        self._unread_bytes = 0

    def tell(self, command: TelemetryCommand) -> None:
        """Send a command; it is dropped if the client does not read."""
        size = command.ByteSize()
        if self._unread_bytes + size <= _MOST_UNREAD_BYTES and not self._unread.full():
            self._unread_bytes += size
            self._unread.put_nowait(command)

    async def write_forever(self) -> None:
        """Write commands until the stream is closed."""
        while True:
            command = await self._unread.get()
            await self._writer.write(command)
            self._unread_bytes -= command.ByteSize()


class Telemetry:
    """The telemetry streams of one front. Call it from the event loop only."""

    def __init__(
        self,
        database: Database,
        keys: AccessKeys,
        members: SdkMembers,
        routes: SdkRoutes,
        receiving: WaitingLists,
        in_flight: SdkInFlight,
        questions: SdkQuestions,
    ) -> None:
        self._database = database
        self._keys = keys
        self._members = members
        self._routes = routes
        self._receiving = receiving
        self._in_flight = in_flight
        self._questions = questions
        self._closing = asyncio.Event()

    async def serve(self, call: Call, said: AsyncIterator[TelemetryCommand], writer: Writer) -> None:
        """Serve a stream until its client closes it."""
        stream = _Stream(writer)
        client = self._members.attach(call, stream)
        writing = self._database.spawn(stream.write_forever())
        hearing = self._database.spawn(self._hear(client, stream, said))
        closing = self._database.spawn(self._closing.wait())
        try:
            done, _ = await asyncio.wait([writing, hearing, closing], return_when=asyncio.FIRST_COMPLETED)
            for error in filter(None, (task.exception() for task in done if not task.cancelled())):
                fields = {"client_id": call.client_id, "reason": str(error)}
                logger.debug("the stream of a client was lost", extra=fields)
        finally:
            for task in (writing, hearing, closing):
                task.cancel()
            self._in_flight.doubt(call.client_id, self._members.detach(client, stream))

    def close(self) -> None:
        """End all streams: the clients connect again, possibly to another front."""
        self._closing.set()

    async def _hear(self, client: SdkClient, stream: _Stream, said: AsyncIterator[TelemetryCommand]) -> None:
        async for command in said:
            client.heard_at = time.monotonic()
            if command.HasField("settings"):
                stream.tell(await self._answer(client, command.settings))
            elif command.HasField("thread_stack_trace"):
                self._questions.stacks(client, command.thread_stack_trace)
            elif command.HasField("verify_message_result"):
                self._questions.consumed(client, command.verify_message_result, command.status)

    async def heartbeat(self, call: Call, _request: HeartbeatRequest) -> HeartbeatResponse:
        """Answer a heartbeat. A client that is unknown to this front is served, too."""
        self._members.heard(call)
        return HeartbeatResponse(status=OK)

    async def end(self, call: Call, request: NotifyClientTerminationRequest) -> NotifyClientTerminationResponse:
        """A client leaves: its messages are no longer prolonged."""
        group = group_of(request.group, call.namespace) if request.group.name else None
        self._in_flight.let_go(call.client_id, group)
        client = self._members.clients.get(call.client_id)
        if client is not None:
            await self._members.leave(client, group)
        return NotifyClientTerminationResponse(status=OK)

    async def _answer(self, client: SdkClient, said: Settings) -> TelemetryCommand:
        """The answer to the settings of a client.

        It has a status, because Python's SDK ignores settings without one.
        """
        try:
            if said.ByteSize() > _MOST_SETTINGS_BYTES:
                reason = f"the settings have {said.ByteSize():,} bytes; the limit is {_MOST_SETTINGS_BYTES:,}"
                raise CallRefused(Code.BAD_REQUEST, reason)
            if said.HasField("publishing"):
                await self._note_topics(client, said)
                settings = producer_settings(said)
            elif said.HasField("subscription"):
                settings = await self._join(client, said)
            else:
                raise CallRefused(
                    Code.UNRECOGNIZED_CLIENT_TYPE, "the settings contain neither publishing nor subscription"
                )
        except Exception as error:  # noqa: BLE001 - the client is told
            return TelemetryCommand(status=status_of(error), settings=Settings(client_type=said.client_type))
        return TelemetryCommand(status=OK, settings=settings)

    async def _note_topics(self, client: SdkClient, said: Settings) -> None:
        for resource in said.publishing.topics:
            topic = topic_of(resource, client.call.namespace)
            right = topic_right(Access.SEND, topic)
            if right in await self._keys.held_by(client.call.access_key, right):
                self._members.note_topic(client, topic)

    async def _join(self, client: SdkClient, said: Settings) -> Settings:
        call, subscription = client.call, said.subscription
        if not subscription.group.name:  # the SDKs of some languages name the group only in their calls
            return consumer_settings(said, is_orderly=False, max_retries=_MAX_RETRIES, delays=await self._delays())
        group = group_of(subscription.group, call.namespace)
        filters = _filters(subscription.subscriptions, call.namespace)
        rights = [topic_right(Access.READ, topic) for topic in filters]
        await self._keys.require_of(call.access_key, group_right(group), *rights)
        if filters and await self._members.enter(client, group, filters):
            self._receiving.end_others(call.client_id, group, client.subscriptions(group))
        if group not in client.refused:
            for topic, filter in filters.items():
                try:
                    await self._receiving.begin(group, topic, filter)
                except MqdbError as error:
                    fields = {"group": group, "topic": topic, "reason": str(error)}
                    logger.debug("a group starts in a topic with its first pop", extra=fields)
        settings = await self._routes.group(group)
        return consumer_settings(
            said,
            is_orderly=settings is not None and settings.consume_message_orderly,
            max_retries=_MAX_RETRIES if settings is None else settings.retry_max_times,
            delays=(settings.retry_delays if settings is not None else ()) or await self._delays(),
        )

    async def _delays(self) -> tuple[timedelta, ...]:
        levels = await self._database.run(delay_levels.find)
        return levels.delays


def _filters(entries: Iterable[SubscriptionEntry], namespace: str) -> dict[str, MessageFilter]:
    return {topic_of(entry.topic, namespace): filter_of(entry.expression) for entry in entries}
