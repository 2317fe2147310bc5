"""Rounds of a loop: how long they took."""

from datetime import UTC, datetime, timedelta

from mqdb.common.clock import ManualClock
from mqdb.web.rounds import BOUNDS, LoopRounds


def test_rounds_are_counted_by_how_long_they_took() -> None:
    clock = ManualClock(datetime(2026, 1, 1, tzinfo=UTC))
    loop = LoopRounds("dispatcher", clock)
    for seconds in (0.0, 0.0024, 0.003, 11.0):
        loop.begin()
        clock.advance(timedelta(seconds=seconds))
        loop.end(None)
    loop.end(None)  # a round that has not told of its beginning took no time

    counts = dict(zip([*BOUNDS, None], loop.durations, strict=True))
    assert {bound: count for bound, count in counts.items() if count} == {0.001: 2, 0.0025: 1, 0.005: 1, None: 1}
    assert round(loop.seconds, 4) == 11.0054
