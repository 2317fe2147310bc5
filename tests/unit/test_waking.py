"""Waiters are woken one after another, those that wait for all others last; no waiter is left behind."""

import random
import sys
import threading
import time
from collections.abc import Callable

import pytest

from mqdb_client.producer.append.waking import Sleeper, Waking


@pytest.fixture
def waking() -> Waking:
    return Waking()


class Sleeping:
    """A thread that sleeps until it is woken, records its name, and passes the wake on or leaves."""

    def __init__(self, waking: Waking, names: list[str], name: str, sleeper: Sleeper, seconds: float = 60.0) -> None:
        self.sleeper = sleeper
        self._waking, self._names, self._name, self._seconds = waking, names, name, seconds
        self._thread = threading.Thread(target=self._sleep)
        self._thread.start()

    def _sleep(self) -> None:
        if self.sleeper.sleep(time.monotonic() + self._seconds):
            self._names.append(self._name)
            self._waking.pass_on()
        else:
            self._names.append(f"{self._name} leaves")
            self._waking.leave(self.sleeper)

    def join(self) -> None:
        self._thread.join(20)
        assert not self._thread.is_alive(), f"nobody wakes {self._name}"


def test_a_sleeper_that_was_woken_before_does_not_sleep_and_its_time_ends_the_next_sleep() -> None:
    sleeper = Sleeper()
    sleeper.wake()

    assert sleeper.sleep(time.monotonic() + 60)
    assert not sleeper.sleep(time.monotonic() - 1)


def test_each_wakes_the_next_and_who_wants_to_be_the_last_is(waking: Waking) -> None:
    names = list[str]()
    last, *others = [Sleeping(waking, names, name, Sleeper()) for name in "dabc"]
    waking.add_last(last.sleeper)
    for each in others:
        waking.add(each.sleeper)

    waking.begin()

    for each in (last, *others):
        each.join()
    assert names == ["a", "b", "c", "d"]


def test_who_leaves_wakes_the_next_whether_its_turn_has_come_or_not(waking: Waking) -> None:
    names = list[str]()
    sleepers = [Sleeper(), Sleeper()]
    for each in sleepers:
        waking.add(each)
    leaving = Sleeping(waking, names, "a", sleepers[0], seconds=0.0)
    other = Sleeping(waking, names, "b", sleepers[1])

    leaving.join()
    other.join()

    assert names == ["a leaves", "b"]


def test_begin_wakes_nobody_while_one_is_awake_who_will(waking: Waking) -> None:
    names = list[str]()
    first, second = Sleeper(), Sleeping(waking, names, "b", Sleeper())
    waking.add(first)
    waking.begin()
    assert first.sleep(time.monotonic() + 10)
    waking.add(second.sleeper)
    waking.begin()

    assert names == []
    waking.pass_on()
    second.join()


def test_whoever_comes_and_leaves_meanwhile_nobody_is_left_behind(waking: Waking) -> None:
    """No waiter is left behind, whichever thread comes or leaves.

    The times are random, and each run prints its seed.
    """
    seed = random.randrange(1_000_000)
    sys.stdout.write(f"seed {seed}\n")
    chance = random.Random(seed)
    names, all_sleeping = list[str](), list[Sleeping]()

    def come(count: int, seconds: list[float]) -> Callable[[], None]:
        def work() -> None:
            for n in range(count):
                sleeper = Sleeper()
                if n % 5:
                    waking.add(sleeper)
                else:
                    waking.add_last(sleeper)
                all_sleeping.append(Sleeping(waking, names, str(n), sleeper, seconds[n]))
                waking.begin()

        return work

    crowds = [come(100, [chance.choice([0.0, 0.001, 60.0]) for _ in range(100)]) for _ in range(4)]
    threads = [threading.Thread(target=crowd) for crowd in crowds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    for each in all_sleeping:
        each.join()
    assert len(names) == 400
    assert not waking._line
    assert not waking._last
