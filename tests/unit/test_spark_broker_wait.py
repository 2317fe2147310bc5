"""Spark's work waits for the broker: the errors that it waits out, the limit, and the log lines."""

import logging
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import pytest

from mqdb.errors import AuthenticationFailed, BrokerUnavailable, DatabaseMissing, MqdbError, ServerIsStandby
from mqdb.pipeline.broker_wait import patiently
from mqdb.pipeline.errors import LogReplaced
from tests.fixtures.clocks import ManualClock

AWAY = BrokerUnavailable("host/mqdb", "connection refused")


class Work:
    """Work that raises each of these errors in turn, and then either repeats the last one or succeeds."""

    def __init__(self, *errors: MqdbError, then_succeeds: bool = True) -> None:
        self._errors = iter(errors)
        self._last = None if then_succeeds else errors[-1]
        self.clock = ManualClock(datetime(2026, 1, 1, tzinfo=UTC))
        #: When it was tried, in seconds.
        self.attempts: list[float] = []
        self.pauses: list[float] = []

    def run(self, seconds: float) -> str:
        return patiently(self._attempt, "plan a read", seconds, clock=self.clock, sleep=self._sleep)

    def _attempt(self) -> str:
        self.attempts.append(self.clock.monotonic())
        if (error := next(self._errors, self._last)) is not None:
            raise error
        return "done"

    def _sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.clock.advance(timedelta(seconds=seconds))


def logged(caplog: pytest.LogCaptureFixture) -> Iterable[tuple[str, str]]:
    return [(record.levelname, record.getMessage()) for record in caplog.records]


def test_an_outage_is_waited_out_with_growing_pauses_and_two_log_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mqdb")
    work = Work(AWAY, ServerIsStandby("host/mqdb", "the DSN leads to it"), *[AWAY] * 10)

    assert work.run(60) == "done"

    assert work.pauses[0] < work.pauses[3] < work.pauses[5] <= max(work.pauses) <= 2
    [(begin, begun), (end, ended)] = logged(caplog)
    assert (begin, begun) == (
        "WARNING",
        "waiting for the broker to plan a read, for at most 60 s: no broker at host/mqdb: connection refused",
    )
    assert (end, ended) == ("INFO", f"waited {work.clock.monotonic():.1f} s for the broker to plan a read")


def test_the_last_attempt_comes_when_the_time_is_over_and_its_error_names_the_option() -> None:
    work = Work(AWAY, then_succeeds=False)

    with pytest.raises(BrokerUnavailable) as caught:
        work.run(10)

    assert work.attempts[-1] == pytest.approx(10)
    assert caught.value.__notes__ == ["waited 10.0 s for the broker to plan a read (option brokerWaitSeconds)"]


@pytest.mark.parametrize(
    "error",
    [AuthenticationFailed("host", "wrong"), DatabaseMissing("host", "gone"), LogReplaced("queue 0", "is another one")],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("before", [[], [AWAY, AWAY]], ids=["at-once", "after-an-outage"])
def test_an_error_that_does_not_pass_ends_the_work(error: MqdbError, before: list[MqdbError]) -> None:
    work = Work(*before, error)

    with pytest.raises(type(error)):
        work.run(60)

    assert len(work.attempts) == len(before) + 1


def test_without_time_to_wait_there_is_one_attempt(caplog: pytest.LogCaptureFixture) -> None:
    work = Work(AWAY)

    with pytest.raises(BrokerUnavailable):
        work.run(0)

    assert (work.attempts, logged(caplog)) == ([0.0], [])
