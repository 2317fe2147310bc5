"""Consuming: the calls of consumers. RocketMQ: ReceiveMessageActivity, AckMessageActivity, ForwardMessageToDLQActivity.

Each call is answered only from its content and the database.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final

from mqdb.broker.consumers.pop import LONGEST_INVISIBLE, forward_handle_to_dlq
from mqdb.common.failure import Failure
from mqdb.common.receipt_handle import is_handle
from mqdb.common.received_message import ReceivedMessage
from mqdb.common.topic import Perm
from mqdb.errors import MqdbError, ReceiptHandleInvalid, TopicNotFound
from mqdb.fronts.access_keys import AccessKeys, group_right, topic_right
from mqdb.fronts.database import Database
from mqdb.fronts.receiving import WaitingLists
from mqdb.grpc.calls import Call
from mqdb.grpc.in_flight import RENEWED, SdkInFlight
from mqdb.grpc.members import SdkMembers
from mqdb.grpc.routes import SdkRoutes, group_of, topic_of
from mqdb.grpc.wire.messages import filter_of, message_for
from mqdb.grpc.wire.rocketmq_pb2 import (
    AckMessageEntry,
    AckMessageRequest,
    AckMessageResponse,
    AckMessageResultEntry,
    ChangeInvisibleDurationRequest,
    ChangeInvisibleDurationResponse,
    Code,
    ForwardMessageToDeadLetterQueueRequest,
    ForwardMessageToDeadLetterQueueResponse,
    ReceiveMessageRequest,
    ReceiveMessageResponse,
    Status,
)
from mqdb.grpc.wire.settings import LONGEST_POLL, MOST_RECEIVED
from mqdb.grpc.wire.status import OK, CallRefused, status_of
from mqdb.grpc.wire.times import length_of, timestamp
from mqdb.store.acl import Access

logger = logging.getLogger(__name__)

#: Source: ProxyConfig.grpcClientConsumerMinLongPollingTimeoutMillis, minInvisibleTimeMillsForRecv.
_SHORTEST_POLL: Final = timedelta(seconds=5)
_SHORTEST_INVISIBLE: Final = timedelta(seconds=10)

#: The client is sent an empty answer this long before it would stop waiting.
_ANSWER_SECONDS: Final = 0.3

_NOTHING: Final = Status(code=Code.MESSAGE_NOT_FOUND, message="no new message")
_SOME_FAILED: Final = Status(code=Code.MULTIPLE_RESULTS, message="some failed; see the entries")


class SdkConsuming:
    """The calls of consumers, for one front. Call it from the event loop only."""

    def __init__(
        self,
        database: Database,
        keys: AccessKeys,
        members: SdkMembers,
        routes: SdkRoutes,
        receiving: WaitingLists,
        in_flight: SdkInFlight,
        store_host: str,
    ) -> None:
        """`store_host` is the front's address, which becomes part of messages."""
        self._database = database
        self._keys = keys
        self._members = members
        self._routes = routes
        self._receiving = receiving
        self._in_flight = in_flight
        self._store_host = store_host

    async def receive(
        self, call: Call, request: ReceiveMessageRequest, seconds_left: float | None
    ) -> AsyncIterator[ReceiveMessageResponse]:
        """Yield messages, or after some time the status that there are no messages. Raises the errors of the request.

        If the client disconnects, messages that it did not receive become visible again immediately.
        """
        poll = LONGEST_POLL
        if request.HasField("long_polling_timeout"):
            poll = min(max(length_of(request.long_polling_timeout, "long_polling_timeout"), _SHORTEST_POLL), poll)
        seconds = poll.total_seconds()
        if seconds_left is not None:
            seconds = min(seconds, seconds_left - _ANSWER_SECONDS)
        group = group_of(request.group, call.namespace)
        await self._in_flight.repeat(call.client_id, group, request.attempt_id)
        messages = await self._wait(call, group, request, self._database.loop.time() + seconds)
        delivered = ReceiveMessageResponse(delivery_timestamp=timestamp(datetime.now(UTC)))
        if not messages:
            yield ReceiveMessageResponse(status=_NOTHING)
            yield delivered
            return
        frames = self._frames(call, group, messages)
        handles = [frame.message.system_properties.receipt_handle for frame in frames]
        if request.auto_renew:
            self._in_flight.keep(call.client_id, group, handles, request.attempt_id)
        sent = 0
        try:
            yield ReceiveMessageResponse(status=OK)
            for frame in frames:
                yield frame
                sent += 1
            yield delivered
        except BaseException:
            if unsent := handles[sent:]:
                self._database.spawn(self._in_flight.give_back(group, unsent))
            raise

    def _frames(self, call: Call, group: str, messages: Sequence[ReceivedMessage]) -> list[ReceiveMessageResponse]:
        """Messages in the form that the client reads.

        A message that no SDK could read is redelivered, and becomes a dead letter in the end.
        """
        frames = []
        for message in messages:
            try:
                frames.append(ReceiveMessageResponse(message=message_for(message, call.namespace, self._store_host)))
            except Exception as error:
                fields = {
                    "group": group,
                    "message_id": message.message_id,
                    "delivery": message.delivery_attempt,
                    "queue": str(message.queue),
                    "offset": message.queue_offset,
                    "reason": str(error),
                }
                unexpected = None if isinstance(error, MqdbError) else error
                logger.warning(
                    "could not encode message %(message_id)s at offset %(offset)s of queue %(queue)s, delivery "
                    "%(delivery)s, for an SDK of group %(group)s: %(reason)s",
                    fields,
                    extra=fields,
                    exc_info=unexpected,
                )
        return frames

    async def _wait(
        self, call: Call, group: str, request: ReceiveMessageRequest, until: float
    ) -> list[ReceivedMessage]:
        """Messages, if any arrive in time.

        While the database is unavailable, the call waits as if there were no messages.

        This matters because a refused client repeats its call immediately.
        """
        return await self._database.patiently(partial(self._receive, call, group, request, until), until)

    async def _receive(
        self, call: Call, group: str, request: ReceiveMessageRequest, until: float
    ) -> list[ReceivedMessage]:
        topic = topic_of(request.message_queue.topic, call.namespace)
        await self._keys.require_of(call.access_key, group_right(group), topic_right(Access.READ, topic))
        if request.batch_size < 1:
            raise CallRefused(Code.BAD_REQUEST, f"batch_size is {request.batch_size}, but must be at least 1")
        invisible = RENEWED if request.auto_renew else _invisible(request)
        filter = filter_of(request.filter_expression)
        try:
            route = await self._routes.find(topic)
        except TopicNotFound:
            self._receiving.await_topic(group, topic, filter)
            raise
        if not route.config.perm & Perm.READ:
            raise CallRefused(Code.FORBIDDEN, f"topic {topic} is not readable")
        client = self._members.heard(call)
        if await self._members.agree(client, group, topic, filter):
            self._receiving.end_others(call.client_id, group, client.subscriptions(group))
        client.check(group)
        limit = min(request.batch_size, MOST_RECEIVED)
        return await self._receiving.receive(call.client_id, group, topic, filter, limit, invisible, until)

    async def ack(self, call: Call, request: AckMessageRequest) -> AckMessageResponse:
        """Acknowledge messages. A handle stays valid until its time has passed, even if it was already used."""
        group = group_of(request.group, call.namespace)
        await self._keys.require_of(call.access_key, group_right(group))
        if not request.entries:
            raise CallRefused(Code.BAD_REQUEST, "the call has no entries")
        self._members.note_alive(call.client_id)
        results = await asyncio.gather(*(self._ack(group, entry) for entry in request.entries))
        codes = {result.status.code for result in results}
        status = results[0].status if len(codes) == 1 else _SOME_FAILED
        return AckMessageResponse(status=status, entries=results)

    async def _ack(self, group: str, entry: AckMessageEntry) -> AckMessageResultEntry:
        handle = entry.receipt_handle
        try:
            counts = await self._in_flight.ack(group, handle)
            status = OK if counts else status_of(ReceiptHandleInvalid((handle,)))
        except Exception as error:  # noqa: BLE001 - the client is told
            status = status_of(error)
        return AckMessageResultEntry(message_id=entry.message_id, receipt_handle=handle, status=status)

    async def change(self, call: Call, request: ChangeInvisibleDurationRequest) -> ChangeInvisibleDurationResponse:
        """Make a message visible after another time: sooner because its listener failed, or later."""
        group = group_of(request.group, call.namespace)
        await self._keys.require_of(call.access_key, group_right(group))
        self._members.note_alive(call.client_id)
        invisible = length_of(request.invisible_duration, "invisible_duration")
        if not timedelta(0) <= invisible <= LONGEST_INVISIBLE:
            raise _bad_invisible(invisible, timedelta(0))
        new = await self._in_flight.change(group, request.receipt_handle, invisible)
        if new is None:
            raise ReceiptHandleInvalid((request.receipt_handle,))
        return ChangeInvisibleDurationResponse(status=OK, receipt_handle=new)

    async def forward(
        self, call: Call, request: ForwardMessageToDeadLetterQueueRequest
    ) -> ForwardMessageToDeadLetterQueueResponse:
        """Append a message to the dead letter queue of its group, because its client failed to consume it too often."""
        group = group_of(request.group, call.namespace)
        await self._keys.require_of(call.access_key, group_right(group))
        self._members.note_alive(call.client_id)
        if not is_handle(request.receipt_handle):
            raise ReceiptHandleInvalid((request.receipt_handle,))
        handle = self._in_flight.current_handle(group, request.receipt_handle)
        failure = Failure.unacknowledged(call.client_id, datetime.now(UTC), max(request.delivery_attempt, 1))
        await self._database.run(partial(forward_handle_to_dlq, group=group, receipt_handle=handle, failure=failure))
        return ForwardMessageToDeadLetterQueueResponse(status=OK)


def _invisible(request: ReceiveMessageRequest) -> timedelta:
    invisible = length_of(request.invisible_duration, "invisible_duration")
    if not _SHORTEST_INVISIBLE <= invisible <= LONGEST_INVISIBLE:
        raise _bad_invisible(invisible, _SHORTEST_INVISIBLE)
    return invisible


def _bad_invisible(given: timedelta, shortest: timedelta) -> CallRefused:
    reason = f"invisible_duration is {given}; it must be from {shortest} to {LONGEST_INVISIBLE}"
    return CallRefused(Code.ILLEGAL_INVISIBLE_TIME, reason)
