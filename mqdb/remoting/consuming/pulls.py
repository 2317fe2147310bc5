"""Pulls: messages from queues that clients own or read. Request codes 11 and 361.

    frame ──▶ header, filter, claim ──▶ hold ──▶ turn ──▶ nothing new: wait ──▶ turn ... ──▶ answer

A member of a group pulls queues that it owns; clients that name the filter in the pull, or that broadcast, read without
owning.
RocketMQ: PullMessageProcessor, PullMessageRequestHeader, PullSysFlag.
"""

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import Final

from mqdb.broker.consumers.pull import PullRequest, PullStatus
from mqdb.broker.filters.filters import check_filters
from mqdb.common.group import check_group_name
from mqdb.common.topic import Perm, retry_topic
from mqdb.errors import ConsumptionForbidden, ResponseCode, TopicNotFound
from mqdb.fronts.database import AGAIN_SECONDS, Database
from mqdb.fronts.known_groups import KnownGroups
from mqdb.remoting.consuming.claims import Claims
from mqdb.remoting.consuming.holds import Hold, Holds, Wake
from mqdb.remoting.consuming.offsets import ClientOffsets
from mqdb.remoting.consuming.places import Place, Places
from mqdb.remoting.consuming.readings import Claim, Reading
from mqdb.remoting.consuming.turns import PullPage, Turns
from mqdb.remoting.consuming.waiting_tasks import WaitingTasks
from mqdb.remoting.session.client import Client, Consumer, known_filter
from mqdb.remoting.session.connection import Connection
from mqdb.remoting.session.members import FrontMembers
from mqdb.remoting.session.traffic import Traffic
from mqdb.remoting.wire.answers import NO_ANSWER, Answer
from mqdb.remoting.wire.frame import Frame
from mqdb.selector.subscription import ExpressionType, MessageFilter
from mqdb.selector.tags import parse_tag_expression

#: Bits of sysFlag. Source: PullSysFlag.
_COMMITS, _MAY_HOLD, _NAMES_FILTER = 1, 2, 4

#: Maximum number of messages in an answer. RocketMQ: DefaultMQPushConsumer.pullBatchSize may not be larger.
_MOST_MESSAGES: Final = 1_024

#: Maximum bytes of bodies in an answer; a larger message is sent alone. A call for 64 queues then needs 16 MiB of
#: memory.
#: Source: MessageStoreConfig.maxTransferBytesOnMessageInMemory.
_MOST_BYTES: Final = 256 * 1024

#: Longer than any client waits; a client closes the connection if there is no answer for 30 s.
_LONGEST_HOLD_SECONDS: Final = 20.0
#: Time for the database after the hold has ended.
_LONGEST_LOOK_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class PullTimes:
    """Times that a pull waits for something other than messages, in seconds."""

    #: Wait for the first heartbeat on the connection. A client sends its first heartbeat within this time, or 30 s
    #: after its last one.
    heartbeat: float = 3.0
    #: Wait while another member has the queue. Neither value comes from RocketMQ: a client whose pull is refused
    #: retries after 3 s.
    owner: float = 2.0


@dataclass(frozen=True, slots=True)
class PullHeader:
    """The fields of a pull request. Raises ParameterInvalid if a field is not a number."""

    group: str
    topic: str
    queue_id: int
    offset: int
    limit: int
    max_bytes: int
    #: The offset that the client commits with the pull.
    commits: int | None
    hold_seconds: float
    #: The filter in the request, as its type and text.
    filter: tuple[str, str] | None

    @classmethod
    def of(cls, frame: Frame) -> "PullHeader":
        """Read the header from a frame."""
        fields, flags = frame.fields, frame.number("sysFlag", 0)
        hold_seconds = min(frame.number("suspendTimeoutMillis", 0) / 1_000, _LONGEST_HOLD_SECONDS)
        max_bytes = frame.number("maxMsgBytes", _MOST_BYTES)
        return cls(
            fields.get("consumerGroup", ""),
            fields.get("topic", ""),
            frame.number("queueId"),
            frame.position("queueOffset"),
            min(max(frame.number("maxMsgNums", 32), 1), _MOST_MESSAGES),
            min(max_bytes, _MOST_BYTES) if max_bytes > 0 else _MOST_BYTES,
            frame.position("commitOffset") if flags & _COMMITS else None,
            hold_seconds if flags & _MAY_HOLD else 0.0,
            (fields.get("expressionType") or ExpressionType.TAG, fields.get("subscription", ""))
            if flags & _NAMES_FILTER
            else None,
        )


_EVERYTHING: Final = parse_tag_expression(None)


class Pulls:
    """The pulls of one front. Use it in the front's event loop only."""

    def __init__(
        self,
        database: Database,
        members: FrontMembers,
        groups: KnownGroups,
        places: Places,
        claims: Claims,
        holds: Holds,
        offsets: ClientOffsets,
        address: tuple[str, int],
        traffic: Traffic,
        times: PullTimes,
    ) -> None:
        """`address` is the front's address as clients know it, which becomes part of messages."""
        self._database = database
        self._members = members
        self._groups = groups
        self._places = places
        self._claims = claims
        self._holds = holds
        self._offsets = offsets
        self._times = times
        self._traffic = traffic
        self._turns = Turns(database, address)
        self._tasks = WaitingTasks("pulls")
        self._silent: set[Connection] = set()

    def lost(self, connection: Connection) -> None:
        """End the pulls of a closed connection."""
        self._tasks.lost(connection)
        self._silent.discard(connection)

    async def pull(self, connection: Connection, frame: Frame) -> Answer:
        """Codes 11 and 361: messages of one queue. Raises the errors of the request.

        While the database is unavailable, the request waits as if there were no messages.
        """
        header = PullHeader.of(frame)
        until = self._database.loop.time() + header.hold_seconds
        # A refused client in C++ retries immediately, so even a pull that does not wait is tried again here.
        patience = max(until, self._database.loop.time() + AGAIN_SECONDS)
        with self._tasks.of(connection):
            try:
                async with asyncio.timeout_at(patience + _LONGEST_LOOK_SECONDS):
                    pull = partial(self._pull, connection, header, until)
                    return await self._database.patiently(pull, patience + AGAIN_SECONDS)
            except TimeoutError:
                return NO_ANSWER

    async def _pull(self, connection: Connection, header: PullHeader, until: float) -> Answer:
        found = await self._member(connection, header)
        if found is None:
            check_group_name(header.group)  # the name is stored with what is read
        if header.group in self._claims.switched_off:
            raise ConsumptionForbidden(header.group, "consume_enable")
        filter = await self._filter(header, found)
        if filter is None:
            remark = f"this client has not registered a subscription of group {header.group} to topic {header.topic}"
            return Answer(ResponseCode.SUBSCRIPTION_NOT_EXIST, remark=remark)
        route = await self._places.route(header.topic)
        if not route.config.perm & Perm.READ:
            return Answer(ResponseCode.NO_PERMISSION, remark=f"topic {header.topic} is not readable")
        place = self._places.place(route, header.topic, header.queue_id)
        if found is None or not found[1].owns_queues(header.topic):
            reading = self._offsets.reading(connection, header.group, place)
            await self._offsets.look_again(reading)
        else:
            claim = self._claims.of(found[0].client_id, header.group, place.queue_key)
            claim = claim or await self._take(found, header, place, until)
            if claim is None:
                return _nothing(header)
            reading = claim
        if header.commits is not None:
            self._offsets.commit(connection, header.group, place, header.commits)
        if isinstance(reading, Claim):
            reading.pulls += 1
            reading.pulled_at = self._database.loop.time()
            try:
                return await self._look(header, reading, filter, until)
            finally:
                reading.pulls -= 1
        return await self._look(header, reading, filter, until)

    # -- who asks, and for what ---------------------------------------------------------------

    async def _member(self, connection: Connection, header: PullHeader) -> tuple[Client, Consumer] | None:
        """The client of the connection and its membership in the group, or None.

        After a restart of the front, clients pull before they register, so this waits for the registration.
        """
        loop, deadline = self._database.loop, self._database.loop.time() + self._times.heartbeat
        while (found := self._members.consumer_of(connection, header.group)) is None:
            seconds = deadline - loop.time()
            if connection.client_id is not None or connection in self._silent or not connection.is_open:
                break
            if seconds <= 0:
                self._silent.add(connection)  # a tool, which sends no heartbeats; it need not wait each time
                break
            await asyncio.wait([self._claims.next_change(header.group)], timeout=seconds)
        if found is not None:
            found[1].check()
        return found

    async def _filter(self, header: PullHeader, found: tuple[Client, Consumer] | None) -> MessageFilter | None:
        """The filter of a pull, or None if the topic has no subscription.

        Raises FilterDisabled, and the errors of parsing a filter.
        """
        if found is None and header.filter is None:
            return None
        if header.topic == retry_topic(header.group):
            return _EVERYTHING
        if header.filter is None:
            return None if found is None else found[1].filters.get(header.topic)
        if header.filter[0] == ExpressionType.SQL92:
            await self._database.run(partial(check_filters, expression_types={ExpressionType.SQL92}))
        return known_filter(*header.filter)

    async def _take(
        self, found: tuple[Client, Consumer], header: PullHeader, place: Place, until: float
    ) -> Claim | None:
        """Take a queue that another member may have; returns None if the queue is not free after a wait.

        After None, the client pulls again.

        The wait ends at the first change in the group, because the client itself may have dropped the queue. In a group
        that pops, no member has queues, so each queue is treated as empty.
        """
        change = self._claims.next_change(header.group)  # created before the attempt
        claim = await self._claims.take_at(*found, place, header.offset) if header.offset >= 0 else None
        if claim is None:
            self._places.forget(header.topic)
            await self._places.route(header.topic)  # raises an error if the topic no longer exists
            seconds = until - self._database.loop.time()
            if not await self._groups.pops(header.group):
                seconds = min(self._times.owner, seconds)
            await asyncio.wait([change], timeout=max(seconds, 0))
        return claim

    # -- looking ------------------------------------------------------------------------------

    async def _look(self, header: PullHeader, reading: Reading, filter: MessageFilter, until: float) -> Answer:
        to = reading.told_at(header.offset)
        if to is not None:
            return _moved(header, to)
        hold = self._holds.enter(reading)
        try:
            return await self._look_until(header, hold, filter, until)
        finally:
            self._holds.leave(hold)

    async def _look_until(self, header: PullHeader, hold: Hold, filter: MessageFilter, until: float) -> Answer:
        reading, offset = hold.reading, header.offset
        while True:
            segment = reading.segment_at(offset)
            request = PullRequest(reading.queue, reading.queue_key, offset, segment, reading.history)
            found = await self._turns.look(request, filter, header.limit, header.max_bytes)
            if found is None:
                return await self._gone(header, reading)
            if isinstance(reading, Claim) and reading.is_lost:
                return await self._lost(header, reading)
            reading.passed(found.next_begin_offset, found.segment, found.last)
            if found.status is not PullStatus.NO_NEW_MSG:
                self._holds.found()
                if found.status is PullStatus.OFFSET_ILLEGAL and isinstance(reading, Claim) and not reading.may_go_back:
                    await self._claims.correct(reading, found.next_begin_offset)
                return _answer(found)
            if self._database.loop.time() >= until:
                return _answer(found)
            self._traffic.held_pulls += 1
            try:
                reason = await hold.wait(until)
            finally:
                self._traffic.held_pulls -= 1
            if reason is Wake.LOST and isinstance(reading, Claim):
                return await self._lost(header, reading)
            if reason is Wake.TIME_OVER:
                return _answer(found)

    async def _gone(self, header: PullHeader, reading: Reading) -> Answer:
        """The answer if the queue no longer exists or the log is a different one.

        The client should pull again if the queue exists.
        """
        self._places.forget(header.topic)
        place = self._places.place(await self._places.route(header.topic), header.topic, header.queue_id)
        if place.queue_key == reading.queue_key and place.history == reading.history:
            raise TopicNotFound(header.topic)
        if isinstance(reading, Claim):
            self._claims.lose(reading)
        return _nothing(header)

    async def _lost(self, header: PullHeader, reading: Claim) -> Answer:
        """The answer if the queue was taken from the client, or its offset was reset.

        After a reset, the answer has the new offset.
        """
        client = self._members.clients.get(reading.client_id)
        consumer = None if client is None else client.consumers.get(header.group)
        if client is not None and consumer is not None:
            claim = await self._claims.take_at(client, consumer, reading.place, header.offset)
            to = None if claim is None else claim.told_at(header.offset)
            if to is not None:
                return _moved(header, to)
        return _nothing(header)


_CODES: Final = {
    PullStatus.FOUND: ResponseCode.SUCCESS,
    PullStatus.NO_NEW_MSG: ResponseCode.PULL_NOT_FOUND,
    PullStatus.NO_MATCHED_MSG: ResponseCode.PULL_RETRY_IMMEDIATELY,
    PullStatus.OFFSET_ILLEGAL: ResponseCode.PULL_OFFSET_MOVED,
}


def _answer(found: PullPage) -> Answer:
    fields = {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": str(found.next_begin_offset),
        "minOffset": str(found.min_offset),
        "maxOffset": str(found.max_offset),
    }
    return Answer(_CODES[found.status], fields, found.body)


def _moved(header: PullHeader, to: int) -> Answer:
    """Make the client continue at another offset.

    Java's client pauses for 10 s after code 21, which is not needed to move forward.
    """
    status = PullStatus.OFFSET_ILLEGAL if to < header.offset else PullStatus.NO_MATCHED_MSG
    return _answer(PullPage(status, to, 0, to, 0, b"", None))


def _nothing(header: PullHeader) -> Answer:
    """Make the client pull again at the same offset."""
    return _answer(PullPage(PullStatus.NO_NEW_MSG, header.offset, 0, header.offset, 0, b"", None))
