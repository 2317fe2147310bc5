"""Async and oneway sends: the caller submits messages, and futures receive the results of async sends.

    caller ── permits ── begin ──▶ group append ──▶ completion thread ──▶ Future, callback
                                     (handed_sends: the handling of failures)

Permits bound the messages and bytes under way, so a producer that is faster than its broker has to wait instead of
filling the memory. RocketMQ: DefaultMQProducerImpl.sendDefaultImpl (ASYNC), BackpressureForAsyncSend.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from enum import Enum, auto
from functools import partial
from itertools import count
from queue import Empty, SimpleQueue
from typing import Final

from mqdb.common.user_error import reason_of
from mqdb.errors import IllegalState, SendGivenUp
from mqdb_client.producer.append import LATENESS_SECONDS
from mqdb_client.producer.sends.handed_sends import Ended, HandedSend, HandedSends
from mqdb_client.producer.sends.send_result import SendResult
from mqdb_client.producer.sends.sending import PendingSend, Sending

logger = logging.getLogger(__name__)

_numbers: Final = count(1)


class Permits:
    """Limits the number of messages under way, and the bytes of their bodies. Thread-safe."""

    def __init__(self, messages: int, body_bytes: int) -> None:
        self._limits = (messages, body_bytes)
        self._messages = 0
        self._bytes = 0
        self._is_closed = False
        self._guard = threading.RLock()
        #: Each waiting thread is woken through its own queue. A Condition raises RuntimeError if Ctrl-C comes just
        #: after it released its lock.
        self._waiting: dict[SimpleQueue[None], None] = {}

    def acquire(self, send: "_AsyncSend", deadline: float) -> bool:
        """Wait for room for one message. Returns False at the deadline (time.monotonic).

        A message above the whole limit is sent alone. Raises IllegalState after `close`.
        """
        return self._take(send) or self._wait_until(partial(self._take, send), deadline)

    def _take(self, send: "_AsyncSend") -> bool:
        body_bytes = send.body_bytes
        with self._guard:
            if self._is_closed:
                raise IllegalState("the producer", "shut down")
            if self._messages and not self._has_room(body_bytes):
                return False
            # Without a call in between, where Ctrl-C could come.
            self._messages += 1
            self._bytes += body_bytes
            send.is_under_way = True
            return True

    def release(self, send: "_AsyncSend") -> None:
        """Give back the permit of a send, if it has one."""
        body_bytes = send.body_bytes
        with self._guard:
            if send.is_under_way:
                # Without a call in between here, too.
                send.is_under_way = False
                self._messages -= 1
                self._bytes -= body_bytes
        self._wake()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way."""
        return not self._messages

    def close(self) -> None:
        """Refuse new sends, and wait until no send is under way."""
        with self._guard:
            self._is_closed = True
        self._wake()
        self._wait_until(lambda: self.is_idle)

    def _wait_until(self, is_met: Callable[[], bool], deadline: float | None = None) -> bool:
        """Wait until a condition holds, checking it now and after each wake-up. Returns False at the deadline."""
        news: SimpleQueue[None] = SimpleQueue()
        try:
            self._waiting[news] = None
            while not is_met():
                news.get(timeout=None if deadline is None else max(0.0, deadline - time.monotonic()))
            return True
        except Empty:
            return False
        finally:
            self._waiting.pop(news, None)

    def _wake(self) -> None:
        for news in tuple(self._waiting):
            if news.empty():
                news.put(None)

    def _has_room(self, body_bytes: int) -> bool:
        messages, most_bytes = self._limits
        return self._messages < messages and self._bytes + body_bytes <= most_bytes


class _AsyncSend(HandedSend):
    """A send with a Future for its result; the future is None for a oneway send."""

    __slots__ = ("_end", "_permits", "body_bytes", "future", "is_under_way")

    def __init__(self, pending: PendingSend, permits: Permits, future: "Future[SendResult] | None") -> None:
        super().__init__(pending)
        self.body_bytes = len(pending.messages[0].body)
        self.future = future
        #: Whether it has a permit.
        self.is_under_way = False
        self._permits = permits
        #: Taken by the thread that ends the send: a Ctrl-C in the caller may come at the same time as the answer.
        self._end = threading.Lock()

    def end(self, outcome: Sequence[SendResult] | BaseException) -> None:
        # First, so that a callback that sends again finds room; repeated below in case Ctrl-C interrupts it here.
        self._permits.release(self)
        if not self._end.acquire(blocking=False):
            return
        if not isinstance(outcome, BaseException):
            if self.future is not None:
                self.future.set_result(outcome[0])
        elif self.future is not None:
            self.future.set_exception(outcome)
        else:
            pending = self.pending
            fields = {"topic": pending.topic, "message_id": pending.message_ids[0], "reason": reason_of(outcome)}
            sentence = "oneway send of message %(message_id)s to topic %(topic)s failed: %(reason)s"
            logger.warning(sentence, fields, extra=fields)


class _Signal(Enum):
    """A signal to the completion thread."""

    AWAKE = auto()  #: something is under way again
    END = auto()


class AsyncSend:
    """The async and oneway sends of a producer. Thread-safe."""

    def __init__(self, sending: Sending, permits: Permits) -> None:
        self._sending = sending
        self._permits = permits
        self._threads_name = f"mqdb-async-send-{next(_numbers)}-"
        self._ended: SimpleQueue[Ended | _Signal] = SimpleQueue()
        #: Whether the completion thread waits for AWAKE, without checking deadlines.
        self._is_asleep = False
        self._look_at = 0.0
        self._sends = HandedSends(sending, self._ended.put, self._threads_name)
        name = f"{self._threads_name}completion"
        self._thread = threading.Thread(target=self._complete, name=name, daemon=True)
        try:
            self._thread.start()
        except BaseException:
            self._sends.close()
            raise

    def submit(self, pending: PendingSend) -> "Future[SendResult]":
        """Send one message; the future gets the result or the error, and cannot be cancelled.

        Waits while too many sends are under way, and for a route that is not cached yet; raises SendGivenUp if that
        takes until the deadline.
        """
        future: Future[SendResult] = Future()
        future.set_running_or_notify_cancel()
        self._begin(_AsyncSend(pending, self._permits, future))
        return future

    def submit_oneway(self, pending: PendingSend) -> None:
        """Send one message without a result; failures are logged. Waits and raises like `submit`."""
        self._begin(_AsyncSend(pending, self._permits, None))

    def is_own_thread(self) -> bool:
        """Whether this is a thread that calls callbacks."""
        return threading.current_thread().name.startswith(self._threads_name)

    def close(self) -> None:
        """Wait for all sends under way, until their deadlines at most."""
        self._permits.close()
        self._ended.put(_Signal.END)
        self._thread.join()
        self._sends.close()

    def _begin(self, send: _AsyncSend) -> None:
        pending = send.pending
        try:
            if has_room := self._permits.acquire(send, pending.deadline):
                if self._is_asleep:
                    self._is_asleep = False
                    self._ended.put(_Signal.AWAKE)
                self._sends.begin(send)
        except BaseException as error:  # Ctrl-C
            send.end(error)
            raise
        if not has_room:
            trouble = self._sending.trouble_since(pending.deadline - pending.timeout_seconds)
            given_up = SendGivenUp(pending.topic, pending.timeout_seconds, str(trouble or ""))
            given_up.add_note("too many messages are under way; see back_pressure_for_async_send_num and _size_bytes")
            raise given_up

    def _complete(self) -> None:
        while (ended := self._next_ended()) is not None:
            self._sends.conclude(ended)
            del ended  # so that the message is not kept in memory until the next one comes

    def _next_ended(self) -> Ended | None:
        """Wait for the next send to end; None on shutdown. Also ends the sends whose deadline has passed."""
        while True:
            if time.monotonic() >= self._look_at:
                self._sends.end_late()
                self._look_at = time.monotonic() + LATENESS_SECONDS
            try:
                ended = self._ended.get(timeout=max(0.0, self._look_at - time.monotonic()))
            except Empty:
                self._is_asleep = self._permits.is_idle
                # A send that begins now has seen the flag, or is seen here.
                ended = self._ended.get() if self._is_asleep and self._permits.is_idle else _Signal.AWAKE
                self._is_asleep = False
            if ended is _Signal.END:
                return None
            if not isinstance(ended, _Signal):
                return ended
