"""A client's reactions to notifications, and its duties and pauses."""

import math
from collections.abc import Callable
from itertools import islice

import pytest

from mqdb.common.backoff import pauses
from mqdb.errors import BrokerUnavailable
from mqdb_client.callbacks import Callbacks
from mqdb_client.duty import Duty
from mqdb_client.notifications import Heard, understand


@pytest.mark.parametrize(
    ("payloads", "heard"),
    [
        ([], Heard(False, frozenset(), frozenset())),
        (["a:7"], Heard(True, frozenset({7}), frozenset())),
        (["a:7,8", "a:8,9"], Heard(True, frozenset({7, 8, 9}), frozenset())),
        (["a:7", "a:*"], Heard(True, None, frozenset())),
        (["m:g", "m:%RETRY%|g"], Heard(False, frozenset(), frozenset({"g", "%RETRY%|g"}))),
        (["a:1", "m:a:b"], Heard(True, frozenset({1}), frozenset({"a:b"}))),
        (["a:7,x,,8"], Heard(True, frozenset({7, 8}), frozenset())),
        (["c:10.0.0.1@7#8", "m:g"], Heard(False, frozenset(), frozenset({"g"}), frozenset({"10.0.0.1@7#8"}))),
        (["z:1", "", "a", "a:", "a:x", "whatever"], Heard(False, frozenset(), frozenset())),
    ],
)
def test_payloads_are_understood_together(payloads: list[str], heard: Heard) -> None:
    assert understand(payloads) == heard


def test_pauses_double_up_to_the_longest_and_differ_between_clients() -> None:
    drawn = list(islice(pauses(5.0), 12))

    for pause, longest in zip(drawn, [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5, 5, 5, 5, 5, 5], strict=True):
        assert longest / 2 <= pause <= longest
    assert drawn != list(islice(pauses(5.0), 12))


class Work:
    """A duty that counts its runs, and returns or raises the given results."""

    def __init__(self, *answers: float | Exception | None) -> None:
        self.runs = 0
        self._answers = list(answers)

    def __call__(self) -> float | None:
        self.runs += 1
        answer = self._answers.pop(0) if self._answers else None
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_a_duty_is_run_when_it_is_due_and_not_before() -> None:
    work = Work(3600.0)
    duty = Duty("test", work)

    duty.run_if_due()
    duty.run_if_due()
    assert work.runs == 1
    assert 3599 < duty.seconds_left() <= 3600

    duty.in_seconds(0)
    duty.run_if_due()
    assert work.runs == 2
    assert duty.seconds_left() == math.inf


def test_a_duty_that_is_not_due_rests() -> None:
    work = Work()
    duty = Duty("test", work, due=False)

    duty.run_if_due()

    assert work.runs == 0


@pytest.mark.parametrize("run", [Duty.run_if_due, Duty.run], ids=["when it is due", "at once"])
def test_a_duty_asked_for_while_it_runs_is_run_once_more(run: Callable[[Duty], None]) -> None:
    runs: list[int] = []

    def work() -> float:
        runs.append(1)
        if len(runs) == 1:
            duty.in_seconds(0)
        return 3600.0

    duty = Duty("test", work)
    run(duty)
    duty.run_if_due()
    duty.run_if_due()

    assert len(runs) == 2


def test_a_duty_that_is_run_at_once_raises_its_error() -> None:
    duty = Duty("test", Work(BrokerUnavailable("here", "down")), due=False)

    with pytest.raises(BrokerUnavailable):
        duty.run()

    assert duty.seconds_left() == math.inf


def test_a_failing_duty_is_tried_again_soon_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    down = BrokerUnavailable("here", "down")
    duty = Duty("heartbeat", Work(down, down, 3600.0, down))

    for _ in range(4):
        duty.in_seconds(0)
        duty.run_if_due()

    assert 0 < duty.seconds_left() <= 1
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", f"could not heartbeat; will retry: {down}"),
        ("INFO", "a duty is done again"),
        ("WARNING", f"could not heartbeat; will retry: {down}"),
    ]


def test_a_duty_that_fails_for_no_reason_of_ours_is_tried_again_and_shown_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    duty = Duty("heartbeat", Work(ValueError("a fault"), ValueError("a fault"), None))

    duty.run_if_due()
    assert 0 < duty.seconds_left() <= 1
    duty.in_seconds(0)
    duty.run_if_due()

    [record] = caplog.records
    assert record.getMessage() == "could not heartbeat; will retry"
    assert "ValueError: a fault" in caplog.text


def test_a_callback_given_twice_is_called_twice_and_cancelled_by_its_own_handle() -> None:
    calls: list[int] = []
    callbacks: Callbacks[int] = Callbacks("test")
    first = callbacks.add(calls.append)
    callbacks.add(calls.append)

    callbacks.call(1)
    first.cancel()
    first.cancel()
    callbacks.call(2)

    assert calls == [1, 1, 2]
