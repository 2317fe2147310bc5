"""Orderly consumption: threads pass the messages of each queue to the listener, one call at a time.

A thread keeps a queue until the queue is empty or has to pause, or for 60 s if other queues wait. A failed message is
retried before all messages behind it. Without `max_reconsume_times`, the message is retried forever; otherwise it goes
to the dead letter queue after that number of retries, and its queue continues.

The lease of a queue ends if its lock in the broker was not renewed in time. No listener is called after the end of the
lease, because another member may be about to take the queue.

Without auto_commit, consumed messages are kept until the listener returns COMMIT. Kept messages do not count as
running, because the COMMIT may never come: if a queue is dropped between two calls, it is handed over without a COMMIT,
and these messages are redelivered. But a running call is waited for, and its COMMIT covers all kept messages. RocketMQ:
ConsumeMessageOrderlyService, which ignores a COMMIT once the queue is dropped.
"""

import logging
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

from mqdb.broker.consumers.send_back import SendBackRequest
from mqdb.common.clock import Clock, SystemClock
from mqdb.common.received_message import ReceivedMessage
from mqdb.common.retry import Retry
from mqdb.common.user_error import log_error
from mqdb_client.consumer.listeners.consume_concurrently import CONSUME_TIMEOUT
from mqdb_client.consumer.listeners.consume_hooks import ConsumeHooks, return_type_of
from mqdb_client.consumer.listeners.consume_service import abandon
from mqdb_client.consumer.listeners.loop_calls import LoopClosed, WaitedTasks
from mqdb_client.consumer.listeners.message_listener import (
    LISTENER_FAILED,
    ConsumeOrderlyContext,
    MessageListenerOrderly,
    takes_context,
    where,
)
from mqdb_client.consumer.listeners.orderly_verdict import (
    SUSPEND_TIME_MAX,
    Decision,
    OrderlyVerdict,
    clamp,
    failed,
    verdict_of,
)
from mqdb_client.consumer.listeners.queue_line import LinedQueue, QueueLine
from mqdb_client.consumer.listeners.running_calls import RunningCalls
from mqdb_client.consumer.listeners.send_back import SendBack, seen_by_hooks
from mqdb_client.consumer.listeners.worker_threads import WorkerThreads
from mqdb_client.consumer.queues.process_queue import ProcessQueue

logger = logging.getLogger(__name__)

#: Source: DefaultMQPushConsumer.suspendCurrentQueueTimeMillis.
SUSPEND_TIME: Final = timedelta(seconds=1)

#: Source: ConsumeMessageOrderlyService.MAX_TIME_CONSUME_CONTINUOUSLY.
TIME_SLICE: Final = timedelta(seconds=60)

# The time between checks whether a lease was renewed. Source: ConsumeMessageOrderlyService.tryLockLaterAndReconsume.
_LEASE_SECONDS: Final = 0.1


class ConsumeOrderly:
    """The threads of one consumer.

    Without `send_back`, in broadcasting, messages that have failed too often are reported and count as done.
    """

    def __init__(
        self,
        group: str,
        listener: MessageListenerOrderly,
        *,
        host: str,
        thread_nums: int,
        batch_max_size: int,
        send_back: SendBack | None,
        hooks: ConsumeHooks | None = None,
        max_reconsume_times: int | None = None,
        suspend_time: timedelta = SUSPEND_TIME,
        consume_timeout: timedelta = CONSUME_TIMEOUT,
        time_slice: timedelta = TIME_SLICE,
        clock: Clock | None = None,
        tasks: WaitedTasks | None = None,
    ) -> None:
        """`host`, the client id, is recorded in failures. If `max_reconsume_times` is None, retries never end.

        `tasks` are the tasks in which an asynchronous listener runs, while a thread waits for each of them.

        `consume_timeout` is only for hooks: a listener that takes longer delays its queue, without further effects.
        """
        self._group = group
        self._listener: Callable[..., Any] = listener
        self._takes_context = takes_context(listener)
        self._host = host
        self._batch_max_size = batch_max_size
        self._send_back = send_back
        self._hooks = hooks or ConsumeHooks(group)
        self._max_reconsume_times = max_reconsume_times
        self._suspend_time = clamp(suspend_time)
        self._consume_timeout = consume_timeout
        self._slice_seconds = time_slice.total_seconds()
        self._clock = clock or SystemClock()
        self._line = QueueLine(f"mqdb-{group}-pauses")
        self.threads = WorkerThreads(f"mqdb-{group}-consume", self._work, self._line.nudge, thread_nums)
        self.calls = RunningCalls(tasks)

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
        return running

    # -- the threads ----------------------------------------------------------------------------

    def _work(self) -> None:
        lane = self._line.next()
        if lane is not None:
            self._serve(lane)

    def _serve(self, lane: LinedQueue) -> None:
        """Consume a queue for as long as this thread may keep the queue."""
        slice_ends = time.monotonic() + self._slice_seconds
        while True:
            process_queue = lane.turn()
            now = time.monotonic()
            if now >= process_queue.lease_ends and not process_queue.is_dropped:
                self._line.pause(lane, _LEASE_SECONDS)
                return
            messages = process_queue.take(self._batch_max_size)
            if not messages:
                if self._line.leave(lane):
                    return
                continue
            try:
                suspend_time = self._consume(lane, messages)
            except BaseException as error:  # noqa: BLE001 - the thread must continue
                abandon(self._group, process_queue, messages, error)
                suspend_time = None
            if suspend_time is not None:
                self._line.pause(lane, suspend_time.total_seconds())
                return
            if now >= slice_ends or self._line.is_nudged:
                self._line.put_back(lane)
                return

    def _consume(self, lane: LinedQueue, messages: list[ReceivedMessage]) -> timedelta | None:
        """Consume messages; returns how long their queue pauses afterwards, or None if the queue continues."""
        process_queue = lane.process_queue
        call = self.calls.begin(process_queue, messages)
        try:
            verdict = self._ask(process_queue, messages)
        finally:
            self.calls.end(call)
        if process_queue.is_lost:
            fields = where(self._group, messages)
            logger.warning(
                "ignored the answer of the listener of group %(group)s, whose queue %(queue)s was lost: message "
                "%(message_id)s of topic %(topic)s, delivery %(delivery)s, batch of %(count)s",
                fields,
                extra=fields,
            )
            process_queue.fail(messages)
        elif verdict.decision is Decision.COMMIT:
            # Kept messages first: while this batch runs, a dropped queue is not handed over.
            kept, lane.kept = lane.kept, []
            process_queue.finish_failed(kept)
            process_queue.finish(messages)
        elif verdict.decision is Decision.KEEP:
            lane.kept += messages
            process_queue.fail(messages)
        elif verdict.decision is Decision.ROLL_BACK:
            kept, lane.kept = lane.kept, []
            process_queue.fail(messages)
            process_queue.retry(kept + messages)
            return verdict.suspend_time or self._suspend_time
        elif self._have_failed_too_often(messages, verdict) and self._give_up(process_queue, messages, verdict):
            process_queue.finish(messages)
        else:
            for message in messages:
                message.count_failure()
            process_queue.fail(messages)
            process_queue.retry(messages)
            return verdict.suspend_time or self._suspend_time
        return None

    def _ask(self, process_queue: ProcessQueue, messages: list[ReceivedMessage]) -> OrderlyVerdict:
        """Call the listener. A requested suspension is not logged; an unintended failure is logged."""
        observed = self._hooks.begin(process_queue.queue, messages)
        context = ConsumeOrderlyContext(process_queue.queue) if self._takes_context else None
        started_at = time.monotonic()
        try:
            # A copy: changes by the listener must not affect which messages are done.
            answer = self._listener(messages[:]) if context is None else self._listener(messages[:], context)
            verdict = verdict_of(self._group, answer, messages, context)
        except LoopClosed as error:
            verdict = OrderlyVerdict(Decision.SUSPEND, SUSPEND_TIME_MAX, error=error)
        except BaseException as error:  # noqa: BLE001 - also sys.exit(), which would end the thread
            log_error(logger, LISTENER_FAILED, error, where(self._group, messages))
            verdict = failed(self._group, context, error)
        if observed is not None:
            seconds = time.monotonic() - started_at
            end = return_type_of(verdict.answer, verdict.is_success, verdict.error, seconds, self._consume_timeout)
            self._hooks.end(observed, verdict.answer, end, verdict.error)
        return verdict

    # -- the end of messages --------------------------------------------------------------------

    def _have_failed_too_often(self, messages: list[ReceivedMessage], verdict: OrderlyVerdict) -> bool:
        # While one message of a batch may be retried, all messages are redelivered. Source: checkReconsumeTimes.
        most = self._max_reconsume_times if verdict.max_reconsume_times is None else verdict.max_reconsume_times
        if type(verdict.error) is LoopClosed:  # the messages have not failed
            return False
        return most is not None and all(message.reconsume_times >= most for message in messages)

    def _give_up(self, process_queue: ProcessQueue, messages: list[ReceivedMessage], verdict: OrderlyVerdict) -> bool:
        """Send messages to the dead letter queue; False if that fails."""
        fields = where(self._group, messages)
        if self._send_back is None:
            logger.warning(
                "dropped message %(message_id)s of topic %(topic)s after delivery %(delivery)s, batch of %(count)s: "
                "broadcasting group %(group)s has no dead letter queue",
                fields,
                extra=fields,
            )
            return True
        failure = verdict.failure(self._host, self._clock)
        history = process_queue.history
        requests = [
            SendBackRequest(m.log_pos, m.queue, m.queue_offset, failure, Retry(-1), m.reconsume_times, history)
            for m in messages
        ]
        try:
            with seen_by_hooks(self._group, messages, failure) as context:
                results = self._send_back(process_queue.queue.broker_name, requests)
                if context is not None:
                    context.outcome = results
        except Exception as error:  # noqa: BLE001 - after any error the queue must still be served
            fields["reason"] = str(error)
            logger.warning(
                "could not send message %(message_id)s of topic %(topic)s to the dead letter queue of group %(group)s "
                "after delivery %(delivery)s, batch of %(count)s; will consume it again: %(reason)s",
                fields,
                extra=fields,
            )
            return False
        logger.warning(
            "sent message %(message_id)s of topic %(topic)s to the dead letter queue of group %(group)s after delivery "
            "%(delivery)s, batch of %(count)s",
            fields,
            extra=fields,
        )
        return True
