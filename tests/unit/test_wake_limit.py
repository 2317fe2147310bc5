"""The wake limit obeys forged notifications at a bounded rate, and genuine ones at once."""

import pytest

from mqdb.common.wake_limit import WakeLimit


class Time:
    """A clock that stands still until the test moves it."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def limit(time: Time) -> WakeLimit:
    return WakeLimit(burst=50, per_second=10, clock=time)


def obeyed(limit: WakeLimit, time: Time, seconds: float, step: float = 0.001) -> int:
    """The number of useless wakes in a flood of this length."""
    count = 0
    end = time.now + seconds
    while time.now < end:
        if limit.seconds_left() == 0:
            limit.spend()
            count += 1
        time.now += step
    return count


def test_a_flood_is_obeyed_at_a_bounded_rate(limit: WakeLimit, time: Time) -> None:
    assert obeyed(limit, time, 10) == pytest.approx(50 + 10 * 10, abs=2)
    assert obeyed(limit, time, 10) == pytest.approx(10 * 10, abs=2)


def test_the_next_wake_is_a_tenth_of_a_second_late_at_most(limit: WakeLimit, time: Time) -> None:
    obeyed(limit, time, 100)
    limit.spend()
    assert 0 < limit.seconds_left() <= 0.1

    time.now += limit.seconds_left()
    assert limit.seconds_left() == pytest.approx(0)


def test_after_a_rest_as_many_are_obeyed_at_once_as_at_first(limit: WakeLimit, time: Time) -> None:
    obeyed(limit, time, 100)

    time.now += 3600

    assert obeyed(limit, time, 0.001, step=0.00001) == pytest.approx(50, abs=1)


def test_300_genuine_wakes_a_second_are_never_late(limit: WakeLimit, time: Time) -> None:
    """300 genuine wakes a second are never late.

    Each genuine wake is followed by a useless one, whose messages the previous pull has read.
    """
    for _ in range(300 * 60):
        assert limit.seconds_left() == 0
        limit.regain()
        limit.spend()
        time.now += 1 / 300


def test_what_was_found_long_ago_permits_no_larger_burst(limit: WakeLimit, time: Time) -> None:
    for _ in range(10_000):
        limit.regain()

    assert obeyed(limit, time, 10) == pytest.approx(50 + 10 * 10, abs=2)
