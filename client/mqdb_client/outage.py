"""An outage: the time from the first failure due to a missing broker until everything that failed works again.

Many threads notice an outage: each pull, each duty, each transaction. One WARNING is logged when the outage begins and
one INFO when it ends, whatever the number of threads. Details are logged at DEBUG.
"""

import logging
import math
import threading
import time
from typing import Final, TypeGuard, cast

from mqdb.errors import BrokerUnavailable

logger = logging.getLogger(__name__)

BEGINS: Final = "lost the connection to the broker %(broker)s: %(reason)s"
OVER: Final = "connected to the broker again: %(broker)s, after %(after_seconds)s s"

_FORETOLD_SECONDS: Final = 5.0


class Outage:
    """The outages of one broker, as seen by a client. Thread-safe."""

    def __init__(self, target: str) -> None:
        """`target` is the server in the DSN, without a password."""
        self._target = target
        self._guard = threading.Lock()
        self._failing: set[object] = set()
        self._began = 0.0
        self._seconds = 0.0  # of past outages
        #: The number of outages that have begun.
        self.count = 0
        self._foretold: tuple[float, str] = (-math.inf, "")
        #: The server that last answered, as `host:port`, and its timeline, for the log.
        self.server = ""
        self.timeline: int | None = None

    def foretell(self, reason: str) -> None:
        """Note why connections are about to be cut, because the users of the connections do not get the reason."""
        self._foretold = (time.monotonic(), reason)

    def covers(self, who: object, error: BaseException) -> bool:
        """Whether an error of `who` means that the broker is unavailable.

        If so, `who` counts as failing until `works` is called, and the first failure is logged.
        """
        if not _is_outage(error):
            return False
        with self._guard:
            is_first = not self._failing
            self._failing.add(who)
            if is_first:
                self._began = time.monotonic()
                self.count += 1
        at, foretold = self._foretold
        reason = foretold if time.monotonic() - at < _FORETOLD_SECONDS else error.reason
        fields = {"broker": self._target, "server": self.server, "reason": reason}
        logger.log(logging.WARNING if is_first else logging.DEBUG, BEGINS, fields, extra=fields)
        return True

    def leave(self, who: object) -> None:
        """Note that `who` no longer tries to reach the broker."""
        with self._guard:
            self._settle(who)

    def works(self, who: object) -> None:
        """Note that `who` works again. This costs nothing if `who` has not failed."""
        if who not in self._failing:
            return
        with self._guard:
            seconds = self._settle(who)
        if seconds is not None:
            fields = {
                "broker": self._target,
                "server": self.server,
                "timeline": self.timeline,
                "after_seconds": round(seconds, 3),
            }
            logger.info(OVER, fields, extra=fields)

    @property
    def is_under_way(self) -> bool:
        """Whether the broker is unavailable."""
        return bool(self._failing)

    @property
    def seconds(self) -> float:
        """The total duration of all outages; it grows during an outage."""
        with self._guard:
            return self._seconds + (time.monotonic() - self._began if self._failing else 0.0)

    def _settle(self, who: object) -> float | None:
        """Note that `who` no longer fails. If no other user fails, returns the duration of the outage."""
        if who not in self._failing:
            return None
        self._failing.discard(who)
        if self._failing:
            return None
        seconds = time.monotonic() - self._began
        self._seconds += seconds
        return seconds


def level_of(error: BaseException) -> int:
    """The level of a log line about an error:

    DEBUG if the broker is unavailable, because the broker's `Outage` logs this once for all threads.
    """
    return logging.DEBUG if _is_outage(error) else logging.WARNING


def _is_outage(error: BaseException) -> TypeGuard[BrokerUnavailable]:
    # By its type: isinstance() reads the `__class__` of an error, which may be user code.
    return issubclass(type(error), BrokerUnavailable) and cast(BrokerUnavailable, error).may_pass
