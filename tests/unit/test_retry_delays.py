"""A group's own retry delays: how they are written, how they grow, and which setting applies."""

from datetime import timedelta

import pytest

from mqdb.common.retry_delays import delay_after, doubled_delays, parse_retry_delays
from mqdb.errors import ParameterInvalid


def seconds(*numbers: float) -> list[timedelta]:
    return [timedelta(seconds=number) for number in numbers]


def test_the_last_delay_goes_on() -> None:
    assert [delay_after(seconds(1, 5), times) for times in range(4)] == seconds(1, 5, 5, 5)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1s,5s, 1m", seconds(1, 5, 60)),
        ("500ms", seconds(0.5)),
        ("1s..10s", seconds(1, 2, 4, 8, 10)),
        ("10s..10s", seconds(10)),
        ("0s..10s", seconds(10)),
        ("ladder", []),
    ],
)
def test_delays_are_written_as_a_list_or_doubled(text: str, expected: list[timedelta]) -> None:
    assert parse_retry_delays(text) == expected


@pytest.mark.parametrize("text", ["", "soon", "1s,", "1s..", "..1s", "13h", "-1s", ",".join(["1s"] * 101)])
def test_no_other_text_is_taken(text: str) -> None:
    with pytest.raises(ParameterInvalid, match="retry_delays"):
        parse_retry_delays(text)


def test_delays_that_hardly_grow_are_a_hundred_at_most() -> None:
    grown = doubled_delays(timedelta(milliseconds=1), timedelta(hours=1), multiplier=1.01)

    assert (len(grown), grown[-1]) == (100, timedelta(hours=1))
    assert doubled_delays(timedelta(seconds=1), timedelta(hours=1), multiplier=1) == [timedelta(hours=1)]
