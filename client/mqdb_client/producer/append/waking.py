"""Waking: threads whose results are there are woken one after the other, each by the one before it.

    one that has results    add ── begin ──▶ the first, who is awake ── pass_on ──▶ the second ── pass_on ──▶ the third

If all were woken at once, they would compete for the interpreter: each is woken, waits for the interpreter's lock, and
is woken again on any idle core. On two cores that costs more than all other work of 64 threads that send a message
each.
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
        #: Ends the sleep, or the next one. Not a function of Python: Ctrl-C could come before it has woken anybody.
        self.wake: Callable[[], None] = self._lock.release

    def sleep(self, deadline: float) -> bool:
        """Wait to be woken; do not wait if that has happened already. False at the deadline, of time.monotonic."""
        return self._lock.acquire(timeout=max(0.0, deadline - time.monotonic()))


class Waking:
    """A line of sleepers, to be woken. Any thread may call it.

    It takes no lock of its own. If two threads act at the same moment, two sleepers may be woken at a time until the
    line is empty; at least one always is.
    """

    def __init__(self) -> None:
        self._line: deque[Sleeper] = deque()
        self._last: deque[Sleeper] = deque()
        #: Have a sleeper woken in its turn; `begin` has to follow. In C, so that no Ctrl-C comes in the midst of it.
        self.add = self._line.append
        #: One has been woken who has not woken the next yet.
        self._is_under_way = False

    @property
    def left(self) -> int:
        """The number of sleepers that are still to be woken."""
        return len(self._line) + len(self._last)

    def add_last(self, sleeper: Sleeper) -> None:
        """Have a sleeper woken when the line is empty; `begin` has to follow."""
        self._last.append(sleeper)

    def begin(self) -> None:
        """Wake the first, unless one is awake who will."""
        if (self._line or self._last) and not self._is_under_way:
            self._is_under_way = True
            self.pass_on()

    def pass_on(self) -> None:
        """Wake the next: the first thing for each one who was woken."""
        for line in (self._line, self._last):
            try:
                sleeper = line.popleft()
            except IndexError:
                continue
            sleeper.wake()
            return
        self._is_under_way = False
        self.begin()  # one was added in this moment

    def leave(self, sleeper: Sleeper) -> None:
        """Remove a sleeper that was added and no longer waits; call it instead of `pass_on`."""
        for line in (self._line, self._last):
            with contextlib.suppress(ValueError):  # it is woken in this moment, or in the other one
                line.remove(sleeper)
        self.pass_on()
