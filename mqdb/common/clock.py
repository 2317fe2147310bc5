"""Time as an argument.

Code that needs the time takes a `Clock`, so that a test can move it. Inside the database the counterpart is the SQL
function `mqdb.now()`.
"""

import time
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final, Protocol

from mqdb.errors import ParameterInvalid

#: The maximum age of a moment: larger than that of any broker, and small enough for Python and PostgreSQL.
LONGEST_AGO: Final = timedelta(days=365_000)


class Clock(Protocol):
    """The source of time for the rest of mqdb."""

    def now(self) -> datetime:
        """The time of day, aware, in UTC. The time may step back when the system clock is set."""

    def monotonic(self) -> float:
        """Seconds from an unknown start, never going back: for durations and deadlines."""


class SystemClock:
    """The clock of this machine."""

    now = staticmethod(partial(datetime.now, UTC))
    monotonic = staticmethod(time.monotonic)


def check_moment(name: str, time: datetime | timedelta) -> None:
    """Raise ParameterInvalid for a datetime without a time zone, a duration that is too long, and any other type."""
    if not isinstance(time, datetime | timedelta):
        raise ParameterInvalid(name, time, "must be a datetime with a time zone, or a timedelta")
    if isinstance(time, datetime) and time.utcoffset() is None:
        raise ParameterInvalid(name, time, "must be a time with a time zone")
    if isinstance(time, timedelta) and abs(time) > LONGEST_AGO:
        raise ParameterInvalid(name, time, f"must be at most {LONGEST_AGO.days:,} days ago")
