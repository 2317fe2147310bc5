"""Receiving: consumers wait for messages, and each message goes to one of them.

    receives ── by group, topic and filter ──▶ waiting lists ── one pop of each at a time, for one receive ──▶ messages

Queues have no owners, so a receive for a specific queue gets messages from any queue. When messages arrive, a waiting
list pops for its receives, one after another, until it finds no more: with a thousand receives, a message costs two
pops, not a thousand.
RocketMQ: ReceiveMessageActivity, PopLongPollingService.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Collection, Sequence
from datetime import timedelta
from functools import partial
from itertools import islice
from typing import Any, Final, Protocol

from mqdb.common.group import AS_THE_GROUP_SAYS, StartingPoint
from mqdb.common.received_message import ReceivedMessage
from mqdb.common.topic import retry_topic
from mqdb.errors import BrokerUnavailable, TooManyWaiting
from mqdb.fronts.database import Database
from mqdb.fronts.receipts import Receipts
from mqdb.selector.subscription import MessageFilter, SubscriptionData
from mqdb.store.filters.retry_filter import retry_filter
from mqdb_client.consumer.queues.broker_pops import LONGEST_WAIT_SECONDS, BrokerPops
from mqdb_client.consumer.queues.share import TopicPresence

logger = logging.getLogger(__name__)

#: Maximum number of waiting receives in one front.
_MOST_LISTS: Final = 10_000

#: A list without a waiting call is forgotten after this time.
_IDLE_SECONDS: Final = 120.0

#: Time for the first look of a receive that would not wait. Other receives end in time, whatever the database does.
_LOOK_SECONDS: Final = 1.0


class WaitTraffic(Protocol):
    """The counts of a front."""

    #: Receives that wait for messages now.
    waiting: int


class _Waiter:
    """A receive that waits."""

    def __init__(self, client_id: str, limit: int, invisible: timedelta, loop: asyncio.AbstractEventLoop) -> None:
        self.client_id = client_id
        self.limit = limit
        self.invisible = invisible
        self.future: asyncio.Future[list[ReceivedMessage]] = loop.create_future()
        self._was_looked_for = False
        self._is_over = False

    def end(self) -> None:
        """End the wait. If no pop has looked for messages since it began, one more look follows."""
        self._is_over = True
        if self._was_looked_for:
            self.give_up()

    def looked(self) -> None:
        """Note that a look found nothing."""
        self._was_looked_for = True
        if self._is_over:
            self.give_up()

    def give_up(self) -> None:
        """End the wait without messages, unless it has already ended."""
        if not self.future.done():
            self.future.set_result([])


class _WaitingList:
    """The receives that wait for messages of a topic in a group, with the same filter."""

    def __init__(self, database: Database, group: str, topic: str, filter: MessageFilter, start: StartingPoint) -> None:
        filters = {topic: filter}
        read = {**filters, retry_topic(group): retry_filter(filters)}
        presence = TopicPresence(group, 1)
        self.group = group
        self.topic = topic
        self.pops = BrokerPops(database.instance, group, read, start, presence)
        self.waiting: deque[_Waiter] = deque()
        #: Set when there may be messages.
        self.woken = asyncio.Event()
        self.is_running = False
        self.idle_since = 0.0


class WaitingLists:
    """The waiting lists of one front. Call it from the event loop only."""

    def __init__(self, database: Database, receipts: Receipts, traffic: WaitTraffic) -> None:
        self._traffic = traffic
        self._database = database
        self._receipts = receipts
        self._lists: dict[tuple[str, str, str, str], _WaitingList] = {}
        self._arrivals = database.instance.on_arrival(database.in_loop(self._arrived))
        database.spawn(self._forget_forever())

    def close(self) -> None:
        """Stop listening for arrivals. All waiting receives end without messages."""
        self._arrivals.cancel()
        for waiting_list in self._lists.values():
            for waiter in waiting_list.waiting:
                waiter.give_up()

    def await_topic(self, group: str, topic: str, filter: MessageFilter) -> None:
        """Note that a topic does not exist. If it is created, the group reads it from its beginning."""
        self._list(group, topic, filter).pops.await_topic(topic)

    def end_others(self, client_id: str, group: str, kept: Collection[SubscriptionData]) -> None:
        """End the receives of a client in a group, except those with these subscriptions.

        Otherwise, a client that has changed its filter would skip messages to which its group now subscribes.
        """
        for (of_group, *of), waiting_list in self._lists.items():
            if of_group == group and SubscriptionData(*of) not in kept:
                for waiter in waiting_list.waiting:
                    if waiter.client_id == client_id:
                        waiter.give_up()

    async def begin(self, group: str, topic: str, filter: MessageFilter) -> None:
        """Set the starting point of a group in a topic that is new to it. Raises the errors that prevent this."""
        waiting_list = self._list(group, topic, filter)
        await self._database.call(waiting_list.pops.begin)

    async def receive(
        self,
        client_id: str,
        group: str,
        topic: str,
        filter: MessageFilter,
        limit: int,
        invisible: timedelta,
        until: float,
        start: StartingPoint = AS_THE_GROUP_SAYS,
    ) -> list[ReceivedMessage]:
        """Up to `limit` messages; an empty list if no message arrives before a time of the event loop.

        `start` is the group's starting point if the topic is new to it. Raises TooManyWaiting, BrokerUnavailable, and
        the errors of `mqdb.broker.consumers.pop.pop`.
        """
        waiting_list = self._list(group, topic, filter, start)
        waiter = _Waiter(client_id, limit, invisible, self._database.loop)
        waiting_list.waiting.append(waiter)
        waiting_list.woken.set()
        if not waiting_list.is_running:
            waiting_list.is_running = True
            self._database.spawn(self._run(waiting_list))
        loop = self._database.loop
        timers = loop.call_at(until, waiter.end), loop.call_at(max(until, loop.time() + _LOOK_SECONDS), waiter.give_up)
        self._traffic.waiting += 1
        try:
            return await waiter.future
        except asyncio.CancelledError:
            if waiter.future.done() and not waiter.future.cancelled() and not waiter.future.exception():
                self._give_back(group, waiter.future.result())
            raise
        finally:
            self._traffic.waiting -= 1
            for timer in timers:
                timer.cancel()

    def _list(
        self, group: str, topic: str, filter: MessageFilter, start: StartingPoint = AS_THE_GROUP_SAYS
    ) -> _WaitingList:
        key = (group, topic, str(filter.expression_type), filter.canonical_text)
        waiting_list = self._lists.get(key)
        if waiting_list is None:
            if len(self._lists) >= _MOST_LISTS:
                raise TooManyWaiting(_MOST_LISTS, "groups and filters")
            waiting_list = self._lists[key] = _WaitingList(self._database, group, topic, filter, start)
        waiting_list.idle_since = self._database.loop.time()
        return waiting_list

    def _arrived(self, queue_keys: frozenset[int] | None) -> None:
        for waiting_list in self._lists.values():
            if waiting_list.waiting and waiting_list.pops.concerns(queue_keys):
                waiting_list.woken.set()

    async def _run(self, waiting_list: _WaitingList) -> None:
        """Pop for the waiting receives, as long as there are any."""
        try:
            while waiter := _next(waiting_list.waiting):
                waiting_list.woken.clear()  # cleared first: later arrivals set it again
                present = len(waiting_list.waiting)
                try:
                    messages, seconds = await self._database.call(partial(_pop, waiting_list, waiter))
                except Exception as error:  # noqa: BLE001 - whoever waits is told
                    # Without a database, the other receives would fail as well.
                    told = list(waiting_list.waiting) if isinstance(error, BrokerUnavailable) else [waiter]
                    for each in told:
                        waiting_list.waiting.remove(each)
                        if not each.future.done():
                            each.future.set_exception(error)
                    continue
                if messages:
                    waiting_list.waiting.remove(waiter)
                    if waiter.future.done():  # the client has disconnected in between
                        self._give_back(waiting_list.group, messages)
                    else:
                        waiter.future.set_result(messages)
                else:
                    for each in islice(waiting_list.waiting, present):
                        each.looked()
                    await self._wait(waiting_list, seconds)
        finally:
            waiting_list.is_running = False
            waiting_list.idle_since = self._database.loop.time()

    async def _wait(self, waiting_list: _WaitingList, seconds: float) -> None:
        """Wait until a pop may find messages, or no receive is waiting."""
        # A completed future would end the wait immediately as long as it is in the list.
        waiting_list.waiting = deque(waiter for waiter in waiting_list.waiting if not waiter.future.done())
        woken = asyncio.ensure_future(waiting_list.woken.wait())
        try:
            waits: list[asyncio.Future[Any]] = [woken, *(waiter.future for waiter in waiting_list.waiting)]
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            woken.cancel()

    def _give_back(self, group: str, messages: Sequence[ReceivedMessage]) -> None:
        if messages:
            handles = [str(message.receipt_handle) for message in messages]
            self._database.spawn(self._receipts.give_back(group, handles))

    async def _forget_forever(self) -> None:
        while True:
            await asyncio.sleep(_IDLE_SECONDS / 2)
            earliest = self._database.loop.time() - _IDLE_SECONDS
            self._lists = {
                key: waiting_list
                for key, waiting_list in self._lists.items()
                if waiting_list.waiting
                or waiting_list.idle_since > earliest
                or waiting_list.pops.awaits(waiting_list.topic)
            }


def _pop(waiting_list: _WaitingList, waiter: _Waiter) -> tuple[list[ReceivedMessage], float]:
    """Called in a thread: return messages, or the time to wait for some."""
    popped = waiting_list.pops.pop(waiter.limit, waiter.invisible, waiter.client_id)
    seconds = popped.seconds_to_next
    return popped.messages, LONGEST_WAIT_SECONDS if seconds is None else min(seconds, LONGEST_WAIT_SECONDS)


def _next(waiting: deque[_Waiter]) -> _Waiter | None:
    """The first receive that is still waiting."""
    while waiting and waiting[0].future.done():
        waiting.popleft()
    return waiting[0] if waiting else None
