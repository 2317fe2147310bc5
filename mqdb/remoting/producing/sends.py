"""Sends: messages from clients become records, which group append stores. Request codes 10, 310 and 320.

    frame ──▶ header, properties ──▶ record ──▶ group append ──▶ ended ── one call to the loop ──▶ answers

RocketMQ: SendMessageProcessor.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Final
from uuid import UUID

from mqdb.broker.log.send import json_object
from mqdb.broker.schedule.recall_handles import recall_handle_of
from mqdb.broker.topics.route import create_topic_automatically
from mqdb.common.delivery_schedule import SCHEDULE_PROPERTIES, Half, Wait, schedule_of
from mqdb.common.message import MAX_BODY_BYTES, MessageQueue, SendStatus
from mqdb.common.property import Property
from mqdb.common.topic import NOT_ALLOWED_SEND, reply_topic
from mqdb.common.unique_id import UniqueIdGenerator, format_unique_id, unique_id_of
from mqdb.errors import (
    BodyTooLarge,
    ParameterInvalid,
    PropertyInvalid,
    QueueNotFound,
    ResponseCode,
    TopicNotAllowed,
    TopicNotFound,
    TopicNotWritable,
)
from mqdb.fronts.appends import Appends, FrontUnit
from mqdb.fronts.database import Database
from mqdb.fronts.known_names import group_of_key, id_with_key, is_of_key
from mqdb.remoting.producing.replies import Replies
from mqdb.remoting.producing.send_back import SendBack, dead_properties
from mqdb.remoting.session.connection import Connection
from mqdb.remoting.session.members import FrontMembers
from mqdb.remoting.wire.answers import Answer, refusal
from mqdb.remoting.wire.codes import RequestCode
from mqdb.remoting.wire.frame import Frame
from mqdb.remoting.wire.messages import decode_batch, offset_id
from mqdb.remoting.wire.send_header import HALF_FLAG, ROLLBACK_FLAG, SendHeader
from mqdb.selector.tags import tag_code
from mqdb.store.log.commit_log import Record
from mqdb.store.topics.topics import TopicRoute
from mqdb_client.producer.append import NoAnswer

#: Slightly less than clients wait for an answer, so that they receive the reason of a failure.
#: Source: DefaultMQProducer.sendMsgTimeout, 3 s.
_TIMEOUT_SECONDS: Final = 2.5

#: Queue offset in an answer: unknown. Dispatch assigns the offset later.
_NO_OFFSET: Final = "-1"

#: Properties that Java's clients send with each message, and that are not stored.
_UNSAID: Final = frozenset({Property.WAIT, Property.CLUSTER, Property.MSG_REGION, Property.TRACE_ON})


class Sends:
    """The sends of one front. Use it in the front's event loop only."""

    def __init__(
        self, database: Database, members: FrontMembers, send_back: SendBack, replies: Replies, address: tuple[str, int]
    ) -> None:
        """`address` is the front's address as clients know it, which becomes part of offset ids."""
        self._database = database
        self._members = members
        self._send_back = send_back
        self._replies = replies
        self._instance = database.instance
        self._address = address
        self._ids = UniqueIdGenerator()
        self.appends: Appends[_SendUnit] = Appends(database, self._conclude)

    def send(self, connection: Connection, frame: Frame) -> None:
        """Codes 10, 310 and 320: store a message or a batch, and answer once it is stored.

        Raises the errors of the request.
        """
        header = SendHeader.of(frame)
        _check_body(frame)
        if header.topic in NOT_ALLOWED_SEND:
            raise TopicNotAllowed(header.topic)
        if header.is_half:
            self._database.spawn(self._members.ask_about_transactions(connection, header.producer_group))
            if (group := header.properties.get(Property.PGROUP)) is not None:
                keyed = group_of_key(group, connection.access_key)
                header = replace(header, properties={**header.properties, Property.PGROUP: keyed})
        route = self._instance.routes.known(header.topic)
        if route is None or header.is_retry or header.is_request:
            self._database.spawn(self._send_later(connection, frame, header))
        else:
            self._append(connection, frame, header, route)

    async def reply(self, connection: Connection, frame: Frame) -> Answer | None:
        """Codes 324 and 325: push a reply to its requester, or store it for a requester that is connected elsewhere.

        A reply needs no right, so it always goes to the reply topic, whatever topic the request names. Raises
        BodyTooLarge.
        """
        header = SendHeader.of(frame)
        client_id = header.properties.get(Property.REPLY_TO_CLIENT, "")
        if (answer := await self._replies.bring(connection, frame, header, client_id)) is not None:
            return answer
        _check_body(frame)
        reply = replace(
            header,
            topic=reply_topic(self._instance.cluster_name),
            properties={**header.properties, Property.TAGS: client_id},
        )
        await self._send_later(connection, frame, reply)
        return None

    async def _await_reply(self, connection: Connection, header: SendHeader) -> SendHeader:
        """Relay the replies to a request here, and add the requester's key to the client id in its header.

        If the client id already contains a key, the message is the copy of a request.
        """
        client_id = header.properties[Property.REPLY_TO_CLIENT]
        if is_of_key(client_id):
            return header
        client_id = id_with_key(client_id, connection.access_key)
        await self._replies.await_replies(connection, client_id)
        return replace(header, properties={**header.properties, Property.REPLY_TO_CLIENT: client_id})

    async def _send_later(self, connection: Connection, frame: Frame, header: SendHeader) -> None:
        """Send after looking something up in the database."""
        late = self._database.loop.call_later(_TIMEOUT_SECONDS, connection.answer, frame, _UNKNOWN)
        try:
            if header.is_request and not header.is_retry:
                header = await self._await_reply(connection, header)
            route = None
            if header.is_retry:
                route = await self._send_back.dead_letters(
                    header.topic, header.reconsume_times, header.max_reconsume_times
                )
            if route is not None:
                dead = dead_properties(connection, header.properties, header.reconsume_times)
                header = replace(header, topic=route.config.name, queue_id=0, properties=dead)
            self._append(connection, frame, header, route or await self._find(header))
        except Exception as error:  # noqa: BLE001 - the client is told
            connection.answer(frame, refusal(error))
        finally:
            late.cancel()

    async def _find(self, header: SendHeader) -> TopicRoute:
        routes = self._instance.routes
        route = await self._database.run(partial(routes.ask, header.topic))
        if route is None:
            create = partial(create_topic_automatically, name=header.topic, queue_nums=header.queue_nums)
            route = routes.remember(await self._database.run(create))
        return route

    def _append(
        self, connection: Connection, frame: Frame, header: SendHeader, route: TopicRoute, *, is_last: bool = False
    ) -> None:
        queue_id, queue_key = _queue(header, route)
        if frame.code == RequestCode.SEND_BATCH_MESSAGE:
            parts: list[tuple[bytes, int, Mapping[str, str]]] = [
                (each.body, each.flag, each.properties) for each in decode_batch(frame.body)
            ]
            # Fields were checked when the request arrived, but not the body.
            for name, value in chain.from_iterable(each[2].items() for each in parts):
                if "\0" in name or "\0" in value:
                    raise PropertyInvalid(name, "contains U+0000, which PostgreSQL cannot store")
            if not parts:
                raise ParameterInvalid("body", len(frame.body), "contains no message")
        else:
            parts = [(frame.body, header.flag, header.properties)]
        ids, records = [], []
        for body, flag, properties in parts:
            text, made = self._record(connection, header, route, queue_key, body, flag, properties)
            ids.append(text)
            records.append(made)
        unit = _SendUnit(connection, frame, header, queue_id, ids, records)
        unit.is_last = is_last
        self.appends.hand_in(unit)

    def _record(
        self,
        connection: Connection,
        header: SendHeader,
        route: TopicRoute,
        queue_key: int,
        body: bytes,
        flag: int,
        properties: Mapping[str, str],
    ) -> tuple[str, Record]:
        """The unique id in the sender's form, and the record."""
        stored = {name: text for name, text in properties.items() if name not in _UNSAID}
        if Property.REPLY_TO_CLIENT in stored:  # the replier needs it
            stored[Property.CLUSTER] = self._instance.cluster_name
        tag, keys = stored.pop(Property.TAGS, None) or None, stored.pop(Property.KEYS, None) or None
        text, unique_id = self._unique_id(stored)
        wait: Wait | None = None
        sys_flag = header.sys_flag
        if header.is_half:
            wait = Half()
            sys_flag &= ~(HALF_FLAG | ROLLBACK_FLAG)
            stored = {name: value for name, value in stored.items() if name not in SCHEDULE_PROPERTIES}
        elif stored:
            wait = schedule_of(stored)
        # Reserved property names are not refused: they are as valid here as in RocketMQ's own clients.
        return text, Record(
            queue_key,
            tag_code(tag),
            header.born_time,
            unique_id,
            connection.peer,
            tag,
            keys,
            json_object(stored),
            body,
            flag,
            sys_flag,
            header.reconsume_times,
            wait,
            route.history,
        )

    def _unique_id(self, stored: dict[str, str]) -> tuple[str, UUID]:
        """The unique id of a message, as text and as UUID.

        A text that is not a UUID stays a property, by which people and clients identify the message.
        """
        text = stored.get(Property.UNIQ_KEY)
        if text is None:
            unique_id = self._ids.next()
            return format_unique_id(unique_id), unique_id
        unique_id = unique_id_of(text)
        if len(text) == 32 and text == format_unique_id(unique_id):
            del stored[Property.UNIQ_KEY]
        return text, unique_id

    # -- how they end -------------------------------------------------------------------------

    def _conclude(self, unit: "_SendUnit") -> None:
        if isinstance(unit.error, TopicNotFound) and not unit.is_last:
            self._database.spawn(self._append_again(unit))
        else:
            unit.connection.answer(unit.frame, self._answer(unit))

    async def _append_again(self, unit: "_SendUnit") -> None:
        """Append again with a new route: the topic was recreated, or a restart changed the log's history."""
        routes = self._instance.routes
        routes.forget(unit.topic)
        try:
            route = await self._database.run(partial(routes.ask, unit.topic))
            if route is None:
                raise TopicNotFound(unit.topic)
            self._append(unit.connection, unit.frame, unit.header, route, is_last=True)
        except Exception as error:  # noqa: BLE001 - the client is told
            unit.connection.answer(unit.frame, refusal(error))

    def _answer(self, unit: "_SendUnit") -> Answer:
        error = unit.error
        if error is not None:
            return _UNKNOWN if isinstance(error, NoAnswer) else refusal(error)
        fields = {
            "msgId": ",".join(offset_id(*self._address, place.log_pos) for place in unit.places),
            "queueId": str(unit.queue_id),
            "queueOffset": _NO_OFFSET if (first_offset := unit.places[0].queue_offset) is None else str(first_offset),
            "transactionId": unit.ids[0],
            "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "true",
        }
        first = unit.records[0]
        if first.wait is not None:
            queue = MessageQueue(unit.topic, self._instance.broker_name, unit.queue_id)
            if (handle := recall_handle_of(first, queue, unit.ids[0])) is not None:
                fields["recallHandle"] = handle
        return Answer(_CODES[unit.status], fields)


#: RocketMQ: SendMessageProcessor.handlePutMessageResult. Clients derive the same SendStatus from the code.
_CODES: Final = {
    SendStatus.SEND_OK: ResponseCode.SUCCESS,
    SendStatus.FLUSH_DISK_TIMEOUT: ResponseCode.FLUSH_DISK_TIMEOUT,
    SendStatus.FLUSH_SLAVE_TIMEOUT: ResponseCode.FLUSH_SLAVE_TIMEOUT,
    SendStatus.SLAVE_NOT_AVAILABLE: ResponseCode.SLAVE_NOT_AVAILABLE,
}

#: Java's client then sends the message again, as when RocketMQ's broker does not answer in time.
_UNKNOWN: Final = Answer(
    ResponseCode.SERVICE_NOT_AVAILABLE, remark="the database did not answer; the message may be stored"
)


def _check_body(frame: Frame) -> None:
    if len(frame.body) > MAX_BODY_BYTES:
        raise BodyTooLarge(len(frame.body), MAX_BODY_BYTES)


def _queue(header: SendHeader, route: TopicRoute) -> tuple[int, int]:
    """The number and the key of the queue."""
    keys = route.write_queue_keys
    if not keys:
        raise TopicNotWritable(header.topic, route.config.perm)
    queue_id = random.randrange(len(keys)) if header.queue_id < 0 else header.queue_id
    if queue_id >= len(keys):
        raise QueueNotFound(header.topic, queue_id, len(keys))
    return queue_id, keys[queue_id]


class _SendUnit(FrontUnit):
    """The messages of one request."""

    __slots__ = ("connection", "frame", "header", "ids", "is_last", "queue_id")

    def __init__(
        self,
        connection: Connection,
        frame: Frame,
        header: SendHeader,
        queue_id: int,
        ids: Sequence[str],
        records: Sequence[Record],
    ) -> None:
        super().__init__(header.topic, frame.heard_at + _TIMEOUT_SECONDS, _TIMEOUT_SECONDS, records)
        self.connection = connection
        self.frame = frame
        self.header = header
        #: Whether an earlier attempt failed because of its route.
        self.is_last = False
        self.queue_id = queue_id
        self.ids = ids
