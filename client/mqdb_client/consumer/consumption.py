"""Consumption: in which of its ways a consumer consumes, and what it is made of then.

                        threads                    offsets
    concurrently        ConsumeConcurrently        BrokerOffsetStore
    orderly             ConsumeOrderly             LockedOffsetStore
    transactionally     ConsumeTransactionally     TransactionalOffsetStore over one of those two
    in broadcasting     the first or the second    LocalFileOffsetStore

Everything else, from membership to pulls, is the same for all of them.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from mqdb.errors import ParameterInvalid
from mqdb.group import MessageModel
from mqdb.message import ReceivedMessage
from mqdb.store.engine import driver
from mqdb_client.consumer.consume_concurrently import ConsumeConcurrently
from mqdb_client.consumer.consume_hooks import ConsumeHooks
from mqdb_client.consumer.consume_orderly import ConsumeOrderly
from mqdb_client.consumer.consume_service import ConsumeService
from mqdb_client.consumer.consume_transactionally import ConsumeTransactionally
from mqdb_client.consumer.direct_consumption import (
    ConsumeMessageDirectlyResult,
    DirectResult,
    consume_directly,
    judge,
)
from mqdb_client.consumer.failed_messages import SendBack
from mqdb_client.consumer.listener_transactions import ListenerTransactions
from mqdb_client.consumer.local_file_offset_store import LocalFileOffsetStore
from mqdb_client.consumer.local_offsets import LocalOffsets
from mqdb_client.consumer.locked_offset_store import LockedOffsetStore
from mqdb_client.consumer.message_listener import (
    ConsumeConcurrentlyContext,
    ConsumeOrderlyContext,
    takes_context,
    with_context,
)
from mqdb_client.consumer.offset_store import BrokerOffsetStore, Lease, OffsetStore
from mqdb_client.consumer.process_queue import FlowLimits, ProcessQueue
from mqdb_client.consumer.push_consumer_config import PushConsumerConfig
from mqdb_client.consumer.transactional_offset_store import TransactionalOffsetStore
from mqdb_client.instance import ClientInstance
from mqdb_client.option_rules import FLAG

_MEBIBYTE: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Consumption:
    """A listener, and how it wants its messages. Raises ParameterInvalid for one that cannot be called so."""

    listener: Callable[..., Any]
    orderly: bool = False
    transactional: bool = False

    def __post_init__(self) -> None:
        FLAG.check("orderly", self.orderly)
        FLAG.check("transactional", self.transactional)
        takes_context(self.listener, self._plain_arguments)

    @property
    def _plain_arguments(self) -> int:
        return 2 if self.transactional else 1

    def check_model(self, message_model: MessageModel) -> None:
        """Raises ParameterInvalid where this way cannot be had in a message model."""
        if self.transactional and message_model is MessageModel.BROADCASTING:
            reason = "offsets of broadcasting are kept in a file, which is no part of a transaction"
            raise ParameterInvalid("transactional", True, reason)

    def consume_service(
        self,
        config: PushConsumerConfig,
        instances: Mapping[str, ClientInstance],
        hooks: ConsumeHooks,
        send_back: SendBack,
        on_progress: Callable[[ProcessQueue], None],
    ) -> ConsumeService:
        """The threads that call the listener, not started yet. `instances` are the brokers by their names."""
        options: dict[str, Any] = {
            "thread_nums": config.consume_thread_nums,
            "batch_max_size": config.consume_message_batch_max_size,
            "on_progress": on_progress,
            "hooks": hooks,
            "consume_timeout": config.consume_timeout,
        }
        tries: dict[str, Any] = {
            "max_reconsume_times": config.max_reconsume_times,
            "suspend_time": config.suspend_current_queue_time,
        }
        if self.transactional:
            return ConsumeTransactionally(
                config.group, self.listener, instances, is_orderly=self.orderly, **options, **tries
            )
        options["host"] = next(iter(instances.values())).client_id
        options["send_back"] = None if config.message_model is MessageModel.BROADCASTING else send_back
        if self.orderly:
            return ConsumeOrderly(config.group, self.listener, **options, **tries)
        return ConsumeConcurrently(config.group, self.listener, instances, **options)

    def flow_limits(self, config: PushConsumerConfig) -> FlowLimits:
        """How much of a queue may be in hand.

        In order a queue stands still behind what fails, so how far its messages are apart says nothing.
        Source: DefaultMQPushConsumerImpl.pullMessage.
        """
        topic_mib = config.pull_threshold_size_for_topic_mib
        return FlowLimits(
            messages=config.pull_threshold_for_queue,
            body_bytes=config.pull_threshold_size_for_queue_mib * _MEBIBYTE,
            span=sys.maxsize if self.orderly else config.consume_concurrently_max_span,
            topic_messages=config.pull_threshold_for_topic,
            topic_body_bytes=None if topic_mib is None else topic_mib * _MEBIBYTE,
        )

    def offset_store(
        self, config: PushConsumerConfig, instance: ClientInstance, local_offsets: LocalOffsets | None
    ) -> OffsetStore:
        """Where the offsets on one broker are kept; with `local_offsets`, there."""
        if local_offsets is not None:
            return LocalFileOffsetStore(local_offsets)
        store = BrokerOffsetStore(config.group, instance.client_id)
        if self.orderly:
            store = LockedOffsetStore(config.group, instance.client_id, _lease(config.queue_lock_expiry))
        return TransactionalOffsetStore(config.group, store) if self.transactional else store

    def consume_directly(self, message: ReceivedMessage, instance: ClientInstance) -> ConsumeMessageDirectlyResult:
        """Have the listener consume one message, with no effect on offsets and retries."""
        if not self.transactional:
            return consume_directly(self.listener, message, orderly=self.orderly)
        context = ConsumeOrderlyContext(message.queue) if self.orderly else ConsumeConcurrentlyContext(message.queue)
        listener = with_context(self.listener, self._plain_arguments)
        transactions = ListenerTransactions(instance)
        try:
            with transactions.begin() as connection:
                result = judge(lambda: listener([message], connection, context), is_orderly=self.orderly)
                if result.result in (DirectResult.CR_SUCCESS, DirectResult.CR_COMMIT):
                    driver(connection).commit()
        finally:
            transactions.close()
        return result


def _lease(broker_expiry: timedelta) -> Lease:
    # In RocketMQ's proportions: 20, 30 and 60 s.
    return Lease(renew_every=broker_expiry / 3, client_expiry=broker_expiry / 2, broker_expiry=broker_expiry)
