"""Turns: pulls that arrive while others are in progress are sent to the database together.

    pulls ── by filter and limits ──▶ lanes ── one call of each, two at a time ──▶ answers, encoded in the thread
      └── what a turn has read ahead ────────────────────────────────────────────▶ answers at once

There is no time window: the first pull starts immediately, and pulls that arrive during a turn form the next turn of
their lane. Equal pulls, such as those of members of several groups, share one result. If there is a backlog, a turn
reads more than a client takes at once, to answer its next pulls (decision 0078).
"""

import asyncio
from collections.abc import Hashable, Sequence
from functools import partial
from itertools import pairwise
from typing import Final, NamedTuple

from sqlalchemy import Connection as DatabaseConnection

from mqdb.broker.consumers.horizon import UNKNOWN_HORIZON, Horizon
from mqdb.broker.consumers.pull import PullRequest, PullResult, PullStatus, pull
from mqdb.common.received_message import ReceivedMessage
from mqdb.errors import BrokerUnavailable, MqdbError
from mqdb.fronts.database import Database
from mqdb.remoting.consuming.read_ahead import ReadAhead
from mqdb.remoting.wire.messages import encode_message
from mqdb.selector.subscription import MessageFilter

#: Maximum number of queues in one call. Source: mqdb_client.consumer.queues.pull_service.
_PULLED_AT_ONCE: Final = 64

#: Answers that a call reads for one queue and for all of its queues; a long call would keep the interpreter from the
#: event loop.
_MOST_PAGES: Final = 4
_PAGES_OF_A_CALL: Final = 16

#: Number of simultaneous calls. Their threads take the interpreter from the event loop, and sends need the other
#: threads.
_MOST_CALLS: Final = 2


class PullPage(NamedTuple):
    """The result of a pull in a queue."""

    status: PullStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    segment: int
    #: Messages in the encoding for clients.
    body: bytes
    last: ReceivedMessage | None


class Lane(NamedTuple):
    """Pulls that can share one call."""

    #: None stands for all messages.
    filter_text: tuple[str, str] | None
    limit: int
    max_bytes: int


class _Gathered:
    """The pulls of a lane that wait for a turn, with their filter."""

    __slots__ = ("filter", "wanted")

    def __init__(self, filter: MessageFilter | None) -> None:
        self.filter = filter
        #: Each request with the futures that wait for its answer; None as an answer means that the queue is gone.
        self.wanted: dict[PullRequest, list[asyncio.Future[PullPage | None]]] = {}


class Turns:
    """The pulls of one front. Use it in the front's event loop only."""

    def __init__(self, database: Database, address: tuple[str, int]) -> None:
        self._database = database
        self._address = address
        self._waiting: dict[Lane, _Gathered] = {}
        self._busy: set[Lane] = set()
        self._ahead: ReadAhead[PullPage] = ReadAhead()
        self._horizon: Horizon = UNKNOWN_HORIZON

    async def look(
        self, request: PullRequest, filter: MessageFilter | None, limit: int, max_bytes: int
    ) -> PullPage | None:
        """The page of a queue for a pull; None if the queue is gone or belongs to another log.

        Raises the errors of `pull`.
        """
        if filter is not None and filter.matches_all:
            filter = None
        lane = Lane(None if filter is None else (filter.expression_type, filter.canonical_text), limit, max_bytes)
        page = self._ahead.take(_key(lane, request, request.offset))
        if page is not None:
            return page
        gathered = self._waiting.get(lane)
        if gathered is None:
            gathered = self._waiting[lane] = _Gathered(filter)
        future: asyncio.Future[PullPage | None] = self._database.loop.create_future()
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
            if lane in self._waiting:  # after those of other lanes
                self._waiting[lane] = self._waiting.pop(lane)
            self._begin()
        for (request, futures), answer in zip(wanted.items(), answers, strict=True):
            for future in futures:
                if future.done():  # the client has disconnected
                    continue
                if isinstance(answer, Exception):
                    future.set_exception(answer)
                else:
                    future.set_result(None if answer is None else answer[0])
            if isinstance(answer, list):
                for page, following in pairwise(answer):
                    self._ahead.keep(_key(lane, request, page.next_begin_offset), following, len(following.body))

    async def _ask(
        self, requests: list[PullRequest], filter: MessageFilter | None, lane: Lane
    ) -> "Sequence[list[PullPage] | Exception | None]":
        run = self._database.run
        try:
            return await run(partial(self._pull, requests=requests, filter=filter, lane=lane))
        except Exception as error:  # noqa: BLE001 - whoever waits is told
            if len(requests) == 1 or not isinstance(error, MqdbError) or isinstance(error, BrokerUnavailable):
                return [error] * len(requests)
        # One of the requests causes the error: a queue without a record, or a topic that the role may not read.
        answers: list[list[PullPage] | Exception | None] = []
        for request in requests:
            answers += await self._ask([request], filter, lane)
        return answers

    def _pull(
        self, connection: DatabaseConnection, requests: list[PullRequest], filter: MessageFilter | None, lane: Lane
    ) -> list[list[PullPage] | None]:
        limit = lane.limit * max(1, min(_MOST_PAGES, _PAGES_OF_A_CALL // len(requests)))
        results, self._horizon = pull(
            connection, requests, limit=limit, filter=filter, max_bytes=lane.max_bytes, horizon=self._horizon
        )
        found = {result.request: self._pages(result, filter, lane.limit) for result in results}
        return [found.get(request) for request in requests]

    def _pages(self, result: PullResult, filter: MessageFilter | None, limit: int) -> list[PullPage]:
        """The answer to the pull, followed by the answers to the pulls that continue after it."""
        messages = result.messages
        pages = [messages[start : start + limit] for start in range(0, len(messages), limit)] or [[]]
        # The next pages may start in the segment where this pull began.
        own = result.request.segment
        ends = [(page[-1].queue_offset + 1, own) for page in pages[:-1]]
        ends.append((result.next_begin_offset, result.segment))
        return [self._encoded(result, page, end, filter) for page, end in zip(pages, ends, strict=True)]

    def _encoded(
        self, result: PullResult, messages: list[ReceivedMessage], end: tuple[int, int], filter: MessageFilter | None
    ) -> PullPage:
        """Encode a page without messages of other tags.

        Two tags may have the same code, and not every client filters again.
        """
        address, status = self._address, result.status
        last = messages[-1] if messages else None
        if filter is not None:
            messages = [message for message in messages if filter.matches(message.tag)]
            if not messages and status is PullStatus.FOUND:
                status = PullStatus.NO_MATCHED_MSG
        body = b"".join([encode_message(message, address) for message in messages])
        return PullPage(status, end[0], result.min_offset, result.max_offset, end[1], body, last)


def _key(lane: Lane, request: PullRequest, offset: int) -> Hashable:
    return lane, request.queue_key, request.history, offset
