"""Sends that no thread waits for: each attempt is submitted, and failures are handled in other threads.

begin ──▶ group append ──▶ ended ── conclude ──▶ HandedSend.end
  ▲                                     │ it has failed
  │                                     ▼
  └── another try ◀── threads that judge ◀── where the outcome is unknown: settling
"""

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Final, TypeAlias

from mqdb.common.user_error import log_error
from mqdb.errors import IllegalState, MqdbError
from mqdb_client.producer.append.append_plan import NoAnswer
from mqdb_client.producer.sends.send_hooks import SendMode
from mqdb_client.producer.sends.send_result import SendResult
from mqdb_client.producer.sends.sending import Attempt, PendingSend, Sending
from mqdb_client.producer.sends.settling import OpenSend, Settling

logger = logging.getLogger(__name__)

_UNFORESEEN: Final = "send to topic %(topic)s failed in an unforeseen way"

# They are busy only while something is wrong.
_JUDGING_THREADS: Final = 2


class HandedSend(ABC):
    """One send from call to end; the end is reported once."""

    __slots__ = ("_attempt", "_is_withdrawn", "pending")

    def __init__(self, pending: PendingSend) -> None:
        self.pending = pending
        self._attempt: Attempt | None = None
        self._is_withdrawn = False

    @abstractmethod
    def end(self, outcome: Sequence[SendResult] | BaseException) -> None:
        """Called once at the end of the send, with the results of its messages or an error."""

    def hand_in(self, attempt: Attempt, ended: Callable[[], None]) -> None:
        """Start an attempt; `ended` is called at its end, unless the send is withdrawn."""
        self._attempt = attempt
        if self._is_withdrawn:
            raise IllegalState("the send", "withdrawn")
        self.append(attempt, ended)

    def append(self, attempt: Attempt, ended: Callable[[], None]) -> None:
        """Submit an attempt to be appended."""
        attempt.place.link.appends.hand_in(attempt, ended)

    def withdraw(self) -> bool:
        """Stop retrying.

        Returns True if nothing is stored, and False if the send is already part of a statement: `end` then reports its
        outcome.
        """
        self._is_withdrawn = True
        attempt = self._attempt
        return attempt is None or attempt.place.link.appends.withdraw(attempt)


#: A send, and its attempt that has ended.
Ended: TypeAlias = tuple[HandedSend, Attempt]
_Failed: TypeAlias = tuple[HandedSend, Attempt, MqdbError | NoAnswer]


class HandedSends:
    """The submitted sends, and two threads that handle failed sends. Thread-safe."""

    def __init__(self, sending: Sending, tell_ended: Callable[[Ended], None], threads_name: str) -> None:
        """`tell_ended` gets each ended attempt, for `conclude`.

        `tell_ended` must be quick, and must not call this object.
        """
        self._sending = sending
        self._tell_ended = tell_ended
        #: The failed attempts not yet judged, and one True for each attempt ever added; False ends the threads.
        self._failed: deque[_Failed] = deque()
        self._to_judge: SimpleQueue[bool] = SimpleQueue()
        self._settling = Settling(f"{threads_name}settle-")
        names = [f"{threads_name}judging-{number}" for number in range(_JUDGING_THREADS)]
        self._threads = [threading.Thread(target=self._judge_all, name=name, daemon=True) for name in names]
        try:
            for thread in self._threads:
                thread.start()
        except BaseException:
            self.close()
            raise

    def begin(self, send: HandedSend) -> None:
        """Start the next attempt. If the topic's route is not known yet, waits for the route."""
        try:
            attempt = self._sending.begin(send.pending)
            send.hand_in(attempt, partial(self._tell_ended, (send, attempt)))
        except Exception as error:  # noqa: BLE001 - raised where the outcome is read
            send.end(error if send.pending.results is None else send.pending.results)

    def conclude(self, ended: Ended) -> None:
        """End a send after its last attempt, or have a failure judged."""
        send, attempt = ended
        try:
            self._conclude(send, attempt)
        except BaseException as error:  # noqa: BLE001 - a callback's sys.exit() would end all other sends
            log_error(logger, _UNFORESEEN, error, {"topic": send.pending.topic})
            send.end(error)

    def end_late(self) -> None:
        """End sends whose time is up, whatever they wait for. This method has to be called every LATENESS_SECONDS."""
        self._sending.end_late()
        self._settling.end_late()
        now = time.monotonic()
        # Both judging threads may be waiting, by other deadlines.
        for failed in [failed for failed in self._failed.copy() if failed[0].pending.deadline <= now]:
            with suppress(ValueError):  # it is being judged
                self._failed.remove(failed)
                self._judge_safely(failed)

    def close(self) -> None:
        """Wait for the threads. Call this method when no send is under way."""
        self._settling.close()
        for _ in self._threads:
            self._to_judge.put(False)
        for thread in self._threads:
            if thread.is_alive():
                thread.join()

    def _conclude(self, send: HandedSend, attempt: Attempt) -> None:
        error = attempt.error
        if error is None:
            self._finish(send, attempt)
        elif not isinstance(error, MqdbError | NoAnswer):
            send.end(error)
        else:
            judge = partial(self._have_judged, (send, attempt, error))
            if isinstance(error, NoAnswer) and send.pending.mode is not SendMode.ONEWAY:
                self._settling.add(OpenSend(attempt, error, judge))
            else:
                judge()

    def _finish(self, send: HandedSend, attempt: Attempt) -> None:
        results = self._sending.finish(send.pending, attempt)
        if results is None:
            self.begin(send)  # to another broker, too
        else:
            send.end(results)

    def _have_judged(self, failed: _Failed) -> None:
        self._failed.append(failed)
        self._to_judge.put(True)

    def _judge_all(self) -> None:
        while self._to_judge.get():
            with suppress(IndexError):  # it timed out before its turn
                self._judge_safely(self._failed.popleft())

    def _judge_safely(self, failed: _Failed) -> None:
        try:
            self._judge(*failed)
        except BaseException as error:  # noqa: BLE001 - a callback's sys.exit() would end all other sends
            send, *_ = failed
            log_error(logger, _UNFORESEEN, error, {"topic": send.pending.topic})

    def _judge(self, send: HandedSend, attempt: Attempt, error: MqdbError | NoAnswer) -> None:
        try:
            if self._sending.judge(send.pending, attempt, error):
                self._finish(send, attempt)
            elif send.pending.results is not None:
                send.end(send.pending.results)
            else:
                self.begin(send)
        except BaseException as verdict:  # noqa: BLE001 - raised where the outcome is read
            send.end(verdict)
