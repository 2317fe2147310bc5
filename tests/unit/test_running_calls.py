"""Listener calls: each is ended once, by the first thread to do so."""

from mqdb_client.consumer.listeners.running_calls import RunningCall, RunningCalls
from tests.fixtures.orderly import queue_of, received

QUEUE = queue_of()
MESSAGES = [received(QUEUE, 0)]


def test_a_call_that_is_given_up_is_still_seen_and_its_end_does_not_count() -> None:
    calls = RunningCalls()
    slow = calls.begin(QUEUE, MESSAGES)

    assert calls.give_up(0) == [slow]
    assert calls.give_up(0) == []  # once
    assert calls.current() == [slow]
    assert slow.is_given_up

    assert not calls.end(slow)
    assert calls.current() == []


def test_a_call_that_has_not_run_for_so_long_goes_on() -> None:
    calls = RunningCalls()
    call = calls.begin(QUEUE, MESSAGES)

    assert calls.give_up(60) == []
    assert calls.end(call)
    assert calls.current() == []


class _Returning(set[RunningCall]):
    """Calls that return right after they have been looked at."""

    def __init__(self, calls: RunningCalls) -> None:
        self._of = calls
        self.ends: list[bool] = []

    def copy(self) -> set[RunningCall]:
        found = set(self)
        self.ends += [self._of.end(call) for call in found]
        return found


def test_a_call_that_returns_while_it_is_given_up_has_returned() -> None:
    calls = RunningCalls()
    calls._calls = returning = _Returning(calls)
    call = calls.begin(QUEUE, MESSAGES)

    assert calls.give_up(0) == []

    assert returning.ends == [True]
    assert not call.is_given_up
    assert calls.current() == []
