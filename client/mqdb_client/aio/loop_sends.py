"""The sends of an event loop. All tasks of the loop share the statements of group append.

One call to the loop reports all sends that have ended since the previous call:

    task ── begin ──▶ group append ──▶ ended ── one call_soon_threadsafe ──▶ the loop ──▶ futures of the tasks
                        (handed_sends: the handling of failures)

Only the number of tasks limits the number of sends under way, because each task waits for its send.
"""

import asyncio
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any, Final
from uuid import UUID

from sqlalchemy import Connection

from mqdb.common.user_error import chain_of, for_future, reason_of
from mqdb.errors import SendGivenUp
from mqdb.store.engine import driver
from mqdb_client.producer.append import LATENESS_SECONDS, BrokerLink, GroupAppend
from mqdb_client.producer.running_producer import RunningProducer
from mqdb_client.producer.sends.handed_sends import Ended, HandedSend, HandedSends
from mqdb_client.producer.sends.send_result import SendResult
from mqdb_client.producer.sends.sending import Attempt, PendingSend

logger = logging.getLogger(__name__)

_numbers: Final = count(1)

#: The attribute in which `send` stores the ids of messages that may be stored.
_IDS: Final = "mqdb_message_ids"


class LoopSends:
    """The sends of one event loop; the methods may only be called in that loop."""

    def __init__(self, running: RunningProducer) -> None:
        self.loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._running = running
        self._ended: deque[Ended] = deque()
        self._is_called = False
        #: Whether several sends ended together the last time.
        self._have_company = False
        self._sends = HandedSends(running.sending, self._tell_ended, f"mqdb-loop-sends-{next(_numbers)}-")
        self._under_way: set[_LoopSend] = set()
        #: The sends that were cancelled while a statement had them.
        self._detached: dict[UUID, asyncio.Future[Sequence[SendResult]]] = {}
        self._oneway: set[asyncio.Future[Sequence[SendResult]]] = set()
        self._oneway_bytes = 0
        self._finding: dict[str, asyncio.Task[object]] = {}
        self._look: asyncio.TimerHandle | None = None
        self._watches: dict[str, _Watch] = {}

    async def send(self, pending: PendingSend) -> Sequence[SendResult]:
        """Send and wait for the result. Raises the errors of `Sending.send`.

        If the task is cancelled before its send is part of a statement, nothing is sent. Otherwise the send continues:
        the CancelledError contains the ids of its messages, and `settled` waits for its end.
        """
        await self._find_route(pending)
        send = self._begin(pending)
        try:
            return await send.future
        except asyncio.CancelledError as error:
            self._leave(send, error)
            raise

    async def send_oneway(self, pending: PendingSend) -> None:
        """Send one message once there is room, without waiting for the result. A failure is logged.

        Raises SendGivenUp if there is no room before the deadline of the send.
        """
        await self._find_route(pending)
        while self._oneway and not self._has_room(pending):
            seconds = pending.deadline - time.monotonic()
            if seconds <= 0:
                raise SendGivenUp(pending.topic, pending.timeout_seconds, "too many messages are under way")
            await asyncio.wait(self._oneway, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        size = len(pending.messages[0].body)
        self._oneway_bytes += size
        future = self._begin(pending).future
        self._oneway.add(future)
        future.add_done_callback(partial(self._end_oneway, pending, size))

    async def settled(self, unique_id: UUID) -> None:
        """Wait for the end of a send whose task was cancelled."""
        if (future := self._detached.get(unique_id)) is not None:
            await asyncio.wait([future])

    def close(self) -> None:
        """Wait for all sends under way, until their deadlines at most. Must not be called in the running loop."""
        if self.loop.is_running():
            asyncio.run_coroutine_threadsafe(self._end_all(), self.loop).result()
        self._sends.close()
        for watch in self._watches.values():
            watch.close()

    def append_alone(self, attempt: Attempt, ended: Callable[[], None]) -> bool:
        """Send the statement of an attempt now, and let the loop read the answer.

        Returns False if the send has to share a statement with other sends. A single send needs no thread switch this
        way. Tasks whose sends ended together also begin their next sends together, and more of these share a statement
        if the append thread has to wake up first.
        """
        if self._have_company or len(self._under_way) > 1 or threading.get_ident() != self._thread:
            return False
        link = attempt.place.link
        return link.appends.begin(attempt, ended, partial(self._watch, link))

    def _watch(self, link: BrokerLink, connection: Connection) -> None:
        watch = self._watches.get(link.name)
        if watch is None or watch.connection is not connection:
            if watch is not None:
                watch.end()
                watch.close()
            watch = self._watches[link.name] = _Watch(self, connection, link.appends)
        watch.begin()

    def call(self, callback: Callable[..., object], *arguments: Any) -> None:
        """Call a function in the loop, immediately if this is its thread."""
        if threading.get_ident() == self._thread:
            callback(*arguments)
        else:
            with suppress(RuntimeError):  # the loop is closed, so no task waits
                self.loop.call_soon_threadsafe(callback, *arguments)

    def _has_room(self, pending: PendingSend) -> bool:
        config = self._running.sending.config
        size = self._oneway_bytes + len(pending.messages[0].body)
        most = config.back_pressure_for_async_send_num, config.back_pressure_for_async_send_size_bytes
        return len(self._oneway) < most[0] and size <= most[1]

    def _end_oneway(self, pending: PendingSend, size: int, future: "asyncio.Future[Sequence[SendResult]]") -> None:
        self._oneway.discard(future)
        self._oneway_bytes -= size
        if not future.cancelled() and (error := future.exception()) is not None:
            fields = {"topic": pending.topic, "message_id": pending.message_ids[0], "reason": reason_of(error)}
            sentence = "oneway send of message %(message_id)s to topic %(topic)s failed: %(reason)s"
            logger.warning(sentence, fields, extra=fields)

    async def _find_route(self, pending: PendingSend) -> None:
        """Wait for the route of an unknown topic. One thread finds the route for all tasks that need it."""
        routes, topic = self._running.routes, pending.topic
        while (known := routes.known.get(topic)) is None or not known.is_current:
            finding = self._finding.get(topic)
            if finding is None:
                find = partial(routes.find, topic, pending.deadline, pending.timeout_seconds)
                finding = self._finding[topic] = self.loop.create_task(asyncio.to_thread(find))
                finding.add_done_callback(partial(self._end_finding, topic))
                await asyncio.shield(finding)
            else:
                await asyncio.wait([finding], timeout=max(0.0, pending.deadline - time.monotonic()))

    def _end_finding(self, topic: str, finding: "asyncio.Task[object]") -> None:
        del self._finding[topic]
        if not finding.cancelled():
            finding.exception()  # the waiting task may have been cancelled

    async def _end_all(self) -> None:
        while self._under_way:
            await asyncio.wait([send.future for send in self._under_way])
        for watch in self._watches.values():
            watch.end()

    def _begin(self, pending: PendingSend) -> "_LoopSend":
        send = _LoopSend(pending, self)
        self._under_way.add(send)
        if self._look is None:
            self._look = self.loop.call_later(LATENESS_SECONDS, self._end_late)
        self._sends.begin(send)
        return send

    def _tell_ended(self, ended: Ended) -> None:
        """Report the end of an attempt; called in any thread."""
        self._ended.append(ended)
        if not self._is_called:
            self._is_called = True
            with suppress(RuntimeError):
                self.loop.call_soon_threadsafe(self._conclude)

    def read(self, appends: GroupAppend) -> bool:
        """Read the answer to the statement of `append_alone`. Returns False if the answer is for another send."""
        self._is_called = True  # sends that end here are reported below
        try:
            return appends.end_begun()
        finally:
            self._conclude()

    def _conclude(self) -> None:
        self._is_called = False  # before checking: a later thread calls again
        self._have_company = len(self._ended) > 1
        while self._ended:
            self._sends.conclude(self._ended.popleft())

    def _end_late(self) -> None:
        self._sends.end_late()
        self._look = self.loop.call_later(LATENESS_SECONDS, self._end_late) if self._under_way else None

    def end(self, send: "_LoopSend", outcome: Sequence[SendResult] | BaseException) -> None:
        """Report the end of a send, in the loop."""
        self._under_way.discard(send)
        send.outcome = outcome
        if send.future.done():  # its task is cancelled but does not know yet
            return
        if isinstance(outcome, BaseException):
            send.future.set_exception(for_future(outcome))
        else:
            send.future.set_result(outcome)

    def _leave(self, send: "_LoopSend", error: asyncio.CancelledError) -> None:
        """Handle the cancellation of a send's task."""
        if send in self._under_way:
            if send.withdraw():
                self._under_way.discard(send)
                return
            # The task has cancelled the future for which it waited.
            future = send.future = self.loop.create_future()
            for unique_id in send.pending.unique_ids:
                self._detached[unique_id] = future
            future.add_done_callback(partial(self._forget, send.pending.unique_ids))
        elif isinstance(
            send.outcome, BaseException
        ):  # it has ended, and the task would have been notified in this iteration
            return
        note_ids(error, send.pending)

    def _forget(self, unique_ids: Sequence[UUID], future: "asyncio.Future[Sequence[SendResult]]") -> None:
        for unique_id in unique_ids:
            del self._detached[unique_id]
        future.exception()  # no other thread checks this


class _Watch:
    """Makes the loop read an answer as soon as the connection is readable."""

    def __init__(self, sends: LoopSends, connection: Connection, appends: GroupAppend) -> None:
        self.connection = connection
        self._sends = sends
        self._appends = appends
        # A duplicate descriptor: the loop may still watch it when the connection is closed and its number is reused.
        self._descriptor = os.dup(driver(connection).fileno())
        self._is_on = False

    def begin(self) -> None:
        """Let the loop watch the connection until another thread reads from it."""
        if not self._is_on:
            self._is_on = True
            self._sends.loop.add_reader(self._descriptor, self._read)

    def _read(self) -> None:
        if not self._sends.read(self._appends):
            self.end()

    def end(self) -> None:
        """Stop watching the connection."""
        self._is_on = False
        self._sends.loop.remove_reader(self._descriptor)

    def close(self) -> None:
        """Close the descriptor, after `end` or after the loop has ended."""
        os.close(self._descriptor)


class _LoopSend(HandedSend):
    """One send of a task. The future belongs to the loop."""

    __slots__ = ("_sends", "future", "outcome")

    def __init__(self, pending: PendingSend, sends: LoopSends) -> None:
        super().__init__(pending)
        self._sends = sends
        self.future: asyncio.Future[Sequence[SendResult]] = sends.loop.create_future()
        self.outcome: Sequence[SendResult] | BaseException | None = None

    def append(self, attempt: Attempt, ended: Callable[[], None]) -> None:
        if not self._sends.append_alone(attempt, ended):
            super().append(attempt, ended)

    def end(self, outcome: Sequence[SendResult] | BaseException) -> None:
        self._sends.call(self._sends.end, self, outcome)


def note_ids(error: asyncio.CancelledError, pending: PendingSend) -> None:
    """Add the ids of messages that may be stored to an error."""
    vars(error)[_IDS] = pending.message_ids
    error.add_note(f"may be stored: {', '.join(pending.message_ids)}; ask outcome()")


def ids_that_may_be_stored(error: BaseException) -> tuple[str, ...]:
    """The ids of messages whose send was cancelled after the send had become part of a statement.

    The ids are in the CancelledError, and in the TimeoutError that `asyncio.timeout` makes from it.
    `AsyncProducer.outcome` returns the outcome of each send.
    """
    return next((tuple(vars(each)[_IDS]) for each in chain_of(error) if _IDS in vars(each)), ())
