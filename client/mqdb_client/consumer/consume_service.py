"""Consume service: the threads that hand the messages of process queues to the listener, and what its answer means.

One for each consumer, whichever the broker: `consume_concurrently`, `consume_orderly`, `consume_transactionally`.
RocketMQ: ConsumeMessageService.
"""

from typing import Protocol

from mqdb_client.consumer.process_queue import ProcessQueue
from mqdb_client.consumer.running_calls import RunningCalls


class ConsumeService(Protocol):
    """Started once, then stopped once. It tells by a callback when a process queue has room again or has settled."""

    #: The calls of the listener that have not returned.
    calls: RunningCalls

    def start(self) -> None:
        """Start the threads."""

    def submit(self, process_queue: ProcessQueue, count: int) -> None:
        """So many messages more can be taken from a process queue. Any thread may call it."""

    def resize(self, thread_nums: int) -> None:
        """Have so many threads from now on; those that are too many end when their listeners return."""

    def is_own_thread(self) -> bool:
        """Whether a listener is asking."""

    def stop(self, seconds: float | None) -> int:
        """End the threads when their listeners return; the number of those that still run after `seconds`."""
