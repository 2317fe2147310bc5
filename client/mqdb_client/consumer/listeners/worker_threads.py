"""Worker threads: a resizable set of threads that repeat the same work.

RocketMQ: the ThreadPoolExecutor of a ConsumeMessageService.
"""

import itertools
import threading
import time
from collections.abc import Callable


class WorkerThreads:
    """The threads of one consumer that call its listener. The threads are started once, then stopped once.

    `work` waits for some work and does it. `work` must not raise, and must return when nudged. `nudge` makes one
    waiting `work` return immediately.
    """

    def __init__(self, name: str, work: Callable[[], None], nudge: Callable[[], None], thread_nums: int) -> None:
        self._name = name
        self._work = work
        self._nudge = nudge
        #: The wanted number of threads.
        self.thread_nums = thread_nums
        self._guard = threading.Lock()
        self._numbers = itertools.count()
        self._threads: set[threading.Thread] = set()
        self._may_work = threading.Event()
        self._is_stopping = False

    def start(self) -> None:
        """Start the threads, which wait for `begin`.

        Raises an error if a thread cannot start; `stop` ends the threads that did start.
        """
        self.resize(self.thread_nums)

    def begin(self) -> None:
        """Let the threads begin to work."""
        self._may_work.set()

    def resize(self, thread_nums: int) -> None:
        """Set the number of threads; surplus threads end when their work is done. Has no effect after `stop`.

        Raises an error if a thread cannot start; the number of threads then stays as before.
        """
        with self._guard:
            if self._is_stopping:
                return
            before, self.thread_nums = self.thread_nums, thread_nums
            try:
                while len(self._threads) < thread_nums:
                    self._start_one()
            except BaseException:
                self.thread_nums = before
                raise
            finally:
                self._nudge_surplus()

    def is_own_thread(self) -> bool:
        """Whether the caller runs in one of these threads."""
        return threading.current_thread() in self._threads

    def stop(self, seconds: float | None) -> int:
        """End the threads when their work is done; returns the number of threads still running after `seconds`."""
        deadline = None if seconds is None else time.monotonic() + seconds
        with self._guard:
            self._is_stopping = True
            self.thread_nums = 0
            threads = list(self._threads)
            self._nudge_surplus()
        self._may_work.set()
        for thread in threads:
            thread.join(None if deadline is None else max(deadline - time.monotonic(), 0.0))
        return sum(thread.is_alive() for thread in threads)

    def _start_one(self) -> None:
        # A daemon: a listener that never returns must not prevent the process from exiting.
        thread = threading.Thread(target=self._run, name=f"{self._name}-{next(self._numbers)}", daemon=True)
        thread.start()
        self._threads.add(thread)

    def _nudge_surplus(self) -> None:
        for _ in range(len(self._threads) - self.thread_nums):
            self._nudge()

    def _run(self) -> None:
        self._may_work.wait()
        while not self._is_one_too_many():
            self._work()

    def _is_one_too_many(self) -> bool:
        """Whether this thread is surplus and has to end; if so, the thread is no longer counted."""
        with self._guard:
            is_one_too_many = len(self._threads) > self.thread_nums
            if is_one_too_many:
                self._threads.discard(threading.current_thread())
            return is_one_too_many
