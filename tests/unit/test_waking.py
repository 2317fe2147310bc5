"""Waking: one after the other, those who wait for all others last, and nobody is left behind."""

import random
import sys
import threading
from collections.abc import Callable

from mqdb_client.waking import Waking


def turn() -> threading.Lock:
    """A lock to wait for."""
    lock = threading.Lock()
    lock.acquire()
    return lock


class Sleeper:
    """A thread that waits to be woken, writes its name down, and passes on or leaves."""

    def __init__(
        self, waking: Waking, names: list[str], name: str, lock: threading.Lock, seconds: float = 60.0
    ) -> None:
        self.lock = lock
        self._waking, self._names, self._name, self._seconds = waking, names, name, seconds
        self._thread = threading.Thread(target=self._sleep)
        self._thread.start()

    def _sleep(self) -> None:
        if self.lock.acquire(timeout=self._seconds):
            self._names.append(self._name)
            self._waking.pass_on()
        else:
            self._names.append(f"{self._name} leaves")
            self._waking.leave(self.lock)

    def join(self) -> None:
        self._thread.join(20)
        assert not self._thread.is_alive(), f"nobody wakes {self._name}"


def test_each_wakes_the_next_and_who_wants_to_be_the_last_is() -> None:
    waking, names = Waking(), list[str]()
    last, *others = [Sleeper(waking, names, name, turn()) for name in "dabc"]
    waking.add_last(last.lock)
    for sleeper in others:
        waking.add(sleeper.lock)

    waking.begin()

    for sleeper in (last, *others):
        sleeper.join()
    assert names == ["a", "b", "c", "d"]


def test_who_leaves_wakes_the_next_whether_its_turn_has_come_or_not() -> None:
    waking, names = Waking(), list[str]()
    turns = [turn(), turn()]
    for each in turns:
        waking.add(each)
    leaving = Sleeper(waking, names, "a", turns[0], seconds=0.0)
    other = Sleeper(waking, names, "b", turns[1])

    leaving.join()
    other.join()

    assert names == ["a leaves", "b"]


def test_begin_wakes_nobody_while_one_is_awake_who_will() -> None:
    waking, names = Waking(), list[str]()
    first, second = turn(), Sleeper(waking, names, "b", turn())
    waking.add(first)
    waking.begin()
    assert first.acquire(timeout=10)
    waking.add(second.lock)
    waking.begin()

    assert names == []
    waking.pass_on()
    second.join()


def test_whoever_comes_and_leaves_meanwhile_nobody_is_left_behind() -> None:
    """The times are random, and each run prints its seed."""
    seed = random.randrange(1_000_000)
    sys.stdout.write(f"seed {seed}\n")
    chance = random.Random(seed)
    waking, names, sleepers = Waking(), list[str](), list[Sleeper]()

    def come(count: int, seconds: list[float]) -> Callable[[], None]:
        def work() -> None:
            for n in range(count):
                lock = turn()
                if n % 5:
                    waking.add(lock)
                else:
                    waking.add_last(lock)
                sleepers.append(Sleeper(waking, names, str(n), lock, seconds[n]))
                waking.begin()

        return work

    crowds = [come(100, [chance.choice([0.0, 0.001, 60.0]) for _ in range(100)]) for _ in range(4)]
    threads = [threading.Thread(target=crowd) for crowd in crowds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    for sleeper in sleepers:
        sleeper.join()
    assert len(names) == 400
    assert not waking._line
    assert not waking._last
