"""The clock of the machine: aware, and in UTC."""

from datetime import UTC, datetime

from mqdb.common.clock import Clock, SystemClock


def test_the_system_clock_tells_the_time_in_utc() -> None:
    clock: Clock = SystemClock()

    before, told, after = datetime.now(UTC), clock.now(), datetime.now(UTC)

    assert before <= told <= after
    assert told.tzinfo is UTC


def test_the_system_clock_never_goes_back() -> None:
    clock: Clock = SystemClock()

    first = clock.monotonic()

    assert clock.monotonic() >= first
