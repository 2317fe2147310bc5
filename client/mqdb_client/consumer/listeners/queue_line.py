"""Queue line: gives queues to threads in turn, so that each queue is consumed by one thread at a time.

    submit ──▶ line ──▶ next: a thread has it ──▶ leave: it is empty, and out until the next submit
                ▲              │          │
                │              ▼          └─────▶ put_back: to the end of the line
                └────────── pause: it waits for a moment, in a thread shared by all pauses

A queue is in exactly one of these places, so two threads never have the same queue, and no thread waits for a
particular queue. RocketMQ: MessageQueueLock, and the executors of ConsumeMessageOrderlyService.
"""

import heapq
import itertools
import threading
import time
from queue import SimpleQueue

from mqdb.common.message import MessageQueue
from mqdb.common.received_message import ReceivedMessage
from mqdb_client.consumer.queues.process_queue import ProcessQueue


class LinedQueue:
    """A queue in the line. Only the thread that got the queue from `next` may use it."""

    __slots__ = ("_newest", "has_news", "is_out", "kept", "process_queue")

    def __init__(self, process_queue: ProcessQueue) -> None:
        self.process_queue = process_queue
        #: Messages that were consumed under this process queue but are not done.
        self.kept: list[ReceivedMessage] = []
        self.has_news = False
        self.is_out = True
        self._newest = process_queue

    def announce(self, process_queue: ProcessQueue) -> None:
        """Note that a process queue has messages. After a loss of the queue, this is a new process queue."""
        self._newest = process_queue
        self.has_news = True

    def turn(self) -> ProcessQueue:
        """The process queue from which to take messages now. Only messages announced after this call count as new."""
        self.has_news = False
        if self.process_queue is not self._newest:
            self.process_queue, self.kept = self._newest, []
        return self.process_queue


class QueueLine:
    """The queues of one consumer. Thread-safe."""

    def __init__(self, name: str) -> None:
        """`name` is the name of the thread in which queues pause."""
        self._guard = threading.Lock()
        self._lanes: dict[MessageQueue, LinedQueue] = {}
        self._line: SimpleQueue[LinedQueue | None] = SimpleQueue()
        self._nudges = 0
        self._pauses_changed = threading.Condition()
        self._pauses: list[tuple[float, int, LinedQueue]] = []  # a heap
        self._numbers = itertools.count()  # lanes have no order
        self._is_stopping = False
        self._thread = threading.Thread(target=self._end_pauses, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread in which queues pause."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread, if it was started. Pausing queues stay in the line."""
        with self._pauses_changed:
            self._is_stopping = True
            self._pauses_changed.notify()
        if self._thread.is_alive():
            self._thread.join()

    def submit(self, process_queue: ProcessQueue) -> None:
        """Note that messages were put into a process queue."""
        with self._guard:
            lane = self._lanes.get(process_queue.queue)
            if lane is None:
                lane = self._lanes[process_queue.queue] = LinedQueue(process_queue)
            lane.announce(process_queue)
            if lane.is_out:
                lane.is_out = False
                self._line.put(lane)

    def next(self) -> LinedQueue | None:
        """Wait for a queue; None after a `nudge`."""
        lane = self._line.get()
        if lane is None:
            with self._guard:
                self._nudges -= 1
        return lane

    def nudge(self) -> None:
        """Make one `next` return without a queue."""
        with self._guard:
            self._nudges += 1
        self._line.put(None)

    @property
    def is_nudged(self) -> bool:
        """Whether a `next` has to return without a queue: threads should put back their queues and call `next`."""
        return self._nudges > 0

    def leave(self, lane: LinedQueue) -> bool:
        """Give up a queue that is empty.

        Returns False if messages have arrived since its `turn`; the thread then keeps the queue.
        """
        with self._guard:
            lane.is_out = not lane.has_news
            return lane.is_out

    def put_back(self, lane: LinedQueue) -> None:
        """Put a queue at the end of the line."""
        self._line.put(lane)

    def pause(self, lane: LinedQueue, seconds: float) -> None:
        """Keep a queue out of the line for some time, then put it back."""
        with self._pauses_changed:
            heapq.heappush(self._pauses, (time.monotonic() + seconds, next(self._numbers), lane))
            self._pauses_changed.notify()

    def _end_pauses(self) -> None:
        with self._pauses_changed:
            while not self._is_stopping:
                seconds = self._pauses[0][0] - time.monotonic() if self._pauses else None
                if seconds is None or seconds > 0:
                    self._pauses_changed.wait(seconds)
                else:
                    self.put_back(heapq.heappop(self._pauses)[2])
