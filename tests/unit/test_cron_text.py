"""Cron expressions: the meaning of each field, and the refused expressions."""

import pytest

from mqdb.errors import CronInvalid
from mqdb.service.cron_text import LAST, MAX_CRON_LENGTH, parse_cron


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


@pytest.mark.parametrize(
    ("word", "weekdays"),
    [
        ("sat-mon", {6, 0, 1}),
        ("6-1", {6, 0, 1}),
        ("fri-mon/2", {5, 0}),
        ("7-2", {0, 1, 2}),
        ("wed-tue", {0, 1, 2, 3, 4, 5, 6}),
    ],
)
def test_a_range_goes_over_the_end_of_the_week(word: str, weekdays: set[int]) -> None:
    assert parse_cron(f"0 0 * * {word}").weekdays == weekdays


@pytest.mark.parametrize(
    ("text", "seconds"), [("0 0 * * *", {0}), ("*/20 0 0 * * *", {0, 20, 40}), ("5-7,59 * * * * *", {5, 6, 7, 59})]
)
def test_the_first_of_six_fields_is_the_second(text: str, seconds: set[int]) -> None:
    assert parse_cron(text).seconds == seconds


@pytest.mark.parametrize(("word", "days"), [("L", set()), ("l", set()), ("1,15,L", {1, 15})])
def test_the_last_day_of_the_month(word: str, days: set[int]) -> None:
    fields = parse_cron(f"0 0 {word} 2 *")

    assert (fields.last_day, set(fields.days)) == (True, days)


@pytest.mark.parametrize(
    ("word", "weekdays", "positions"),
    [
        ("mon#2", set(), {(1, 2)}),
        ("5L", set(), {(5, LAST)}),
        ("FRIL", set(), {(5, LAST)}),
        ("7#5,0#1", set(), {(0, 5), (0, 1)}),
        ("tue,mon#1,thuL", {2}, {(1, 1), (4, LAST)}),
    ],
)
def test_days_of_the_week_by_their_place_in_the_month(
    word: str, weekdays: set[int], positions: set[tuple[int, int]]
) -> None:
    fields = parse_cron(f"0 0 * * {word}")

    assert (set(fields.weekdays), set(fields.positions)) == (weekdays, positions)


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("0 0 ? * mon", "0 0 * * mon"),
        ("0 0 12 ? * mon#2", "0 12 * * mon#2"),
        ("0 0 12 1 * ?", "0 12 1 * *"),
        ("0 12 ? * */2", "0 12 * * */2"),
    ],
)
def test_a_question_mark_is_any_day(text: str, same: str) -> None:
    assert parse_cron(text) == parse_cron(same)


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
        ("0 0 0 1 1 ? 2026", "has 7 fields, but there is no field for a year"),
        ("@reboot", "let a program send when it starts, or write one of @yearly"),
        ("@every 5m", "write */5 * * * * for 5 minutes, */30 * * * * * for 30 seconds"),
        ("@Every 1h 30m 5s 1 1", "@every is not known"),
        ("@fortnightly", "has 1 fields; write 5"),
        ("60 * * * * *", "second '60': must be from 0 to 59"),
        ("0 0 L-3 * *", "day of month 'L-3': days before the last one cannot be named; write a day, or L"),
        ("0 0 15W * *", "day of month '15W': the nearest weekday cannot be named; write a day, or L"),
        ("0 0 LW * *", "day of month 'LW': the nearest weekday"),
        ("0 0 * * L", "day of week 'L': write L as day of month, or monL as day of week"),
        ("0 L * * *", "hour 'L': write L as day of month"),
        ("0 0 5L * *", "day of month '5L': write L as day of month"),
        ("0 0 * jul mon#6", "day of week 'mon#6': write mon#1 to mon#5"),
        ("0 0 mon#2 * *", "day of month 'mon#2': write mon#1 to mon#5 in the day of week"),
        ("0 0 * * 8L", "day of week '8': must be from 0 to 7"),
        ("0 0 * * mon-fri#2", "day of week 'mon-fri#2': write"),
        ("0 0 */2 * mon#2", "day of week 'mon#2': the day of month '*/2' cannot narrow it; write * there"),
        ("H H * * *", "minute 'H': H, a value that is chosen for you, is not known"),
        ("H(0-29)/10 * * * *", "minute 'H(0-29)/10': H, a value"),
        ("15 12 ? * MON-FRI *", "hour '?': ? means any day, alone in the field of a day"),
        ("0 12 ?/2 * *", "day of month '?/2': ? means any day"),
        ("0 0 12 ? * 2-6", "day of week '2-6': with a ? as in Quartz, 1 is Sunday, but here it is Monday; write names"),
        ("0 0 12 ? * 2#1", "day of week '2#1': with a ? as in Quartz"),
        ("0 0 1 11-2 *", "month '11-2': the range ends before it begins; write 11-12,1-2"),
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
        ("0," * MAX_CRON_LENGTH + "0 * * * *", "characters; the limit is 256"),
    ],
)
def test_what_is_no_cron_text_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(CronInvalid) as refused:
        parse_cron(text)

    assert reason in refused.value.reason
    assert refused.value.cron == text
