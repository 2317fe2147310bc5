"""The work of `mqdb dlq redrive`: batches, one transaction each, at a limited rate, until Ctrl-C.

Between two batches nothing is half done: exactly the redriven messages have result rows. Ctrl-C therefore takes effect
between batches, and running the same command later continues from there.
"""

import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, Self

from mqdb.errors import MqdbError

if TYPE_CHECKING:
    from mqdb_client import Redrive, RedriveResult
    from mqdb_client.admin.dead_letters import DeadLetters

#: With a rate, a batch has as many messages as fall due in this time.
_SECONDS_AT_A_TIME: Final = 0.1

#: A signal just before a wait does not end the wait, so no wait is longer than this.
_LONGEST_WAIT_SECONDS: Final = 0.2


class RedriveStopped(MqdbError):
    """A redrive ended early, after some batches."""

    reason: str
    done: int
    total: int
    sentence = "{reason}; {done:,} of {total:,} messages were handled before"


class RedriveFailed(MqdbError):
    """Some messages could not be redriven; the others were."""

    failed: int
    total: int
    sentence = "{failed:,} of {total:,} messages could not be redriven"


class DelayedInterruption:
    """Delays Ctrl-C and SIGTERM until the code checks for them; a second signal is not delayed."""

    _NUMBERS: Final = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self._heard: int | None = None
        self._asked = threading.Event()
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._hear) for number in self._NUMBERS}
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    @property
    def is_heard(self) -> bool:
        """Whether a signal has arrived."""
        return self._asked.is_set()

    def is_heard_within(self, seconds: float) -> bool:
        """Whether a signal has arrived, or arrives within this many seconds."""
        end = time.monotonic() + seconds
        while not self._asked.wait(min(max(end - time.monotonic(), 0), _LONGEST_WAIT_SECONDS)):
            if time.monotonic() >= end:
                return False
        return True

    def pass_on(self) -> None:
        """Raise the delayed signal again, if one has arrived."""
        if self._heard is not None:
            signal.raise_signal(self._heard)

    def _hear(self, number: int, _frame: FrameType | None) -> None:
        self._heard = number
        self._asked.set()
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


class Redriver:
    """Redrives messages, or predicts the result in a dry run, and counts the results."""

    def __init__(
        self,
        redrive: "Redrive",
        *,
        is_dry_run: bool,
        per_second: float | None,
        most_at_a_time: int | None = None,
    ) -> None:
        """`per_second` limits the rate, with brokers taken one after another; `most_at_a_time` limits a transaction."""
        from mqdb_client.admin.dead_letters import MOST_AT_A_TIME

        self._redrive = redrive
        self._is_dry_run = is_dry_run
        self._per_second = per_second
        self._most_at_a_time = most_at_a_time or MOST_AT_A_TIME
        self._total = 0
        self.interruption = DelayedInterruption()
        #: Number of messages by broker, status and reason of failure.
        self.tally: Counter[tuple[str, str, str]] = Counter()

    @property
    def done(self) -> int:
        """Number of messages handled so far."""
        return self.tally.total()

    @property
    def is_stopped(self) -> bool:
        """Whether a signal ended the redrive early."""
        return self.interruption.is_heard and self.done < self._total

    def run(
        self, broker_name: str, letters: "DeadLetters", positions: Sequence[int]
    ) -> "Iterator[list[RedriveResult]]":
        """Redrive the messages at these positions of a broker, and yield the results of each batch until interrupted.

        Raises RedriveStopped, or the error of the first batch.
        """
        self._total += len(positions)
        started, done = time.monotonic(), 0
        for batch in self._batches(positions):
            due = started + done / self._per_second if self._per_second else started
            if self.interruption.is_heard_within(due - time.monotonic()):
                return
            try:
                results = letters.redrive_batch(batch, self._redrive, dry_run=self._is_dry_run)
            except MqdbError as error:
                if not done:
                    raise
                raise RedriveStopped(str(error), done, len(positions)) from error
            done += len(results)
            # The reason why a message was skipped contains the time of its earlier redrive, so each reason is
            # different.
            self.tally.update(
                (broker_name, result.status, result.error or "" if result.status == "FAILED" else "")
                for result in results
            )
            yield results

    def check(self) -> None:
        """Raise RedriveFailed if any message failed."""
        failed = sum(count for (_, status, _), count in self.tally.items() if status == "FAILED")
        if failed:
            raise RedriveFailed(failed, self.done)

    def _batches(self, positions: Sequence[int]) -> Iterator[Sequence[int]]:
        size = self._most_at_a_time
        if self._per_second is not None:
            size = min(max(int(self._per_second * _SECONDS_AT_A_TIME), 1), size)
        for start in range(0, len(positions), size):
            yield positions[start : start + size]
