"""Duties: periodic work of a thread, each at its own interval."""

import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Final

from mqdb.common.user_error import describe, log_error
from mqdb.errors import MqdbError
from mqdb_client.outage import Outage

logger = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 1.0


class Duty:
    """Periodic work. One thread runs the work; any thread may schedule it for another time.

    `name` describes the work, as in "commit offsets of group readers".
    `work` returns the seconds until its next run, or None to pause until it is scheduled. After an error, the work runs
    again a second later. The first failure and the end of the failures are logged. An unreachable broker is reported to
    `outage` instead.
    """

    def __init__(
        self, name: str, work: Callable[[], float | None], outage: Outage | None = None, *, due: bool = True
    ) -> None:
        self.name = name
        self._work = work
        self._outage = outage
        self._due_at = 0.0 if due else math.inf
        self._is_failing = False
        self._guard = threading.Lock()

    def seconds_left(self) -> float:
        """The seconds until the duty is due; 0 if it is due."""
        return max(0.0, self._due_at - time.monotonic())

    def in_seconds(self, seconds: float) -> None:
        """Schedule the next run in `seconds`, and not before. A thread that waits for its duties has to be woken."""
        with self._guard:
            self._due_at = time.monotonic() + seconds

    def run(self) -> None:
        """Run the work now and raise its errors; even after an error the duty is no longer due."""
        self._due_at = math.inf
        self._rest(self._work())

    def run_if_due(self) -> None:
        """Run the work if it is due."""
        if time.monotonic() < self._due_at:
            return
        self._due_at = math.inf
        try:
            seconds = self._work()
            if self._is_failing:
                self._is_failing = False
                logger.info("a duty is done again", extra={"duty": self.name})
            if self._outage is not None:
                self._outage.works(self)
        except BaseException as error:  # noqa: BLE001 - the outermost level; an allocation strategy may call sys.exit()
            seconds = _RETRY_SECONDS
            self._note(error)
        self._rest(seconds)

    def end(self) -> None:
        """Note that the duty does not run again."""
        if self._outage is not None:
            self._outage.leave(self)

    def _note(self, error: BaseException) -> None:
        if self._outage is not None and self._outage.covers(self, error):
            return
        if not self._is_failing:
            self._is_failing = True
            fields = {"duty": self.name, "reason": describe(error).message}
            if issubclass(type(error), MqdbError):
                logger.warning("could not %(duty)s; will retry: %(reason)s", fields, extra=fields)
            else:  # the reason is in the traceback
                log_error(logger, "could not %(duty)s; will retry", error, fields, logging.WARNING)

    def _rest(self, seconds: float | None) -> None:
        with self._guard:
            # If it was scheduled while it ran, it already has a new time.
            if seconds is not None and self._due_at == math.inf:
                self._due_at = time.monotonic() + seconds
