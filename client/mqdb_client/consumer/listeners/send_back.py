"""Sending back: one thread per broker sends back the messages that the listener did not consume.

    listener's threads ──▶ put ──▶ one statement for all that wait ──▶ delay level, %RETRY%group, listener
                                          │                       └──▶ %DLQ%group
                                          └─ fails ──▶ 5 s, then the listener of this process again

A broker that hangs does not delay messages of other brokers.

A message counts as running until its copy for the retry is stored, so the group's offset never passes a message that
could be lost. If the broker refuses a message, RocketMQ's client sends it to the retry topic as a new message; mqdb
does not, because the new message would go to the same database. RocketMQ:
ConsumeMessageConcurrentlyService.processConsumeResult.
"""

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from datetime import timedelta
from itertools import islice
from queue import Empty, SimpleQueue
from typing import Final, NamedTuple, TypeAlias

from mqdb.broker.consumers.send_back import SendBackRequest, SentBack
from mqdb.common.failure import Failure
from mqdb.common.received_message import ReceivedMessage
from mqdb.common.retry import Retry
from mqdb.errors import BrokerUnavailable, MqdbError
from mqdb_client.consumer.listeners.message_listener import where
from mqdb_client.consumer.queues.process_queue import ProcessQueue
from mqdb_client.process_hooks import ClientOperation, OperationContext, operations, topic_of

logger = logging.getLogger(__name__)

#: Source: ConsumeMessageConcurrentlyService.submitConsumeRequestLater.
RECONSUME_DELAY: Final = timedelta(seconds=5)

#: Sends requests back to the broker with this name, all or none; may return the outcome of each. Raises MqdbError.
SendBack: TypeAlias = Callable[[str, Sequence[SendBackRequest]], Sequence[SentBack] | None]


class _Failed(NamedTuple):
    process_queue: ProcessQueue
    messages: list[ReceivedMessage]
    failure: Failure
    retry: Retry

    def requests(self) -> list[SendBackRequest]:
        failure, retry, history = self.failure, self.retry, self.process_queue.history
        return [
            SendBackRequest(
                message.log_pos,
                message.queue,
                message.queue_offset,
                failure,
                retry,
                history=history,
                is_popped=message.receipt_handle is not None,
            )
            for message in self.messages
        ]


class SendBackThread:
    """The thread of one consumer for one broker.

    `send_back` sends all given requests to the broker, or none of them. `retry` gets messages that this process has to
    consume again, and `tick` is called every `tick_seconds`.
    """

    def __init__(
        self,
        group: str,
        broker_name: str,
        *,
        send_back: Callable[[Sequence[SendBackRequest]], Sequence[SentBack] | None],
        retry: Callable[[ProcessQueue, list[ReceivedMessage]], None],
        tick: Callable[[], None],
        tick_seconds: float,
        reconsume_delay: timedelta = RECONSUME_DELAY,
    ) -> None:
        self._group = group
        self._broker_name = broker_name
        self._send_back = send_back
        self._retry = retry
        self._tick = tick
        self._tick_seconds = tick_seconds
        self._reconsume_delay = reconsume_delay.total_seconds()
        self._arrivals: SimpleQueue[_Failed | None] = SimpleQueue()
        self._waiting: list[tuple[float, int, _Failed]] = []  # a heap
        self._numbers = itertools.count()
        self._is_failing = False
        self._thread = threading.Thread(target=self._run, name=f"mqdb-{group}-send-back-{broker_name}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def begin_to_stop(self) -> None:
        """Make the thread send back the messages that have failed so far, and end."""
        self._arrivals.put(None)

    def stop(self) -> None:
        """Stop the thread, and wait for its end. Also works if the thread was not started."""
        self.begin_to_stop()
        if self._thread.is_alive():
            self._thread.join()

    def put(self, process_queue: ProcessQueue, messages: list[ReceivedMessage], failure: Failure, retry: Retry) -> None:
        """Accept failed messages that were taken from a process queue."""
        self._arrivals.put(_Failed(process_queue, messages, failure, retry))

    def _run(self) -> None:
        next_tick = time.monotonic() + self._tick_seconds
        is_stopping = False
        while not is_stopping:
            due = min(next_tick, self._waiting[0][0] if self._waiting else next_tick)
            arrived = self._next(due - time.monotonic())
            is_stopping = None in arrived
            self._take_back([failed for failed in arrived if failed is not None])
            now = time.monotonic()
            while self._waiting and self._waiting[0][0] <= now:
                failed = heapq.heappop(self._waiting)[2]
                self._retry(failed.process_queue, failed.messages)
            if now >= next_tick:
                next_tick = now + self._tick_seconds
                self._tick()

    def _next(self, seconds: float) -> list[_Failed | None]:
        """Wait for failed messages; [] after `seconds`."""
        arrived: list[_Failed | None] = []
        try:
            arrived.append(self._arrivals.get(timeout=max(seconds, 0.0)))
            while True:
                arrived.append(self._arrivals.get_nowait())
        except Empty:
            return arrived

    def _take_back(self, batch: Sequence[_Failed]) -> None:
        error = self._try(batch)
        if error is None or len(batch) == 1 or isinstance(error, BrokerUnavailable):
            self._settle(batch, error)
        else:  # one of the messages may be the cause
            for each in batch:
                self._settle([each], self._try([each]))

    def _try(self, batch: Sequence[_Failed]) -> Exception | None:
        held = [each for each in batch if not each.process_queue.is_lost]
        requests = [request for each in held for request in each.requests()]
        if not requests:
            return None
        try:
            with ExitStack() as stack:
                seen = [stack.enter_context(seen_by_hooks(self._group, each.messages, each.failure)) for each in held]
                results = iter(self._send_back(requests) or ())
                for context, each in zip(seen, held, strict=True):
                    if context is not None:
                        context.outcome = list(islice(results, len(each.messages)))
        except Exception as error:  # noqa: BLE001 - the edge of the loop
            self._note(held[0].messages, error)
            return error
        if self._is_failing:
            self._is_failing = False
            logger.info("messages are sent back again", extra={"group": self._group, "broker": self._broker_name})
        return None

    def _note(self, messages: list[ReceivedMessage], error: Exception) -> None:
        if not self._is_failing:
            self._is_failing = True
            fields = where(self._group, messages) | {"broker": self._broker_name, "reason": str(error)}
            logger.warning(
                "could not send failed messages of group %(group)s back to broker %(broker)s, first message "
                "%(message_id)s of topic %(topic)s, delivery %(delivery)s; will consume them here again: %(reason)s",
                fields,
                exc_info=None if isinstance(error, MqdbError) else error,
                extra=fields,
            )

    def _settle(self, batch: Sequence[_Failed], error: Exception | None) -> None:
        for each in batch:
            if error is None:
                each.process_queue.finish(each.messages)
            else:
                each.process_queue.fail(each.messages)
                for message in each.messages:
                    message.count_failure()
                heapq.heappush(self._waiting, (time.monotonic() + self._reconsume_delay, next(self._numbers), each))


def seen_by_hooks(
    group: str, messages: Sequence[ReceivedMessage], failure: Failure
) -> AbstractContextManager[OperationContext | None]:
    """A context manager for sending back the messages that failed in one call of the listener."""
    if operations.is_empty:
        return operations.around(ClientOperation.SEND_BACK, group, failure.host)
    ids, broker_name = [message.message_id for message in messages], messages[0].queue.broker_name
    return operations.around(
        ClientOperation.SEND_BACK, group, failure.host, topic_of(messages), broker_name, ids, tuple(messages)
    )
