"""Requests that wait for their replies. Each request ends with a reply, at its timeout, or with an error.

A sync request is ended by the thread that has its reply; the requesting thread itself watches the deadline. Async
requests are ended by a separate thread, so that users' callbacks delay neither replies nor sync requests. RocketMQ:
RequestFutureHolder, RequestResponseFuture.
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

# Deadlines of ended requests are discarded once they are more than half of all deadlines, and more than this number.
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
        """The error for a request that has timed out."""
        return RequestTimeout(self.topic, self.correlation_id, self._timeout_seconds)

    def result(self) -> ReceivedMessage:
        """Wait for the reply. Raises RequestTimeout, or the error with which the request has ended."""
        try:
            return self.future.result(self.seconds_left)
        except TimeoutError:
            raise self.late() from None

    def end(self, outcome: Outcome) -> None:
        """End the request.

        Only the thread that has taken the request out of `RequestFutures` calls this, so the request ends once.
        """
        if isinstance(outcome, ReceivedMessage):
            self.future.set_result(outcome)
        else:
            self.future.set_exception(outcome)


class RequestFutures:
    """The waiting requests of one producer. Thread-safe.

    The number of requests is not limited: each request stays in memory for its timeout at most, which the caller chose.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: dict[str, WaitingRequest] = {}
        # Deadlines of async requests only, including some that have ended.
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
        """End the request with this id. Returns False if no such request waits."""
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
        """End all requests with IllegalState, and refuse new requests. Calling it twice has no effect."""
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
        """After `close`, wait until all callbacks have returned. Does not wait if called by a callback."""
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
