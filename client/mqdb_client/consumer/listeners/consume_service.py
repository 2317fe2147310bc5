"""Consume service: the threads that pass messages of process queues to the listener, and the meaning of its answer.

A consumer has one service for all brokers: `consume_concurrently`, `consume_orderly` or `consume_exactly_once`.
RocketMQ: ConsumeMessageService.
"""

import logging
import sys
from typing import Final, Protocol

from mqdb.common.received_message import ReceivedMessage
from mqdb.common.user_error import describe, log_error
from mqdb_client.consumer.listeners.loop_tasks import LoopTasks
from mqdb_client.consumer.listeners.message_listener import where
from mqdb_client.consumer.listeners.running_calls import RunningCalls
from mqdb_client.consumer.listeners.worker_threads import WorkerThreads
from mqdb_client.consumer.queues.process_queue import ProcessQueue

logger: Final = logging.getLogger(__name__)


class ConsumeService(Protocol):
    """The service that calls the listener of one consumer. The service is started once, then stopped once."""

    #: The calls of the listener that have not returned.
    calls: RunningCalls

    @property
    def threads(self) -> WorkerThreads | LoopTasks:
        """The threads that call the listener, or the tasks in which it runs."""

    def start(self) -> None:
        """Start the threads. The listener is not called before `threads.begin`.

        Raises an error if a thread cannot start; `stop` ends the threads that did start.
        """

    def submit(self, process_queue: ProcessQueue, count: int) -> None:
        """Called when `count` more messages can be taken from a process queue. Any thread may call it."""

    def stop(self, seconds: float | None) -> int:
        """End the threads when their listeners return; returns the number of threads that still run after `seconds`.

        Also works if the service was not started, or was started only in part.
        """


def abandon(
    group: str,
    process_queue: ProcessQueue,
    messages: list[ReceivedMessage],
    error: BaseException,
    *,
    are_in_hand: bool = True,
) -> None:
    """Drop a queue after an error that no listener raised: an internal error, or an error of a logging handler.

    The thread continues, and the broker redelivers the messages to the next owner, usually this member.
    """
    process_queue.drop()
    if are_in_hand:
        process_queue.fail(messages)
    sentence = (
        "consumption in group %(group)s failed at message %(message_id)s of topic %(topic)s, delivery %(delivery)s, "
        "batch of %(count)s; will take queue %(queue)s again"
    )
    try:
        log_error(logger, sentence, error, where(group, messages))
    except BaseException:  # noqa: BLE001 - usually the handler that failed before; the thread must continue
        sys.stderr.write(describe(error).traceback)
