"""Sleeping: a thread waits until another one wakes it, or until its time is up.

A threading.Lock would do, but who releases one holds the interpreter meanwhile: where the kernel gives the core to the
thread that is woken, at once, that one finds the interpreter taken and sleeps again. An event (eventfd of Linux) is
read and written without the interpreter. Its read has no time-out, so one thread wakes all whose time is up:

    sleep ── reads its event ──▶ woken by another thread, which writes it
                             ──▶ woken by the alarm, which looks when the first one's time is up
"""

import contextlib
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from typing import Final, Protocol

#: Beyond so many threads that sleep at a time it is locks, so that descriptors are left for others.
MOST_EVENTS: Final = 256

_HAS_EVENTS: Final = hasattr(os, "eventfd")

# What is read from an event: the number of wakes, and above that of alarms.
_ALARM: Final = 1 << 32
_WAKES: Final = _ALARM - 1

# One whom the alarm has woken, and who has not run since, is woken again.
_AGAIN_SECONDS: Final = 0.05


def has_events() -> bool:
    """Whether threads can sleep by events here.

    Not where gevent or eventlet have put locks of their own in place: one that reads an event would stop all others.
    """
    return _HAS_EVENTS and threading.Lock.__module__ == "_thread"


class Sleeper(Protocol):
    """What one thread sleeps by, and another one wakes it, once. Deadlines are of time.monotonic."""

    #: Ends the sleep, or the next one. No function of Python, where Ctrl-C would come before it has done it.
    wake: Callable[[], None]

    def sleep(self, deadline: float) -> bool:
        """Wait until it is woken, at once where it has been already; False: its time is up."""


class LockSleeper:
    """Sleeps by a lock."""

    __slots__ = ("_lock", "wake")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self.wake: Callable[[], None] = self._lock.release

    def sleep(self, deadline: float) -> bool:
        return self._lock.acquire(timeout=max(0.0, deadline - time.monotonic()))


class Sleepers:
    """Those of one producer, with their alarm. Any thread may use it."""

    def __init__(self) -> None:
        """Gives locks until it is opened."""
        self._free: deque[Sleeper] = deque()
        self._by_event: set[_EventSleeper] = set()
        #: When the alarm looks whose time is up. Two threads use this and the deadlines without a lock, so each writes
        #: its own before it reads the other's.
        self._looks_at = math.inf
        #: For the alarm: True, to look; False, to end.
        self._calls: SimpleQueue[bool] = SimpleQueue()
        self._alarm: threading.Thread | None = None
        self._may_use_events = has_events()

    def open(self) -> None:
        """Start the alarm. Raises RuntimeError where no thread can be started."""
        alarm = threading.Thread(target=self._watch, name="mqdb-alarm", daemon=True)
        alarm.start()
        self._alarm = alarm

    def close(self) -> None:
        """Nobody sleeps by them any more."""
        alarm, self._alarm = self._alarm, None
        if alarm is not None:
            self._calls.put(False)
            alarm.join()
        self._by_event.clear()
        self._free.clear()

    def take(self) -> Sleeper:
        """One that nobody else has."""
        try:
            return self._free.pop()
        except IndexError:
            return self._new()

    def give_back(self, sleeper: Sleeper) -> None:
        """For one that was woken: somebody else may have it."""
        if self._alarm is not None:
            self._free.append(sleeper)

    def forget(self, sleeper: Sleeper) -> None:
        """For one that was not, and may be woken yet: nobody else will have it."""
        self._by_event.discard(sleeper)

    def look_by(self, deadline: float) -> None:
        """Have the alarm look then, or before."""
        if deadline < self._looks_at:
            self._calls.put(True)

    def _new(self) -> Sleeper:
        if self._may_use_events and self._alarm is not None and len(self._by_event) < MOST_EVENTS:
            with contextlib.suppress(OSError):  # there are no more descriptors
                sleeper = _EventSleeper(self)
                self._by_event.add(sleeper)
                return sleeper
        return LockSleeper()

    def _watch(self) -> None:
        is_open = True
        while is_open:
            self._looks_at = math.inf
            now = time.monotonic()
            looks_at = math.inf
            for sleeper in tuple(self._by_event):
                deadline = sleeper.deadline
                if deadline <= now:
                    sleeper.ring()
                    deadline = now + _AGAIN_SECONDS
                looks_at = min(looks_at, deadline)
            self._looks_at = looks_at
            with contextlib.suppress(Empty):
                is_open = self._calls.get(timeout=None if looks_at == math.inf else looks_at - now)


class _Event(int):
    """The descriptor of an event, which is closed with the last who knows it."""

    __slots__ = ()

    def __del__(self) -> None:
        os.close(self)


class _EventSleeper:
    """Sleeps by an event."""

    __slots__ = ("_event", "_sleepers", "deadline", "ring", "wake")

    def __init__(self, sleepers: Sleepers) -> None:
        """Raises OSError where there are no more descriptors."""
        self._event = event = _Event(os.eventfd(0))
        self._sleepers = sleepers
        #: When the alarm has to ring.
        self.deadline = math.inf
        self.wake: Callable[[], None] = partial(os.eventfd_write, event, 1)
        #: Has it look whether its time is up.
        self.ring: Callable[[], None] = partial(os.eventfd_write, event, _ALARM)

    def sleep(self, deadline: float) -> bool:
        self.deadline = deadline
        self._sleepers.look_by(deadline)
        try:
            while True:
                try:
                    wakes = os.eventfd_read(self._event) & _WAKES
                except InterruptedError:  # by a signal whose handler has raised nothing
                    continue
                # An alarm may have been about the sleep before, and late.
                if wakes or time.monotonic() >= deadline:
                    return wakes > 0
        finally:
            self.deadline = math.inf
