"""Retry: a message that always fails is delivered 17 times, and then moves to the dead letter queue."""

from datetime import timedelta

import pytest

from mqdb.common.delay_level import DEFAULT_DELAY_LEVELS, parse_delay_levels
from mqdb.common.retry import Dead, Later, decide

BY_BROKER = 0
DELAYS = parse_delay_levels(DEFAULT_DELAY_LEVELS)


def ladder(max_reconsume_times: int) -> list[timedelta]:
    """The waits between the deliveries of a message that always fails."""
    waits: list[timedelta] = []
    while isinstance(decision := decide(len(waits), BY_BROKER, max_reconsume_times), Later):
        waits.append(DELAYS.delay(decision.level))
    return waits


def test_the_waits_grow_from_10_seconds_to_2_hours() -> None:
    minutes = [*range(1, 11), 20, 30, 60, 120]

    assert ladder(16) == [timedelta(seconds=10), timedelta(seconds=30), *(timedelta(minutes=each) for each in minutes)]


def test_with_16_retries_there_are_17_deliveries_within_4_h_45_min_40_s() -> None:
    waits = ladder(16)

    assert 1 + len(waits) == 17
    assert sum(waits, timedelta(0)) == timedelta(hours=4, minutes=45, seconds=40)


def test_with_a_larger_maximum_the_last_wait_goes_on() -> None:
    assert ladder(20)[16:] == [timedelta(hours=2)] * 4


@pytest.mark.parametrize(
    ("reconsume_times", "decision"), [(0, Later(3)), (1, Later(4)), (15, Later(18)), (16, Dead()), (17, Dead())]
)
def test_each_failure_waits_one_level_more_until_the_maximum(reconsume_times: int, decision: Later | Dead) -> None:
    assert decide(reconsume_times, BY_BROKER, 16) == decision


def test_without_retries_the_first_failure_is_the_last() -> None:
    assert decide(0, BY_BROKER, 0) == Dead()


def test_a_level_that_was_asked_for_is_taken_however_often_the_message_has_failed() -> None:
    assert [decide(times, 1, 16) for times in (0, 7, 15)] == [Later(1)] * 3


def test_a_level_that_was_asked_for_does_not_prolong_the_retries() -> None:
    assert decide(16, 1, 16) == Dead()


def test_a_negative_level_ends_the_retries_at_once() -> None:
    assert decide(0, -1, 16) == Dead()
