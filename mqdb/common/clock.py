"""Time, as something that is handed in.

Whoever needs the time takes a `Clock`, so that a test can move it. Inside the database the
counterpart is the SQL function `mqdb.now()`.
"""

import time
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Protocol

from mqdb.errors import ParameterInvalid


class Clock(Protocol):
    """What everything else in mqdb knows about time."""

    def now(self) -> datetime:
        """The time of day, aware, in UTC. It may step back when somebody sets the clock."""

    def monotonic(self) -> float:
        """Seconds from an unknown start, never going back: for durations and deadlines."""


class SystemClock:
    """The clock of this machine."""

    now = staticmethod(partial(datetime.now, UTC))
    monotonic = staticmethod(time.monotonic)


class ManualClock:
    """A clock that stands still until a test moves it."""

    def __init__(self, start: datetime) -> None:
        if start.tzinfo is None:
            raise ParameterInvalid("start", start, "give an aware datetime, such as datetime(2024, 1, 1, tzinfo=UTC)")
        self._now = start.astimezone(UTC)
        self._monotonic = 0.0

    def now(self) -> datetime:
        """The time that the test has set, in UTC."""
        return self._now

    def monotonic(self) -> float:
        """Seconds that the test has advanced."""
        return self._monotonic

    def advance(self, step: timedelta) -> None:
        """Move by `step`. A negative step sets back the time of day only, as an operator would."""
        self._now += step
        self._monotonic += max(step.total_seconds(), 0.0)
