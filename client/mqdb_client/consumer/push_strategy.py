"""Push strategy: the messages go to a listener, in one of these ways.

                        threads                    offsets
    concurrently        ConsumeConcurrently        BrokerOffsetStore
    in a loop           ConsumeInLoop (tasks)      BrokerOffsetStore
    orderly             ConsumeOrderly             LockedOffsetStore
    exactly once        ConsumeExactlyOnce         ExactlyOnceOffsetStore over one of those two
    in broadcasting     one of the first three     LocalFileOffsetStore

The threads for orderly and exactly once run an asynchronous listener in its loop and wait for it (`loop_calls`).
Everything else, from membership to pulls, is shared.
"""

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mqdb.broker.consumers.send_back import SendBackRequest, SentBack, send_back
from mqdb.common.group import ConsumeMode, MessageModel
from mqdb.common.message import MessageQueue
from mqdb.common.received_message import ReceivedMessage
from mqdb.common.topic import retry_topic
from mqdb.errors import ParameterInvalid
from mqdb.selector.subscription import MessageFilter
from mqdb.store.engine import driver
from mqdb.store.filters.retry_filter import retry_filter
from mqdb_client.cluster import Cluster
from mqdb_client.consumer.consumer_strategy import ConsumerStrategy
from mqdb_client.consumer.listeners.consume_concurrently import ConsumeConcurrently
from mqdb_client.consumer.listeners.consume_exactly_once import ConsumeExactlyOnce
from mqdb_client.consumer.listeners.consume_hooks import ConsumeHooks
from mqdb_client.consumer.listeners.consume_in_loop import ConsumeInLoop
from mqdb_client.consumer.listeners.consume_orderly import ConsumeOrderly
from mqdb_client.consumer.listeners.consume_service import ConsumeService
from mqdb_client.consumer.listeners.direct_consumption import (
    ConsumeMessageDirectlyResult,
    DirectResult,
    consume_directly,
    judge,
)
from mqdb_client.consumer.listeners.listener_answer import require_answer
from mqdb_client.consumer.listeners.listener_transactions import ListenerTransactions
from mqdb_client.consumer.listeners.loop_calls import LoopCalls
from mqdb_client.consumer.listeners.loop_tasks import LoopTasks
from mqdb_client.consumer.listeners.message_listener import (
    ConsumeConcurrentlyContext,
    ConsumeOrderlyContext,
    takes_context,
    with_context,
)
from mqdb_client.consumer.offsets.exactly_once_offset_store import ExactlyOnceOffsetStore
from mqdb_client.consumer.offsets.local_file_offset_store import LocalFileOffsetStore
from mqdb_client.consumer.offsets.local_offsets import LocalOffsets, offsets_directory
from mqdb_client.consumer.offsets.locked_offset_store import LockedOffsetStore
from mqdb_client.consumer.offsets.offset_store import BrokerOffsetStore, Lease, OffsetStore
from mqdb_client.consumer.push_consumer_config import PushConsumerConfig
from mqdb_client.consumer.queues.process_queue import FlowLimits, ProcessQueue
from mqdb_client.instance import ClientInstance
from mqdb_client.option_rules import FLAG

_MEBIBYTE: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Consumption:
    """A listener, and how it consumes. Raises ParameterInvalid for a listener that does not take these arguments."""

    listener: Callable[..., Any]
    orderly: bool = False
    exactly_once: bool = False
    is_asynchronous: bool = False
    loop: asyncio.AbstractEventLoop | None = None
    """The event loop of an asynchronous listener, set when the consumer starts."""

    def __post_init__(self) -> None:
        FLAG.check("orderly", self.orderly)
        FLAG.check("exactly_once", self.exactly_once)
        if not takes_context(self.listener, self.plain_arguments, is_asynchronous=self.is_asynchronous):
            orderly = "ConsumeOrderlyStatus.SUCCESS"
            require_answer(self.listener, orderly if self.orderly else "ConsumeConcurrentlyStatus.CONSUME_SUCCESS")

    @property
    def with_context(self) -> Callable[..., Any]:
        """The listener as a function that always takes a context."""
        return with_context(self.listener, self.plain_arguments, is_asynchronous=self.is_asynchronous)

    @property
    def plain_arguments(self) -> int:
        """The number of the listener's arguments besides the context."""
        return 2 if self.exactly_once else 1

    def check_model(self, message_model: MessageModel) -> None:
        """Raise ParameterInvalid if the message model does not support this kind of consumption."""
        if self.exactly_once and message_model is MessageModel.BROADCASTING:
            reason = "offsets of broadcasting are kept in a file, which cannot be part of a transaction"
            raise ParameterInvalid("exactly_once", True, reason)


class PushStrategy(ConsumerStrategy):
    """The strategy of one push consumer.

    The strategy owns the threads that call the listener and, in broadcasting, the offset file.
    """

    def __init__(
        self, cluster: Cluster, config: PushConsumerConfig, consumption: Consumption, hooks: ConsumeHooks, *, home: Path
    ) -> None:
        self.cluster = cluster
        self._config = config
        self._consumption = consumption
        self._loop_calls = None if consumption.loop is None else LoopCalls(consumption.loop)
        self._instances = {instance.broker_name: instance for instance in cluster.instances}
        self.message_model = config.message_model
        #: Only these listeners do not need to own their queues.
        self.consume_mode = None if self.follows_group else ConsumeMode.PULL
        #: If the consumer pops: how long messages stay invisible unless this is extended.
        self.invisible = config.pop_invisible_time
        self.max_reconsume_times = config.max_reconsume_times
        #: Takes failed messages, by the names of the brokers on which the consumer pops.
        self.popping: dict[str, Callable[[Sequence[SendBackRequest]], list[SentBack]]] = {}
        self.pull_batch_size = config.pull_batch_size
        self.pull_interval = config.pull_interval
        self.persist_interval = config.persist_consumer_offset_interval
        self.limits = self._limits()
        self.allocate = config.allocate_message_queue_strategy
        self._local_offsets: LocalOffsets | None = None
        if config.message_model is MessageModel.BROADCASTING:
            self.allocate = take_all
            address = cluster.instances[0].address
            directory = offsets_directory(home, address, config.instance_name, config.group)
            self._local_offsets = LocalOffsets(Path(config.local_offset_directory or directory))
        self.consume = self._consume_service(hooks)

    @property
    def follows_group(self) -> bool:
        """Whether the consumer pops if the group does.

        A popping group refuses listeners that need to own their queues.
        """
        consumption = self._consumption
        is_broadcasting = self.message_model is MessageModel.BROADCASTING
        return not (consumption.orderly or consumption.exactly_once or is_broadcasting)

    def _limits(self) -> FlowLimits:
        """The flow limits. In orderly consumption a queue waits for failed messages, so the offset span is not limited.

        Source: DefaultMQPushConsumerImpl.pullMessage.
        """
        config, topic_mib = self._config, self._config.pull_threshold_size_for_topic_mib
        return FlowLimits(
            messages=config.pull_threshold_for_queue,
            body_bytes=config.pull_threshold_size_for_queue_mib * _MEBIBYTE,
            span=sys.maxsize if self._consumption.orderly else config.consume_concurrently_max_span,
            topic_messages=config.pull_threshold_for_topic,
            topic_body_bytes=None if topic_mib is None else topic_mib * _MEBIBYTE,
        )

    def _consume_service(self, hooks: ConsumeHooks) -> ConsumeService:
        config, consumption = self._config, self._consumption
        hooks.client_id = self.cluster.instances[0].client_id
        options: dict[str, Any] = {
            "thread_nums": config.consume_thread_nums,
            "batch_max_size": config.consume_message_batch_max_size,
            "hooks": hooks,
            "consume_timeout": config.consume_timeout,
        }
        tries: dict[str, Any] = {
            "max_reconsume_times": config.max_reconsume_times,
            "suspend_time": config.suspend_current_queue_time,
        }
        if consumption.exactly_once:
            return ConsumeExactlyOnce(
                config.group,
                consumption.listener,
                self._instances,
                is_orderly=consumption.orderly,
                loop_calls=self._loop_calls,
                **options,
                **tries,
            )
        options["host"] = hooks.client_id
        options["send_back"] = None if config.message_model is MessageModel.BROADCASTING else self._send_back
        if consumption.orderly:
            tries["tasks"] = None if self._loop_calls is None else self._loop_calls.tasks
            return ConsumeOrderly(config.group, self._blocking_listener(), **options, **tries)
        if consumption.loop is not None:
            return ConsumeInLoop(config.group, consumption.listener, self._instances, loop=consumption.loop, **options)
        return ConsumeConcurrently(config.group, consumption.listener, self._instances, **options)

    def _blocking_listener(self) -> Callable[..., Any]:
        """The listener as a function with a context, for a thread that waits until the listener returns."""
        listener = self._consumption.with_context
        return listener if self._loop_calls is None else self._loop_calls.blocking(listener)

    def _send_back(self, broker_name: str, requests: Sequence[SendBackRequest]) -> list[SentBack]:
        popped = [request for request in requests if request.is_popped]
        pulled = [request for request in requests if not request.is_popped]
        results = self.popping[broker_name](popped) if popped else []
        if pulled:
            with self._instances[broker_name].connect() as connection:
                results += send_back(connection, self._config.group, pulled, self._config.max_reconsume_times)
        by_position = {result.log_pos: result for result in results}
        return [by_position[request.log_pos] for request in requests if request.log_pos in by_position]

    # -- life -----------------------------------------------------------------------------------

    def open(self) -> None:
        """Open the file of offsets, and start the threads. The listener is not called before `begin`."""
        if self._local_offsets is not None:
            self._local_offsets.open()
        self.consume.start()

    def begin(self) -> None:
        """Begin to call the listener."""
        self.consume.threads.begin()

    def close(self, seconds: float | None) -> None:
        """End the threads when their listeners return, and give the file back."""
        self.consume.stop(seconds)
        if self._local_offsets is not None:
            self._local_offsets.close()

    # -- reading -------------------------------------------------------------------------------

    def topics(self, filters: Mapping[str, MessageFilter]) -> Mapping[str, MessageFilter]:
        """The filters by topic; in clustering, also for the retry topic of the group.

        Raises the errors of `retry_filter`.
        """
        if self._local_offsets is not None:
            return filters
        return {**filters, retry_topic(self._config.group): retry_filter(filters)}

    def offset_store(self, instance: ClientInstance) -> OffsetStore:
        """The offset store for one broker."""
        if self._local_offsets is not None:
            return LocalFileOffsetStore(self._local_offsets)
        group, client_id, expiry = self._config.group, instance.client_id, self._config.queue_lock_expiry
        store = BrokerOffsetStore(group, client_id)
        if self._consumption.orderly:
            # In RocketMQ's ratios: 20, 30 and 60 s.
            lease = Lease(renew_every=expiry / 3, client_expiry=expiry / 2, broker_expiry=expiry)
            store = LockedOffsetStore(group, client_id, lease)
        return ExactlyOnceOffsetStore(group, store) if self._consumption.exactly_once else store

    @property
    def most_in_hand(self) -> int:
        """The maximum number of messages in hand, if the consumer pops."""
        return 2 * self.consume.threads.thread_nums * self._config.consume_message_batch_max_size

    def deliver(self, process_queue: ProcessQueue, count: int) -> None:
        """Called when `count` more messages are ready for the listener."""
        self.consume.submit(process_queue, count)

    @property
    def tasks(self) -> LoopTasks | LoopCalls | None:
        """The tasks in which an asynchronous listener runs."""
        threads = self.consume.threads
        return threads if isinstance(threads, LoopTasks) else self._loop_calls

    # -- requests by people ----------------------------------------------------------------------

    def describe(self) -> dict[str, Any]:
        """The state for `AnswersRequests.describe`, with the calls of the listener that have not returned."""
        return {
            "message_model": self._config.message_model.value,
            "consume_thread_nums": self.consume.threads.thread_nums,
            "listeners": [call.describe() for call in self.consume.calls.current()],
        }

    def consume_directly(self, message: ReceivedMessage) -> ConsumeMessageDirectlyResult:
        """Let the listener consume one message, without an effect on offsets and retries."""
        orderly = self._consumption.orderly
        if not self._consumption.exactly_once:
            return consume_directly(self._config.group, self._blocking_listener(), message, orderly=orderly)
        context = ConsumeOrderlyContext(message.queue) if orderly else ConsumeConcurrentlyContext(message.queue)
        transactions = ListenerTransactions(self._instances[message.queue.broker_name], self._loop_calls)
        call = transactions.blocking(self._consumption.with_context)

        def consume() -> ConsumeMessageDirectlyResult:
            with transactions.begin() as connection:
                result = judge(
                    self._config.group, message, lambda: call([message], connection, context), is_orderly=orderly
                )
                if result.result in (DirectResult.CR_SUCCESS, DirectResult.CR_COMMIT):
                    driver(connection).commit()
            return result

        try:
            return transactions.run(consume)
        finally:
            transactions.close()


def take_all(_group: str, _client_id: str, queues: Sequence[MessageQueue], _ids: Sequence[str]) -> list[MessageQueue]:
    """The allocation strategy of broadcasting: each member reads every queue."""
    return sorted(queues)
