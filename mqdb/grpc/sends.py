"""Sends: messages of SDKs become records, which group append stores. RocketMQ: SendMessageActivity."""

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from typing import Final

from mqdb.broker.log.send import json_object
from mqdb.broker.schedule.recall_handles import recall_handle_of
from mqdb.broker.schedule.timers import recall_from
from mqdb.common.delivery_schedule import Half, Wait, schedule_of
from mqdb.common.message import MessageQueue, SendStatus
from mqdb.common.property import Property, check_stored_properties
from mqdb.common.topic import check_send_topic
from mqdb.common.unique_id import format_unique_id, unique_id_of
from mqdb.errors import TopicNotFound, TopicNotWritable
from mqdb.fronts.access_keys import AccessKeys, topic_right
from mqdb.fronts.appends import Appends, FrontUnit
from mqdb.fronts.database import Database
from mqdb.grpc.calls import Call
from mqdb.grpc.members import SdkMembers
from mqdb.grpc.routes import SdkRoutes, topic_of
from mqdb.grpc.wire.messages import SdkMessage, sent
from mqdb.grpc.wire.rocketmq_pb2 import (
    Code,
    MessageType,
    RecallMessageRequest,
    RecallMessageResponse,
    SendMessageRequest,
    SendMessageResponse,
    SendResultEntry,
    Status,
)
from mqdb.grpc.wire.status import OK, CallRefused
from mqdb.selector.tags import tag_code
from mqdb.store.acl import Access
from mqdb.store.log.commit_log import LogPlace, Record
from mqdb.store.topics.topics import TopicRoute
from mqdb_client.producer.append import NoAnswer
from mqdb_client.producer.queues.queue_selector import by_hash, turns

#: Slightly less than the 3 s that Go's SDK waits, so that it receives the reason of a failure.
_TIMEOUT_SECONDS: Final = 2.5

_STATUSES: Final = {
    SendStatus.SEND_OK: OK,
    SendStatus.FLUSH_DISK_TIMEOUT: Status(code=Code.MASTER_PERSISTENCE_TIMEOUT, message="stored, but not on disk yet"),
    SendStatus.FLUSH_SLAVE_TIMEOUT: Status(
        code=Code.SLAVE_PERSISTENCE_TIMEOUT, message="stored, but not on a standby yet"
    ),
    SendStatus.SLAVE_NOT_AVAILABLE: Status(code=Code.HA_NOT_AVAILABLE, message="stored, but no standby is connected"),
}

_UNKNOWN: Final = "the database did not answer; the message may be stored"


class _Sending(FrontUnit):
    """The messages of one call."""

    __slots__ = ("future",)

    def __init__(self, topic: str, records: Sequence[Record], future: "asyncio.Future[None]") -> None:
        super().__init__(topic, time.monotonic() + _TIMEOUT_SECONDS, _TIMEOUT_SECONDS, records)
        self.future = future


class SdkSends:
    """The sends of one front. Call it from the event loop only."""

    def __init__(self, database: Database, keys: AccessKeys, members: SdkMembers, routes: SdkRoutes) -> None:
        self._database = database
        self._keys = keys
        self._members = members
        self._routes = routes
        self._turns = turns()
        self.appends: Appends[_Sending] = Appends(database, _conclude)

    async def send(self, call: Call, request: SendMessageRequest) -> SendMessageResponse:
        """Store the messages of a call, all or none. Raises the errors of any message."""
        if not request.messages:
            raise CallRefused(Code.MESSAGE_CORRUPTED, "the call contains no message")
        topics = {topic_of(message.topic, call.namespace) for message in request.messages}
        if len(topics) > 1:
            raise CallRefused(
                Code.MESSAGE_CORRUPTED,
                f"the messages of a call must have the same topic, but these have {len(topics)} topics",
            )
        topic = topics.pop()
        check_send_topic(topic)
        messages = [sent(message) for message in request.messages]
        await self._keys.require_of(call.access_key, topic_right(Access.SEND, topic))
        if any(message.kind == MessageType.TRANSACTION for message in messages):
            await self._members.ask_about_transactions(self._members.heard(call), topic)
        try:
            unit = await self._append(call, topic, messages)
        except TopicNotFound:  # the cached route may be outdated
            self._routes.forget(topic)
            unit = await self._append(call, topic, messages)
        status = _STATUSES[unit.status]
        entries = [
            self._entry(topic, message, record, place, status)
            for message, record, place in zip(messages, unit.records, unit.places, strict=True)
        ]
        return SendMessageResponse(status=status, entries=entries)

    async def recall(self, call: Call, request: RecallMessageRequest) -> RecallMessageResponse:
        """Recall a message before its delivery time. Raises RecallHandleInvalid if that time has passed."""
        topic, handle = topic_of(request.topic, call.namespace), request.recall_handle
        await self._keys.require_of(call.access_key, topic_right(Access.SEND, topic))
        message_id = await self._database.run(partial(recall_from, topic=topic, handle=handle))
        return RecallMessageResponse(status=OK, message_id=message_id)

    async def _append(self, call: Call, topic: str, messages: Sequence[SdkMessage]) -> _Sending:
        route = await self._routes.find(topic)
        if not route.write_queue_keys:
            raise TopicNotWritable(topic, route.config.perm)
        records = [self._record(call, topic, route, message) for message in messages]
        unit = _Sending(topic, records, self._database.loop.create_future())
        self.appends.hand_in(unit)
        await unit.future
        if isinstance(unit.error, NoAnswer):
            raise CallRefused(Code.PROXY_TIMEOUT, _UNKNOWN) from unit.error
        if unit.error is not None:
            raise unit.error
        return unit

    def _record(self, call: Call, topic: str, route: TopicRoute, message: SdkMessage) -> Record:
        count = len(route.write_queue_keys)
        group = message.message_group
        number = next(self._turns) % count if group is None else by_hash(group, count)
        unique_id = unique_id_of(message.message_id)
        properties = dict(message.properties)
        if message.message_id == format_unique_id(unique_id):
            del properties[Property.UNIQ_KEY]
        wait: Wait | None = None
        if message.kind == MessageType.TRANSACTION:
            wait = Half()
            properties[Property.PGROUP] = call.producer_group(topic)
            properties[Property.TRAN_MSG] = "true"
        elif message.kind == MessageType.DELAY:
            wait = schedule_of(properties)
        check_stored_properties(properties)
        return Record(
            route.write_queue_keys[number],
            tag_code(message.tag),
            message.born_time,
            unique_id,
            call.peer,
            message.tag,
            message.keys,
            json_object(properties),
            message.body,
            0,
            0,
            0,
            wait,
            route.history,
        )

    def _entry(
        self, topic: str, message: SdkMessage, record: Record, place: LogPlace, status: Status
    ) -> SendResultEntry:
        # The queue does not matter for a recall.
        queue = MessageQueue(topic, self._database.instance.broker_name, 0)
        is_half = message.kind == MessageType.TRANSACTION
        return SendResultEntry(
            status=status,
            message_id=message.message_id,
            transaction_id=str(place.log_pos) if is_half else message.message_id,
            offset=place.queue_offset or 0,
            recall_handle=recall_handle_of(record, queue, message.message_id) or "",
        )


def _conclude(unit: _Sending) -> None:
    if not unit.future.done():  # otherwise the caller is gone
        unit.future.set_result(None)
