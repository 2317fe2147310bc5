"""The firing times of cron expressions equal an enumeration of all minutes or seconds, across clock changes too."""

import calendar
import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mqdb.errors import CronInvalid, ParameterInvalid
from mqdb.service.cron_text import LAST, CronFields, parse_cron
from mqdb.service.cron_times import next_time, zone_of
from tests.fixtures.fuzz import fuzz_cases

MINUTE = timedelta(minutes=1)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def times(cron: str, zone: str, after: str, count: int) -> list[str]:
    found, time = [], at(after)
    for _ in range(count):
        time = next_time(cron, zone, time)
        found.append(f"{time:%Y-%m-%d %H:%M:%S}".removesuffix(":00"))
    return found


@pytest.mark.parametrize(
    ("cron", "after", "expected"),
    [
        ("*/5 * * * *", "2026-07-14 09:30:00", "2026-07-14 09:35"),
        ("*/5 * * * *", "2026-07-14 09:29:59.999999", "2026-07-14 09:30"),
        ("0 0 1 1 *", "2026-07-14 09:30:00", "2027-01-01 00:00"),
        ("0 12 29 2 *", "2026-07-14 09:30:00", "2028-02-29 12:00"),
        ("0 12 29 2 */7", "2026-07-14 09:30:00", "2032-02-29 12:00"),
        ("0 0 31 * *", "2026-08-31 00:00:00", "2026-10-31 00:00"),
        ("0 0 31 4 mon", "2026-07-14 09:30:00", "2027-04-05 00:00"),
    ],
)
def test_the_next_time_is_later(cron: str, after: str, expected: str) -> None:
    assert times(cron, "UTC", after, 1) == [expected]


@pytest.mark.parametrize(
    ("weekday", "day"), [("0", 19), ("7", 19), ("sun", 19), ("1", 20), ("5", 17), ("sat", 18), ("mon-fri", 15)]
)
def test_days_of_the_week_are_those_of_crontab(weekday: str, day: int) -> None:
    """Days of the week are numbered as in crontab. 2026-07-14 is a Tuesday."""
    assert times(f"0 9 * * {weekday}", "UTC", "2026-07-14 12:00:00", 1) == [f"2026-07-{day} 09:00"]


def test_two_restricted_day_fields_are_either_of_them() -> None:
    found = times("0 0 15 * mon", "UTC", "2026-07-14 12:00:00", 3)

    assert found == ["2026-07-15 00:00", "2026-07-20 00:00", "2026-07-27 00:00"]


@pytest.mark.parametrize(
    ("cron", "expected"),
    [
        ("0 9 L * *", ["2027-12-31 09:00", "2028-01-31 09:00", "2028-02-29 09:00"]),
        ("0 9 * * 5L", ["2027-12-31 09:00", "2028-01-28 09:00", "2028-02-25 09:00"]),
        ("0 9 * * mon#2", ["2027-12-13 09:00", "2028-01-10 09:00", "2028-02-14 09:00"]),
        ("0 9 * * sat-mon", ["2027-12-04 09:00", "2027-12-05 09:00", "2027-12-06 09:00"]),
        ("0 9 L * mon#1", ["2027-12-06 09:00", "2027-12-31 09:00", "2028-01-03 09:00"]),
        ("0 9 * 2 tue#5", ["2028-02-29 09:00", "2056-02-29 09:00"]),
        ("0 9 L * */7", ["2028-04-30 09:00", "2028-12-31 09:00"]),
        ("*/25 59 23 L 2 *", ["2028-02-29 23:59", "2028-02-29 23:59:25", "2028-02-29 23:59:50"]),
    ],
)
def test_days_by_their_place_in_the_month(cron: str, expected: list[str]) -> None:
    assert times(cron, "UTC", "2027-11-30 12:00:00", len(expected)) == expected


def test_times_are_on_the_clock_of_the_zone() -> None:
    assert times("30 7 * * *", "Europe/Berlin", "2026-07-14 12:00:00", 1) == ["2026-07-15 05:30"]
    assert times("30 7 * * *", "Europe/Berlin", "2026-01-14 12:00:00", 1) == ["2026-01-15 06:30"]


# In Berlin clocks go from 02:00 to 03:00 on 2026-03-29, and from 03:00 to 02:00 on 2026-10-25, both at 01:00 UTC.


def test_a_fixed_time_that_does_not_exist_is_fired_when_clocks_are_put_forward() -> None:
    found = times("30 2 * * *", "Europe/Berlin", "2026-03-28 12:00:00", 2)

    assert found == ["2026-03-29 01:00", "2026-03-30 00:30"]


def test_several_fixed_times_that_do_not_exist_are_one_with_that_of_the_change() -> None:
    found = times("*/15 2-3 * * *", "Europe/Berlin", "2026-03-29 00:00:00", 3)

    assert found == ["2026-03-29 01:00", "2026-03-29 01:15", "2026-03-29 01:30"]


def test_a_fixed_time_that_exists_twice_is_fired_the_first_time() -> None:
    found = times("30 2 * * *", "Europe/Berlin", "2026-10-24 12:00:00", 2)

    assert found == ["2026-10-25 00:30", "2026-10-26 01:30"]


def test_a_cron_of_every_hour_goes_on_when_clocks_are_put_back() -> None:
    found = times("30 * * * *", "Europe/Berlin", "2026-10-24 23:00:00", 4)

    assert found == ["2026-10-24 23:30", "2026-10-25 00:30", "2026-10-25 01:30", "2026-10-25 02:30"]


def test_a_cron_of_every_hour_goes_on_when_clocks_are_put_forward() -> None:
    found = times("*/30 * * * *", "Europe/Berlin", "2026-03-29 00:15:00", 3)

    assert found == ["2026-03-29 00:30", "2026-03-29 01:00", "2026-03-29 01:30"]


@pytest.mark.parametrize("zone", ["Europe/Berlino", "Europe", "", "../UTC", "/etc/passwd", "MEZ+1", "a\0b", None])
def test_an_unknown_zone_is_refused(zone: Any) -> None:
    with pytest.raises(ParameterInvalid) as refused:
        zone_of(zone)

    assert (refused.value.name, refused.value.value) == ("timezone", zone)


def test_what_cannot_be_read_has_no_next_time() -> None:
    with pytest.raises(CronInvalid):
        next_time("every day", "UTC", at("2026-07-14 09:30:00"))


# -- against an enumeration -----------------------------------------------------------------------

#: Two days with a change of clocks among them, or none: by an hour, by half of one, at midnight, by a whole day.
WINDOWS = [
    ("UTC", "2026-03-28 12:00"),
    ("Europe/Berlin", "2026-03-28 06:00"),
    ("Europe/Berlin", "2026-10-24 06:00"),
    ("America/New_York", "2026-11-01 00:00"),
    ("Australia/Lord_Howe", "2026-04-04 00:00"),
    ("Australia/Lord_Howe", "2026-10-03 00:00"),
    ("America/Havana", "2026-03-07 12:00"),
    ("America/Havana", "2026-10-31 12:00"),
    ("America/Santiago", "2026-04-04 06:00"),
    ("Asia/Kolkata", "2026-06-30 12:00"),
    ("Pacific/Apia", "2011-12-29 12:00"),
]
LENGTH = timedelta(days=2)


def enumerated(
    fields: CronFields, zone: ZoneInfo, start: datetime, end: datetime, step: timedelta = MINUTE
) -> Iterator[datetime]:
    """Every minute (or other step) after `start` at which the expression fires by the written rules."""
    time = start + step
    is_fixed = len(fields.hours) < 24
    while time <= end:
        wall = time.astimezone(zone)
        is_shown = names(fields, wall) and not (is_fixed and wall.fold)
        if is_shown or (is_fixed and any(names(fields, each) for each in passed_over(time, zone, step))):
            yield time
        time += step


def names(fields: CronFields, wall: datetime) -> bool:
    is_time = wall.hour in fields.hours and wall.minute in fields.minutes and wall.second in fields.seconds
    return is_time and wall.month in fields.months and names_day(fields, wall)


def names_day(fields: CronFields, wall: datetime) -> bool:
    weekday, number = wall.isoweekday() % 7, (wall.day + 6) // 7
    is_day = wall.day in fields.days or (fields.last_day and (wall + timedelta(days=1)).day == 1)
    is_last = (wall + timedelta(days=7)).month != wall.month
    is_there = (weekday, number) in fields.positions or (is_last and (weekday, LAST) in fields.positions)
    is_weekday = weekday in fields.weekdays or is_there
    return is_day or is_weekday if fields.either_day else is_day and is_weekday


def passed_over(time: datetime, zone: ZoneInfo, step: timedelta) -> Iterator[datetime]:
    """The times that clocks skipped when they were put forward to this time."""
    before = (time - step).astimezone(zone).replace(tzinfo=None) + step
    now = time.astimezone(zone).replace(tzinfo=None)
    while before < now:
        yield before
        before += step


def field(low: int, high: int) -> st.SearchStrategy[str]:
    listed = st.lists(st.integers(low, high), min_size=1, max_size=3).map(lambda values: ",".join(map(str, values)))
    stepped = st.integers(max(high // 6, 1), high).map(lambda step: f"*/{step}")
    return st.one_of(st.just("*"), listed, stepped)


def sometimes(low: int, high: int) -> st.SearchStrategy[str]:
    return st.one_of(st.just("*"), st.just("*"), field(low, high))


CRONS = st.tuples(
    field(0, 59).filter(lambda word: word != "*"), field(0, 23), sometimes(1, 28), st.just("*"), sometimes(0, 7)
).map(" ".join)


@settings(max_examples=min(fuzz_cases(), 1_000))
@given(cron=CRONS, window=st.sampled_from(WINDOWS))
@example("0,30 * 25 * *", ("Europe/Berlin", "2026-10-24 06:00"))
@example("*/10 * 31 * *", ("America/Havana", "2026-10-31 12:00"))
@example("*/10 * 1 * *", ("America/Havana", "2026-10-31 12:00"))
@example("0 0 * * *", ("America/Havana", "2026-03-07 12:00"))
@example("59 23 * * *", ("America/Santiago", "2026-04-04 06:00"))
@example("0 12 30 * *", ("Pacific/Apia", "2011-12-29 12:00"))
@example("0 * 30 * *", ("Pacific/Apia", "2011-12-29 12:00"))
@example("15,45 1-2 * * *", ("Australia/Lord_Howe", "2026-04-04 00:00"))
def test_the_times_are_those_of_an_enumeration_of_all_minutes(cron: str, window: tuple[str, str]) -> None:
    zone, start = window[0], at(window[1])
    end = start + LENGTH

    found, time = [], start
    while (time := next_time(cron, zone, time)) <= end:
        found.append(time)

    assert found == list(enumerated(parse_cron(cron), ZoneInfo(zone), start, end))


#: The hours around some of these changes, and how they look in seconds.
HOURS = [
    ("Europe/Berlin", "2026-03-29 00:00"),
    ("Europe/Berlin", "2026-10-24 23:30"),
    ("Australia/Lord_Howe", "2026-04-04 14:00"),
    ("Australia/Lord_Howe", "2026-10-03 14:30"),
    ("America/Havana", "2026-03-08 04:00"),
    ("Pacific/Apia", "2011-12-30 09:00"),
]
SECONDS = st.tuples(
    st.one_of(st.integers(0, 59).map(str), st.integers(7, 59).map(lambda step: f"*/{step}"), st.just("3,58-59")),
    field(0, 59),
    st.one_of(st.just("*"), st.just("0-3"), field(0, 23)),
    sometimes(1, 31),
    st.just("*"),
    sometimes(0, 7),
).map(" ".join)


@settings(max_examples=min(fuzz_cases(), 200))
@given(cron=SECONDS, window=st.sampled_from(HOURS))
@example("*/20 30-31 2 * * *", ("Europe/Berlin", "2026-03-29 00:00"))
@example("59 59 1-2 * * *", ("Europe/Berlin", "2026-10-24 23:30"))
@example("*/30 * * * * *", ("Australia/Lord_Howe", "2026-04-04 14:00"))
def test_the_times_are_those_of_an_enumeration_of_all_seconds(cron: str, window: tuple[str, str]) -> None:
    zone, start = window[0], at(window[1])
    end = start + timedelta(hours=2, minutes=30)

    found, time = [], start
    while (time := next_time(cron, zone, time)) <= end:
        found.append(time)

    expected = enumerated(parse_cron(cron), ZoneInfo(zone), start, end, timedelta(seconds=1))
    assert found == list(expected)


DAY_PARTS = st.one_of(st.integers(1, 31).map(str), st.just("L"))
WEEKDAY_PARTS = st.one_of(
    st.integers(0, 7).map(str),
    st.tuples(st.integers(0, 7), st.sampled_from(["#1", "#2", "#4", "#5", "L"])).map(
        lambda pair: f"{pair[0]}{pair[1]}"
    ),
    st.tuples(st.integers(0, 7), st.integers(0, 7)).map(lambda pair: f"{pair[0]}-{pair[1]}"),
)
ALL_DAYS = st.sampled_from(["*", "?"])


def listed(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.lists(parts, min_size=1, max_size=3).map(",".join)


def days_named(day: str, weekday: str, date: datetime) -> bool:
    """Whether the two words select a day, by an independent reading of crontab(5) and Quartz."""
    last = calendar.monthrange(date.year, date.month)[1]
    is_day = day in {"*", "?"} or any(date.day == (last if part == "L" else int(part)) for part in day.split(","))
    is_weekday = weekday in {"*", "?"} or any(weekday_named(part, date, last) for part in weekday.split(","))
    return is_day and is_weekday if {day, weekday} & {"*", "?"} else is_day or is_weekday


def weekday_named(part: str, date: datetime, last: int) -> bool:
    first, *rest = map(int, re.findall("[0-9]", part))
    today = date.isoweekday() % 7
    such_days = [day for day in range(1, last + 1) if (day - date.day) % 7 == 0]
    if "-" in part:
        (end,) = rest
        return today in {day % 7 for day in range(first, end + 1 if first <= end else end + 8)}
    place = slice(-1, None) if "L" in part else slice(rest[0] - 1, rest[0]) if rest else slice(None)
    return today == first % 7 and date.day in such_days[place]


@settings(max_examples=min(fuzz_cases(), 1_000))
@given(
    fields=st.one_of(
        st.tuples(listed(DAY_PARTS), ALL_DAYS),
        st.tuples(st.just("*"), listed(WEEKDAY_PARTS)),
        st.tuples(listed(DAY_PARTS), listed(WEEKDAY_PARTS)),
    ),
    months=st.sampled_from(["*", "2", "1,3-5", "2,12"]),
    year=st.sampled_from([2026, 2027, 2028, 2099]),
)
def test_the_days_are_those_of_a_walk_over_three_years(fields: tuple[str, str], months: str, year: int) -> None:
    day, weekday = fields
    start, end = at(f"{year}-01-01 00:00"), at(f"{year + 3}-01-01 00:00")
    found, time = [], start
    # A day that no month has is refused.
    with suppress(CronInvalid):
        while (time := next_time(f"30 12 {day} {months} {weekday}", "UTC", time)) < end:
            found.append(time.date())

    in_months = parse_cron(f"0 0 1 {months} *").months
    dates = (start + timedelta(days=number) for number in range((end - start).days))
    assert found == [date.date() for date in dates if date.month in in_months and days_named(day, weekday, date)]


def test_a_time_that_is_far_is_found_where_clocks_change_at_it() -> None:
    """A distant firing time is found even if clocks change at it.

    In Havana the first hour of 1 November occurs twice, and clocks change twice before.
    """
    found = times("0 * 1 11 *", "America/Havana", "2026-01-15 00:00:00", 3)

    assert found == ["2026-11-01 04:00", "2026-11-01 05:00", "2026-11-01 06:00"]
