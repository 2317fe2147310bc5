"""What a lite pull consumer is to one broker, from start to shutdown: a member of the group, or a reader of its own.

    broker ── pull thread ──▶ assigned queue ──▶ poll buffer, which all brokers share
                  ▲                 │ how far polls have got
        arrivals ─┘                 ▼
    group changes ────▶ rebalance thread ──▶ offsets in the broker

Where the user has chosen the queues, the rebalance thread does no more than to begin and to end with them.
RocketMQ: DefaultLitePullConsumerImpl.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from mqdb.selector.subscription import MessageFilter
from mqdb_client.consumer.process_queue import FlowLimits, ProcessQueue
from mqdb_client.consumer.queue_ownership import QueueOwnership
from mqdb_client.consumer.queue_reader import QueueReader
from mqdb_client.consumer.rebalance_service import RebalanceTimes
from mqdb_client.consumer.share import Shares
from mqdb_client.instance import ClientInstance
from mqdb_client.lite_pull.lite_pull_config import LitePullConsumerConfig
from mqdb_client.lite_pull.offset_stores import PolledOffsetStore
from mqdb_client.lite_pull.poll_buffer import Agreed, PollBuffer

_MEBIBYTE: Final = 1024 * 1024


class LitePullMember(QueueReader):
    """Started once, then left once."""

    def __init__(
        self,
        instance: ClientInstance,
        config: LitePullConsumerConfig,
        filters: Mapping[str, MessageFilter],
        shares: Shares,
        store: PolledOffsetStore,
        buffer: PollBuffer,
        on_left: Callable[[], None],
    ) -> None:
        """`filters` are those of the topics that are read. `on_left` is called when all queues are given back."""
        self._store = store
        self._buffer = buffer
        limits = FlowLimits(
            messages=config.pull_threshold_for_queue,
            body_bytes=config.pull_threshold_size_for_queue_mib * _MEBIBYTE,
            span=config.consume_max_span,
        )
        super().__init__(
            config.group,
            instance,
            filters,
            shares=shares,
            ownership=QueueOwnership(config.group, store, limits, buffer.make_queue),
            times=RebalanceTimes(
                rebalance_interval=config.rebalance_interval,
                persist_interval=config.auto_commit_interval,
                hand_over_grace=config.hand_over_grace,
            ),
            pull_batch_size=config.pull_batch_size,
            deliver=buffer.deliver,
            on_left=on_left,
        )

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
        super()._on_gain(process_queue)

    def _on_loss(self, process_queue: ProcessQueue) -> None:
        self._buffer.remove(process_queue)
        super()._on_loss(process_queue)
