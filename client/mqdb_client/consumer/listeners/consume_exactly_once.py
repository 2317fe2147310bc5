"""Exactly-once consumption: one transaction per batch, which contains the listener's work and the offset.

A queue has one transaction at a time, which begins at the offset that the previous transaction committed; different
queues run in parallel.

    committed       the messages are done
    failed          another transaction sends them back and passes them; in orderly consumption they are retried here,
                    before all messages behind them
    unknown         the queue is dropped: its next owner, usually this member, continues at the broker's offset

RocketMQ has no counterpart; the rest is as in ConsumeMessageConcurrentlyService and ConsumeMessageOrderlyService.
"""

import logging
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Final

from mqdb.common.clock import Clock, SystemClock
from mqdb.common.received_message import ReceivedMessage
from mqdb.common.retry import Retry
from mqdb_client.consumer.listeners.consume_concurrently import CONSUME_TIMEOUT
from mqdb_client.consumer.listeners.consume_hooks import ConsumeHooks
from mqdb_client.consumer.listeners.consume_orderly import SUSPEND_TIME
from mqdb_client.consumer.listeners.consume_service import abandon
from mqdb_client.consumer.listeners.exactly_once_listener import ConsumeAttempt, End, ExactlyOnceListener
from mqdb_client.consumer.listeners.loop_calls import LoopCalls, LoopClosed
from mqdb_client.consumer.listeners.message_listener import (
    ConsumeConcurrentlyContext,
    ConsumeOrderlyContext,
    MessageListenerExactlyOnce,
    asked,
    retry_of,
    where,
)
from mqdb_client.consumer.listeners.orderly_verdict import clamp
from mqdb_client.consumer.listeners.queue_line import QueueLine
from mqdb_client.consumer.listeners.running_calls import RunningCalls
from mqdb_client.consumer.listeners.send_back import RECONSUME_DELAY
from mqdb_client.consumer.listeners.worker_threads import WorkerThreads
from mqdb_client.consumer.queues.process_queue import ProcessQueue
from mqdb_client.instance import ClientInstance

logger = logging.getLogger(__name__)

# The immediate retries of a transaction that conflicted with others, before it counts as failed.
_COLLISIONS: Final = 3

# The time between attempts while the broker cannot be reached.
_UNREACHED_SECONDS: Final = 1.0

# The time between checks whether a lease was renewed.
_LEASE_SECONDS: Final = 0.1

_NOT_ANSWERED: Final = (End.UNKNOWN, End.UNREACHED)


class ConsumeExactlyOnce:
    """The threads of one consumer. `instances` are the client instances of its brokers, by broker name."""

    def __init__(
        self,
        group: str,
        listener: MessageListenerExactlyOnce,
        instances: Mapping[str, ClientInstance],
        *,
        is_orderly: bool,
        thread_nums: int,
        batch_max_size: int,
        hooks: ConsumeHooks | None = None,
        max_reconsume_times: int | None = None,
        suspend_time: timedelta = SUSPEND_TIME,
        reconsume_delay: timedelta = RECONSUME_DELAY,
        consume_timeout: timedelta = CONSUME_TIMEOUT,
        clock: Clock | None = None,
        loop_calls: LoopCalls | None = None,
    ) -> None:
        """If `max_reconsume_times` is None, the group's setting applies; in orderly consumption, retries never end.

        `consume_timeout` is only for hooks: a listener that takes longer delays its queue, without further effects.
        With `loop_calls` the listener is asynchronous: its transactions run in that loop, and a thread waits for each
        transaction.
        """
        self._group = group
        self.calls = RunningCalls()
        self._listeners = {
            broker_name: ExactlyOnceListener(
                listener,
                group,
                instance,
                is_orderly=is_orderly,
                hooks=hooks or ConsumeHooks(group),
                calls=self.calls,
                consume_timeout=consume_timeout,
                clock=clock or SystemClock(),
                loop_calls=loop_calls,
            )
            for broker_name, instance in instances.items()
        }
        self._batch_max_size = batch_max_size
        self._max_reconsume_times = max_reconsume_times
        self._suspend_time = clamp(suspend_time)
        self._reconsume_delay = reconsume_delay
        self._line = QueueLine(f"mqdb-{group}-pauses")
        self.threads = WorkerThreads(f"mqdb-{group}-consume", self._work, self._line.nudge, thread_nums)
        self._outages = {broker_name: instance.outage for broker_name, instance in instances.items()}
        self._unreached: set[str] = set()

    def start(self) -> None:
        """Start the threads. The listener is not called before `threads.begin`."""
        self._line.start()
        self.threads.start()

    def submit(self, process_queue: ProcessQueue, _count: int) -> None:
        """Note that more messages can be taken from a process queue."""
        self._line.submit(process_queue)

    def stop(self, seconds: float | None) -> int:
        """End the threads when their listeners return; returns the number of threads that still run after `seconds`."""
        running = self.threads.stop(seconds)
        self._line.stop()
        for outage in self._outages.values():
            outage.leave(self)
        for listener in self._listeners.values():
            listener.close()
        return running

    # -- the threads ----------------------------------------------------------------------------

    def _work(self) -> None:
        """Consume one batch of the queue whose turn it is, then let the other queues have their turns."""
        lane = self._line.next()
        if lane is None:
            return
        process_queue = lane.turn()
        seconds = 0.0
        if time.monotonic() >= process_queue.lease_ends and not process_queue.is_dropped:
            seconds = _LEASE_SECONDS
        elif messages := process_queue.take(self._batch_max_size):
            seconds = self._consume(process_queue, messages)
        elif self._line.leave(lane):
            return
        if seconds:
            self._line.pause(lane, seconds)
        else:
            self._line.put_back(lane)

    def _consume(self, process_queue: ProcessQueue, messages: list[ReceivedMessage]) -> float:
        """Consume messages; returns the number of seconds for which their queue pauses afterwards."""
        try:
            end, seconds = self._process(process_queue, messages)
        except BaseException as error:  # noqa: BLE001 - the thread must continue
            abandon(self._group, process_queue, messages, error)
            return 0.0
        if end is End.COMMITTED:
            process_queue.finish(messages)
        else:
            if end is End.UNKNOWN:
                process_queue.drop()
            process_queue.fail(messages)
            process_queue.retry(messages)
        return seconds

    def _process(self, process_queue: ProcessQueue, messages: list[ReceivedMessage]) -> tuple[End, float]:
        """Consume messages; returns the transaction's outcome, and for how many seconds their queue pauses."""
        listener = self._listeners[process_queue.queue.broker_name]
        attempt = listener.attempt(process_queue, messages)
        for _ in range(_COLLISIONS):
            if attempt.end is not End.COLLIDED or process_queue.is_lost:
                break
            logger.info("retrying a transaction that collided with others", extra=where(self._group, messages))
            attempt = listener.attempt(process_queue, messages)
        self._report(process_queue.queue.broker_name, messages, attempt)
        if attempt.end in (End.COMMITTED, End.UNKNOWN):
            return attempt.end, 0.0
        if attempt.end is End.UNREACHED:
            return attempt.end, _UNREACHED_SECONDS
        return self._settle(process_queue, messages, attempt)

    def _report(self, broker_name: str, messages: list[ReceivedMessage], attempt: ConsumeAttempt) -> None:
        """Log a failure for operators. An unreachable broker is logged only once."""
        outage, error = self._outages[broker_name], attempt.error
        if error is None:
            outage.works(self)
            if not self._unreached:
                return
        is_away = attempt.end in _NOT_ANSWERED and error is not None and outage.covers(self, error)
        # After LoopClosed the consumer leaves its group, and this is logged.
        if is_away or type(error) is LoopClosed:
            return
        fields = where(self._group, messages) | {"broker": broker_name, "reason": attempt.reason}
        if attempt.end is End.UNKNOWN:
            logger.warning(
                "could not commit the transaction of group %(group)s for message %(message_id)s of topic %(topic)s, "
                "delivery %(delivery)s, batch of %(count)s; will take queue %(queue)s again: %(reason)s",
                fields,
                extra=fields,
            )
        elif attempt.end is End.COLLIDED:
            logger.warning(
                "transaction of group %(group)s for message %(message_id)s of topic %(topic)s, delivery %(delivery)s, "
                "batch of %(count)s, failed after too many collisions with others: %(reason)s",
                fields,
                extra=fields,
            )
        elif attempt.end is End.UNREACHED and broker_name not in self._unreached:
            self._unreached.add(broker_name)
            logger.warning(
                "could not run transactions of group %(group)s on broker %(broker)s, first for message %(message_id)s "
                "of topic %(topic)s, delivery %(delivery)s; will retry: %(reason)s",
                fields,
                extra=fields,
            )
        elif attempt.end is not End.UNREACHED and broker_name in self._unreached:
            self._unreached.discard(broker_name)
            logger.info("transactions succeed again", extra={"group": self._group, "broker": broker_name})

    # -- failed messages ---------------------------------------------------------------------

    def _settle(
        self, process_queue: ProcessQueue, messages: list[ReceivedMessage], attempt: ConsumeAttempt
    ) -> tuple[End, float]:
        """Send failed messages back, or retry them here."""
        listener = self._listeners[process_queue.queue.broker_name]
        context, pause = attempt.context, self._reconsume_delay
        end = End.FAILED
        if isinstance(context, ConsumeConcurrentlyContext):
            retry = retry_of(self._group, context)
            end = listener.send_back(process_queue, messages, attempt, retry, self._max_reconsume_times)
        elif isinstance(context, ConsumeOrderlyContext):
            wanted = asked(self._group, context, "suspend_current_queue_time")
            pause = clamp(self._suspend_time if wanted is None else wanted)
            if self._have_failed_too_often(messages, context):
                end = listener.send_back(process_queue, messages, attempt, Retry(-1), self._max_reconsume_times)
        if end is not End.FAILED:
            return end, 0.0
        for message in messages:
            message.count_failure()
        return end, pause.total_seconds()

    def _have_failed_too_often(self, messages: list[ReceivedMessage], context: ConsumeOrderlyContext) -> bool:
        # While one message of a batch may be retried, all messages are redelivered. Source: checkReconsumeTimes.
        wanted = asked(self._group, context, "max_reconsume_times")
        most = self._max_reconsume_times if wanted is None else wanted
        return most is not None and all(message.reconsume_times >= most for message in messages)
