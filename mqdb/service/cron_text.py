"""Cron texts: five fields as in crontab(5), optionally preceded by a field for seconds, or a name such as @daily.

    second   minute   hour   day of month   month        day of week
    0-59     0-59     0-23   1-31           1-12, jan    0-7, sun; 0 and 7 are Sunday

A field is `*`, a value, a range `1-5`, `*` or a range with a step (`*/5`, `8-18/2`), or several of these separated by
commas. A range of days of the week may cross the end of the week, like `sat-mon`. If both day fields are restricted, a
day counts if either contains it; a field that begins with `*` is not restricted.

Quartz's names for days also work: `L` is the last day of the month, `friL` its last Friday, `mon#2` its second Monday,
and `?` means `*`. The numbers of the days of the week are crontab's, in which 1 is Monday; in Quartz 1 is Sunday.
Quartz texts with such numbers have a `?` as their day of month, and are refused.

A step past the end of a field and a day that no month has, which crontab accepts, are also refused.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from mqdb.errors import CronInvalid

MAX_CRON_LENGTH: Final = 256

#: As a position in the month: the last such day of the week.
LAST: Final = 0

_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_MONTH_LENGTHS: Final = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)

_NAMED: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}

_PART: Final = re.compile(r"(?:\*|(?P<first>\w+)(?:-(?P<last>\w+))?)(?:/(?P<step>\d{1,9}))?", re.ASCII)
_LAST_DAY: Final = re.compile("L", re.IGNORECASE)
_POSITION: Final = re.compile(r"(?P<weekday>[a-z]{3}|\d+)(?:#(?P<number>[1-5])|L)", re.ASCII | re.IGNORECASE)

#: Syntax of other programs, and what to write instead.
_ELSEWHERE: Final = tuple(
    (re.compile(pattern, re.IGNORECASE), advice)
    for pattern, advice in (
        (r".*\?.*", "? means any day, alone in the field of a day; write *; the first of 6 fields is the second"),
        (r"(\d+|L)W", "the nearest weekday cannot be named; write a day, or L for the last day of the month"),
        (r"L-\w+", "days before the last one cannot be named; write a day, or L for the last day of the month"),
        (r"\w+#.*", "write mon#1 to mon#5 in the day of week, alone or between commas, or monL for the last Monday"),
        (r"\d*L", "write L as day of month, or monL as day of week, alone or between commas"),
        (r"H(\W.*)?", "H, a value that is chosen for you, is not known; write a value or *"),
    )
)


@dataclass(frozen=True, slots=True)
class CronFields:
    """The values in each field. Days of the week are 0 to 6, Sunday is 0."""

    seconds: frozenset[int]
    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    last_day: bool
    """Whether the last day of a month counts besides `days`."""
    months: frozenset[int]
    weekdays: frozenset[int]
    positions: frozenset[tuple[int, int]]
    """Days that count besides `weekdays`: a day of the week, and which one in the month, 1 to 5 or LAST."""
    either_day: bool
    """Whether a day that is in only one of the two day fields counts. If not, and if there are `positions`, the day of
    month contains all days.
    """

    @property
    def every_hour(self) -> bool:
        """Whether there are times in each hour of a day."""
        return len(self.hours) == 24


def parse_cron(text: str) -> CronFields:
    """Read a cron text. Raises CronInvalid."""
    if len(text) > MAX_CRON_LENGTH:
        raise CronInvalid(text, f"has {len(text):,} characters; the limit is {MAX_CRON_LENGTH}")
    try:
        return _fields(_words(text))
    except ValueError as error:
        raise CronInvalid(text, str(error)) from None


def _words(text: str) -> list[str]:
    """Six words, one per field. Raises ValueError."""
    names = ", ".join(_NAMED)
    words = _NAMED.get(text.strip().lower(), text).split()
    match [word.lower() for word in words]:
        case ["@every", *_]:
            raise ValueError("@every is not known; write */5 * * * * for 5 minutes, */30 * * * * * for 30 seconds")
        case ["@reboot"]:
            raise ValueError(f"@reboot is not known; let a program send when it starts, or write one of {names}")
        case [_, _, _, _, _]:
            return ["0", *words]
        case [_, _, _, _, _, _]:
            return words
        case [_, _, _, _, _, _, _]:
            raise ValueError(
                "has 7 fields, but there is no field for a year; write the first 6, and remove the cron in time"
            )
    raise ValueError(
        f"has {len(words)} fields; write 5: minute hour day-of-month month day-of-week; or 6, with the second before "
        f"them; or one of {names}"
    )


def _fields(words: list[str]) -> CronFields:
    """Raises ValueError."""
    if words[3] == "?" and re.search(r"(?<![#/\d])\d", words[5]):
        raise ValueError(
            f"day of week {words[5]!r}: with a ? as in Quartz, 1 is Sunday, but here it is Monday; write names: mon-fri"
        )
    day, weekday = ("*" if word == "?" else word for word in (words[3], words[5]))
    last_day, days = _split(day, _LAST_DAY)
    positions, weekdays = _split(weekday, _POSITION)
    fields = CronFields(
        seconds=_SECOND.values(words[0].split(",")),
        minutes=_MINUTE.values(words[1].split(",")),
        hours=_HOUR.values(words[2].split(",")),
        days=_DAY.values(days),
        last_day=bool(last_day),
        months=_MONTH.values(words[4].split(",")),
        weekdays=frozenset(value % 7 for value in _WEEKDAY.values(weekdays)),
        positions=frozenset(
            (_WEEKDAY.value(match["weekday"]) % 7, int(match["number"] or LAST)) for match in positions
        ),
        either_day=not (day.startswith("*") or weekday.startswith("*")),
    )
    if not fields.either_day:
        _check_day_comes(fields)
        if positions and len(fields.days) < _DAY.high:
            raise ValueError(f"day of week {weekday!r}: the day of month {day!r} cannot narrow it; write * there")
    return fields


def _split(word: str, special: re.Pattern[str]) -> tuple[list[re.Match[str]], list[str]]:
    """The parts of a word that match, and the others."""
    parts = word.split(",")
    return [match for part in parts if (match := special.fullmatch(part))], [
        part for part in parts if not special.fullmatch(part)
    ]


def _check_day_comes(fields: CronFields) -> None:
    longest = max(_MONTH_LENGTHS[month - 1] for month in fields.months)
    if not fields.last_day and min(fields.days) > longest:
        named = ", ".join(map(str, sorted(fields.months)))
        raise ValueError(f"there is no day {min(fields.days)} in month {named}, which has {longest} days at most")


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()

    def values(self, parts: Iterable[str]) -> frozenset[int]:
        """Raises ValueError."""
        return frozenset(value for part in parts for value in self._range(part))

    def _range(self, part: str) -> range:
        for other, advice in _ELSEWHERE:
            if other.fullmatch(part):
                raise ValueError(f"{self.name} {part!r}: {advice}")
        match = _PART.fullmatch(part)
        if match is None:
            raise ValueError(f"{self.name} {part!r}: write *, a value, a range as 1-5, or a step as */5")
        first, last, step = match["first"], match["last"], match["step"]
        low = self.low if first is None else self.value(first)
        high = self.high if first is None else low if last is None else self.value(last)
        if low > high:
            if self.names is not _WEEKDAYS:
                raise ValueError(
                    f"{self.name} {part!r}: the range ends before it begins; write "
                    f"{low}-{self.high},{self.low}-{high} for a range that continues at {self.low}"
                )
            high += 7
        if step is None:
            return range(low, high + 1)
        if first is not None and last is None:
            raise ValueError(
                f"{self.name} {part!r}: a step needs a range; write {first}-{self.high}/{step} or */{step}"
            )
        if not 1 <= int(step) <= self.high:
            raise ValueError(f"{self.name} {part!r}: the step must be from 1 to {self.high}, not {step}")
        return range(low, high + 1, int(step))

    def value(self, text: str) -> int:
        """Raises ValueError."""
        if text.lower() in self.names:
            return self.names.index(text.lower()) + self.low
        if not re.fullmatch("[0-9]{1,9}", text) or not self.low <= int(text) <= self.high:
            or_names = f" or {self.names[0]} to {self.names[-1]}" if self.names else ""
            raise ValueError(f"{self.name} {text!r}: must be from {self.low} to {self.high}{or_names}")
        return int(text)


_SECOND: Final = _Field("second", 0, 59)
_MINUTE: Final = _Field("minute", 0, 59)
_HOUR: Final = _Field("hour", 0, 23)
_DAY: Final = _Field("day of month", 1, 31)
_MONTH: Final = _Field("month", 1, 12, _MONTHS)
_WEEKDAY: Final = _Field("day of week", 0, 7, _WEEKDAYS)
