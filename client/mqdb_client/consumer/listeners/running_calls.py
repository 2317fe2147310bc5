"""Running calls: the calls of the listener that have not returned, with their start times and threads.

A call that takes too long is given up: its messages are retried, and its late answer is ignored. The thread of the call
stays busy, because Python cannot end a thread. RocketMQ: ProcessQueue.cleanExpiredMsg.
"""

import asyncio
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mqdb.common.received_message import ReceivedMessage
from mqdb_client.consumer.queues.process_queue import ProcessQueue


@dataclass(slots=True, eq=False)
class RunningCall:
    """One call, with its messages."""

    process_queue: ProcessQueue
    messages: list[ReceivedMessage]
    thread_id: int = field(default_factory=threading.get_ident)
    started_at: float = field(default_factory=time.monotonic)
    is_given_up: bool = False
    #: Taken by the thread that decides about the messages: the one that ends the call or the one that gives it up.
    claim: threading.Lock = field(default_factory=threading.Lock)
    #: The task of an event loop that makes the call.
    task: "asyncio.Task[Any] | None" = None

    def describe(self) -> dict[str, object]:
        """Describe the messages and the thread of the call. The stack shows where a listener hangs."""
        thread = next((thread for thread in threading.enumerate() if thread.ident == self.thread_id), None)
        return {
            "thread": thread and thread.name,
            "seconds": round(time.monotonic() - self.started_at, 3),
            "queue": str(self.process_queue.queue),
            "queue_offset": self.messages[0].queue_offset,
            "messages": len(self.messages),
            "is_given_up": self.is_given_up,
            "stack": self._stack() or None,
        }

    def _stack(self) -> str:
        if self.task is None:
            frame = sys._current_frames().get(self.thread_id)
            return "" if frame is None else "".join(traceback.format_stack(frame))
        lines: list[str] = []
        waiting: Any = self.task.get_coro()
        while (frame := getattr(waiting, "cr_frame", None)) is not None:  # each waits for the next coroutine
            lines += traceback.format_stack(frame, limit=1)
            waiting = waiting.cr_await
        return "".join(lines)


class RunningCalls:
    """The running calls of one consumer. Any thread may use it.

    Calls share no lock. The interpreter would occasionally suspend a thread that holds such a lock; the other threads
    would queue for the lock, and from then on switch at each message. The set methods used here are atomic: no thread
    switch divides them.
    """

    def __init__(self, tasks: "Mapping[int, asyncio.Task[Any]] | None" = None) -> None:
        """`tasks` are the tasks that make the calls, by the ids of the threads that wait for them."""
        self._tasks = {} if tasks is None else tasks
        self._calls: set[RunningCall] = set()

    def begin(
        self,
        process_queue: ProcessQueue,
        messages: list[ReceivedMessage],
        task: "asyncio.Task[Any] | None" = None,
    ) -> RunningCall:
        """Note that this thread or task is about to call the listener."""
        call = RunningCall(process_queue, messages, task=task)
        self._calls.add(call)
        return call

    def end(self, call: RunningCall) -> bool:
        """Note that a call has returned. Returns False if the call was given up, or had already ended."""
        self._calls.discard(call)
        return call.claim.acquire(blocking=False)

    def give_up(self, seconds: float) -> list[RunningCall]:
        """Give up the calls that have been running for longer than `seconds`."""
        latest = time.monotonic() - seconds
        calls = self._calls.copy()
        overdue = [call for call in calls if call.started_at <= latest and call.claim.acquire(blocking=False)]
        for call in overdue:
            call.is_given_up = True
        return overdue

    def current(self) -> list[RunningCall]:
        """The running calls, oldest first, including calls that were given up."""
        calls = self._calls.copy()
        for call in calls:
            call.task = call.task or self._tasks.get(call.thread_id)
        return sorted(calls, key=lambda call: call.started_at)
