"""The line of tokens at which the threads of concurrent consumption wait. A token is good for one batch of its queue.

A thread that was woken wakes the next one if tokens are left. If each token woke a thread, all threads of a consumer
with a quick listener would fight for the interpreter, the pull thread among them, and find the line empty.
"""

from collections import deque
from queue import SimpleQueue

from mqdb_client.consumer.queues.process_queue import ProcessQueue


class TokenLine:
    """Any thread may call it. First in, first out.

    It takes no lock of its own. Two threads that act at the same moment may wake one thread too many, which goes back
    to sleep. They never wake too few.
    """

    def __init__(self) -> None:
        self._tokens: deque[ProcessQueue | None] = deque()
        #: A call wakes one thread that sleeps.
        self._calls: SimpleQueue[None] = SimpleQueue()
        #: A call is there that no thread has heard yet: whoever does looks for tokens after that.
        self._is_calling = False

    def put(self, process_queue: ProcessQueue | None, count: int = 1) -> None:
        """Add `count` tokens for a process queue. With None instead, a thread returns at once."""
        self._tokens.extend([process_queue] * count)
        self._call()

    def next(self) -> ProcessQueue | None:
        """The next token; waits until there is one."""
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
