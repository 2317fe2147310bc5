"""Pulls: messages for clients. Codes 11 and 361.

    frame ──▶ header, filter, claim ──▶ hold ──▶ turn ──▶ nothing new: wait ──▶ turn ... ──▶ answer

A member of a group pulls what it owns; who reads without owning is one who names its filter itself, or broadcasts.
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

#: Messages of an answer. Source: DefaultMQPushConsumer.pullBatchSize is at most that.
_MOST_MESSAGES: Final = 1_024

#: Bytes of bodies of an answer; a larger message comes alone. A call for 64 queues has 16 MiB in memory then.
#: Source: MessageStoreConfig.maxTransferBytesOnMessageInMemory.
_MOST_BYTES: Final = 256 * 1024

#: Longer than any client holds; it closes the connection if there is no answer for 30 s.
_LONGEST_HOLD_SECONDS: Final = 20.0
#: For the database, behind the time of the hold.
_LONGEST_LOOK_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class PullTimes:
    """Times that a pull waits for something else than messages, in seconds."""

    #: For the first heartbeat on its connection. A client sends it within that time, or 30 s after its last one.
    heartbeat: float = 3.0
    #: While another member has the queue. Source of neither: a client whose pull is refused comes again after 3 s.
    owner: float = 2.0


@dataclass(frozen=True, slots=True)
class PullHeader:
    """The fields of a pull. Raises ParameterInvalid if a field is not a number."""

    group: str
    topic: str
    queue_id: int
    offset: int
    limit: int
    max_bytes: int
    #: The offset that the client commits.
    commits: int | None
    hold_seconds: float
    #: The filter that it names, as its type and text.
    filter: tuple[str, str] | None

    @classmethod
    def of(cls, frame: Frame) -> "PullHeader":
        """The header of a frame."""
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
    """The pulls of one front. Use it in its loop only."""

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
        """`address` is that of the front as clients know it: it is a part of messages."""
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
        """11, 361: messages of one queue. Raises what is wrong with the request.

        While there is no database it waits, as if there were no messages.
        """
        header = PullHeader.of(frame)
        until = self._database.loop.time() + header.hold_seconds
        # A client in C++ that is refused comes again at once, so a pull that does not wait is tried again as well.
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
            check_group_name(header.group)  # what is read in its name is remembered
        if header.group in self._claims.switched_off:
            raise ConsumptionForbidden(header.group, "consume_enable")
        filter = await self._filter(header, found)
        if filter is None:
            remark = f"this client has not said that group {header.group} subscribes to topic {header.topic}"
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
        """The client as a member. After a restart of the front clients pull before they register."""
        loop, deadline = self._database.loop, self._database.loop.time() + self._times.heartbeat
        while (found := self._members.consumer_of(connection, header.group)) is None:
            seconds = deadline - loop.time()
            if connection.client_id is not None or connection in self._silent or not connection.is_open:
                break
            if seconds <= 0:
                self._silent.add(connection)  # a tool, which says nothing; it need not wait each time
                break
            await asyncio.wait([self._claims.next_change(header.group)], timeout=seconds)
        if found is not None:
            found[1].check()
        return found

    async def _filter(self, header: PullHeader, found: tuple[Client, Consumer] | None) -> MessageFilter | None:
        """The filter of a pull; None for a topic without a subscription.

        Raises FilterDisabled, and the errors of reading a filter.
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
        """Own a queue that another member may have; None if it does, after a wait: the client comes again.

        It does not wait longer than for one change in the group, as its client may have dropped the queue. In a group
        that pops no member has a queue, so each one is like an empty one.
        """
        change = self._claims.next_change(header.group)  # before it looks
        claim = await self._claims.take_at(*found, place, header.offset) if header.offset >= 0 else None
        if claim is None:
            self._places.forget(header.topic)
            await self._places.route(header.topic)  # perhaps it is gone
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
        """The queue does not exist, or the log is another one. The client is to come again if there is such a queue."""
        self._places.forget(header.topic)
        place = self._places.place(await self._places.route(header.topic), header.topic, header.queue_id)
        if place.queue_key == reading.queue_key and place.history == reading.history:
            raise TopicNotFound(header.topic)
        if isinstance(reading, Claim):
            self._claims.lose(reading)
        return _nothing(header)

    async def _lost(self, header: PullHeader, reading: Claim) -> Answer:
        """The answer if the client's queue was taken or its offset reset; after a reset it has the new offset."""
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
    """Have the client go on elsewhere. Java's stands still for 10 s after a 21; forward it also goes without."""
    status = PullStatus.OFFSET_ILLEGAL if to < header.offset else PullStatus.NO_MATCHED_MSG
    return _answer(PullPage(status, to, 0, to, 0, b"", None))


def _nothing(header: PullHeader) -> Answer:
    """Have the client come again at the same offset."""
    return _answer(PullPage(PullStatus.NO_NEW_MSG, header.offset, 0, header.offset, 0, b"", None))
