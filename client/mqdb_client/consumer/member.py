"""A member of a group: what a consumer is to one broker, from start to shutdown.

    broker ── pull thread ──▶ process queue ── worker threads ──▶ listener
                  ▲                 │ lowest unfinished offset
        arrivals ─┘                 ▼
    group changes ────▶ rebalance thread ──▶ offsets and queue ownership in the broker

A consumer has one for each broker of its cluster, and `members.py` holds them together. Nothing that a member does
waits for another broker. RocketMQ: DefaultMQPushConsumerImpl.
"""

from collections.abc import Callable, Mapping, Sequence

from mqdb.group import MessageModel
from mqdb.message import MessageQueue
from mqdb.selector.subscription import MessageFilter
from mqdb.store.clients import ClientKind
from mqdb_client.consumer.offset_store import OffsetStore
from mqdb_client.consumer.process_queue import FlowLimits, ProcessQueue
from mqdb_client.consumer.push_consumer_config import PushConsumerConfig
from mqdb_client.consumer.queue_ownership import QueueOwnership
from mqdb_client.consumer.queue_reader import QueueReader
from mqdb_client.consumer.rebalance_service import RebalanceTimes
from mqdb_client.consumer.share import Shares, TopicPresence, starting_point
from mqdb_client.instance import ClientInstance


def take_all(_group: str, _client_id: str, queues: Sequence[MessageQueue], _ids: Sequence[str]) -> list[MessageQueue]:
    """The allocation strategy of broadcasting: each member reads every queue."""
    return sorted(queues)


class Member(QueueReader):
    """Started once, when the instance is in the group, then left once."""

    def __init__(
        self,
        instance: ClientInstance,
        config: PushConsumerConfig,
        filters: Mapping[str, MessageFilter],
        presence: TopicPresence,
        store: OffsetStore,
        limits: FlowLimits,
        deliver: Callable[[ProcessQueue, int], None],
    ) -> None:
        """`deliver` gets a process queue and how many messages were put into it."""
        is_broadcasting = config.message_model is MessageModel.BROADCASTING
        super().__init__(
            config.group,
            instance,
            filters,
            shares=Shares(
                config.group,
                instance.client_id,
                instance.broker_name,
                starting_point(config.consume_from_where, config.consume_timestamp),
                presence=presence,
                strategy=take_all if is_broadcasting else config.allocate_message_queue_strategy,
            ),
            ownership=QueueOwnership(config.group, store, limits),
            times=RebalanceTimes(
                rebalance_interval=config.rebalance_interval,
                persist_interval=config.persist_consumer_offset_interval,
                hand_over_grace=config.hand_over_grace,
                renew_interval=store.lease.renew_every if store.lease else None,
            ),
            pull_batch_size=config.pull_batch_size,
            pull_interval=config.pull_interval,
            deliver=deliver,
            # At once, and not when the last listener has returned: until then nobody else gets the queues.
            on_left=lambda: instance.unregister(config.group, ClientKind.CONSUMER),
        )

    def suspend(self) -> None:
        """Pull nothing and leave the queues as they are. What is in hand is consumed."""
        self.rebalance.is_suspended = True
        self.pull.suspend()

    def resume(self) -> None:
        """Go on."""
        self.rebalance.is_suspended = False
        self.rebalance.rebalance()
        self.pull.resume()
