"""Turns: pulls that have gathered while others were under way go to the database together.

    pulls ── by filter and limits ──▶ lanes ── one call of each, two at a time ──▶ answers, encoded in the thread

There is no window: the first pull goes at once, and those that come meanwhile make the next turn of their lane. Pulls
that ask the same, as members of several groups do, share what is found.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

from sqlalchemy import Connection as DatabaseConnection

from mqdb.broker.consumers.horizon import UNKNOWN_HORIZON, Horizon
from mqdb.broker.consumers.pull import PullRequest, PullResult, PullStatus, pull
from mqdb.common.message import ReceivedMessage
from mqdb.errors import BrokerUnavailable, MqdbError
from mqdb.remoting.database import Database
from mqdb.remoting.wire_message import encode_message
from mqdb.selector.subscription import MessageFilter

#: Queues in one call. Source: mqdb_client.consumer.pull_service.
_PULLED_AT_ONCE: Final = 64

#: Calls at a time. The threads take the interpreter from the loop, and sends need the others.
_MOST_CALLS: Final = 2


class Found(NamedTuple):
    """What a pull has found in a queue."""

    status: PullStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    segment: int
    #: Messages as clients read them.
    body: bytes
    last: ReceivedMessage | None


class Lane(NamedTuple):
    """Pulls that may go in one call."""

    #: None: all messages.
    filter_text: tuple[str, str] | None
    limit: int
    max_bytes: int


class _Gathered:
    """The pulls of a lane that wait for a turn, and where to look from."""

    __slots__ = ("filter", "wanted")

    def __init__(self, filter: MessageFilter | None) -> None:
        self.filter = filter
        #: With those that wait for each answer; None means that the queue is gone.
        self.wanted: dict[PullRequest, list[asyncio.Future[Found | None]]] = {}


class Turns:
    """The pulls of one front. Of its loop."""

    def __init__(self, database: Database, address: tuple[str, int]) -> None:
        self._database = database
        self._address = address
        self._waiting: dict[Lane, _Gathered] = {}
        self._busy: set[Lane] = set()
        self._horizon: Horizon = UNKNOWN_HORIZON

    async def look(
        self, request: PullRequest, filter: MessageFilter | None, limit: int, max_bytes: int
    ) -> Found | None:
        """What a queue holds; None if it is gone, or of another log. Raises what `pull` raises."""
        if filter is not None and filter.matches_all:
            filter = None
        lane = Lane(None if filter is None else (filter.expression_type, filter.canonical_text), limit, max_bytes)
        gathered = self._waiting.get(lane)
        if gathered is None:
            gathered = self._waiting[lane] = _Gathered(filter)
        future: asyncio.Future[Found | None] = self._database.loop.create_future()
        gathered.wanted.setdefault(request, []).append(future)
        self._begin()
        return await future

    def _begin(self) -> None:
        for lane in list(self._waiting):
            if len(self._busy) == _MOST_CALLS:
                return
            if lane not in self._busy:
                self._busy.add(lane)
                self._database.spawn(self._run(lane))

    async def _run(self, lane: Lane) -> None:
        gathered = self._waiting[lane]
        wanted = gathered.wanted
        if len(wanted) > _PULLED_AT_ONCE:
            wanted = {request: gathered.wanted.pop(request) for request in list(wanted)[:_PULLED_AT_ONCE]}
        else:
            del self._waiting[lane]
        try:
            answers = await self._ask(list(wanted), gathered.filter, lane)
        finally:
            self._busy.discard(lane)
            if lane in self._waiting:  # behind those of other lanes
                self._waiting[lane] = self._waiting.pop(lane)
            self._begin()
        for futures, answer in zip(wanted.values(), answers, strict=True):
            for future in futures:
                if future.done():  # the client has gone
                    continue
                if isinstance(answer, Exception):
                    future.set_exception(answer)
                else:
                    future.set_result(answer)

    async def _ask(
        self, requests: list[PullRequest], filter: MessageFilter | None, lane: Lane
    ) -> "Sequence[Found | Exception | None]":
        run = self._database.run
        try:
            return await run(partial(self._pull, requests=requests, filter=filter, lane=lane))
        except Exception as error:  # noqa: BLE001 - whoever waits is told
            if len(requests) == 1 or not isinstance(error, MqdbError) or isinstance(error, BrokerUnavailable):
                return [error] * len(requests)
        # One of them is the reason: a queue without a record, or a topic that the role may not read.
        answers: list[Found | Exception | None] = []
        for request in requests:
            answers += await self._ask([request], filter, lane)
        return answers

    def _pull(
        self, connection: DatabaseConnection, requests: list[PullRequest], filter: MessageFilter | None, lane: Lane
    ) -> list[Found | None]:
        results, self._horizon = pull(
            connection, requests, limit=lane.limit, filter=filter, max_bytes=lane.max_bytes, horizon=self._horizon
        )
        found = {result.request: self._encoded(result, filter) for result in results}
        return [found.get(request) for request in requests]

    def _encoded(self, result: PullResult, filter: MessageFilter | None) -> Found:
        """Two tags may have one code, and not every client looks again."""
        address, status, messages = self._address, result.status, result.messages
        last = messages[-1] if messages else None
        if filter is not None:
            messages = [message for message in messages if filter.matches(message.tag)]
            if not messages and status is PullStatus.FOUND:
                status = PullStatus.NO_MATCHED_MSG
        body = b"".join([encode_message(message, address) for message in messages])
        return Found(status, result.next_begin_offset, result.min_offset, result.max_offset, result.segment, body, last)
