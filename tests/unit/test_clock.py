"""The machine's clock returns aware times in UTC."""

from datetime import UTC, date, datetime
from typing import Any

import pytest

from mqdb.common.clock import Clock, SystemClock, check_moment
from mqdb.errors import ParameterInvalid


def test_the_system_clock_tells_the_time_in_utc() -> None:
    clock: Clock = SystemClock()

    before, told, after = datetime.now(UTC), clock.now(), datetime.now(UTC)

    assert before <= told <= after
    assert told.tzinfo is UTC


@pytest.mark.parametrize("moment", [None, 5, "now", date(2026, 7, 14), datetime(2026, 7, 14)])  # noqa: DTZ001
def test_what_is_no_moment_is_refused(moment: Any) -> None:
    with pytest.raises(ParameterInvalid, match=r"since = .* time zone"):
        check_moment("since", moment)


def test_the_system_clock_never_goes_back() -> None:
    clock: Clock = SystemClock()

    first = clock.monotonic()

    assert clock.monotonic() >= first
