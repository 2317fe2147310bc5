"""Loop tasks: the tasks of an event loop that call an asynchronous listener, as worker threads call a plain listener.

A task that ends starts the next one in the loop. Other threads only announce new messages, with one call to the loop
for all messages added since the previous call.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, NamedTuple


class Work(NamedTuple):
    """The work of a task."""

    coroutine: Coroutine[Any, Any, None]
    #: Called at the end of the task, which may have been cancelled before its first step.
    end: Callable[[], None]


_LOOK_SECONDS: Final = 0.5
_AFTER_CANCEL_SECONDS: Final = 0.1


class LoopTasks:
    """The tasks of one consumer in one loop. The tasks are started once, then stopped once."""

    def __init__(self, loop: asyncio.AbstractEventLoop, take: Callable[[], Work | None], thread_nums: int) -> None:
        """`take` is called in the loop and returns the next piece of work, or None if nothing is waiting."""
        self._loop = loop
        self._take = take
        #: The number of tasks that may run at once.
        self.thread_nums = thread_nums
        self._changed = threading.Condition()
        self._running = 0
        self._may_work = False
        self._is_stopping = False
        self._is_called = False
        self._tasks: dict[asyncio.Task[None], Work] = {}

    def start(self) -> None:
        """Do nothing, because no threads have to be started."""

    def begin(self) -> None:
        """Let the tasks begin to work."""
        self._may_work = True
        self.wake()

    def wake(self) -> None:
        """Announce that there is work to take. Thread-safe."""
        if not self._is_called:
            self._is_called = True
            with suppress(RuntimeError):  # the loop is closed, and the consumer leaves its group
                self._loop.call_soon_threadsafe(self._wake)

    def resize(self, thread_nums: int) -> None:
        """Set how many tasks may run at once from now on."""
        self.thread_nums = thread_nums
        self.wake()

    def is_closed(self) -> bool:
        """Whether the loop is closed and can no longer run anything."""
        return self._loop.is_closed()

    def is_own_thread(self) -> bool:
        """Whether the caller runs in one of these tasks."""
        try:
            return asyncio.current_task() in self._tasks
        except RuntimeError:  # no loop runs in this thread
            return False

    def stop(self, seconds: float | None) -> int:
        """Stop taking work, and wait for the tasks; returns the number of tasks still running after `seconds`."""
        deadline = None if seconds is None else time.monotonic() + seconds
        with self._changed:
            self._is_stopping = True
            # The closing of the loop is not announced.
            while self._running and not self._loop.is_closed():
                left = _LOOK_SECONDS if deadline is None else deadline - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(min(left, _LOOK_SECONDS))
            return self._running

    def cancel(self) -> None:
        """Cancel the tasks that are still running; must be called in their loop."""
        for task in self._tasks:
            task.cancel()

    # -- the loop -----------------------------------------------------------------------------------

    def _wake(self) -> None:
        self._is_called = False  # before checking: later work calls again
        self._start_all()

    def _start_all(self) -> None:
        """Start as many tasks as may run."""
        while self._may_work:
            with self._changed:
                if self._is_stopping or self._running >= self.thread_nums:
                    return
                self._running += 1
            work = self._take()
            if work is None:
                self._count_one_less()
                return
            task = self._loop.create_task(work.coroutine)
            self._tasks[task] = work
            task.add_done_callback(self._end)

    def _end(self, task: "asyncio.Task[None]") -> None:
        self._tasks.pop(task).end()
        self._count_one_less()
        if task.cancelled():
            # Usually by asyncio.run at its end. A task that began now would be destroyed with the loop.
            self._loop.call_later(_AFTER_CANCEL_SECONDS, self._start_all)
        else:
            self._start_all()

    def _count_one_less(self) -> None:
        with self._changed:
            self._running -= 1
            if self._is_stopping:
                self._changed.notify_all()
