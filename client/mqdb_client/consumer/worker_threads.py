"""Worker threads: threads that do the same work again and again, and of which there can be more or fewer.

RocketMQ: the ThreadPoolExecutor of a ConsumeMessageService.
"""

import itertools
import threading
import time
from collections.abc import Callable


class WorkerThreads:
    """The threads of one consumer that call its listener.

    `work` does a piece of work, for which it may wait; it must not raise. `nudge` has one that waits return at once.
    """

    def __init__(self, name: str, work: Callable[[], None], nudge: Callable[[], None]) -> None:
        self._name = name
        self._work = work
        self._nudge = nudge
        self._guard = threading.Lock()
        self._wanted_nums = 0
        self._numbers = itertools.count()
        self._threads: set[threading.Thread] = set()

    def resize(self, thread_nums: int) -> None:
        """Have so many from now on; those that are too many end when their work is done."""
        with self._guard:
            self._wanted_nums = thread_nums
            for _ in range(len(self._threads) - thread_nums):
                self._nudge()
            for _ in range(thread_nums - len(self._threads)):
                name = f"{self._name}-{next(self._numbers)}"
                # A daemon: a listener that never returns must not keep the process from ending.
                thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._threads.add(thread)
                thread.start()

    def is_own_thread(self) -> bool:
        """Whether one of them is asking."""
        return threading.current_thread() in self._threads

    def stop(self, seconds: float | None) -> int:
        """End them when their work is done; the number of those that still run after `seconds`."""
        deadline = None if seconds is None else time.monotonic() + seconds
        threads = list(self._threads)
        self.resize(0)
        for thread in threads:
            thread.join(None if deadline is None else max(deadline - time.monotonic(), 0.0))
        return sum(thread.is_alive() for thread in threads)

    def _run(self) -> None:
        while not self._is_one_too_many():
            self._work()

    def _is_one_too_many(self) -> bool:
        """Whether this thread has to end; then it counts no more."""
        with self._guard:
            is_one_too_many = len(self._threads) > self._wanted_nums
            if is_one_too_many:
                self._threads.discard(threading.current_thread())
            return is_one_too_many
