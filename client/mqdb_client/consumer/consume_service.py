"""Consume service: the threads that hand the messages of process queues to the listener, and what its answer means.

One for each consumer, whichever the broker: `consume_concurrently`, `consume_orderly`, `consume_transactionally`.
RocketMQ: ConsumeMessageService.
"""

from typing import Protocol

from mqdb_client.consumer.loop_tasks import LoopTasks
from mqdb_client.consumer.process_queue import ProcessQueue
from mqdb_client.consumer.running_calls import RunningCalls
from mqdb_client.consumer.worker_threads import WorkerThreads


class ConsumeService(Protocol):
    """Started once, then stopped once."""

    #: The calls of the listener that have not returned.
    calls: RunningCalls

    @property
    def threads(self) -> WorkerThreads | LoopTasks:
        """The threads that call the listener, or the tasks in which it runs."""

    def start(self) -> None:
        """Start the threads. The listener is not called before `threads.begin`.

        Raises what keeps a thread from starting; `stop` ends those that did.
        """

    def submit(self, process_queue: ProcessQueue, count: int) -> None:
        """So many messages more can be taken from a process queue. Any thread may call it."""

    def stop(self, seconds: float | None) -> int:
        """End the threads when their listeners return; the number of those that still run after `seconds`.

        Also where it was not started, or not wholly.
        """
