"""The line of tokens for which the threads of concurrent consumption wait. A token is good for one batch of its queue.

A woken thread wakes the next one if tokens are left. If each token woke a thread, all threads of a consumer with a
quick listener, and the pull thread, would compete for the interpreter and find the line empty.
"""

from collections import deque
from queue import SimpleQueue

from mqdb_client.consumer.queues.process_queue import ProcessQueue


class TokenLine:
    """A thread-safe line: first in, first out.

    The line takes no lock. Two threads that act at the same moment may wake one thread too many, which goes back to
    sleep, but never too few.
    """

    def __init__(self) -> None:
        self._tokens: deque[ProcessQueue | None] = deque()
        #: A call wakes one sleeping thread.
        self._calls: SimpleQueue[None] = SimpleQueue()
        #: Whether a wake-up is pending: the thread that gets it checks for tokens afterwards.
        self._is_calling = False

    def put(self, process_queue: ProcessQueue | None, count: int = 1) -> None:
        """Add `count` tokens for a process queue. With None as the process queue, one thread returns immediately."""
        self._tokens.extend([process_queue] * count)
        self._call()

    def next(self) -> ProcessQueue | None:
        """Wait for the next token."""
        was_called = False
        while True:
            try:
                token = self._tokens.popleft()
            except IndexError:
                self._calls.get()
                self._is_calling = False
                was_called = True
                continue
            if was_called and self._tokens:
                self._call()
            return token

    def _call(self) -> None:
        if not self._is_calling:
            self._is_calling = True
            self._calls.put(None)
