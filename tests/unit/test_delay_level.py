"""Delay levels: how long a message waits at each level."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqdb.common.delay_level import DEFAULT_DELAY_LEVELS, MAX_DELAY, DelayLevels, parse_delay_levels
from mqdb.errors import DelayLevelsInvalid

MINUTE = timedelta(minutes=1)


def test_the_usual_levels_are_those_of_rocketmq() -> None:
    levels = parse_delay_levels(DEFAULT_DELAY_LEVELS)

    seconds = [1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1_200, 1_800, 3_600, 7_200]
    assert levels.delays == tuple(timedelta(seconds=each) for each in seconds)


def test_row_27_levels_count_from_1_and_the_last_stands_for_those_above() -> None:
    levels = parse_delay_levels("2s 1m")

    assert levels.delay(1) == timedelta(seconds=2)
    assert levels.delay(2) == MINUTE
    assert levels.delay(3) == MINUTE


@pytest.mark.parametrize(
    ("word", "delay"),
    [("7s", timedelta(seconds=7)), ("7m", 7 * MINUTE), ("7h", timedelta(hours=7)), ("7d", timedelta(days=7))],
)
def test_a_delay_is_a_number_with_a_unit(word: str, delay: timedelta) -> None:
    assert parse_delay_levels(word).delays == (delay,)


def test_blanks_around_words_do_not_count() -> None:
    assert parse_delay_levels("  1s   2s ") == parse_delay_levels("1s 2s")


def test_delays_stay_in_the_order_of_the_text() -> None:
    assert parse_delay_levels("1h 1s").text == "1h 1s"


@pytest.mark.parametrize("level", [0, -1, -100])
def test_a_level_of_0_or_less_is_no_delay(level: int) -> None:
    levels = parse_delay_levels("2s 1m")

    assert levels.clamp(level) == 0
    assert levels.delay(level) == timedelta(0)


@pytest.mark.parametrize(("level", "clamped"), [(1, 1), (18, 18), (19, 18), (2**31, 18)])
def test_a_level_above_the_last_becomes_the_last(level: int, clamped: int) -> None:
    assert parse_delay_levels(DEFAULT_DELAY_LEVELS).clamp(level) == clamped


@pytest.mark.parametrize(
    "word",
    ["5", "s", "5x", "5S", "-5s", "+5s", "1.5s", "5ms", "5s,", "1_0s", "\N{FULLWIDTH DIGIT FIVE}s"],
)
def test_a_word_that_is_no_delay_is_named(word: str) -> None:
    with pytest.raises(DelayLevelsInvalid) as caught:
        parse_delay_levels(f"1s {word} 10s")

    assert caught.value.word == word
    assert f"'{word}' is not a number" in str(caught.value)


@pytest.mark.parametrize("text", ["", "   "])
def test_there_is_at_least_one_level(text: str) -> None:
    with pytest.raises(DelayLevelsInvalid):
        parse_delay_levels(text)


@pytest.mark.parametrize("word", ["36501d", "876001h", "9999999999999d"])
def test_a_delay_of_more_than_100_years_is_refused(word: str) -> None:
    with pytest.raises(DelayLevelsInvalid, match=f"'{word}' is longer than 36,500 days"):
        parse_delay_levels(word)


def test_a_number_of_any_length_is_read() -> None:
    with pytest.raises(DelayLevelsInvalid, match="longer than"):
        parse_delay_levels("9" * 10_000 + "s")


def test_a_delay_of_100_years_is_taken() -> None:
    assert parse_delay_levels("36500d").delays == (MAX_DELAY,)


def test_a_table_is_written_in_the_largest_units_that_fit() -> None:
    assert parse_delay_levels("60s 90s 24h 0m").text == "1m 90s 1d 0s"


@given(st.lists(st.integers(0, MAX_DELAY // timedelta(seconds=1)), min_size=1))
def test_a_table_that_was_written_reads_the_same(seconds: list[int]) -> None:
    levels = DelayLevels(tuple(timedelta(seconds=each) for each in seconds))

    assert parse_delay_levels(levels.text) == levels
