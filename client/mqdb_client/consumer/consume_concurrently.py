"""Concurrent consumption: threads that hand messages to the listener, whichever queue they are of.

The threads share one line of tokens, each good for one batch of a process queue; the batch is only chosen when a
thread is there to run it. So a slow message holds up nothing but its own thread, and a message costs two
uncontended locks and no hand-over between threads while there is work.

What the listener fails stays in hand and is given to it again after 5 s, as RocketMQ does with a message that it
cannot send back; the committed offset does not pass it. RocketMQ: ConsumeMessageConcurrentlyService.
"""

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from queue import SimpleQueue
from typing import NamedTuple

from mqdb.message import ReceivedMessage
from mqdb_client.consumer.message_listener import MessageListener, has_consumed
from mqdb_client.consumer.process_queue import ProcessQueue

#: Source: ConsumeMessageConcurrentlyService.submitConsumeRequestLater.
RECONSUME_DELAY = timedelta(seconds=5)


class _Failed(NamedTuple):
    due: float
    process_queue: ProcessQueue
    messages: list[ReceivedMessage]


class ConsumeConcurrently:
    """The threads of one consumer.

    `on_progress` is called by them with a process queue that has room again or has settled.
    """

    def __init__(
        self,
        group: str,
        listener: MessageListener,
        *,
        thread_nums: int,
        batch_max_size: int,
        on_progress: Callable[[ProcessQueue], None],
        reconsume_delay: timedelta = RECONSUME_DELAY,
    ) -> None:
        self._listener = listener
        self._batch_max_size = batch_max_size
        self._on_progress = on_progress
        self._reconsume_delay = reconsume_delay.total_seconds()
        self._tokens: SimpleQueue[ProcessQueue | None] = SimpleQueue()
        self._failed: SimpleQueue[_Failed | None] = SimpleQueue()
        self._closing = threading.Event()
        # Daemons: a listener that never returns must not keep the process from ending.
        self._workers = [
            threading.Thread(target=self._work, name=f"mqdb-{group}-consume-{number}", daemon=True)
            for number in range(thread_nums)
        ]
        self._retrier = threading.Thread(target=self._retry, name=f"mqdb-{group}-reconsume", daemon=True)

    def start(self) -> None:
        """Start the threads."""
        for thread in (*self._workers, self._retrier):
            thread.start()

    def submit(self, process_queue: ProcessQueue, count: int) -> None:
        """So many messages more can be taken from a process queue."""
        for _ in range(-(-count // self._batch_max_size)):
            self._tokens.put(process_queue)

    def is_own_thread(self) -> bool:
        """Whether a listener is asking."""
        return threading.current_thread() in self._workers

    def stop(self, seconds: float | None) -> int:
        """End the threads when their listeners return; the number of those that still run after `seconds`."""
        self._closing.set()
        self._failed.put(None)
        for _ in self._workers:
            self._tokens.put(None)
        self._retrier.join()
        deadline = None if seconds is None else time.monotonic() + seconds
        for thread in self._workers:
            thread.join(None if deadline is None else max(deadline - time.monotonic(), 0.0))
        return sum(thread.is_alive() for thread in self._workers)

    def _work(self) -> None:
        next_token, listener, limit = self._tokens.get, self._listener, self._batch_max_size
        while (process_queue := next_token()) is not None:
            messages = process_queue.take(limit)
            if not messages:  # dropped, or taken by the token before as part of a larger batch
                continue
            if has_consumed(listener, messages):
                is_awaited = process_queue.finish(messages)
            else:
                self._failed.put(_Failed(time.monotonic() + self._reconsume_delay, process_queue, messages))
                is_awaited = process_queue.fail()
            if is_awaited:
                self._on_progress(process_queue)

    def _retry(self) -> None:
        # Each waits equally long, so the one that failed first is due first.
        while (failed := self._failed.get()) is not None:
            if self._closing.wait(max(failed.due - time.monotonic(), 0.0)):
                return
            if failed.process_queue.retry(failed.messages):
                self.submit(failed.process_queue, len(failed.messages))
