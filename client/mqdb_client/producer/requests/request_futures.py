"""Requests that wait for their replies, and how each of them ends: with a reply, too late, or with an error.

A sync request is ended by whichever thread has its reply, and watches its time itself. Async ones are ended by a
thread of their own, so that callbacks of users hold up neither replies nor sync requests.
RocketMQ: RequestFutureHolder, RequestResponseFuture.
"""

import logging
import threading
import time
import uuid
from collections import deque
from concurrent.futures import Future
from datetime import timedelta
from heapq import heapify, heappop, heappush
from typing import Final, TypeAlias

from mqdb.common.received_message import ReceivedMessage
from mqdb.common.user_error import log_error
from mqdb.errors import IllegalState, RequestTimeout

logger = logging.getLogger(__name__)

Outcome: TypeAlias = ReceivedMessage | BaseException

# Of the deadlines, those whose request has ended are thrown away when they are more than half, and more than this.
_OUTDATED_DEADLINES: Final = 1_000


class WaitingRequest:
    """One request, from before it is sent until its future is done. The future cannot be cancelled."""

    def __init__(self, topic: str, timeout: timedelta, *, is_async: bool = False) -> None:
        self.correlation_id = str(uuid.uuid4())
        self.is_async = is_async
        self.future: Future[ReceivedMessage] = Future()
        self.future.set_running_or_notify_cancel()
        self.topic = topic
        self._timeout_seconds = timeout.total_seconds()
        self.deadline = time.monotonic() + self._timeout_seconds

    @property
    def seconds_left(self) -> float:
        """The seconds to the deadline; 0 after it, and never more than a thread can wait."""
        return min(max(0.0, self.deadline - time.monotonic()), threading.TIMEOUT_MAX)

    def time_left(self) -> timedelta:
        """The time left for the steps before the reply. Raises RequestTimeout if no time is left."""
        if not self.seconds_left:
            raise self.late()
        return timedelta(seconds=self.seconds_left)

    def late(self) -> RequestTimeout:
        """The error for a request whose time is over."""
        return RequestTimeout(self.topic, self.correlation_id, self._timeout_seconds)

    def result(self) -> ReceivedMessage:
        """Wait for the reply. Raises RequestTimeout, and what the request has ended with otherwise."""
        try:
            return self.future.result(self.seconds_left)
        except TimeoutError:
            raise self.late() from None

    def end(self, outcome: Outcome) -> None:
        """End the request. Only the thread that has taken it out of `RequestFutures` calls this, so it happens once."""
        if isinstance(outcome, ReceivedMessage):
            self.future.set_result(outcome)
        else:
            self.future.set_exception(outcome)


class RequestFutures:
    """The requests of one producer that wait. Any thread may use it.

    There is no limit to their number: each is in the memory for its timeout at most, and the caller chose that.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: dict[str, WaitingRequest] = {}
        # Of the async ones only, also of some that have ended.
        self._deadlines: list[tuple[float, str]] = []
        self._ended: deque[tuple[WaitingRequest, Outcome]] = deque()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, request: WaitingRequest) -> None:
        """Wait for a reply from now on. Raises IllegalState after `close`."""
        with self._changed:
            self._check_open()
            self._waiting[request.correlation_id] = request
            if request.is_async:
                self._watch(request)

    def discard(self, request: WaitingRequest) -> None:
        """Stop waiting for a reply. This has no effect on a request that was discarded or has ended."""
        with self._changed:
            self._waiting.pop(request.correlation_id, None)

    def end(self, correlation_id: str, outcome: Outcome) -> bool:
        """End the request of that id; False when none of that id waits."""
        with self._changed:
            request = self._waiting.pop(correlation_id, None)
            if request is None:
                return False
            if request.is_async:
                self._hand_over(request, outcome)
                return True
        request.end(outcome)
        return True

    def check_open(self) -> None:
        """Raises IllegalState after `close`."""
        with self._changed:
            self._check_open()

    def close(self) -> None:
        """End all requests with IllegalState, and refuse new ones. Calling it twice has no effect."""
        with self._changed:
            self._is_closed = True
            given_up = list(self._waiting.values())
            self._waiting.clear()
            for request in given_up:
                if request.is_async:
                    self._hand_over(request, _shut_down())
            self._changed.notify_all()
        for request in given_up:
            if not request.is_async:
                request.end(_shut_down())

    def join(self) -> None:
        """After `close`: wait until all callbacks have returned. Called by one of them, it does not wait."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _check_open(self) -> None:
        if self._is_closed:
            raise _shut_down()

    # -- async requests -----------------------------------------------------------------------

    def _watch(self, request: WaitingRequest) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._complete, name="mqdb-request-completion", daemon=True)
            self._thread.start()
        if len(self._deadlines) > max(_OUTDATED_DEADLINES, 2 * len(self._waiting)):
            self._deadlines = [(each.deadline, key) for key, each in self._waiting.items() if each.is_async]
            heapify(self._deadlines)
        else:
            heappush(self._deadlines, (request.deadline, request.correlation_id))
        if self._deadlines[0][1] == request.correlation_id:
            self._changed.notify_all()

    def _hand_over(self, request: WaitingRequest, outcome: Outcome) -> None:
        self._ended.append((request, outcome))
        self._changed.notify_all()

    def _complete(self) -> None:
        while ended := self._next_ended():
            request, outcome = ended
            try:
                request.end(outcome)
            except BaseException as error:  # noqa: BLE001 - a callback's sys.exit() would end all others
                fields = {"topic": request.topic, "correlation_id": request.correlation_id}
                sentence = "callback of request %(correlation_id)s to topic %(topic)s failed in an unforeseen way"
                log_error(logger, sentence, error, fields)

    def _next_ended(self) -> tuple[WaitingRequest, Outcome] | None:
        """Wait for the next request that has ended; None after `close`."""
        with self._changed:
            while True:
                self._expire()
                if self._ended:
                    return self._ended.popleft()
                if self._is_closed:
                    return None
                self._changed.wait(self._seconds_to_deadline())

    def _expire(self) -> None:
        now = time.monotonic()
        while self._deadlines and self._deadlines[0][0] <= now:
            request = self._waiting.pop(heappop(self._deadlines)[1], None)
            if request is not None:
                self._ended.append((request, request.late()))

    def _seconds_to_deadline(self) -> float | None:
        if not self._deadlines:
            return None
        return min(max(0.0, self._deadlines[0][0] - time.monotonic()), threading.TIMEOUT_MAX)


def _shut_down() -> IllegalState:
    return IllegalState("the producer", "shut down; it no longer waits for the reply")
