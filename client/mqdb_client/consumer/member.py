"""A member of a group: what a consumer is to one broker, from start to shutdown.

    broker ── pull thread ──▶ process queue ── worker threads ──▶ listener
                  ▲                 │ lowest unfinished offset
        arrivals ─┘                 ▼
    group changes ────▶ rebalance thread ──▶ offsets and queue ownership in the broker

A consumer has one for each broker of its cluster, and `members.py` holds them together. Nothing that a member does
waits for another broker. RocketMQ: DefaultMQPushConsumerImpl.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress

from mqdb.errors import BrokerUnavailable
from mqdb.group import MessageModel
from mqdb.message import MessageQueue
from mqdb.selector.tags import TagExpression
from mqdb.store.clients import ClientKind
from mqdb_client.consumer.config import PushConsumerConfig
from mqdb_client.consumer.offset_store import OffsetStore
from mqdb_client.consumer.process_queue import FlowLimits, ProcessQueue
from mqdb_client.consumer.pull_service import PullService
from mqdb_client.consumer.queue_ownership import QueueOwnership
from mqdb_client.consumer.rebalance_service import RebalanceService, RebalanceTimes
from mqdb_client.consumer.share import Shares, TopicPresence
from mqdb_client.instance import ClientInstance


def take_all(_group: str, _client_id: str, queues: Sequence[MessageQueue], _ids: Sequence[str]) -> list[MessageQueue]:
    """The allocation strategy of broadcasting: each member reads every queue."""
    return sorted(queues)


class Member:
    """Started once, when the instance is in the group, then left once."""

    def __init__(
        self,
        instance: ClientInstance,
        config: PushConsumerConfig,
        subscriptions: dict[str, TagExpression],
        presence: TopicPresence,
        store: OffsetStore,
        limits: FlowLimits,
        deliver: Callable[[ProcessQueue, int], None],
    ) -> None:
        """`deliver` gets a process queue and how many messages were put into it."""
        is_broadcasting = config.message_model is MessageModel.BROADCASTING
        self._group = config.group
        self._instance = instance
        self.rebalance = RebalanceService(
            self._group,
            connect=instance.connect,
            topics=subscriptions.keys(),
            shares=Shares(
                self._group,
                instance.client_id,
                instance.broker_name,
                config.consume_from_where,
                presence=presence,
                strategy=take_all if is_broadcasting else config.allocate_message_queue_strategy,
            ),
            ownership=QueueOwnership(self._group, store, limits),
            times=RebalanceTimes(
                rebalance_interval=config.rebalance_interval,
                persist_interval=config.persist_consumer_offset_interval,
                hand_over_grace=config.hand_over_grace,
                renew_interval=store.lease.renew_every if store.lease else None,
            ),
            on_gain=lambda process_queue: self.pull.add(process_queue),
            on_loss=lambda process_queue: self.pull.remove(process_queue),
            # At once, and not when the last listener has returned: until then nobody else gets the queues.
            on_left=lambda: instance.unregister(self._group, ClientKind.CONSUMER),
        )
        self.pull = PullService(
            self._group,
            connect=instance.connect,
            subscriptions=subscriptions,
            batch_size=config.pull_batch_size,
            interval=config.pull_interval,
            deliver=deliver,
            correct=self.rebalance.correct,
        )

    def start(self, *, may_be_down: bool) -> None:
        """Take queues and pull them. Raises what keeps it from that, and has left nothing behind then.

        With `may_be_down` a broker that cannot be reached is waited for by the threads.
        """
        self._callbacks = (
            self._instance.on_arrival(self.pull.on_arrival),
            self._instance.on_group_change(self._on_group_change),
        )
        try:
            self._balance(may_be_down)
        except BaseException:
            self._cancel_callbacks()
            raise
        self.rebalance.start()
        self.pull.start()

    def subscribe_to(self, subscriptions: dict[str, TagExpression]) -> None:
        """Read these topics from now on, and no others."""
        self.pull.subscriptions = subscriptions
        self.rebalance.topics = subscriptions.keys()
        self.rebalance.rebalance()

    def suspend(self) -> None:
        """Pull nothing and leave the queues as they are. What is in hand is consumed."""
        self.rebalance.is_suspended = True
        self.pull.suspend()

    def resume(self) -> None:
        """Go on."""
        self.rebalance.is_suspended = False
        self.rebalance.rebalance()
        self.pull.resume()

    def begin_to_leave(self) -> None:
        """Start nothing more, and give each queue back when its listeners have returned."""
        self._cancel_callbacks()
        self.rebalance.begin_to_leave()

    def leave(self, seconds: float | None) -> None:
        """Return when all queues are given back and the group is left, or after `seconds`."""
        self.rebalance.leave(seconds)
        self.pull.stop()

    def on_progress(self, process_queue: ProcessQueue) -> None:
        """A process queue has room again, or has settled."""
        if process_queue.is_dropped:
            self.rebalance.give_back()
        else:
            self.pull.on_room()

    def _balance(self, may_be_down: bool) -> None:
        if not may_be_down:
            self.rebalance.balance()
        elif self._instance.is_met:
            with suppress(BrokerUnavailable):
                self.rebalance.balance()

    def _cancel_callbacks(self) -> None:
        for callback in self._callbacks:
            callback.cancel()

    def _on_group_change(self, group: str | None) -> None:
        if group in (None, self._group):
            self.rebalance.rebalance()
