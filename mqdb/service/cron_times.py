"""When a cron text is due, on the clock of a time zone.

APScheduler's CronTrigger finds the next time on a clock without changes; this module handles clock changes, by the
rules of Vixie cron:

- A cron with fixed hours fires once at each of its times. A time that does not exist, because clocks were put forward
past it, fires at the moment of the change, and several such times fire once. A time that exists twice fires at its
first occurrence.
- An hourly cron fires whenever the clock shows one of its times: `*/5 * * * *` every five minutes, always.

Two rules of APScheduler are not used. APScheduler counts days of the week from Monday as 0, and requires both day
fields to match; the fields come from `mqdb.service.cron_text`, which has crontab's rules.
"""

from bisect import bisect_left
from collections.abc import Iterator, Set
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

from apscheduler.triggers.cron import CronTrigger

from mqdb.errors import ParameterInvalid
from mqdb.service.cron_text import CronFields, parse_cron

_INSTANT: Final = timedelta(microseconds=1)
_DAY: Final = timedelta(days=1)

#: APScheduler's names for `CronFields.positions`, by their numbers.
_POSITIONS: Final = ("last", "1st", "2nd", "3rd", "4th", "5th")
_WEEKDAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")


def next_time(cron: str, timezone: str, after: datetime) -> datetime:
    """The first time after an aware time, in UTC. Raises CronInvalid; ParameterInvalid for an unknown zone."""
    return _times(cron, timezone).next_after(after)


def zone_of(name: str) -> ZoneInfo:
    """The zone with an IANA name. Raises ParameterInvalid."""
    try:
        return ZoneInfo(name)
    # KeyError: unknown; ValueError: a path; OSError: a folder of zones, such as Europe; TypeError: not a string.
    except (KeyError, ValueError, OSError, TypeError):
        reason = "there is no such time zone; write an IANA name, such as Europe/Berlin or UTC"
        raise ParameterInvalid("timezone", name, reason) from None


class CronTimes:
    """The times of a cron text in a zone."""

    def __init__(self, fields: CronFields, zone: tzinfo) -> None:
        self._zone = zone
        self._every_hour = fields.every_hour
        self._triggers = [_trigger(fields, day, weekday) for day, weekday in _days(fields)]

    def next_after(self, time: datetime) -> datetime:
        """The first time after an aware time, in UTC."""
        return self._next_shown(time) if self._every_hour else self._next_planned(time)

    def _next_planned(self, time: datetime) -> datetime:
        """The next time if each clock time counts once: the first later time, because `_moment` never goes back."""
        wall = self._wall(time)
        while (moment := self._moment(wall := self._at_or_after(wall + _INSTANT))) <= time:
            pass
        return moment

    def _next_shown(self, time: datetime) -> datetime:
        """The next moment at which the clock shows one of the times."""
        start = time + _INSTANT
        while True:
            offset = self._offset(start)
            moment = (self._at_or_after(self._wall(start)) - offset).replace(tzinfo=UTC)
            # Within a day the clock does not change twice.
            near = min(moment, start + _DAY)
            if self._offset(near) != offset:
                start = self._change(start, near)
            elif near == moment:
                return moment
            else:
                start = max(near, moment - _DAY)

    def _at_or_after(self, wall: datetime) -> datetime:
        """The next time on a clock without changes."""
        now = wall.replace(tzinfo=UTC)
        # One of two may contain a day that never comes.
        times = [trigger.get_next_fire_time(None, now) for trigger in self._triggers]
        first: datetime = min(time for time in times if time is not None)
        return first.replace(tzinfo=None)

    def _wall(self, time: datetime) -> datetime:
        return time.astimezone(self._zone).replace(tzinfo=None, fold=0)

    def _offset(self, time: datetime) -> timedelta:
        return time.astimezone(self._zone).utcoffset() or timedelta(0)

    def _moment(self, wall: datetime) -> datetime:
        """The first moment when the clock shows a time, or else when it was put forward past it. Source: PEP 495."""
        moment = wall.replace(tzinfo=self._zone).astimezone(UTC)
        if self._wall(moment) == wall:
            return moment
        return self._change(wall.replace(tzinfo=self._zone, fold=1).astimezone(UTC), moment)

    def _change(self, before: datetime, after: datetime) -> datetime:
        """The moment of the clock change between two moments, to the second."""
        begin = before.astimezone(UTC).replace(microsecond=0)
        offset = self._offset(after)
        seconds = range(int((after - begin).total_seconds()))
        step = bisect_left(seconds, True, key=lambda second: self._offset(begin + timedelta(seconds=second)) == offset)
        return begin + timedelta(seconds=step)


@lru_cache(maxsize=1_024)
def _times(cron: str, timezone: str) -> CronTimes:
    return CronTimes(parse_cron(cron), zone_of(timezone))


def _days(fields: CronFields) -> Iterator[tuple[str, str]]:
    """Pairs of days of the month and of the week in APScheduler's syntax; a day counts if it matches any pair."""
    days = ",".join(filter(None, [_listed(fields.days, 31), "last" if fields.last_day else ""]))
    # APScheduler's first day is Monday.
    weekdays = _listed({(day - 1) % 7 for day in fields.weekdays}, 7)
    if fields.either_day:
        yield days, "*"
    if weekdays:
        yield "*" if fields.either_day else days, weekdays
    if fields.positions:
        yield ",".join(f"{_POSITIONS[position]} {_WEEKDAYS[day]}" for day, position in sorted(fields.positions)), "*"


def _trigger(fields: CronFields, day: str, weekday: str) -> CronTrigger:
    return CronTrigger(
        month=_listed(fields.months, 12),
        day=day,
        day_of_week=weekday,
        hour=_listed(fields.hours, 24),
        minute=_listed(fields.minutes, 60),
        second=_listed(fields.seconds, 60),
        timezone=UTC,
    )


def _listed(values: Set[int], count_of_all: int) -> str:
    # APScheduler checks each value of a list.
    return "*" if len(values) == count_of_all else ",".join(map(str, sorted(values)))
