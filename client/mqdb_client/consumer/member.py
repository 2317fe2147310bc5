"""A member of a group: what a consumer consists of from start to shutdown.

    broker ── pull thread ──▶ process queue ── worker threads ──▶ listener
                  ▲                 │ lowest unfinished offset
        arrivals ─┘                 ▼
    group changes ────▶ rebalance thread ──▶ offsets and queue ownership in the broker

RocketMQ: DefaultMQPushConsumerImpl.
"""

import logging
import time
from typing import Final

import mqdb
from mqdb.selector.tags import TagExpression
from mqdb.store.clients import ClientKind, Registration
from mqdb_client.consumer.config import PushConsumerConfig
from mqdb_client.consumer.consume_concurrently import ConsumeConcurrently
from mqdb_client.consumer.message_listener import MessageListener
from mqdb_client.consumer.process_queue import FlowLimits, ProcessQueue
from mqdb_client.consumer.pull_service import PullService
from mqdb_client.consumer.queue_ownership import QueueOwnership
from mqdb_client.consumer.rebalance_service import RebalanceService, RebalanceTimes
from mqdb_client.consumer.share import Shares
from mqdb_client.instance import ClientInstance

logger = logging.getLogger(__name__)

_MEBIBYTE: Final = 1024 * 1024


class Member:
    """Started once, then left once. The instance is given back when it has left, not when the start has failed."""

    def __init__(
        self,
        instance: ClientInstance,
        config: PushConsumerConfig,
        subscriptions: dict[str, TagExpression],
        listener: MessageListener,
    ) -> None:
        group = config.group
        self._instance = instance
        self._registration = Registration(
            client_id=instance.client_id,
            kind=ClientKind.CONSUMER,
            group=group,
            version=mqdb.__version__,
            subscriptions=[(topic, expression.text) for topic, expression in subscriptions.items()],
        )
        limits = FlowLimits(
            messages=config.pull_threshold_for_queue,
            body_bytes=config.pull_threshold_size_for_queue * _MEBIBYTE,
            span=config.consume_concurrently_max_span,
        )
        self.consume = ConsumeConcurrently(
            group,
            listener,
            thread_nums=config.consume_thread_nums,
            batch_max_size=config.consume_message_batch_max_size,
            on_progress=self._on_progress,
        )
        self.rebalance = RebalanceService(
            group,
            connect=instance.connect,
            topics=subscriptions.keys(),
            shares=Shares(group, instance.client_id, instance.broker_name, config.consume_from_where),
            ownership=QueueOwnership(group, instance.client_id, limits),
            times=RebalanceTimes(
                rebalance_interval=config.rebalance_interval,
                persist_interval=config.persist_consumer_offset_interval,
                hand_over_grace=config.hand_over_grace,
            ),
            on_gain=lambda process_queue: self.pull.add(process_queue),
            on_loss=lambda process_queue: self.pull.remove(process_queue),
        )
        self.pull = PullService(
            group,
            connect=instance.connect,
            subscriptions=subscriptions,
            batch_size=config.pull_batch_size,
            deliver=self.consume.submit,
            correct=self.rebalance.correct,
        )

    def start(self) -> None:
        """Join the group and consume. Raises what keeps it from that, and has left nothing behind then."""
        instance = self._instance
        self._callbacks = (
            instance.on_arrival(self.pull.on_arrival),
            instance.on_group_change(self._on_group_change),
        )
        try:
            instance.register(self._registration)
            try:
                self.rebalance.start()
            except BaseException:
                instance.unregister(self._registration.group, ClientKind.CONSUMER)
                raise
        except BaseException:
            self._cancel_callbacks()
            raise
        self.consume.start()
        self.pull.start()

    def leave(self, seconds: float | None) -> None:
        """Leave the group when all running listeners have returned, or after `seconds`."""
        deadline = None if seconds is None else time.monotonic() + seconds
        self._cancel_callbacks()
        self.rebalance.leave(seconds)
        self.pull.stop()
        running = self.consume.stop(None if deadline is None else max(deadline - time.monotonic(), 0.0))
        if running:
            logger.warning(
                "left while listeners are running", extra={"group": self._registration.group, "count": running}
            )
        self._instance.unregister(self._registration.group, ClientKind.CONSUMER)
        self._instance.release()

    def _cancel_callbacks(self) -> None:
        for callback in self._callbacks:
            callback.cancel()

    def _on_group_change(self, group: str | None) -> None:
        if group in (None, self._registration.group):
            self.rebalance.rebalance()

    def _on_progress(self, process_queue: ProcessQueue) -> None:
        if process_queue.is_dropped:
            self.rebalance.give_back()
        else:
            self.pull.on_room()
