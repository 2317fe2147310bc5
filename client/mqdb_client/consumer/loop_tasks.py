"""Loop tasks: what worker threads are to a listener of threads, the tasks of an event loop are to an asynchronous one.

A thread takes what is to be consumed, as long as fewer tasks run than there may be, and one call to the loop starts the
tasks of all that it has taken meanwhile.
"""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeAlias

from mqdb_client.consumer.worker_threads import WorkerThreads

logger = logging.getLogger(__name__)

#: Makes the coroutine of a task; the loop calls it.
Work: TypeAlias = Callable[[], Coroutine[Any, Any, None]]

_LOOK_SECONDS: Final = 0.5


class LoopTasks:
    """The tasks of one consumer in one loop. Started once, then stopped once."""

    def __init__(
        self,
        name: str,
        loop: asyncio.AbstractEventLoop,
        take: Callable[[], Work | None],
        nudge: Callable[[], None],
        thread_nums: int,
    ) -> None:
        """`take` waits for something to consume; None: there is nothing after all. `nudge` has it return at once."""
        self._loop = loop
        self._take = take
        #: How many may run at once.
        self.thread_nums = thread_nums
        self._feeder = WorkerThreads(name, self._feed, nudge, 1)
        self._changed = threading.Condition()
        self._running = 0
        self._is_stopping = False
        self._to_start: deque[Work] = deque()
        self._is_called = False
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Start the thread, which waits for `begin`. Raises what keeps it from starting."""
        self._feeder.start()

    def begin(self) -> None:
        """Let it work."""
        self._feeder.begin()

    def resize(self, thread_nums: int) -> None:
        """Let so many run at once from now on."""
        with self._changed:
            self.thread_nums = thread_nums
            self._changed.notify_all()

    def is_own_thread(self) -> bool:
        """Whether one of the tasks is asking."""
        try:
            return asyncio.current_task() in self._tasks
        except RuntimeError:  # no loop runs in this thread
            return False

    def stop(self, seconds: float | None) -> int:
        """Take nothing more, and wait for the tasks; the number of those that still run after `seconds`."""
        deadline = None if seconds is None else time.monotonic() + seconds
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
        self._feeder.stop(seconds)
        with self._changed:
            # Nobody tells that the loop is closed.
            while self._running and not self._loop.is_closed():
                left = _LOOK_SECONDS if deadline is None else deadline - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(min(left, _LOOK_SECONDS))
            return self._running

    def cancel(self) -> None:
        """Cancel those that still run. In their loop."""
        for task in self._tasks:
            task.cancel()

    # -- the thread -------------------------------------------------------------------------------

    def _feed(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._running < self.thread_nums or self._is_stopping)
            if self._is_stopping:
                return
            self._running += 1  # nobody else does
        work = self._take()
        if work is None:
            self._end_one()
            return
        self._to_start.append(work)
        if not self._is_called:
            self._is_called = True
            try:
                self._loop.call_soon_threadsafe(self._start_all)
            except RuntimeError:
                logger.error("the event loop is closed; its consumer consumes nothing more")
                self.resize(0)

    def _end_one(self) -> None:
        with self._changed:
            self._running -= 1
            self._changed.notify_all()

    # -- the loop -----------------------------------------------------------------------------------

    def _start_all(self) -> None:
        self._is_called = False  # before it looks: what comes later calls again
        while self._to_start:
            task = self._loop.create_task(self._to_start.popleft()())
            self._tasks.add(task)
            task.add_done_callback(self._end)

    def _end(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        self._end_one()
