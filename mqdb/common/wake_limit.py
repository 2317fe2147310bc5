"""Wake limit: how often a process may act on notifications that turn out to be fruitless.

PostgreSQL has no rights on NOTIFY, so any role can notify, at any rate. A fruitless wake costs a permit, and a wake
that finds something returns one: a genuine notification is fruitless only if a pull has already read what it announces.
So genuine traffic is never limited. When no permit is left, the next wake is delayed, and does the work of all
notifications until then.
"""

import math
import time
from collections.abc import Callable
from typing import Final

#: More wakes than a group causes when its members start one after the other.
BURST: Final = 50

#: Under a flood a genuine wake is delayed by at most the reciprocal.
PER_SECOND: Final = 10.0


class WakeLimit:
    """A token bucket, stored as the time of the next wake. Not thread-safe."""

    def __init__(
        self, burst: int = BURST, per_second: float = PER_SECOND, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._interval = 1 / per_second
        self._burst_seconds = burst / per_second
        self._clock = clock
        self._next_at = -math.inf

    def spend(self, permits: int = 1) -> None:
        """Spend permits for a wake that was in vain, or may have been."""
        self._next_at = max(self._next_at, self._clock() - self._burst_seconds) + self._interval * permits

    def regain(self) -> None:
        """Return a permit, because a wake has found something."""
        self._next_at -= self._interval

    def seconds_left(self) -> float:
        """The seconds until the next wake; 0 while permits are left."""
        return max(0.0, self._next_at - self._clock())
