"""Rounds of a loop: their duration and their results."""

from datetime import UTC, datetime, timedelta

from mqdb.broker.dispatch import DispatchOutcome, DispatchResult
from mqdb.web.durations import BOUNDS
from mqdb.web.loop_rounds import LoopRounds
from tests.fixtures.clocks import ManualClock


def test_rounds_are_counted_by_how_long_they_took() -> None:
    clock = ManualClock(datetime(2026, 1, 1, tzinfo=UTC))
    loop = LoopRounds("dispatcher", clock)
    for seconds in (0.0, 0.0024, 0.003, 11.0):
        loop.begin()
        clock.advance(timedelta(seconds=seconds))
        loop.end(None)
    loop.end(None)  # a round that has not told of its beginning took no time

    [durations] = loop.durations.values()
    counts = dict(zip([*BOUNDS, None], durations.counts, strict=True))
    assert {bound: count for bound, count in counts.items() if count} == {0.001: 2, 0.0025: 1, 0.005: 1, None: 1}
    assert round(durations.seconds, 4) == 11.0054


def test_rounds_are_told_apart_by_their_outcomes() -> None:
    loop = LoopRounds("dispatcher", ManualClock(datetime(2026, 1, 1, tzinfo=UTC)))
    found = DispatchResult(DispatchOutcome.DISPATCHED, 3, more=False)
    for outcome in (found, found, DispatchResult(DispatchOutcome.IDLE, 0, more=False), ValueError()):
        loop.end(outcome)

    counts = {name: sum(each.counts) for name, each in loop.durations.items()}
    assert counts == {"DISPATCHED": 2, "IDLE": 1, "FAILED": 1}
    assert (loop.sums["messages"], loop.failures) == (6, 1)
