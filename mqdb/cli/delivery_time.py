"""When `mqdb send` has its messages delivered: a delay level, a delay, or a moment."""

from collections.abc import Mapping
from datetime import datetime, timedelta

from mqdb.common.duration import parse_duration
from mqdb.common.schedule import schedule_properties
from mqdb.errors import ParameterInvalid


def parse_schedule(delay_level: int, delay: str | None, deliver_at: str | None) -> Mapping[str, str]:
    """The properties of messages that are sent so. Raises ParameterInvalid, ScheduleInvalid."""
    return schedule_properties(
        delay_level,
        None if delay is None else _parse_delay(delay),
        None if deliver_at is None else _parse_moment(deliver_at),
    )


def _parse_delay(text: str) -> timedelta:
    delay = parse_duration(text)
    if delay is None:
        raise ParameterInvalid("delay", text, "write a number and a unit, such as 500ms, 90s, 15m, 2h or 7d")
    if delay == timedelta.max:
        raise ParameterInvalid("delay", text, "is too long")
    return delay


def _parse_moment(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError) as error:
        raise ParameterInvalid(
            "deliver_at", text, "write a time as 2026-07-14T09:30 or 2026-07-14T09:30+02:00"
        ) from error
