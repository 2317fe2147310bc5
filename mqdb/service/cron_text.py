"""Cron texts: five fields, or a name such as @daily, as crontab(5) has them.

    minute   hour   day of month   month        day of week
    0-59     0-23   1-31           1-12, jan    0-7, sun; 0 and 7 are Sunday

A field is `*`, a value, a range `1-5`, each of them but a single value with a step (`*/5`, `8-18/2`), or several of
these with commas between. A range of days of the week may end with Sunday. Where both day fields are restricted, a
day counts when either names it; a field that begins with `*` is not restricted. What crontab takes and nobody can
mean, a step over the end of the field and a day that no month has, is refused.
"""

import re
from dataclasses import dataclass
from typing import Final

from mqdb.errors import CronInvalid

MAX_CRON_LENGTH: Final = 256

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


@dataclass(frozen=True, slots=True)
class CronFields:
    """The values that each field names. Days of the week are 0 to 6, Sunday is 0."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    either_day: bool
    """Whether a day counts that only one of `days` and `weekdays` names."""

    @property
    def every_hour(self) -> bool:
        """Whether there are times in each hour of a day."""
        return len(self.hours) == 24


def parse_cron(text: str) -> CronFields:
    """Read a cron text. Raises CronInvalid."""
    if len(text) > MAX_CRON_LENGTH:
        raise CronInvalid(text, f"has {len(text):,} characters, the limit is {MAX_CRON_LENGTH}")
    words = _NAMED.get(text.strip().lower(), text).split()
    if len(words) != len(_FIELDS):
        names = ", ".join(_NAMED)
        reason = f"has {len(words)} fields; write 5: minute hour day-of-month month day-of-week, or one of {names}"
        raise CronInvalid(text, reason)
    try:
        minutes, hours, days, months, weekdays = (
            field.values(word) for field, word in zip(_FIELDS, words, strict=True)
        )
        either_day = not (words[2].startswith("*") or words[4].startswith("*"))
        if not either_day:
            _check_day_comes(days, months)
    except ValueError as error:
        raise CronInvalid(text, str(error)) from None
    return CronFields(minutes, hours, days, months, frozenset(day % 7 for day in weekdays), either_day)


def _check_day_comes(days: frozenset[int], months: frozenset[int]) -> None:
    longest = max(_MONTH_LENGTHS[month - 1] for month in months)
    if min(days) > longest:
        named = ", ".join(map(str, sorted(months)))
        raise ValueError(f"there is no day {min(days)} in month {named}, which has {longest} days at most")


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()

    def values(self, word: str) -> frozenset[int]:
        """Raises ValueError."""
        return frozenset(value for part in word.split(",") for value in self._range(part))

    def _range(self, part: str) -> range:
        match = _PART.fullmatch(part)
        if match is None:
            raise ValueError(f"{self.name} {part!r}: write *, a value, a range as 1-5, or a step as */5")
        first, last, step = match["first"], match["last"], match["step"]
        low = self.low if first is None else self._value(first)
        high = self.high if first is None else low if last is None else self._value(last)
        if self.names is _WEEKDAYS and high == 0 < low:
            high = 7
        if low > high:
            raise ValueError(f"{self.name} {part!r}: the range ends before it begins")
        if step is None:
            return range(low, high + 1)
        if first is not None and last is None:
            raise ValueError(
                f"{self.name} {part!r}: a step needs a range; write {first}-{self.high}/{step} or */{step}"
            )
        if not 1 <= int(step) <= self.high:
            raise ValueError(f"{self.name} {part!r}: the step must be from 1 to {self.high}, not {step}")
        return range(low, high + 1, int(step))

    def _value(self, text: str) -> int:
        if text.lower() in self.names:
            return self.names.index(text.lower()) + self.low
        if not re.fullmatch("[0-9]{1,9}", text) or not self.low <= int(text) <= self.high:
            or_names = f" or {self.names[0]} to {self.names[-1]}" if self.names else ""
            raise ValueError(f"{self.name} {text!r}: must be from {self.low} to {self.high}{or_names}")
        return int(text)


_FIELDS: Final = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of month", 1, 31),
    _Field("month", 1, 12, _MONTHS),
    _Field("day of week", 0, 7, _WEEKDAYS),
)
