"""Waking: threads whose results are ready are woken one after the other, each by the previously woken thread.

    one that has results    add ── begin ──▶ the first, who is awake ── pass_on ──▶ the second ── pass_on ──▶ the third

If all threads were woken at once, they would compete for the interpreter: each thread would wake up, wait for the
interpreter's lock, and be woken again on any idle core. On two cores, this competition costs more than all other work
of 64 threads that send one message each.
"""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable


class Sleeper:
    """A lock by which one thread sleeps until another thread wakes it, once."""

    __slots__ = ("_lock", "wake")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        #: Ends the current sleep, or the next one. Not a Python function, in which Ctrl-C could come before the
        #: wake-up.
        self.wake: Callable[[], None] = self._lock.release

    def sleep(self, deadline: float) -> bool:
        """Wait to be woken; return at once if that has already happened.

        Returns False at the deadline (time.monotonic).
        """
        return self._lock.acquire(timeout=max(0.0, deadline - time.monotonic()))


class Waking:
    """A line of sleepers to be woken. Thread-safe.

    The line takes no lock. If two threads act at the same moment, sleepers may be woken two at a time until the line is
    empty, but at least one at a time.
    """

    def __init__(self) -> None:
        self._line: deque[Sleeper] = deque()
        self._last: deque[Sleeper] = deque()
        #: Add a sleeper to the line; `begin` has to follow. Implemented in C, so that Ctrl-C cannot interrupt it.
        self.add = self._line.append
        #: Whether a woken sleeper has yet to wake the next.
        self._is_under_way = False

    @property
    def left(self) -> int:
        """The number of sleepers that are still to be woken."""
        return len(self._line) + len(self._last)

    def add_last(self, sleeper: Sleeper) -> None:
        """Add a sleeper to be woken when the line is empty; `begin` has to follow."""
        self._last.append(sleeper)

    def begin(self) -> None:
        """Wake the first sleeper, unless a woken sleeper is about to do so."""
        if (self._line or self._last) and not self._is_under_way:
            self._is_under_way = True
            self.pass_on()

    def pass_on(self) -> None:
        """Wake the next sleeper. Every woken sleeper calls this first."""
        for line in (self._line, self._last):
            try:
                sleeper = line.popleft()
            except IndexError:
                continue
            sleeper.wake()
            return
        self._is_under_way = False
        self.begin()  # one was added just now

    def leave(self, sleeper: Sleeper) -> None:
        """Remove a sleeper that was added and no longer waits. Call this method instead of `pass_on`."""
        for line in (self._line, self._last):
            with contextlib.suppress(ValueError):  # it is being woken just now, or is in the other line
                line.remove(sleeper)
        self.pass_on()
