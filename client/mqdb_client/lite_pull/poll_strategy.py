"""The strategies of lite pull consumers: the messages go to a buffer, from which polls take them.

With a subscription, the consumer joins the group, whose members share the queues. With assigned queues, the consumer
does not join the group: it reads the queues independently of the members, and commits an offset only if no member owns
the queue. RocketMQ: DefaultLitePullConsumerImpl.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from sqlalchemy import Connection

from mqdb.broker.filters.filters import check_filters
from mqdb.common.message import MessageQueue
from mqdb.common.received_message import ReceivedMessage
from mqdb.errors import BrokerUnavailable, MqdbError, NotSupported
from mqdb.selector.subscription import ExpressionType, MessageFilter
from mqdb.store.clients.clients import Registration
from mqdb.store.consumers.consumer_offsets import OwnedQueue
from mqdb_client.cluster import Cluster
from mqdb_client.consumer.consumer_strategy import ConsumerStrategy
from mqdb_client.consumer.listeners.direct_consumption import ConsumeMessageDirectlyResult
from mqdb_client.consumer.members import Members
from mqdb_client.consumer.queues.process_queue import FlowLimits, ProcessQueue
from mqdb_client.instance import ClientInstance
from mqdb_client.lite_pull.lite_pull_config import LitePullConsumerConfig
from mqdb_client.lite_pull.poll_buffer import Agreed, PollBuffer
from mqdb_client.lite_pull.polled_offset_stores import PolledOffsetStore, UnownedOffsetStore
from mqdb_client.process_hooks import ClientOperation, operations, topic_of

_MEBIBYTE: Final = 1024 * 1024

#: The maximum age: an older connection may have been lost since, which the pool would notice.
_KEPT_SECONDS: Final = 1.0

#: The messages per queue in one answer, also for polls that return fewer.
_PULLED: Final = 128


def _pulled(config: LitePullConsumerConfig) -> int:
    """The size of a pull in messages, limited so that the last pull does not exceed the limits in hand by much."""
    most = min(config.pull_threshold_for_queue, config.pull_threshold_for_all, config.consume_max_span)
    return max(config.pull_batch_size, min(_PULLED, most))


class _CommitConnection:
    """A connection for the user's commits, kept while commits follow in quick succession.

    Thread-safe; one thread uses the connection at a time.

    Taking a connection from the pool for each commit would cost more
    (docs/decisions/0051-commits-of-polls-are-appended.md).
    """

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self._guard = threading.Lock()
        self._kept: Connection | None = None
        self._used_at = 0.0
        self._is_closed = False

    @contextmanager
    def use(self) -> Iterator[Connection]:
        """Use the connection.

        After an error, the next commit gets a new connection. Raises BrokerUnavailable and its subclasses.
        """
        with self._guard:
            if time.monotonic() - self._used_at > _KEPT_SECONDS:
                self._let_go()
            self._kept = connection = self._kept or self._connect()
            try:
                yield connection
            except BaseException:
                self._let_go()
                raise
            self._used_at = time.monotonic()
            if self._is_closed:
                self._let_go()

    def close(self) -> None:
        """Give the connection back. Calling it twice has no effect."""
        with self._guard:
            self._is_closed = True
            self._let_go()

    def _let_go(self) -> None:
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.close()


class SubscribedPolls(ConsumerStrategy):
    """The strategy of a lite pull consumer that subscribes. The strategy has the buffer, which all brokers share."""

    def __init__(self, cluster: Cluster, config: LitePullConsumerConfig) -> None:
        self.cluster = cluster
        self._config = config
        self.buffer = PollBuffer(
            config.group, auto_commit=config.auto_commit, threshold_for_all=config.pull_threshold_for_all
        )
        self.allocate = config.allocate_message_queue_strategy
        self.pull_batch_size = _pulled(config)
        self.persist_interval = config.auto_commit_interval
        self.limits = FlowLimits(
            messages=config.pull_threshold_for_queue,
            body_bytes=config.pull_threshold_size_for_queue_mib * _MEBIBYTE,
            span=config.consume_max_span,
        )
        self._connections = {
            instance.broker_name: _CommitConnection(instance.connect) for instance in cluster.instances
        }
        self._stores = {
            instance.broker_name: self._store(config.group, instance.client_id) for instance in cluster.instances
        }

    def _store(self, group: str, client_id: str) -> PolledOffsetStore:
        return PolledOffsetStore(group, client_id, self.buffer)

    def offset_store(self, instance: ClientInstance) -> PolledOffsetStore:
        """The offset store for one broker."""
        return self._stores[instance.broker_name]

    def close(self, seconds: float | None) -> None:
        """Stop committing."""
        for connection in self._connections.values():
            connection.close()

    def begin_to_close(self) -> None:
        """Make polls return immediately, without messages."""
        self.buffer.close()

    def make_queue(self, queue: MessageQueue, owned: OwnedQueue, limits: FlowLimits) -> ProcessQueue:
        """Make a process queue in which a user may seek."""
        return self.buffer.make_queue(queue, owned, limits)

    def on_gain(self, process_queue: ProcessQueue) -> None:
        """Let polls return messages of a queue from now on."""
        self.buffer.add(process_queue)

    def on_loss(self, process_queue: ProcessQueue) -> None:
        """Stop polls from returning messages of a queue."""
        self.buffer.remove(process_queue)

    def deliver(self, process_queue: ProcessQueue, count: int) -> None:
        """Wake waiting polls, which may return the messages."""
        self.buffer.deliver(process_queue, count)

    def poll(self, limit: int, seconds: float) -> list[ReceivedMessage]:
        """Poll the buffer, and call the hooks before and after it."""
        if operations.is_empty:
            return self.buffer.poll(limit, seconds)
        with self.seen() as note:
            return note(self.buffer.poll(limit, seconds))

    @contextmanager
    def seen(self) -> Iterator[Callable[[list[ReceivedMessage]], list[ReceivedMessage]]]:
        """A context manager around a poll, which records the poll's result for hooks."""
        client_id = self.cluster.instances[0].client_id
        with operations.around(ClientOperation.RECEIVE, self._config.group, client_id) as context:

            def note(messages: list[ReceivedMessage]) -> list[ReceivedMessage]:
                if context is not None:
                    context.messages, context.topic = messages[:], topic_of(messages)
                return messages

            yield note

    def commit(self, members: Members, agreed: Sequence[Agreed]) -> None:
        """Commit on all brokers, and return when that is done.

        Raises the first error, which is a QueueLost, a QueueOwned, or a BrokerUnavailable (or a subclass).
        """
        errors: list[MqdbError] = []
        for instance in self.cluster.instances:
            of_broker = [each for each in agreed if each.queue.broker_name == instance.broker_name]
            if not of_broker:
                continue
            try:
                with self._connections[instance.broker_name].use() as connection:
                    self.offset_store(instance).commit_agreed(connection, of_broker)
            except BaseException as error:
                members.by_broker[instance.broker_name].look_again()
                if not isinstance(error, MqdbError):
                    raise
                errors.append(error)
        if errors:
            raise errors[0]

    def describe(self) -> dict[str, Any]:
        """The status of the consumer, without listeners."""
        return {"auto_commit": self._config.auto_commit, "listeners": []}

    def consume_directly(self, message: ReceivedMessage) -> ConsumeMessageDirectlyResult:
        """Raise NotSupported, because a lite pull consumer has no listener."""
        raise NotSupported("consuming a message directly in a lite pull consumer, which has no listener")


class AssignedPolls(SubscribedPolls):
    """The strategy of a lite pull consumer with assigned queues. The consumer is not a member of the group."""

    is_member = False

    def __init__(self, cluster: Cluster, config: LitePullConsumerConfig, queues: frozenset[MessageQueue]) -> None:
        super().__init__(cluster, config)
        self._queues = queues
        self.allocate = self._chosen_of
        self._undo = ExitStack()

    def _store(self, group: str, client_id: str) -> PolledOffsetStore:
        return UnownedOffsetStore(group, client_id, self.buffer, self._config.auto_commit)

    def _chosen_of(
        self, _group: str, _client_id: str, queues: Sequence[MessageQueue], _client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """An allocation strategy that returns the chosen queues, regardless of the members."""
        return sorted(self._queues.intersection(queues))

    def enter(self, registration: Registration, filters: Mapping[str, MessageFilter]) -> None:
        """Wait for messages without joining the group. Raises FilterDisabled."""
        self.choose(self._queues, filters)
        for instance in self.cluster.instances:
            self._undo.enter_context(instance.awaiting_arrivals())

    def change(self, registration: Registration) -> None:
        """Do nothing, because the consumer is not a member of the group."""

    def close(self, seconds: float | None) -> None:
        """Stop waiting for messages."""
        self._undo.close()
        super().close(seconds)

    def choose(self, queues: frozenset[MessageQueue], filters: Mapping[str, MessageFilter]) -> None:
        """Read exactly these queues; `filters` are the filters of their topics. Raises FilterDisabled."""
        self._check(filters)
        self._queues = queues
        self.buffer.choose(queues)

    def _check(self, filters: Mapping[str, MessageFilter]) -> None:
        """Check the filters, as a broker checks the filters of a new member.

        A broker that is down is skipped unless it is the only broker.
        """
        types = {each.expression_type for each in filters.values()}
        if types <= {ExpressionType.TAG}:
            return
        for instance in self.cluster.instances:
            if instance.is_met or self.cluster.is_single:
                try:
                    with instance.connect() as connection:
                        check_filters(connection, types)
                except BrokerUnavailable:
                    if self.cluster.is_single:
                        raise
