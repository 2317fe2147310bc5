"""Receiving: consumers wait for messages, and each message goes to one of them.

    those who wait ── by group, topic and filter ──▶ lanes ── one pop of each at a time, for one who waits ──▶ messages

Nobody owns a queue, so whoever asks for one gets messages of any. When messages arrive, a lane pops for those who wait,
one after the other, until it finds no more: with a thousand who wait a message costs two pops, not a thousand.
RocketMQ: ReceiveMessageActivity, PopLongPollingService.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Final

from mqdb.common.group import ConsumeFromWhere, StartingPoint
from mqdb.common.received_message import ReceivedMessage
from mqdb.common.topic import retry_topic
from mqdb.errors import BrokerUnavailable
from mqdb.fronts.database import Database
from mqdb.grpc.in_flight import SdkInFlight
from mqdb.grpc.traffic import CallTraffic
from mqdb.grpc.wire.rocketmq_pb2 import Code
from mqdb.grpc.wire.status import CallRefused
from mqdb.selector.subscription import MessageFilter
from mqdb.store.filters.retry_filter import retry_filter
from mqdb_client.consumer.queues.broker_pops import LONGEST_WAIT_SECONDS, BrokerPops
from mqdb_client.consumer.queues.share import TopicPresence

logger = logging.getLogger(__name__)

#: Of one front.
_MOST_LANES: Final = 10_000

#: A lane is forgotten when nobody has waited for so long.
_IDLE_SECONDS: Final = 120.0

#: Whether a group that is new begins with the messages that are there. Source: the proxy's pops, ConsumeInitMode.MAX.
_BEGINNING: Final = StartingPoint(ConsumeFromWhere.LAST_OFFSET)


class _Waiter:
    """A receive that waits."""

    def __init__(self, client_id: str, limit: int, invisible: timedelta, loop: asyncio.AbstractEventLoop) -> None:
        self.client_id = client_id
        self.limit = limit
        self.invisible = invisible
        self.future: asyncio.Future[list[ReceivedMessage]] = loop.create_future()


class _Lane:
    """Those who wait for messages of a topic in a group, by one filter."""

    def __init__(self, database: Database, group: str, topic: str, filter: MessageFilter) -> None:
        filters = {topic: filter}
        read = {**filters, retry_topic(group): retry_filter(filters)}
        presence = TopicPresence(group, 1)
        self.group = group
        self.topic = topic
        self.pops = BrokerPops(database.instance, group, read, _BEGINNING, presence)
        self.waiting: deque[_Waiter] = deque()
        #: Set when there may be something to find.
        self.woken = asyncio.Event()
        self.is_running = False
        self.idle_since = 0.0


class Lanes:
    """The lanes of one front. Call it from the event loop only."""

    def __init__(self, database: Database, in_flight: SdkInFlight, traffic: CallTraffic) -> None:
        self._traffic = traffic
        self._database = database
        self._in_flight = in_flight
        self._lanes: dict[tuple[str, str, str, str], _Lane] = {}
        self._arrivals = database.instance.on_arrival(database.in_loop(self._arrived))
        database.spawn(self._forget_forever())

    def close(self) -> None:
        """Hear of nothing more. Who waits is told that there is nothing."""
        self._arrivals.cancel()
        for lane in self._lanes.values():
            for waiter in lane.waiting:
                _give_up(waiter)

    def await_topic(self, group: str, topic: str, filter: MessageFilter) -> None:
        """A topic is not there. If it comes, the group reads it from its beginning."""
        self._lane(group, topic, filter).pops.await_topic(topic)

    async def begin(self, group: str, topic: str, filter: MessageFilter) -> None:
        """Have a group begin now in a topic where it has not. Raises what keeps it from that."""
        lane = self._lane(group, topic, filter)
        await self._database.call(lane.pops.begin)

    async def receive(
        self,
        client_id: str,
        group: str,
        topic: str,
        filter: MessageFilter,
        limit: int,
        invisible: timedelta,
        until: float,
    ) -> list[ReceivedMessage]:
        """Up to `limit` messages; none if there is none until a time of the loop.

        Raises what `mqdb.broker.consumers.pop.pop` raises, and BrokerUnavailable.
        """
        lane = self._lane(group, topic, filter)
        waiter = _Waiter(client_id, limit, invisible, self._database.loop)
        lane.waiting.append(waiter)
        lane.woken.set()
        if not lane.is_running:
            lane.is_running = True
            self._database.spawn(self._run(lane))
        timer = self._database.loop.call_at(until, _give_up, waiter)
        self._traffic.waiting += 1
        try:
            return await waiter.future
        except asyncio.CancelledError:
            if waiter.future.done() and not waiter.future.cancelled() and not waiter.future.exception():
                self._give_back(group, waiter.future.result())
            raise
        finally:
            self._traffic.waiting -= 1
            timer.cancel()

    def _lane(self, group: str, topic: str, filter: MessageFilter) -> _Lane:
        key = (group, topic, str(filter.expression_type), filter.canonical_text)
        lane = self._lanes.get(key)
        if lane is None:
            if len(self._lanes) >= _MOST_LANES:
                raise CallRefused(Code.TOO_MANY_REQUESTS, f"receives have {_MOST_LANES:,} groups and filters already")
            lane = self._lanes[key] = _Lane(self._database, group, topic, filter)
        lane.idle_since = self._database.loop.time()
        return lane

    def _arrived(self, queue_keys: frozenset[int] | None) -> None:
        for lane in self._lanes.values():
            if lane.waiting and lane.pops.concerns(queue_keys):
                lane.woken.set()

    async def _run(self, lane: _Lane) -> None:
        """Pop for those who wait, as long as there are any."""
        try:
            while waiter := _next(lane.waiting):
                lane.woken.clear()  # before it looks: what comes later sets it again
                try:
                    messages, seconds = await self._database.call(partial(_pop, lane, waiter))
                except Exception as error:  # noqa: BLE001 - whoever waits is told
                    # Without a database there is none for the others either.
                    told = list(lane.waiting) if isinstance(error, BrokerUnavailable) else [waiter]
                    for each in told:
                        lane.waiting.remove(each)
                        if not each.future.done():
                            each.future.set_exception(error)
                    continue
                if messages:
                    lane.waiting.remove(waiter)
                    if waiter.future.done():  # the client has gone meanwhile
                        self._give_back(lane.group, messages)
                    else:
                        waiter.future.set_result(messages)
                else:
                    await self._wait(lane, seconds)
        finally:
            lane.is_running = False
            lane.idle_since = self._database.loop.time()

    async def _wait(self, lane: _Lane, seconds: float) -> None:
        """Until something may be found, or nobody waits any longer."""
        # A future that is done would end the wait at once, for as long as it is there.
        lane.waiting = deque(waiter for waiter in lane.waiting if not waiter.future.done())
        woken = asyncio.ensure_future(lane.woken.wait())
        try:
            waits: list[asyncio.Future[Any]] = [woken, *(waiter.future for waiter in lane.waiting)]
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            woken.cancel()

    def _give_back(self, group: str, messages: Sequence[ReceivedMessage]) -> None:
        if messages:
            handles = [str(message.receipt_handle) for message in messages]
            self._database.spawn(self._in_flight.give_back(group, handles))

    async def _forget_forever(self) -> None:
        while True:
            await asyncio.sleep(_IDLE_SECONDS / 2)
            earliest = self._database.loop.time() - _IDLE_SECONDS
            self._lanes = {
                key: lane
                for key, lane in self._lanes.items()
                if lane.waiting or lane.idle_since > earliest or lane.pops.awaits(lane.topic)
            }


def _pop(lane: _Lane, waiter: _Waiter) -> tuple[list[ReceivedMessage], float]:
    """In a thread: messages, or how long to wait for some."""
    popped = lane.pops.pop(waiter.limit, waiter.invisible, waiter.client_id)
    seconds = popped.seconds_to_next
    return popped.messages, LONGEST_WAIT_SECONDS if seconds is None else min(seconds, LONGEST_WAIT_SECONDS)


def _give_up(waiter: _Waiter) -> None:
    if not waiter.future.done():
        waiter.future.set_result([])


def _next(waiting: deque[_Waiter]) -> _Waiter | None:
    """The first one who still waits."""
    while waiting and waiting[0].future.done():
        waiting.popleft()
    return waiting[0] if waiting else None
