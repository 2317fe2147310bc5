"""Clocks: aware, in UTC, and in a test moved only by hand."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from mqdb.common.clock import Clock, ManualClock, SystemClock
from mqdb.errors import ParameterInvalid

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)


def test_the_system_clock_tells_the_time_in_utc() -> None:
    clock: Clock = SystemClock()

    before, told, after = datetime.now(UTC), clock.now(), datetime.now(UTC)

    assert before <= told <= after
    assert told.tzinfo is UTC


def test_the_system_clock_never_goes_back() -> None:
    clock: Clock = SystemClock()

    first = clock.monotonic()

    assert clock.monotonic() >= first


def test_a_manual_clock_stands_still() -> None:
    clock: Clock = ManualClock(NOON)

    assert clock.now() == clock.now() == NOON
    assert clock.monotonic() == clock.monotonic()


def test_advancing_moves_both_times() -> None:
    clock = ManualClock(NOON)
    start = clock.monotonic()

    clock.advance(timedelta(minutes=1))

    assert clock.now() == NOON + timedelta(minutes=1)
    assert clock.monotonic() - start == 60.0


def test_setting_the_clock_back_leaves_durations_alone() -> None:
    clock = ManualClock(NOON)
    start = clock.monotonic()

    clock.advance(timedelta(hours=-1))

    assert clock.now() == NOON - timedelta(hours=1)
    assert clock.monotonic() == start


def test_a_manual_clock_converts_to_utc() -> None:
    clock = ManualClock(datetime(2024, 5, 1, 14, tzinfo=timezone(timedelta(hours=2))))

    assert clock.now().isoformat() == "2024-05-01T12:00:00+00:00"


def test_a_manual_clock_refuses_a_time_without_zone() -> None:
    with pytest.raises(ParameterInvalid, match="aware"):
        ManualClock(NOON.replace(tzinfo=None))
