"""Times on the command line: a point in time, or an age."""

from contextlib import suppress
from datetime import datetime, timedelta

from mqdb.common.duration import parse_duration
from mqdb.errors import ParameterInvalid


def parse_time(name: str, text: str) -> datetime | timedelta:
    """Parse a point in time (ISO 8601, by default in the zone of this machine) or an age: `2h` is two hours ago.

    Raises ParameterInvalid for any other text.
    """
    try:
        ago = parse_duration(text)
        if ago is not None and ago < timedelta.max:
            return ago
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError) as error:
        reason = "must be a time such as 2026-07-14 or 2026-07-14T09:30+02:00, or an age such as 30m, 2h or 7d"
        raise ParameterInvalid(name, text, reason) from error


def shown_time(time: datetime | None, timespec: str = "seconds") -> str | None:
    """A point in time for people, in the zone of this machine; `timespec` is that of `datetime.isoformat`.

    A message may wait until the last hours of the year 9999. Such a time is shown in its own zone if it has no date in
    the zone of this machine.
    """
    if time is None:
        return None
    with suppress(OverflowError):
        time = time.astimezone()
    return time.isoformat(sep=" ", timespec=timespec)
