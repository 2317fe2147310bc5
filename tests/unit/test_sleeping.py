"""Sleeping: woken before or after it sleeps, or at its deadline; by events, and by locks where there are none."""

import errno
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from queue import SimpleQueue

import pytest

from mqdb_client import sleeping
from mqdb_client.sleeping import LockSleeper, Sleeper, Sleepers, has_events
from tests.fixtures.processes import wait_until
from tests.fixtures.threads import Doing, refuse_threads

SOON = 0.01
LATER = 60.0


@pytest.fixture(params=[True, False], ids=["events", "locks"])
def sleepers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sleepers]:
    if request.param and not has_events():
        pytest.skip("this system has no eventfd")
    monkeypatch.setattr(sleeping, "_HAS_EVENTS", request.param)
    sleepers = Sleepers()
    sleepers.open()
    yield sleepers
    sleepers.close()


def at(seconds: float) -> float:
    """A deadline."""
    return time.monotonic() + seconds


def by_events(sleepers: Sleepers) -> int:
    return len(sleepers._by_event)


def test_one_who_sleeps_is_woken(sleepers: Sleepers) -> None:
    sleeper = sleepers.take()
    sleeping = Doing(lambda: sleeper.sleep(at(LATER)))

    sleeper.wake()

    assert sleeping.result() is True


def test_one_who_was_woken_before_does_not_sleep_at_all(sleepers: Sleepers) -> None:
    sleeper = sleepers.take()
    sleeper.wake()

    assert sleeper.sleep(at(LATER)) is True
    assert sleeper.sleep(at(SOON)) is False, "one wake ends one sleep"


def test_at_its_deadline_the_sleep_ends_and_not_before(sleepers: Sleepers) -> None:
    deadlines = [at(seconds) for seconds in (0.3, 0.05, 0.2, -1.0)]

    def sleep(deadline: float) -> float:
        assert sleepers.take().sleep(deadline) is False
        return time.monotonic()

    ends = [Doing(partial(sleep, deadline)) for deadline in deadlines]

    for deadline, end in zip(deadlines, ends, strict=True):
        assert end.result() >= deadline


def test_a_shorter_sleep_that_begins_later_ends_first(sleepers: Sleepers) -> None:
    long, short = sleepers.take(), sleepers.take()
    sleeping = Doing(lambda: long.sleep(at(LATER)))
    assert short.sleep(at(SOON)) is False

    long.wake()

    assert sleeping.result() is True


def test_whoever_gives_it_back_leaves_it_to_others(sleepers: Sleepers) -> None:
    sleeper = sleepers.take()
    sleeper.wake()
    assert sleeper.sleep(at(LATER))
    sleepers.give_back(sleeper)

    assert sleepers.take() is sleeper
    assert sleepers.take() is not sleeper
    assert sleeper.sleep(at(SOON)) is False


def test_one_that_is_forgotten_may_be_woken_yet_and_nobody_else_gets_it(sleepers: Sleepers) -> None:
    sleeper = sleepers.take()
    assert sleeper.sleep(at(SOON)) is False
    sleepers.forget(sleeper)
    sleeper.wake()

    other = sleepers.take()

    assert other is not sleeper
    assert other.sleep(at(SOON)) is False
    assert by_events(sleepers) == (0 if isinstance(other, LockSleeper) else 1)


def test_a_handler_that_raises_nothing_does_not_end_the_sleep(sleepers: Sleepers) -> None:
    handled = threading.Event()
    before = signal.signal(signal.SIGUSR1, lambda *_: handled.set())
    sleeper = sleepers.take()

    def disturb() -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
        assert handled.wait(30)
        sleeper.wake()

    try:
        disturbing = Doing(disturb)
        assert sleeper.sleep(at(LATER)) is True
        disturbing.result()
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_ctrl_c_ends_the_sleep(sleepers: Sleepers) -> None:
    sleeper = sleepers.take()
    main = threading.main_thread().ident or 0

    def interrupt() -> None:
        wait_until(lambda: sys._current_frames()[main].f_code.co_name == "sleep")
        signal.pthread_kill(main, signal.SIGINT)

    interrupting = Doing(interrupt)
    with pytest.raises(KeyboardInterrupt):
        sleeper.sleep(at(LATER))
    interrupting.result()


@pytest.mark.skipif(not has_events(), reason="this system has no eventfd")
def test_an_alarm_that_comes_late_does_not_end_the_next_sleep() -> None:
    sleepers = Sleepers()
    sleepers.open()
    sleeper = sleepers.take()
    assert isinstance(sleeper, sleeping._EventSleeper)
    sleeper.ring()
    sleeping_on = Doing(lambda: sleeper.sleep(at(LATER)))
    sleeper.ring()
    sleeper.wake()

    assert sleeping_on.result() is True
    sleepers.close()


@pytest.mark.skipif(not has_events(), reason="this system has no eventfd")
def test_beyond_a_number_and_without_descriptors_it_is_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sleeping, "MOST_EVENTS", 2)
    sleepers = Sleepers()
    before_opening = sleepers.take()
    sleepers.open()
    many = [sleepers.take() for _ in range(3)]
    sleepers.forget(many[0])

    def refuse(_initial: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "eventfd", refuse)
    refused = sleepers.take()
    sleepers.close()

    kinds = [isinstance(each, LockSleeper) for each in (before_opening, *many, refused, sleepers.take())]
    assert kinds == [True, False, False, True, True, True]


def test_where_threads_are_no_threads_it_is_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """As gevent's monkey patches leave it."""

    class Lock:
        pass

    assert has_events() == hasattr(os, "eventfd")
    monkeypatch.setattr(threading, "Lock", Lock)

    assert not has_events()


@pytest.mark.skipif(not has_events(), reason="this system has no eventfd")
def test_descriptors_are_closed_with_the_last_who_knows_it() -> None:
    sleepers = Sleepers()
    sleepers.open()
    taken, given_back = sleepers.take(), sleepers.take()
    sleepers.give_back(given_back)
    assert isinstance(taken, sleeping._EventSleeper)
    assert isinstance(given_back, sleeping._EventSleeper)
    descriptors = [int(taken._event), int(given_back._event)]
    del given_back
    sleepers.close()

    os.fstat(descriptors[0])  # somebody still sleeps by it
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptors[1])
    sleepers.give_back(taken)
    wake = taken.wake
    del taken
    wake()
    del wake
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptors[0])


def test_without_a_thread_for_the_alarm_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_threads(monkeypatch, "mqdb-alarm")

    with pytest.raises(RuntimeError, match="can't start new thread"):
        Sleepers().open()


def test_the_alarm_sleeps_while_nobody_else_does(sleepers: Sleepers) -> None:
    assert sleepers.take().sleep(at(SOON)) is False

    wait_until(lambda: sleepers._looks_at == float("inf"))


SEED = int(os.environ.get("MQDB_SLEEPING_SEED", "0")) or random.randrange(1_000_000)


def test_whoever_is_woken_or_not_each_hears_the_truth(sleepers: Sleepers) -> None:
    """Sleepers go from hand to hand, wakes and deadlines meet. MQDB_SLEEPING_SEED plays a run again; each prints it."""
    sys.stdout.write(f"seed {SEED}\n")
    heard: Counter[bool] = Counter()
    to_wake: SimpleQueue[Sleeper | None] = SimpleQueue()

    def sleep(chance: random.Random) -> None:
        for _ in range(300):
            sleeper = sleepers.take()
            seconds = chance.choice([0.0, 0.0005, 0.002, LATER])
            deadline = at(seconds)
            if seconds == LATER or chance.random() < 0.7:
                to_wake.put(sleeper)
            is_woken = sleeper.sleep(deadline)
            heard[is_woken] += 1
            assert is_woken or (time.monotonic() >= deadline and seconds < LATER)
            if is_woken:
                sleepers.give_back(sleeper)
            else:
                sleepers.forget(sleeper)

    def wake() -> None:
        while (sleeper := to_wake.get()) is not None:
            sleeper.wake()

    waking = Doing(wake)
    threads = [Doing(partial(sleep, random.Random(SEED + n))) for n in range(8)]
    for thread in threads:
        thread.result()
    to_wake.put(None)
    waking.result()

    assert heard[True] > 300
    assert heard[False] > 300
