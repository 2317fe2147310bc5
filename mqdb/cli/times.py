"""Times on the command line: a moment, or how long ago."""

from contextlib import suppress
from datetime import datetime, timedelta

from mqdb.common.duration import parse_duration
from mqdb.errors import ParameterInvalid


def parse_time(name: str, text: str) -> datetime | timedelta:
    """`2h` is two hours ago; ISO 8601, without a zone in that of this machine, is a moment. Else ParameterInvalid."""
    try:
        ago = parse_duration(text)
        if ago is not None and ago < timedelta.max:
            return ago
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError) as error:
        reason = "write a time as 2026-07-14 or 2026-07-14T09:30+02:00, or how long ago as 30m, 2h or 7d"
        raise ParameterInvalid(name, text, reason) from error


def shown_time(time: datetime | None, timespec: str = "seconds") -> str | None:
    """A moment as people read it: in the zone of this machine, to the second, or as `datetime.isoformat` calls it.

    A message may wait for the last hours of the year 9999. They are shown in their own zone if that of
    this machine has no date for them.
    """
    if time is None:
        return None
    with suppress(OverflowError):
        time = time.astimezone()
    return time.isoformat(sep=" ", timespec=timespec)
