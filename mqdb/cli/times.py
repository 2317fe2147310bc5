"""Times on the command line: a moment, or how long ago."""

import re
from datetime import datetime, timedelta
from typing import Final

from mqdb.errors import ParameterInvalid

_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def parse_time(name: str, text: str) -> datetime | timedelta:
    """`2h` is two hours ago; ISO 8601, without a zone in that of this machine, is a moment. Else ParameterInvalid."""
    try:
        if match := re.fullmatch(r"(\d+)([smhd])", text, re.ASCII):
            return timedelta(**{_UNITS[match[2]]: int(match[1])})
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError) as error:
        reason = "write a time as 2026-07-14 or 2026-07-14T09:30+02:00, or how long ago as 30m, 2h or 7d"
        raise ParameterInvalid(name, text, reason) from error


def shown_time(time: datetime | None, timespec: str = "seconds") -> str | None:
    """A moment as people read it: in the zone of this machine, to the second, or as `datetime.isoformat` calls it."""
    return None if time is None else time.astimezone().isoformat(sep=" ", timespec=timespec)
