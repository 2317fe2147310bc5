"""Running calls: the calls of the listener that have not returned, since when, and by which threads.

A call that takes too long is given up: its messages go their way without it, and what it answers in the end does not
count. Its thread stays with it, for there is no way to end one. RocketMQ: ProcessQueue.cleanExpiredMsg.
"""

import sys
import threading
import time
import traceback
from dataclasses import dataclass, field

from mqdb.common.message import ReceivedMessage
from mqdb_client.consumer.process_queue import ProcessQueue


@dataclass(slots=True, eq=False)
class RunningCall:
    """One call, with the messages that it was given."""

    process_queue: ProcessQueue
    messages: list[ReceivedMessage]
    thread_id: int = field(default_factory=threading.get_ident)
    started_at: float = field(default_factory=time.monotonic)
    is_given_up: bool = False

    def describe(self) -> dict[str, object]:
        """For people: what it is about, and where its thread is. A listener that hangs is told by its stack."""
        thread = next((thread for thread in threading.enumerate() if thread.ident == self.thread_id), None)
        frame = sys._current_frames().get(self.thread_id)
        return {
            "thread": thread and thread.name,
            "seconds": round(time.monotonic() - self.started_at, 3),
            "queue": str(self.process_queue.queue),
            "queue_offset": self.messages[0].queue_offset,
            "messages": len(self.messages),
            "is_given_up": self.is_given_up,
            "stack": None if frame is None else "".join(traceback.format_stack(frame)),
        }


class RunningCalls:
    """The running calls of one consumer. Any thread may use it."""

    def __init__(self) -> None:
        # By the threads that make them.
        self._calls: dict[int, RunningCall] = {}
        self._guard = threading.Lock()

    def begin(self, process_queue: ProcessQueue, messages: list[ReceivedMessage]) -> RunningCall:
        """This thread is about to call the listener."""
        call = RunningCall(process_queue, messages)
        with self._guard:
            self._calls[call.thread_id] = call
        return call

    def end(self, call: RunningCall) -> bool:
        """It has returned; False when it had been given up."""
        with self._guard:
            del self._calls[call.thread_id]
            return not call.is_given_up

    def give_up(self, seconds: float) -> list[RunningCall]:
        """Give up those that run for longer."""
        latest = time.monotonic() - seconds
        with self._guard:
            overdue = [call for call in self._calls.values() if call.started_at <= latest and not call.is_given_up]
            for call in overdue:
                call.is_given_up = True
        return overdue

    def current(self) -> list[RunningCall]:
        """Those that run now, the oldest first, also those that were given up."""
        with self._guard:
            return sorted(self._calls.values(), key=lambda call: call.started_at)
