"""Consumer strategy: the part of a consumer that differs between the ways to consume.

    PushStrategy          consumer/push_strategy.py      the messages go to a listener
    SubscribedPolls       lite_pull/poll_strategy.py     they go to polls; rebalance chooses the queues
    AssignedPolls         lite_pull/poll_strategy.py     they go to polls; the user chooses the queues

`Members` and `Member` are common to all of them. They call the strategy. It calls them only to commit messages that a
user has polled.
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
    """The strategy of one consumer, for all its brokers. Opened once, then closed once.

    Each way has to say the four things that raise NotImplementedError here. All else does nothing unless it is said.
    """

    #: Whether it enters the group, whose members share the queues.
    is_member = True
    message_model = MessageModel.CLUSTERING
    #: The way in which members share queues. None means as the group says.
    consume_mode: ConsumeMode | None = ConsumeMode.PULL
    pull_interval = timedelta(0)

    cluster: Cluster
    #: Chooses the queues of a topic that this member reads.
    allocate: AllocationStrategy[MessageQueue]
    limits: FlowLimits
    pull_batch_size: int
    #: Between commits of offsets.
    persist_interval: timedelta

    # -- life -----------------------------------------------------------------------------------

    def open(self) -> None:
        """Get ready for messages, before the group is entered. `close` follows also if this raises."""

    def enter(self, registration: Registration, filters: Mapping[str, MessageFilter]) -> None:
        """Enter the group on all brokers. Raises what `Cluster.register` raises."""
        self.cluster.register(registration)

    def begin(self) -> None:
        """Called when all members have started."""

    def change(self, registration: Registration) -> None:
        """Subscribe to something else on all brokers. Raises what `Cluster.change` raises."""
        self.cluster.change(registration)

    def begin_to_close(self) -> None:
        """Stop handing out messages that were not handed out yet."""

    def close(self, seconds: float | None) -> None:
        """Stop; running listeners are waited for, `seconds` at most."""

    # -- what is read ---------------------------------------------------------------------------

    def topics(self, filters: Mapping[str, MessageFilter]) -> Mapping[str, MessageFilter]:
        """The filters by topic, those of the group's own topics included."""
        return filters

    def offset_store(self, instance: ClientInstance) -> OffsetStore:
        """The offset store for one broker."""
        raise NotImplementedError

    def make_queue(self, queue: MessageQueue, owned: OwnedQueue, limits: FlowLimits) -> ProcessQueue:
        """The process queue for a queue that a member has just taken."""
        return ProcessQueue(queue, owned, limits)

    def on_gain(self, process_queue: ProcessQueue) -> None:
        """Called when a queue is read from now on."""

    def on_loss(self, process_queue: ProcessQueue) -> None:
        """Called when a queue is no longer read."""

    def deliver(self, process_queue: ProcessQueue, count: int) -> None:
        """Called when `count` messages were put into a process queue."""
        raise NotImplementedError

    # -- what people ask ------------------------------------------------------------------------

    def describe(self) -> dict[str, Any]:
        """The fields of `AnswersRequests.describe` besides the queues and the subscriptions."""
        raise NotImplementedError

    def consume_directly(self, message: ReceivedMessage) -> ConsumeMessageDirectlyResult:
        """Call the listener with a message, without an effect on offsets and retries."""
        raise NotImplementedError
