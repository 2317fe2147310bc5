"""The pace at which loops run."""

from datetime import timedelta

from mqdb.service.pace import Pace

PACE = Pace(busy=timedelta(milliseconds=2), idle=timedelta(milliseconds=10))


def test_there_is_no_pause_while_there_is_more() -> None:
    assert PACE.pause(timedelta(milliseconds=10), has_worked=True, has_more=True) == timedelta(0)


def test_work_makes_the_loop_quick_again() -> None:
    assert PACE.pause(timedelta(milliseconds=10), has_worked=True, has_more=False) == timedelta(milliseconds=2)


def test_without_work_the_pause_grows_from_the_shortest_to_the_longest() -> None:
    pauses = [timedelta(0)]
    for _ in range(10):
        pauses.append(PACE.pause(pauses[-1], has_worked=False, has_more=False))

    assert pauses[1] == PACE.busy
    assert pauses[-2:] == [PACE.idle, PACE.idle]
    assert sorted(pauses) == pauses
