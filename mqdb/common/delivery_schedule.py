"""Schedules: when a message is to be delivered, according to its properties.

    Message(..., delay_level=3)        DELAY=3                         the third line of the broker's table of levels
    Message(..., delay=timedelta)      TIMER_DELAY_MS=milliseconds     this long after the broker stored it
    Message(..., deliver_at=datetime)  TIMER_DELIVER_MS=milliseconds   at this time, by the broker's clock

A time in the past means immediate delivery. RocketMQ: Message.setDelayTimeLevel, setDelayTimeMs, setDeliverTimeMs;
HookUtils.handleScheduleMessage, transformTimerMessage.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias

from mqdb.common.property import Property
from mqdb.errors import ScheduleInvalid, shown


@dataclass(frozen=True, slots=True)
class DelayLevel:
    """Delivery after the delay of a level; a level above the last one counts as the last one."""

    level: int


@dataclass(frozen=True, slots=True)
class DeliverAt:
    """Delivery at a time, in milliseconds since 1970."""

    milliseconds: int


@dataclass(frozen=True, slots=True)
class DeliverAfter:
    """Delivery this many milliseconds after the message was stored."""

    milliseconds: int


@dataclass(frozen=True, slots=True)
class Half:
    """Delivery when the transaction is committed."""


Schedule: TypeAlias = DelayLevel | DeliverAt | DeliverAfter

#: What a record may wait for before it goes to its queue.
Wait: TypeAlias = Schedule | Half

#: The last time that a datetime can hold, in UTC, in milliseconds since 1970. It also limits delays.
MAX_MILLISECONDS: Final = 253_402_300_799_999


def schedule_of(properties: Mapping[str, str]) -> Schedule | None:
    """The delivery schedule of a message with these system properties; None for immediate delivery.

    A level above 0 takes precedence over a time, and a delay over a time of delivery. Raises ScheduleInvalid if a value
    is not a number.
    """
    if not properties:
        return None
    level = properties.get(_DELAY)
    if level is not None and (number := _number(_DELAY, level, _INTEGER_MAX)) > 0:
        return DelayLevel(number)
    for name, kind, unit in _TIMERS:
        if (text := properties.get(name)) is not None:
            return kind(_number(name, text, MAX_MILLISECONDS // unit) * unit)
    return None


def schedule_properties(delay_level: int, delay: timedelta | None, deliver_at: datetime | int | None) -> dict[str, str]:
    """The properties for one of these schedules; {} for level 0. `deliver_at` may be milliseconds since 1970.

    Raises ScheduleInvalid for more than one of the three, for a datetime without a time zone, for a value that is not a
    time, and for a time beyond the range of datetime.
    """
    given = {"delay_level": delay_level or None, "delay": delay, "deliver_at": deliver_at}
    first, *others = [name for name, value in given.items() if value is not None] or [""]
    if others:
        raise ScheduleInvalid(others[0], f"{first} already determines the delivery time; give only one of them")
    match first:
        case "delay_level":
            return {_DELAY: str(_whole(first, delay_level, _INTEGER_MAX))}
        case "delay":
            return {_TIMER_DELAY_MS: str(_whole(first, _delay_milliseconds(delay), MAX_MILLISECONDS))}
        case "deliver_at":
            return {_TIMER_DELIVER_MS: str(_whole(first, _time_milliseconds(deliver_at), MAX_MILLISECONDS))}
    return {}


_DELAY: Final = Property.DELAY.value
_TIMER_DELAY_MS: Final = Property.TIMER_DELAY_MS.value
_TIMER_DELIVER_MS: Final = Property.TIMER_DELIVER_MS.value

# In the order of lookup, with the milliseconds of their units. Source: HookUtils.transformTimerMessage.
_TIMERS: Final = (
    (Property.TIMER_DELAY_SEC.value, DeliverAfter, 1_000),
    (_TIMER_DELAY_MS, DeliverAfter, 1),
    (_TIMER_DELIVER_MS, DeliverAt, 1),
)

#: Properties that determine when a message is due. A half message must not have them: its commit delivers it.
SCHEDULE_PROPERTIES: Final = frozenset(
    {Property.DELAY, Property.TIMER_DELAY_SEC, Property.TIMER_DELAY_MS, Property.TIMER_DELIVER_MS}
)

#: The range of Java's int.
_INTEGER_MAX: Final = 2**31 - 1

_NUMBER: Final = re.compile("[+-]?[0-9]{1,19}")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


def _number(name: str, text: str, most: int) -> int:
    if not _NUMBER.fullmatch(text):
        raise ScheduleInvalid(name, f"{text!r} is not a whole number")
    return _whole(name, int(text), most)


def _whole(name: str, number: object, most: int) -> int:
    if not isinstance(number, int) or isinstance(number, bool):
        raise ScheduleInvalid(name, f"{shown(number)} is not a whole number")
    if abs(number) > most:
        raise ScheduleInvalid(name, f"{shown(number)} is too far; the limit is {most:,}")
    return number


def _delay_milliseconds(delay: object) -> int:
    """The milliseconds of a delay, rounded up because messages are never delivered early."""
    if not isinstance(delay, timedelta):
        raise ScheduleInvalid("delay", f"{shown(delay)} is {type(delay).__name__}, not a timedelta")
    milliseconds, rest = divmod(delay, _MILLISECOND)
    return milliseconds + bool(rest)


def _time_milliseconds(time: object) -> object:
    if isinstance(time, int) and not isinstance(time, bool):
        return time
    if not isinstance(time, datetime):
        raise ScheduleInvalid(
            "deliver_at",
            f"{shown(time)} is {type(time).__name__}; give an aware datetime or whole milliseconds since 1970",
        )
    if time.tzinfo is None or time.utcoffset() is None:
        raise ScheduleInvalid("deliver_at", f"{time.isoformat()} has no time zone; add one, as in datetime.now(UTC)")
    return _delay_milliseconds(time - _EPOCH)
