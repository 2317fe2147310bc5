"""Time, as something that is handed in.

Whoever needs the time takes a `Clock`, so that a test can move it. Inside the database the
counterpart is the SQL function `mqdb.now()`.
"""

import time
from datetime import UTC, datetime
from functools import partial
from typing import Protocol


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
