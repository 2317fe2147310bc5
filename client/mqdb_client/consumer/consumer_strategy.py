"""Consumer strategy: the part of a consumer that differs between the ways to consume.

    PushStrategy          consumer/push_strategy.py      the messages go to a listener
    SubscribedPolls       lite_pull/poll_strategy.py     they go to polls; rebalance chooses the queues
    AssignedPolls         lite_pull/poll_strategy.py     they go to polls; the user chooses the queues

All strategies share `Members` and `Member`, which call the strategy. The strategy calls these objects only to commit
messages that a user has polled.
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from mqdb.common.group import ConsumeMode, MessageModel
from mqdb.common.message import MessageQueue
from mqdb.common.received_message import ReceivedMessage
from mqdb.rebalance import AllocationStrategy
from mqdb.selector.subscription import MessageFilter
from mqdb.store.clients.clients import Registration
from mqdb.store.consumers.consumer_offsets import OwnedQueue
from mqdb_client.cluster import Cluster
from mqdb_client.consumer.listeners.direct_consumption import ConsumeMessageDirectlyResult
from mqdb_client.consumer.offsets.offset_store import OffsetStore
from mqdb_client.consumer.queues.process_queue import FlowLimits, ProcessQueue
from mqdb_client.instance import ClientInstance


class ConsumerStrategy:
    """The strategy of one consumer, for all its brokers. A strategy is opened once, then closed once.

    A subclass has to implement the four methods that raise NotImplementedError. The other methods do nothing by
    default.
    """

    #: Whether the consumer joins the group, whose members share the queues.
    is_member = True
    message_model = MessageModel.CLUSTERING
    #: The mode in which members share queues; None leaves it to the group.
    consume_mode: ConsumeMode | None = ConsumeMode.PULL
    pull_interval = timedelta(0)

    cluster: Cluster
    #: Chooses the queues of a topic that this member reads.
    allocate: AllocationStrategy[MessageQueue]
    limits: FlowLimits
    pull_batch_size: int
    #: The time between commits of offsets.
    persist_interval: timedelta

    # -- life -----------------------------------------------------------------------------------

    def open(self) -> None:
        """Prepare for messages, before joining the group. `close` is called even if this raises."""

    def enter(self, registration: Registration, filters: Mapping[str, MessageFilter]) -> None:
        """Join the group on all brokers. Raises the errors of `Cluster.register`."""
        self.cluster.register(registration)

    def begin(self) -> None:
        """Called when all members have started."""

    def change(self, registration: Registration) -> None:
        """Change the subscriptions on all brokers. Raises the errors of `Cluster.change`."""
        self.cluster.change(registration)

    def begin_to_close(self) -> None:
        """Hand out no further messages."""

    def close(self, seconds: float | None) -> None:
        """Stop, and wait for running listeners for `seconds` at most."""

    # -- reading --------------------------------------------------------------------------------

    def topics(self, filters: Mapping[str, MessageFilter]) -> Mapping[str, MessageFilter]:
        """The filters by topic, including the topics of the group itself."""
        return filters

    def offset_store(self, instance: ClientInstance) -> OffsetStore:
        """The offset store for one broker."""
        raise NotImplementedError

    def make_queue(self, queue: MessageQueue, owned: OwnedQueue, limits: FlowLimits) -> ProcessQueue:
        """The process queue for a queue that a member has just taken."""
        return ProcessQueue(queue, owned, limits)

    def on_gain(self, process_queue: ProcessQueue) -> None:
        """Called when the consumer starts to read a queue."""

    def on_loss(self, process_queue: ProcessQueue) -> None:
        """Called when a queue is no longer read."""

    def deliver(self, process_queue: ProcessQueue, count: int) -> None:
        """Called when `count` messages were added to a process queue."""
        raise NotImplementedError

    # -- requests by people ----------------------------------------------------------------------

    def describe(self) -> dict[str, Any]:
        """The fields of `AnswersRequests.describe` besides the queues and the subscriptions."""
        raise NotImplementedError

    def consume_directly(self, message: ReceivedMessage) -> ConsumeMessageDirectlyResult:
        """Call the listener with a message, without an effect on offsets and retries."""
        raise NotImplementedError
