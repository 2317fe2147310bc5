"""Async and oneway sends: handed in by the caller, appended in groups, told to a Future when they end.

    caller ── permits ── begin ──▶ group append ──▶ completion thread ──▶ Future, callback
                           ▲                              │ it has failed
                           │                              ▼
                           └── another try ◀── threads that judge ◀── where the outcome is unknown: settling

Permits bound the messages and bytes under way, so that a producer that is faster than its broker waits instead of
filling the memory. RocketMQ: DefaultMQProducerImpl.sendDefaultImpl (ASYNC), BackpressureForAsyncSend.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from enum import Enum, auto
from functools import partial
from itertools import count
from queue import Empty, SimpleQueue
from typing import Final, TypeAlias

from mqdb.common.message import SendResult
from mqdb.errors import IllegalState, MqdbError, SendGivenUp
from mqdb_client.producer.append_plan import NoAnswer
from mqdb_client.producer.send_hooks import SendMode
from mqdb_client.producer.sending import Attempt, PendingSend, Sending
from mqdb_client.producer.settling import OpenSend, Settling

logger = logging.getLogger(__name__)

_numbers = count(1)

# They only work while something is wrong.
_JUDGING_THREADS: Final = 2

# How late one learns at most that its time is up.
_LATENESS_SECONDS: Final = 0.05


class Permits:
    """Bounds the messages, and the bytes of their bodies, that are under way. Any thread may use it."""

    def __init__(self, messages: int, body_bytes: int) -> None:
        self._limits = (messages, body_bytes)
        self._messages = 0
        self._bytes = 0
        self._is_closed = False
        # Entered by itself: Ctrl-C may come while a Condition is, whose __enter__ is Python, and would leave it locked.
        self._guard = threading.RLock()
        self._changed = threading.Condition(self._guard)

    def acquire(self, handed: "_Handed", deadline: float) -> bool:
        """Wait for room for one message; False at the deadline, which is of time.monotonic.

        A message larger than all that is allowed goes alone. Raises IllegalState after `close`.
        """
        with self._guard:
            while self._messages and not self._has_room(handed.body_bytes) and not self._is_closed:
                if not self._changed.wait(max(0.0, deadline - time.monotonic())) and time.monotonic() >= deadline:
                    return False
            if self._is_closed:
                raise IllegalState("the producer", "shut down")
            body_bytes = handed.body_bytes
            # With no call between them, after which Ctrl-C could come.
            self._messages += 1
            self._bytes += body_bytes
            handed.is_under_way = True
            return True

    def release(self, handed: "_Handed") -> None:
        """One message is not under way any more, if it ever was."""
        body_bytes = handed.body_bytes
        with self._guard:
            if handed.is_under_way:
                # With no call between them either.
                handed.is_under_way = False
                self._messages -= 1
                self._bytes -= body_bytes
            self._changed.notify_all()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way."""
        return not self._messages

    def close(self) -> None:
        """Let nobody in any more, and wait until nothing is under way."""
        with self._guard:
            self._is_closed = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._messages == 0)

    def _has_room(self, body_bytes: int) -> bool:
        messages, most_bytes = self._limits
        return self._messages < messages and self._bytes + body_bytes <= most_bytes


class _Handed:
    """A send that nobody waits for, and what will tell of its end; None where nobody asks."""

    __slots__ = ("end", "future", "is_under_way", "pending")

    def __init__(self, pending: PendingSend, future: "Future[SendResult] | None") -> None:
        self.pending = pending
        self.future = future
        #: Whether it has a permit.
        self.is_under_way = False
        #: Taken by the one who ends it: a Ctrl-C in the caller may come at the same time as the answer.
        self.end = threading.Lock()

    @property
    def body_bytes(self) -> int:
        return len(self.pending.messages[0].body)


_Ended: TypeAlias = tuple[_Handed, Attempt]
_Failed: TypeAlias = tuple[_Handed, Attempt, MqdbError | NoAnswer]


class _Signal(Enum):
    """For the completion thread."""

    AWAKE = auto()  #: something is under way again
    END = auto()


class AsyncSend:
    """The async and oneway sends of a producer. Any thread may use it."""

    def __init__(self, sending: Sending, permits: Permits) -> None:
        self._sending = sending
        self._permits = permits
        self._threads_name = f"mqdb-async-send-{next(_numbers)}-"
        self._ended: SimpleQueue[_Ended | _Signal] = SimpleQueue()
        #: The completion thread waits for AWAKE, and looks at no deadlines meanwhile.
        self._is_asleep = False
        self._look_at = 0.0
        #: What has failed and is not judged yet, and for each of them, or of those that were, a True; False: the end.
        self._failed: deque[_Failed] = deque()
        self._to_judge: SimpleQueue[bool] = SimpleQueue()
        self._settling = Settling(f"{self._threads_name}settle-")
        self._threads = [self._thread(self._complete, "completion")]
        self._threads += [self._thread(self._judge_all, f"judging-{number}") for number in range(_JUDGING_THREADS)]
        try:
            for thread in self._threads:
                thread.start()
        except BaseException:
            self._end_threads()
            raise

    def submit(self, pending: PendingSend) -> "Future[SendResult]":
        """Send one message; the future has its result, or the error. It cannot be cancelled.

        Waits while too much is under way, and for the route of a topic that is not known yet; raises SendGivenUp
        when that takes until the deadline.
        """
        future: Future[SendResult] = Future()
        future.set_running_or_notify_cancel()
        self._begin(_Handed(pending, future))
        return future

    def submit_oneway(self, pending: PendingSend) -> None:
        """Send one message and never hear of it; the log tells of failures. Waits and raises as `submit` does."""
        self._begin(_Handed(pending, None))

    def is_own_thread(self) -> bool:
        """Whether this is a thread that calls callbacks."""
        return threading.current_thread().name.startswith(self._threads_name)

    def close(self) -> None:
        """Wait for the end of all that is under way: until its deadline at most."""
        self._permits.close()
        self._settling.close()
        self._end_threads()

    def _thread(self, work: Callable[[], None], name: str) -> threading.Thread:
        return threading.Thread(target=work, name=f"{self._threads_name}{name}", daemon=True)

    def _end_threads(self) -> None:
        self._ended.put(_Signal.END)
        for _ in range(_JUDGING_THREADS):
            self._to_judge.put(False)
        for thread in self._threads:
            if thread.is_alive():
                thread.join()

    def _begin(self, handed: _Handed) -> None:
        pending = handed.pending
        try:
            if has_room := self._permits.acquire(handed, pending.deadline):
                if self._is_asleep:
                    self._is_asleep = False
                    self._ended.put(_Signal.AWAKE)
                self._try(handed)
        except BaseException as error:  # Ctrl-C
            self._end(handed, error)
            raise
        if not has_room:
            trouble = self._sending.trouble_since(pending.deadline - pending.timeout_seconds)
            given_up = SendGivenUp(pending.topic, pending.timeout_seconds, str(trouble or ""))
            given_up.add_note("too many messages are under way; see back_pressure_for_async_send_num and _size_bytes")
            raise given_up

    def _try(self, handed: _Handed) -> None:
        pending = handed.pending
        try:
            attempt = self._sending.begin(pending)
            attempt.place.link.appends.hand_in(attempt, partial(self._ended.put, (handed, attempt)))
        except Exception as error:  # noqa: BLE001 - whoever looks at the future raises it
            self._end(handed, error)

    def _complete(self) -> None:
        while (ended := self._next_ended()) is not None:
            handed, attempt = ended
            try:
                self._conclude(handed, attempt)
            except BaseException as error:  # a callback that calls sys.exit would else end the sends of all others
                logger.exception("an async send has ended in an unforeseen way")
                self._end(handed, error)
            del ended, handed, attempt  # not to keep the message until the next one comes

    def _next_ended(self) -> _Ended | None:
        """The next that has ended; None: nothing will. Meanwhile those end whose time is up, whatever they wait for."""
        while True:
            if time.monotonic() >= self._look_at:
                self._end_late()
                self._look_at = time.monotonic() + _LATENESS_SECONDS
            try:
                ended = self._ended.get(timeout=max(0.0, self._look_at - time.monotonic()))
            except Empty:
                self._is_asleep = self._permits.is_idle
                # Whoever begins now has seen that, or is seen here.
                ended = self._ended.get() if self._is_asleep and self._permits.is_idle else _Signal.AWAKE
                self._is_asleep = False
            if ended is _Signal.END:
                return None
            if not isinstance(ended, _Signal):
                return ended

    def _end_late(self) -> None:
        self._sending.end_late()
        self._settling.end_late()
        now = time.monotonic()
        # Both threads that judge may wait, by other deadlines.
        for failed in [failed for failed in self._failed.copy() if failed[0].pending.deadline <= now]:
            with suppress(ValueError):  # it is being judged
                self._failed.remove(failed)
                self._judge_safely(failed)

    def _conclude(self, handed: _Handed, attempt: Attempt) -> None:
        error = attempt.error
        if error is None:
            self._finish(handed, attempt)
        elif not isinstance(error, MqdbError | NoAnswer):
            self._end(handed, error)
        else:
            judge = partial(self._have_judged, (handed, attempt, error))
            if isinstance(error, NoAnswer) and handed.pending.mode is not SendMode.ONEWAY:
                self._settling.add(OpenSend(attempt, error, judge))
            else:
                judge()

    def _finish(self, handed: _Handed, attempt: Attempt) -> None:
        results = self._sending.finish(handed.pending, attempt)
        assert results is not None  # only sync sends go to another broker as well
        self._end(handed, results[0])

    def _have_judged(self, failed: _Failed) -> None:
        self._failed.append(failed)
        self._to_judge.put(True)

    def _judge_all(self) -> None:
        while self._to_judge.get():
            with suppress(IndexError):  # its time was over before its turn
                self._judge_safely(self._failed.popleft())

    def _judge_safely(self, failed: _Failed) -> None:
        try:
            self._judge(*failed)
        except BaseException:  # a callback that calls sys.exit would else end the sends of all others
            logger.exception("an async send has ended in an unforeseen way")

    def _judge(self, handed: _Handed, attempt: Attempt, error: MqdbError | NoAnswer) -> None:
        try:
            if self._sending.judge(handed.pending, attempt, error):
                self._finish(handed, attempt)
            else:
                self._try(handed)
        except BaseException as verdict:  # noqa: BLE001 - whoever looks at the future raises it
            self._end(handed, verdict)

    def _end(self, handed: _Handed, outcome: SendResult | BaseException) -> None:
        # First, so that a callback that sends again finds room; and again where Ctrl-C has come in the first time.
        self._permits.release(handed)
        if not handed.end.acquire(blocking=False):
            return
        if isinstance(outcome, SendResult):
            if handed.future is not None:
                handed.future.set_result(outcome)
        elif handed.future is not None:
            handed.future.set_exception(outcome)
        else:
            logger.warning("a oneway send has failed", extra={"topic": handed.pending.topic, "reason": str(outcome)})
