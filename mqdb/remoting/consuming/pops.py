"""Pops: messages from any queue of a topic, each acknowledged individually. Request codes 200050, 200051, 200053.

    frame ──▶ header, filter, group ──▶ waiting list ──▶ messages, each with its check point ──▶ 200051, 200053

Each request is answered only from its fields and the database, so a client may use any front.
RocketMQ: PopMessageProcessor, AckMessageProcessor, ChangeInvisibleTimeProcessor.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Final

from mqdb.broker.consumers.pop import LONGEST_INVISIBLE
from mqdb.broker.filters.filters import check_filters
from mqdb.common.group import FROM_FIRST_OFFSET, ConsumeFromWhere, StartingPoint
from mqdb.common.property import Property
from mqdb.common.received_message import ReceivedMessage
from mqdb.common.topic import Perm
from mqdb.errors import (
    ConsumptionForbidden,
    GroupNotFound,
    MqdbError,
    ParameterInvalid,
    ReceiptHandleInvalid,
    ResponseCode,
    TopicNotFound,
)
from mqdb.fronts.database import Database
from mqdb.fronts.known_groups import KnownGroups
from mqdb.fronts.receipts import Receipts
from mqdb.fronts.receiving import WaitingLists
from mqdb.remoting.consuming.places import Places
from mqdb.remoting.consuming.waiting_tasks import WaitingTasks
from mqdb.remoting.session.client import known_filter
from mqdb.remoting.session.connection import Connection
from mqdb.remoting.session.members import FrontMembers
from mqdb.remoting.session.traffic import Traffic
from mqdb.remoting.wire.answers import NO_ANSWER, Answer
from mqdb.remoting.wire.check_point import encode_check_point, handle_of, offsets_of, pop_ms, times_of
from mqdb.remoting.wire.frame import Frame, FrameInvalid
from mqdb.remoting.wire.messages import encode_message
from mqdb.selector.subscription import ExpressionType, MessageFilter, SubscriptionData

logger = logging.getLogger(__name__)

#: Maximum number of messages in an answer. RocketMQ's PopMessageProcessor.processRequest refuses larger numbers.
_MOST_MESSAGES: Final = 32

#: Maximum bytes of bodies in an answer; a larger message is sent alone. Clients accept no frame of more than 16 MiB.
_MOST_BYTES: Final = 8 * 2**20

#: Longer than any client waits; a client gives up 10 s later.
_LONGEST_HOLD_SECONDS: Final = 20.0
#: Time for the database after the hold has ended.
_LONGEST_LOOK_SECONDS: Final = 5.0

#: Highest number of failures that is reported to a client. By default, a client acknowledges a message by itself that
#: has failed 16 times and is hours old. The group could then not give up the message: it would be lost instead of
#: becoming a dead letter.
#: Source: ConsumeMessagePopConcurrentlyService.checkNeedAckOrDelay.
_MOST_FAILURES_TOLD: Final = 15

#: Versions of Java's client, from 5.0.0 on, that create check points by themselves. Their check points contain no
#: receipt handle, so they could not acknowledge anything. Source: MQVersion; MQClientAPIImpl.processPopResponse of
#: 5.0.0 and 5.1.0.
_WITHOUT_HANDLES: Final = range(413, 433)

#: Number of remaining messages. The number is not counted, because no client uses it.
_REST: Final = {"restNum": "0"}

_ANY_QUEUE: Final = -1
_STARTS: Final = {0: FROM_FIRST_OFFSET, 1: StartingPoint(ConsumeFromWhere.LAST_OFFSET)}
_MILLISECOND: Final = timedelta(milliseconds=1)
_LONGEST_MS: Final = LONGEST_INVISIBLE // _MILLISECOND


@dataclass(frozen=True, slots=True)
class PopHeader:
    """The fields of a pop request. Raises ParameterInvalid for fields that are missing or out of range."""

    group: str
    topic: str
    queue_id: int
    limit: int
    invisible: timedelta
    hold_seconds: float
    #: Starting point of the group in a topic that is new to it.
    start: StartingPoint
    is_ordered: bool
    #: Type and text of the filter.
    filter: tuple[str, str]

    @classmethod
    def of(cls, frame: Frame) -> "PopHeader":
        """Read the header from a frame."""
        fields = frame.fields
        limit, start = frame.number("maxMsgNums"), frame.number("initMode", 1)
        if limit < 1:
            raise ParameterInvalid("maxMsgNums", limit, "must be at least 1")
        if start not in _STARTS:
            raise ParameterInvalid("initMode", start, "must be 0, the first offset, or 1, the end")
        return cls(
            frame.text("consumerGroup"),
            frame.text("topic"),
            frame.number("queueId", _ANY_QUEUE),
            min(limit, _MOST_MESSAGES),
            _invisible(frame, shortest_ms=1),
            min(max(frame.number("pollTime", 0) / 1_000, 0.0), _LONGEST_HOLD_SECONDS),
            _STARTS[start],
            frame.truth("order"),
            (fields.get("expType") or ExpressionType.TAG, fields.get("exp", "")),
        )


class Pops:
    """The pops of one front. Call it from the event loop only."""

    def __init__(
        self,
        database: Database,
        members: FrontMembers,
        groups: KnownGroups,
        places: Places,
        address: tuple[str, int],
        traffic: Traffic,
    ) -> None:
        """`address` is the front's address as clients know it, which becomes part of messages."""
        self._database = database
        self._members = members
        self._groups = groups
        self._places = places
        self._address = address
        self._receipts = Receipts(database)
        self._waiting = WaitingLists(database, self._receipts, traffic)
        self._tasks = WaitingTasks("pops")

    def close(self) -> None:
        """Stop listening for arrivals. Waiting pops then end without messages."""
        self._waiting.close()

    def lost(self, connection: Connection) -> None:
        """A connection was closed: messages that its pops found become visible again immediately."""
        self._tasks.lost(connection)

    async def pop(self, connection: Connection, frame: Frame) -> Answer:
        """Code 200050: messages of a topic, or after some time the answer that there are no messages.

        Raises the errors of the request. While the database is unavailable, the request waits as if there were no
        messages.
        """
        if frame.language == "JAVA" and frame.version in _WITHOUT_HANDLES:
            return Answer(ResponseCode.VERSION_NOT_SUPPORTED, remark="pops need a client of version 5.1.0 or newer")
        header = PopHeader.of(frame)
        until = self._database.loop.time() + header.hold_seconds
        with self._tasks.of(connection):
            try:
                async with asyncio.timeout_at(until + _LONGEST_LOOK_SECONDS):
                    return await self._database.patiently(partial(self._pop, connection, header, until), until)
            except TimeoutError:
                return NO_ANSWER

    async def _pop(self, connection: Connection, header: PopHeader, until: float) -> Answer:
        group, topic = header.group, header.topic
        await self._check_group(header)
        filter = await self._filter(header)
        found = self._members.consumer_of(connection, group)
        if found is not None:
            found[1].check()
        given = None if found is None else found[1].filters.get(topic)
        wanted = SubscriptionData(topic, str(filter.expression_type), filter.canonical_text)
        # A client that has not sent its subscriptions to this restarted front yet is served if its group has the
        # subscription.
        if not _is_same(given, filter) and not await self._groups.subscribes(group, wanted):
            remark = f"group {group} does not subscribe to topic {topic} with the filter of this pop"
            return Answer(ResponseCode.SUBSCRIPTION_NOT_EXIST, remark=remark)
        try:
            route = await self._places.route(topic)
        except TopicNotFound:
            self._waiting.await_topic(group, topic, filter)
            raise
        if not route.config.perm & Perm.READ:
            return Answer(ResponseCode.NO_PERMISSION, remark=f"topic {topic} is not readable")
        if header.queue_id != _ANY_QUEUE:
            self._places.place(route, topic, header.queue_id)
        start = None if found is None else found[1].starting_point(topic)
        messages = await self._waiting.receive(
            connection.peer if found is None else found[0].client_id,
            group,
            topic,
            filter,
            header.limit,
            header.invisible,
            until,
            start or header.start,
        )
        return self._answer(connection, header, messages)

    async def _check_group(self, header: PopHeader) -> None:
        settings = await self._groups.settings(header.group)
        if settings is None:
            raise GroupNotFound(header.group)
        if not settings.consume_enable:
            raise ConsumptionForbidden(header.group, "consume_enable")
        if header.is_ordered and not settings.consume_message_orderly:
            reason = f"is a setting of the group: mqdb group set {header.group} --orderly"
            raise ParameterInvalid("order", "true", reason)

    async def _filter(self, header: PopHeader) -> MessageFilter:
        filter = known_filter(*header.filter)
        if filter.expression_type is ExpressionType.SQL92:
            await self._database.run(partial(check_filters, expression_types={ExpressionType.SQL92}))
        return filter

    # -- answers ------------------------------------------------------------------------------

    def _answer(self, connection: Connection, header: PopHeader, messages: Sequence[ReceivedMessage]) -> Answer:
        """No await between here and the answer: if the connection were closed then, the messages would be lost."""
        if not connection.is_open:
            self._give_back(header, messages)
            messages = ()
        pages: list[bytes] = []
        told: list[ReceivedMessage] = []
        size = 0
        for at, message in enumerate(messages):
            size += len(message.stored_body)
            if told and size > _MOST_BYTES:
                self._give_back(header, messages[at:])
                break
            try:
                pages.append(self._encoded(header, message))
            except (
                MqdbError,
                FrameInvalid,
            ) as error:  # the message is delivered again, and becomes a dead letter in the end
                fields = {
                    "group": header.group,
                    "message_id": message.message_id,
                    "delivery": message.delivery_attempt,
                    "queue": str(message.queue),
                    "offset": message.queue_offset,
                    "reason": str(error),
                }
                logger.warning(
                    "could not encode message %(message_id)s at offset %(offset)s of queue %(queue)s, delivery "
                    "%(delivery)s, for a client of group %(group)s: %(reason)s",
                    fields,
                    extra=fields,
                )
            else:
                told.append(message)
        if not told:
            times = times_of(time.time_ns() // 1_000_000, header.invisible)
            return Answer(ResponseCode.POLLING_TIMEOUT, times | _REST, remark="no new message")
        times = times_of(min(pop_ms(each, header.invisible) for each in map(_handle, told)), header.invisible)
        return Answer(ResponseCode.SUCCESS, times | _REST | offsets_of(told), b"".join(pages))

    def _encoded(self, header: PopHeader, message: ReceivedMessage) -> bytes:
        check_point = encode_check_point(message, self._database.instance.broker_name, header.invisible)
        return encode_message(
            message,
            self._address,
            topic=header.topic,
            reconsume_times=min(message.reconsume_times, _MOST_FAILURES_TOLD),
            added={Property.POP_CK: check_point},
        )

    def _give_back(self, header: PopHeader, messages: Sequence[ReceivedMessage]) -> None:
        if messages:
            handles = [_handle(message) for message in messages]
            self._database.spawn(self._receipts.give_back(header.group, handles))

    # -- 200051, 200053 -----------------------------------------------------------------------

    async def ack(self, _connection: Connection, frame: Frame) -> Answer:
        """Code 200051: acknowledge a message. Raises ReceiptHandleInvalid if its invisible time has passed."""
        group, handle = frame.text("consumerGroup"), handle_of(frame.text("extraInfo"))
        if not await self._receipts.ack(group, handle):
            raise ReceiptHandleInvalid((handle,))
        return Answer()

    async def change(self, _connection: Connection, frame: Frame) -> Answer:
        """Code 200053: change the invisible time of a message whose listener failed. Raises ReceiptHandleInvalid.

        The old handle stays valid for its own invisible time, because the answer cannot carry a new handle.
        """
        group, handle = frame.text("consumerGroup"), handle_of(frame.text("extraInfo"))
        invisible = _invisible(frame, shortest_ms=0)
        new = await self._receipts.change(group, handle, invisible)
        if new is None:
            raise ReceiptHandleInvalid((handle,))
        return Answer(fields=times_of(pop_ms(new, invisible), invisible))


def _handle(message: ReceivedMessage) -> str:
    return str(message.receipt_handle)


def _invisible(frame: Frame, shortest_ms: int) -> timedelta:
    milliseconds = frame.number("invisibleTime")
    if not shortest_ms <= milliseconds <= _LONGEST_MS:
        raise ParameterInvalid("invisibleTime", milliseconds, f"must be from {shortest_ms} to {_LONGEST_MS:,} ms")
    return milliseconds * _MILLISECOND


def _is_same(given: MessageFilter | None, wanted: MessageFilter) -> bool:
    return given is not None and (given.expression_type, given.canonical_text) == (
        wanted.expression_type,
        wanted.canonical_text,
    )
