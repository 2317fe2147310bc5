"""Async and oneway sends: handed in by the caller, appended in groups, told to a Future when they end.

    caller ── permits ── begin ──▶ group append ──▶ completion thread ──▶ Future, callback
                           ▲                              │ it has failed
                           │                              ▼
                           └── another try ◀── a few threads that judge; where the outcome is unknown, other ones,
                                               for they wait until the broker can say it

Permits bound the messages and bytes under way, so that a producer that is faster than its broker waits instead of
filling the memory. RocketMQ: DefaultMQProducerImpl.sendDefaultImpl (ASYNC), BackpressureForAsyncSend.
"""

import logging
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import count
from queue import SimpleQueue
from typing import Final

from mqdb.errors import IllegalState, MqdbError, SendGivenUp
from mqdb.message import SendResult
from mqdb_client.append_unit import OutcomeUnknown
from mqdb_client.producer.delivery import Delivery
from mqdb_client.producer.sending import Attempt, Sending
from mqdb_client.producer_hooks import SendMode

logger = logging.getLogger(__name__)

_numbers = count(1)

# They only work while something is wrong. Those that settle wait for the broker.
_JUDGING_THREADS: Final = 2
_SETTLING_THREADS: Final = 4


class Permits:
    """Bounds the messages, and the bytes of their bodies, that are under way. Any thread may use it."""

    def __init__(self, messages: int, body_bytes: int) -> None:
        self._limits = (messages, body_bytes)
        self._messages = 0
        self._bytes = 0
        self._is_closed = False
        self._changed = threading.Condition()

    def acquire(self, body_bytes: int, deadline: float) -> bool:
        """Wait for room for one message; False at the deadline, which is of time.monotonic.

        A message larger than all that is allowed goes alone. Raises IllegalState after `close`.
        """
        with self._changed:
            while self._messages and not self._has_room(body_bytes) and not self._is_closed:
                if not self._changed.wait(max(0.0, deadline - time.monotonic())) and time.monotonic() >= deadline:
                    return False
            if self._is_closed:
                raise IllegalState("the producer", "shut down")
            self._messages += 1
            self._bytes += body_bytes
            return True

    def release(self, body_bytes: int) -> None:
        """One message is not under way any more."""
        with self._changed:
            self._messages -= 1
            self._bytes -= body_bytes
            self._changed.notify_all()

    def close(self) -> None:
        """Let nobody in any more, and wait until nothing is under way."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._messages == 0)

    def _has_room(self, body_bytes: int) -> bool:
        messages, most_bytes = self._limits
        return self._messages < messages and self._bytes + body_bytes <= most_bytes


class _Handed:
    """A delivery that nobody waits for, and what will tell of its end; None where nobody asks."""

    __slots__ = ("delivery", "end", "future")

    def __init__(self, delivery: Delivery, future: "Future[SendResult] | None") -> None:
        self.delivery = delivery
        self.future = future
        #: Taken by the one who ends it: a Ctrl-C in the caller may come at the same time as the answer.
        self.end = threading.Lock()

    @property
    def body_bytes(self) -> int:
        return len(self.delivery.messages[0].body)


class AsyncSend:
    """The async and oneway sends of a producer. Any thread may use it."""

    def __init__(self, sending: Sending, permits: Permits) -> None:
        self._sending = sending
        self._permits = permits
        self._threads_name = f"mqdb-async-send-{next(_numbers)}-"
        self._ended: SimpleQueue[tuple[_Handed, Attempt] | None] = SimpleQueue()
        self._judging = ThreadPoolExecutor(_JUDGING_THREADS, thread_name_prefix=f"{self._threads_name}again")
        self._settling = ThreadPoolExecutor(_SETTLING_THREADS, thread_name_prefix=f"{self._threads_name}settle")
        self._thread = threading.Thread(target=self._complete, name=f"{self._threads_name}completion", daemon=True)
        self._thread.start()

    def submit(self, delivery: Delivery) -> "Future[SendResult]":
        """Send one message; the future has its result, or the error. It cannot be cancelled.

        Waits while too much is under way, and for the route of a topic that is not known yet; raises SendGivenUp
        when that takes until the deadline.
        """
        future: Future[SendResult] = Future()
        future.set_running_or_notify_cancel()
        self._begin(_Handed(delivery, future))
        return future

    def submit_oneway(self, delivery: Delivery) -> None:
        """Send one message and never hear of it; the log tells of failures. Waits and raises as `submit` does."""
        self._begin(_Handed(delivery, None))

    def is_own_thread(self) -> bool:
        """Whether this is a thread that calls callbacks."""
        return threading.current_thread().name.startswith(self._threads_name)

    def close(self) -> None:
        """Wait for the end of all that is under way: until its deadline at most."""
        self._permits.close()
        self._ended.put(None)
        self._thread.join()
        self._judging.shutdown()
        self._settling.shutdown()

    def _begin(self, handed: _Handed) -> None:
        delivery = handed.delivery
        if not self._permits.acquire(handed.body_bytes, delivery.deadline):
            error = SendGivenUp(delivery.topic, delivery.timeout_seconds)
            error.add_note("too many messages are under way; see back_pressure_for_async_send_num and _size")
            raise error
        try:
            self._try(handed)
        except BaseException as error:  # Ctrl-C
            self._end(handed, error)
            raise

    def _try(self, handed: _Handed) -> None:
        delivery = handed.delivery
        try:
            attempt = self._sending.begin(delivery)
            attempt.place.link.appends.hand_in(attempt, partial(self._ended.put, (handed, attempt)))
        except Exception as error:  # noqa: BLE001 - whoever looks at the future raises it
            self._end(handed, error)

    def _complete(self) -> None:
        while (ended := self._ended.get()) is not None:
            handed, attempt = ended
            try:
                if attempt.error is None:
                    self._finish(handed, attempt)
                else:
                    must_wait = (
                        isinstance(attempt.error, OutcomeUnknown) and handed.delivery.mode is not SendMode.ONEWAY
                    )
                    threads = self._settling if must_wait else self._judging
                    threads.submit(self._judge, handed, attempt, attempt.error)
            except BaseException as error:  # a callback that calls sys.exit would else end the sends of all others
                logger.exception("an async send has ended in an unforeseen way")
                self._end(handed, error)

    def _finish(self, handed: _Handed, attempt: Attempt) -> None:
        results = self._sending.finish(handed.delivery, attempt)
        assert results is not None  # only sync sends go to another broker as well
        self._end(handed, results[0])

    def _judge(self, handed: _Handed, attempt: Attempt, error: MqdbError | OutcomeUnknown) -> None:
        try:
            if self._sending.judge(handed.delivery, attempt, error):
                self._finish(handed, attempt)
            else:
                self._try(handed)
        except BaseException as verdict:  # noqa: BLE001 - whoever looks at the future raises it
            self._end(handed, verdict)

    def _end(self, handed: _Handed, outcome: SendResult | BaseException) -> None:
        if not handed.end.acquire(blocking=False):
            return
        # First, so that a callback that sends again finds room.
        self._permits.release(handed.body_bytes)
        if isinstance(outcome, SendResult):
            if handed.future is not None:
                handed.future.set_result(outcome)
        elif handed.future is not None:
            handed.future.set_exception(outcome)
        else:
            logger.warning("a oneway send has failed", extra={"topic": handed.delivery.topic, "reason": str(outcome)})
