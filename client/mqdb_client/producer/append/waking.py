"""Waking: threads that have got what they waited for are woken one after the other, each by the one before it.

    one that has results    add ── begin ──▶ the first, who is awake ── pass_on ──▶ the second ── pass_on ──▶ the third

Woken all at once they fight for the interpreter: each is woken, waits for the interpreter's lock, and is woken again on
whatever core is idle. On two cores that costs more than all that 64 threads do to send a message each.
"""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable


class Sleeper:
    """What one thread sleeps by until another thread wakes it, once."""

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

    It takes no lock of its own. What two threads do at the same moment may set off two of them at a time, which goes on
    until the line is empty; never none.
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
        """How many are to be woken yet."""
        return len(self._line) + len(self._last)

    def add_last(self, sleeper: Sleeper) -> None:
        """Have it woken when nobody else is left in the line; `begin` has to follow."""
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
        """For one who was added, and does not wait any longer; in place of `pass_on`."""
        for line in (self._line, self._last):
            with contextlib.suppress(ValueError):  # it is woken in this moment, or in the other one
                line.remove(sleeper)
        self.pass_on()
