"""Concurrent consumption: threads pass messages of all queues to the listener.

The threads share one line of tokens. Each token stands for one batch of a process queue, which is chosen only when a
thread is ready to run it. So a slow message delays only its own thread. Under load a message costs two uncontended
locks and no hand-over between threads.

One thread per broker (`send_back.py`) sends back failed messages, and messages whose listener has not returned within
`consume_timeout`. RocketMQ: ConsumeMessageConcurrentlyService.
"""

import logging
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar, Final, NamedTuple

from mqdb.common.clock import Clock, SystemClock
from mqdb.common.failure import Failure
from mqdb.common.received_message import ReceivedMessage
from mqdb.common.retry import FIRST_RETRY_LEVEL, Retry
from mqdb.common.user_error import log_error
from mqdb.errors import shown
from mqdb_client.consumer.listeners.consume_hooks import ConsumeHooks, ConsumeMessageContext, return_type_of
from mqdb_client.consumer.listeners.consume_service import abandon
from mqdb_client.consumer.listeners.loop_tasks import LoopTasks
from mqdb_client.consumer.listeners.message_listener import (
    LISTENER_FAILED,
    ConsumeConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    MessageListener,
    retry_of,
    status_of,
    takes_context,
    where,
)
from mqdb_client.consumer.listeners.running_calls import RunningCall, RunningCalls
from mqdb_client.consumer.listeners.send_back import RECONSUME_DELAY, SendBack, SendBackThread
from mqdb_client.consumer.listeners.token_line import TokenLine
from mqdb_client.consumer.listeners.worker_threads import WorkerThreads
from mqdb_client.consumer.queues.process_queue import ProcessQueue

logger = logging.getLogger(__name__)

#: Source: DefaultMQPushConsumer.consumeTimeout.
CONSUME_TIMEOUT: Final = timedelta(minutes=15)

_SUCCESS: Final = ConsumeConcurrentlyStatus.CONSUME_SUCCESS
_LATER: Final = ConsumeConcurrentlyStatus.RECONSUME_LATER


class _Verdict(NamedTuple):
    """The number of consumed messages (the first of the batch), and the reason why the others failed."""

    consumed: int
    failure: Failure | None = None
    retry: Retry = Retry()


class ConsumeConcurrently:
    """The threads of one consumer. `broker_names` are the names of its brokers.

    Without `send_back`, in broadcasting, failed messages are reported and count as done.
    """

    #: Whether the listener has to be a coroutine function, as for `ConsumeInLoop`.
    _is_asynchronous: ClassVar[bool] = False

    threads: WorkerThreads | LoopTasks

    def __init__(
        self,
        group: str,
        listener: MessageListener,
        broker_names: Iterable[str],
        *,
        host: str,
        thread_nums: int,
        batch_max_size: int,
        send_back: SendBack | None,
        hooks: ConsumeHooks | None = None,
        consume_timeout: timedelta = CONSUME_TIMEOUT,
        reconsume_delay: timedelta = RECONSUME_DELAY,
        clock: Clock | None = None,
    ) -> None:
        """`host`, the client id, is recorded in failures."""
        self._group = group
        self._listener: Callable[..., Any] = listener
        self._takes_context = takes_context(listener, is_asynchronous=self._is_asynchronous)
        self._host = host
        self._batch_max_size = batch_max_size
        self._hooks = hooks or ConsumeHooks(group)
        self._consume_timeout = consume_timeout
        self._clock = clock or SystemClock()
        self._line = TokenLine()
        self.threads = WorkerThreads(f"mqdb-{group}-consume", self._work, lambda: self._line.put(None), thread_nums)
        self.calls = RunningCalls()
        self._send_back: dict[str, SendBackThread] = {}
        if send_back is not None:
            self._send_back = {
                broker_name: SendBackThread(
                    group,
                    broker_name,
                    send_back=partial(send_back, broker_name),
                    retry=self._retry,
                    tick=self._give_up_calls,
                    tick_seconds=min(consume_timeout.total_seconds() / 10, 1.0),
                    reconsume_delay=reconsume_delay,
                )
                for broker_name in broker_names
            }

    def start(self) -> None:
        """Start the threads. The listener is not called before `threads.begin`."""
        for thread in self._send_back.values():
            thread.start()
        self.threads.start()

    def submit(self, process_queue: ProcessQueue, count: int) -> None:
        """Called when `count` more messages can be taken from a process queue."""
        self._line.put(process_queue, -(-count // self._batch_max_size))

    def stop(self, seconds: float | None) -> int:
        """End the threads when their listeners return; returns the number of threads that still run after `seconds`."""
        running = self.threads.stop(seconds)
        for thread in self._send_back.values():
            thread.begin_to_stop()
        for thread in self._send_back.values():
            thread.stop()
        return running

    # -- the threads ----------------------------------------------------------------------------

    def _work(self) -> None:
        """Consume batches until nudged, so that not every message needs a check for surplus threads."""
        next_token, limit = self._line.next, self._batch_max_size
        while (process_queue := next_token()) is not None:
            messages = process_queue.take(limit)
            if messages:  # otherwise dropped, or taken by the previous token as part of a larger batch
                self._consume(process_queue, messages)

    def _consume(self, process_queue: ProcessQueue, messages: list[ReceivedMessage]) -> None:
        call = self.calls.begin(process_queue, messages)
        context = ConsumeConcurrentlyContext(process_queue.queue)
        try:
            observed = self._hooks.begin(process_queue.queue, messages)
            try:
                # A copy: changes by the listener must not affect which messages are done.
                answer = self._listener(messages[:], context) if self._takes_context else self._listener(messages[:])
                verdict = self._returned(call, context, observed, answer)
            except BaseException as error:  # noqa: BLE001 - also sys.exit(), which would end the thread
                verdict = self._raised(call, context, observed, error)
            self._conclude(call, verdict)
        except BaseException as error:  # noqa: BLE001 - the thread must continue
            self._abandon(call, error)

    def _abandon(self, call: RunningCall, error: BaseException) -> None:
        """Handle a call that failed with an error not raised by its listener."""
        abandon(self._group, call.process_queue, call.messages, error, are_in_hand=self.calls.end(call))

    def _conclude(self, call: RunningCall, verdict: _Verdict) -> None:
        """Handle the end of a call of the listener."""
        process_queue, messages = call.process_queue, call.messages
        if not self.calls.end(call):
            fields = where(self._group, messages) | {"seconds": round(time.monotonic() - call.started_at, 1)}
            logger.warning(
                "ignored the answer of the listener of group %(group)s, which was given up, after %(seconds)s s: "
                "message %(message_id)s of topic %(topic)s, delivery %(delivery)s, batch of %(count)s",
                fields,
                extra=fields,
            )
            return
        if verdict.failure is None:
            process_queue.finish(messages)
            return
        if verdict.consumed:
            process_queue.finish(messages[: verdict.consumed])
        self._fail(process_queue, messages[verdict.consumed :], verdict.failure, verdict.retry)

    def _fail(
        self, process_queue: ProcessQueue, messages: list[ReceivedMessage], failure: Failure, retry: Retry
    ) -> None:
        if self._send_back:
            self._send_back[process_queue.queue.broker_name].put(process_queue, messages, failure, retry)
        else:
            process_queue.finish(messages)
            fields = where(self._group, messages)
            logger.warning(
                "dropped failed message %(message_id)s of topic %(topic)s, batch of %(count)s: broadcasting group "
                "%(group)s has no retries",
                fields,
                extra=fields,
            )

    def _returned(
        self,
        call: RunningCall,
        context: ConsumeConcurrentlyContext,
        observed: ConsumeMessageContext | None,
        answer: object,
    ) -> _Verdict:
        """The verdict after a call returned.

        A requested RECONSUME_LATER is not logged; an unintended failure is logged.
        """
        verdict = self._verdict_of(answer, call.messages, context)
        if observed is not None:
            self._tell(observed, call, answer, None)
        return verdict

    def _raised(
        self,
        call: RunningCall,
        context: ConsumeConcurrentlyContext,
        observed: ConsumeMessageContext | None,
        error: BaseException,
    ) -> _Verdict:
        log_error(logger, LISTENER_FAILED, error, where(self._group, call.messages))
        if observed is not None:
            self._tell(observed, call, None, error)
        failure = Failure.of(error, self._host, self._clock.now())
        return _Verdict(0, failure, retry_of(self._group, context))

    def _tell(
        self, observed: ConsumeMessageContext, call: RunningCall, answer: object, error: BaseException | None
    ) -> None:
        """Notify the hooks."""
        is_success = status_of(answer) == _SUCCESS
        seconds = time.monotonic() - call.started_at
        end = return_type_of(answer, is_success, error, seconds, self._consume_timeout)
        self._hooks.end(observed, answer, end, error)

    def _verdict_of(
        self, answer: object, messages: list[ReceivedMessage], context: ConsumeConcurrentlyContext
    ) -> _Verdict:
        # The usual answer needs no call.
        status = answer if answer is _SUCCESS else status_of(answer)
        if status == _SUCCESS and context.ack_index >= len(messages) - 1:
            return _Verdict(len(messages))
        if status in (_SUCCESS, _LATER):
            consumed = max(context.ack_index + 1, 0) if status == _SUCCESS else 0
            return _Verdict(consumed, Failure.later(self._host, self._clock.now()), retry_of(self._group, context))
        fields = where(self._group, messages) | {"answer": shown(answer)}
        logger.error(
            "listener of group %(group)s returned %(answer)s instead of a ConsumeConcurrentlyStatus for message "
            "%(message_id)s of topic %(topic)s, delivery %(delivery)s, batch of %(count)s",
            fields,
            extra=fields,
        )
        failure = Failure.no_answer(answer, self._host, self._clock.now())
        return _Verdict(0, failure, retry_of(self._group, context))

    # -- called by the threads that send back -------------------------------------------

    def _retry(self, process_queue: ProcessQueue, messages: list[ReceivedMessage]) -> None:
        if process_queue.retry(messages):
            self.submit(process_queue, len(messages))

    def _give_up_calls(self) -> None:
        for call in self.calls.give_up(self._consume_timeout.total_seconds()):
            fields = where(self._group, call.messages) | {"seconds": self._consume_timeout.total_seconds()}
            logger.warning(
                "gave up the listener of group %(group)s after %(seconds)g s; will send back message %(message_id)s "
                "of topic %(topic)s, delivery %(delivery)s, batch of %(count)s",
                fields,
                extra=fields,
            )
            failure = Failure.timeout(self._host, self._clock.now(), self._consume_timeout)
            self._fail(call.process_queue, call.messages, failure, Retry(FIRST_RETRY_LEVEL))
