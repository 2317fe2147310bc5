"""Cron texts: what each field names, and what is refused."""

import pytest

from mqdb.errors import CronInvalid
from mqdb.service.cron_text import MAX_CRON_LENGTH, parse_cron


@pytest.mark.parametrize(
    ("text", "minutes", "hours"),
    [
        ("*/20 8-18/5 * * *", {0, 20, 40}, {8, 13, 18}),
        ("5,35 0,23 * * *", {5, 35}, {0, 23}),
        ("10-12,59 7 * * *", {10, 11, 12, 59}, {7}),
        ("  0\t0  * * * ", {0}, {0}),
        ("@daily", {0}, {0}),
        ("@Hourly", {0}, set(range(24))),
    ],
)
def test_minutes_and_hours(text: str, minutes: set[int], hours: set[int]) -> None:
    fields = parse_cron(text)

    assert (set(fields.minutes), set(fields.hours)) == (minutes, hours)


@pytest.mark.parametrize(
    ("word", "weekdays"),
    [
        ("0", {0}),
        ("7", {0}),
        ("1", {1}),
        ("sun", {0}),
        ("SAT", {6}),
        ("mon-fri", {1, 2, 3, 4, 5}),
        ("5-7", {5, 6, 0}),
        ("fri-sun", {5, 6, 0}),
        ("0-7", {0, 1, 2, 3, 4, 5, 6}),
        ("*/2", {0, 2, 4, 6}),
        ("*", {0, 1, 2, 3, 4, 5, 6}),
    ],
)
def test_days_of_the_week_count_from_sunday(word: str, weekdays: set[int]) -> None:
    assert parse_cron(f"0 0 * * {word}").weekdays == weekdays


def test_months_have_names() -> None:
    assert parse_cron("0 0 1 jan,Mar-may/2,12 *").months == {1, 3, 5, 12}


@pytest.mark.parametrize(
    ("days", "either"), [("1 * mon", True), ("* * mon", False), ("1 * *", False), ("*/2 * mon", False)]
)
def test_either_day_counts_only_where_both_are_restricted(days: str, either: bool) -> None:
    assert parse_cron(f"0 0 {days}").either_day is either


@pytest.mark.parametrize("days", ["29 2 *", "30 2 mon", "31 2,3 *", "30,1 2 *"])
def test_a_day_that_comes_some_time_is_taken(days: str) -> None:
    parse_cron(f"0 0 {days}")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "has 0 fields; write 5"),
        ("* * * *", "has 4 fields; write 5"),
        ("0 * * * * *", "has 6 fields; write 5"),
        ("@reboot", "has 1 fields; write 5"),
        ("60 * * * *", "minute '60': must be from 0 to 59"),
        ("* 24 * * *", "hour '24': must be from 0 to 23"),
        ("* * 0 * *", "day of month '0': must be from 1 to 31"),
        ("* * * 13 *", "month '13': must be from 1 to 12 or jan to dec"),
        ("* * * * 8", "day of week '8': must be from 0 to 7 or sun to sat"),
        ("* * * * monday", "day of week 'monday': must be"),
        ("* * * last *", "month 'last': must be"),
        ("9-5 * * * *", "minute '9-5': the range ends before it begins"),
        ("*/0 * * * *", "the step must be from 1 to 59, not 0"),
        ("*/90 * * * *", "the step must be from 1 to 59, not 90"),
        ("5/10 * * * *", "a step needs a range; write 5-59/10 or */10"),
        ("1,,2 * * * *", "minute '': write"),
        ("1;2 * * * *", "minute '1;2': write"),
        ("-5 * * * *", "minute '-5': write"),
        ("\u0661 * * * *", "minute '\u0661': write"),
        ("0 0 30 2 *", "there is no day 30 in month 2, which has 29 days at most"),
        ("0 0 31 4,6,9,11 *", "there is no day 31 in month 4, 6, 9, 11, which has 30 days at most"),
        ("0 0 31 feb */2", "there is no day 31 in month 2"),
        ("0," * MAX_CRON_LENGTH + "0 * * * *", "characters, the limit is 256"),
    ],
)
def test_what_is_no_cron_text_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(CronInvalid) as refused:
        parse_cron(text)

    assert reason in refused.value.reason
    assert refused.value.cron == text
