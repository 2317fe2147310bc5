"""What a lite pull consumer is to one broker, from start to shutdown: a member of the group, or a reader of its own.

    broker ── pull thread ──▶ assigned queue ──▶ poll buffer, which all brokers share
                  ▲                 │ how far polls have got
        arrivals ─┘                 ▼
    group changes ────▶ rebalance thread ──▶ offsets in the broker

Where the user has chosen the queues, the rebalance thread does no more than to begin and to end with them.
RocketMQ: DefaultLitePullConsumerImpl.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from mqdb.errors import BrokerUnavailable
from mqdb.selector.tags import TagExpression
from mqdb_client.consumer.process_queue import FlowLimits, ProcessQueue
from mqdb_client.consumer.pull_service import PullService
from mqdb_client.consumer.queue_ownership import QueueOwnership
from mqdb_client.consumer.rebalance_service import RebalanceService, RebalanceTimes
from mqdb_client.consumer.share import Shares
from mqdb_client.instance import ClientInstance
from mqdb_client.lite_pull.config import LitePullConsumerConfig
from mqdb_client.lite_pull.offset_stores import PolledOffsetStore
from mqdb_client.lite_pull.poll_buffer import Agreed, PollBuffer

_MEBIBYTE: Final = 1024 * 1024


class LitePullMember:
    """Started once, then left once."""

    def __init__(
        self,
        instance: ClientInstance,
        config: LitePullConsumerConfig,
        expressions: Mapping[str, TagExpression],
        shares: Shares,
        store: PolledOffsetStore,
        buffer: PollBuffer,
        on_left: Callable[[], None],
    ) -> None:
        """`expressions` are those of the topics that are read. `on_left` is called when all queues are given back."""
        self._group = config.group
        self._instance = instance
        self._store = store
        self._buffer = buffer
        limits = FlowLimits(
            messages=config.pull_threshold_for_queue,
            body_bytes=config.pull_threshold_size_for_queue * _MEBIBYTE,
            span=config.consume_max_span,
        )
        self.rebalance = RebalanceService(
            config.group,
            connect=instance.connect,
            topics=expressions.keys(),
            shares=shares,
            ownership=QueueOwnership(config.group, store, limits, buffer.make_queue),
            times=RebalanceTimes(
                rebalance_interval=config.rebalance_interval,
                persist_interval=config.auto_commit_interval,
                hand_over_grace=config.hand_over_grace,
            ),
            on_gain=self._on_gain,
            on_loss=self._on_loss,
            on_left=on_left,
        )
        self.pull = PullService(
            config.group,
            connect=instance.connect,
            subscriptions=expressions,
            batch_size=config.pull_batch_size,
            deliver=buffer.deliver,
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

    def read(self, expressions: Mapping[str, TagExpression]) -> None:
        """Read these topics from now on, and no others."""
        self.pull.subscriptions = expressions
        self.rebalance.topics = expressions.keys()
        self.rebalance.rebalance()

    def begin_to_leave(self) -> None:
        """Read nothing more, and give each queue back when the user has done with it."""
        self._cancel_callbacks()
        self.rebalance.begin_to_leave()

    def leave(self) -> None:
        """Return when all queues are given back."""
        self.rebalance.leave()
        self.pull.stop()

    def on_progress(self, process_queue: ProcessQueue) -> None:
        """A queue has room again, or has settled."""
        if process_queue.is_dropped:
            self.rebalance.give_back()
        else:
            self.pull.on_room()

    def commit(self, agreed: Sequence[Agreed]) -> None:
        """Commit, and return when it is done. Raises QueueLost, QueueOwned; BrokerUnavailable and its kin."""
        try:
            with self._instance.connect() as connection:
                self._store.commit_agreed(connection, agreed)
        except BaseException:
            self.rebalance.rebalance()
            raise

    def _on_gain(self, process_queue: ProcessQueue) -> None:
        self._buffer.add(process_queue)
        self.pull.add(process_queue)

    def _on_loss(self, process_queue: ProcessQueue) -> None:
        self._buffer.remove(process_queue)
        self.pull.remove(process_queue)

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
