"""A member of a group: a consumer's part on one broker, from start to shutdown.

    broker ── pull thread ──▶ process queue ──▶ strategy: listener or polls
                  ▲                 │ lowest unfinished offset
        arrivals ─┘                 ▼
    group changes ────▶ rebalance thread ──▶ offsets and queue ownership in the broker

A member never waits for another broker. RocketMQ: DefaultMQPushConsumerImpl, DefaultLitePullConsumerImpl.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Final, Generic, NamedTuple, TypeVar

from mqdb.common.group import ConsumeMode, StartingPoint
from mqdb.common.message import MessageQueue
from mqdb.errors import BrokerUnavailable
from mqdb.selector.subscription import MessageFilter
from mqdb.store.clients.clients import ClientKind
from mqdb_client.client_config import ConsumerConfig
from mqdb_client.consumer.consumer_strategy import ConsumerStrategy
from mqdb_client.consumer.queues.process_queue import ProcessQueue
from mqdb_client.consumer.queues.pull_service import PullService
from mqdb_client.consumer.queues.queue_ownership import QueueOwnership
from mqdb_client.consumer.queues.rebalance_service import RebalanceService, RebalanceTimes
from mqdb_client.consumer.queues.share import Shares, TopicPresence
from mqdb_client.instance import ClientInstance

StrategyT = TypeVar("StrategyT", bound=ConsumerStrategy, covariant=True)


class MemberParts(NamedTuple, Generic[StrategyT]):
    """The parts of any kind of member."""

    instance: ClientInstance
    config: ConsumerConfig
    strategy: StrategyT
    #: The filters of the topics that are read.
    filters: Mapping[str, MessageFilter]
    #: Where a new group starts.
    start: StartingPoint
    presence: TopicPresence


class Member:
    """A member of a group on one broker.

    The member is started once, after the instance has joined the group, and leaves the group once.
    """

    #: The mode of the group in which it consumes.
    consume_mode: Final = ConsumeMode.PULL

    def __init__(self, parts: MemberParts[ConsumerStrategy]) -> None:
        instance, config, strategy, filters, start, presence = parts
        #: Whether the consumer replaces this member with another, and so stays in the group.
        self.has_successor = False
        self._group = config.group
        self._instance = instance
        self._is_member = strategy.is_member
        store = strategy.offset_store(instance)
        self.pull = PullService(
            config.group,
            connect=instance.connect_to_hold,
            subscriptions=filters,
            batch_size=strategy.pull_batch_size,
            interval=strategy.pull_interval,
            deliver=strategy.deliver,
            outage=instance.outage,
        )
        self.rebalance = RebalanceService(
            config.group,
            connect=instance.connect,
            is_attended=lambda: instance.is_attended,
            topics=filters.keys(),
            shares=Shares(
                config.group,
                instance.client_id,
                instance.broker_name,
                start,
                presence=presence,
                strategy=strategy.allocate,
                is_member=strategy.is_member,
            ),
            ownership=QueueOwnership(config.group, store, strategy.limits, strategy.make_queue),
            times=RebalanceTimes(
                rebalance_interval=config.rebalance_interval,
                persist_interval=strategy.persist_interval,
                hand_over_grace=config.hand_over_grace,
                renew_interval=store.lease.renew_every if store.lease else None,
            ),
            strategy=strategy,
            pull=self.pull,
            outage=instance.outage,
            on_left=self._leave_group,
        )

    def start(self, *, may_be_down: bool) -> None:
        """Take queues and pull them. If this fails, nothing keeps running.

        With `may_be_down` the threads wait for a broker that cannot be reached.
        """
        with ExitStack() as undo:
            self._callbacks = (
                self._instance.on_arrival(self.pull.on_arrival),
                self._instance.on_group_change(self._on_group_change),
            )
            undo.callback(self._cancel_callbacks)
            self._balance(may_be_down)
            self.rebalance.start()
            undo.callback(self.rebalance.leave)
            undo.callback(self.rebalance.begin_to_leave)
            self.pull.start()
            undo.pop_all()

    def read(self, filters: Mapping[str, MessageFilter]) -> None:
        """Read only these topics from now on."""
        self.pull.subscriptions = filters
        self.rebalance.topics = filters.keys()
        self.rebalance.rebalance()

    def suspend(self) -> None:
        """Stop pulling and keep the queues. Messages in hand are consumed."""
        self.rebalance.is_suspended = True
        self.pull.suspend()

    def resume(self) -> None:
        """Pull and rebalance again after `suspend`."""
        self.rebalance.is_suspended = False
        self.rebalance.rebalance()
        self.pull.resume()

    @property
    def assignment(self) -> tuple[MessageQueue, ...]:
        """The queues that the member reads, in order."""
        return self.rebalance.assignment

    @property
    def held(self) -> Sequence[ProcessQueue]:
        """The queues that the member owns, including queues that it is about to give back."""
        return self.rebalance.held

    def look_again(self) -> None:
        """Check again which queues to read, because the assignment may have changed."""
        self.rebalance.rebalance()

    def on_arrival(self, queue_keys: Sequence[int]) -> None:
        """Note that these queues have messages."""
        self.pull.on_arrival(queue_keys)

    def begin_to_leave(self) -> None:
        """Start no further messages, and give each queue back when its messages in hand are settled."""
        self._cancel_callbacks()
        self.rebalance.begin_to_leave()

    def leave(self, seconds: float | None = None) -> None:
        """Wait until all queues are given back, or for `seconds`."""
        self.rebalance.leave(seconds)
        self.pull.stop()

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
        if group is None:
            self.pull.hurry()
        if group in (None, self._group):
            self.rebalance.rebalance()

    def _leave_group(self) -> None:
        """Leave the group after giving back all queues.

        No other member gets the queues earlier, so this does not wait for other members.
        """
        if self._is_member and not self.has_successor:
            self._instance.unregister(self._group, ClientKind.CONSUMER)
