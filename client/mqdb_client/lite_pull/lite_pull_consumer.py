"""The lite pull consumer, which polls for messages, whereas a push consumer passes them to a listener.

RocketMQ: DefaultLitePullConsumer.
"""

import asyncio
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime, timedelta
from enum import Enum
from functools import partial
from typing import Final, Self

from mqdb.broker.consumers.offsets import search_offset
from mqdb.common.argument_types import is_whole
from mqdb.common.message import MessageQueue
from mqdb.common.received_message import ReceivedMessage
from mqdb.common.topic import check_topic_name
from mqdb.errors import IllegalState, ParameterInvalid, ShutdownTimedOut
from mqdb.selector.subscription import MessageFilter
from mqdb.selector.tags import ALL_TAGS
from mqdb.store.consumers.consumer_offsets import committed_offsets
from mqdb.store.dispatch.queues import Ends
from mqdb_client import abandoned_clients
from mqdb_client.client_config import configured_by, settings_of
from mqdb_client.cluster import Cluster
from mqdb_client.consumer.members import Members
from mqdb_client.consumer.message_selector import MessageSelector, filter_of
from mqdb_client.leaving import leave_in_time
from mqdb_client.lite_pull.lite_pull_config import POLL_TIMEOUT, LitePullConsumerConfig
from mqdb_client.lite_pull.poll_strategy import AssignedPolls, SubscribedPolls
from mqdb_client.lite_pull.topic_queues import TopicQueues
from mqdb_client.lite_pull.topic_watch import TopicMessageQueueChangeListener, TopicWatch
from mqdb_client.option_rules import seconds_to_wait, takes
from mqdb_client.queue_argument import check_queue, queues_of

_ANY: Final = Ends(0, 2**63 - 1)
_TOPIC_LISTENER: Final = takes("topic", "queues")


class _State(Enum):
    CREATED = "not started"
    RUNNING = "running"
    SHUT_DOWN = "shut down"


class _Running:
    """The parts of a consumer that exist between start and shutdown."""

    def __init__(self, strategy: SubscribedPolls, members: Members, topics: TopicQueues, watch: TopicWatch) -> None:
        self.strategy = strategy
        self.members = members
        self.buffer = strategy.buffer
        self.topics = topics
        self.watch = watch

    def leave(self, group: str, *, is_listening: bool, timeout: timedelta) -> None:
        """Leave the group.

        With `is_listening`, the caller is a topic listener, so this does not wait for that listener.

        Raises ShutdownTimedOut.
        """
        watch = self.watch
        is_listening |= watch.is_own_thread()
        seconds = 0.0 if is_listening else timeout.total_seconds()

        def leave() -> None:
            watch.stop(seconds)
            self.members.leave()

        leave_in_time(group, leave, lambda: int(watch.is_calling and seconds > 0), seconds)

    def seek(self, queue: MessageQueue, queue_key: int, offset: int) -> None:
        self.buffer.seek(queue, offset)
        self.members.by_broker[queue.broker_name].on_arrival([queue_key])


class LitePullConsumer:
    """A consumer that polls for messages and decides when they are done.

    The consumer either subscribes to topics and shares their queues with the other members of its group, or is assigned
    queues and reads them regardless of other members. Messages are read ahead, up to the limits; messages of a queue
    are returned in order. The caller handles failures: there is no retry topic and no dead letter queue.

    With `auto_commit` a poll, or the next message of an iteration, marks the previously returned messages as done, so
    poll in only one thread. The offsets of processed messages are committed every `auto_commit_interval`, when
    rebalance takes a queue away, and at shutdown. The messages of the last poll are redelivered after a crash or a
    shutdown, but not after a `with` block that ends without an error, nor after `commit`. Without `auto_commit`,
    offsets are committed only by `commit`.

    A consumer with assigned queues cannot commit a queue while a member of the group owns it. A consumer waits for
    topics and queues that do not exist yet. If the settings name several brokers, a broker that is down is added when
    it comes up.
    """

    @configured_by(LitePullConsumerConfig)
    def __init__(self, config: LitePullConsumerConfig) -> None:
        """Create a consumer that does not run yet. Raises NameInvalid, ParameterInvalid, SettingInvalid."""
        self._configure(config)

    def _configure(self, config: LitePullConsumerConfig) -> None:
        self._config = config
        self._settings = settings_of(config.dsn, config.settings)
        self._subscriptions: dict[str, MessageFilter] = {}
        self._is_member = False
        self._chosen: frozenset[MessageQueue] | None = None
        self._filters: dict[str, MessageFilter] = {}  # for the topics of the chosen queues
        self._topic_listeners: dict[str, TopicMessageQueueChangeListener] = {}
        self._lifecycle = threading.RLock()
        self._state = _State.CREATED
        self._running: _Running | None = None
        #: The event loops that poll it; None if threads poll it.
        self._loops: weakref.WeakSet[asyncio.AbstractEventLoop] | None = None
        self._end_watch: Callable[[], None] = lambda: None

    @property
    def group(self) -> str:
        """The name of the group."""
        return self._config.group

    @property
    def is_running(self) -> bool:
        """Whether the consumer has been started and not shut down."""
        return self._state is _State.RUNNING

    @property
    def assignment(self) -> tuple[MessageQueue, ...]:
        """The queues assigned by the user, or by rebalance so far, in order."""
        if self._is_member:
            return self._running.members.assignment if self._running else ()
        return tuple(sorted(self._chosen or ()))

    # -- reading ----------------------------------------------------------------------------------

    def subscribe(
        self, topic: str, expression: str | MessageSelector | None = ALL_TAGS, *, version: int | None = None
    ) -> None:
        """Share the queues of a topic with the group; read messages with a tag in `TagA || TagB`, or all with `*`.

        For a condition on properties, pass `MessageSelector.by_sql("a > 1")`. A second call for a topic replaces the
        first call. All members of a group have to subscribe to the same topics with the same filters. To change
        subscriptions while other members run, announce a higher `version` than the other members have, first in one
        member and then in all others. Make the first subscription before the start. Raises NameInvalid,
        TagExpressionInvalid, ParameterInvalid, and IllegalState after `assign`. While the consumer is running, also
        raises SubscriptionConflict, FilterDisabled and the errors of `start`.
        """
        check_topic_name(topic)
        self._subscribe_to(self._subscriptions | {topic: filter_of(expression)}, version)

    def unsubscribe(self, topic: str, *, version: int | None = None) -> None:
        """Stop reading a topic. Like `subscribe`, this method can be called while the consumer is running."""
        check_topic_name(topic)
        remaining = {each: wanted for each, wanted in self._subscriptions.items() if each != topic}
        self._subscribe_to(remaining, version)

    def _subscribe_to(self, subscriptions: dict[str, MessageFilter], version: int | None) -> None:
        with self._lifecycle:
            self._require_not_shut_down()
            if self._chosen is not None or (self._running is not None and not self._is_member):
                raise IllegalState(str(self), "for assigned queues already; subscribe or assign, not both")
            config = self._config if version is None else replace(self._config, subscription_version=version)
            if self._running is not None:
                self._running.members.read(subscriptions, config.subscription_version)
            self._subscriptions, self._config = subscriptions, config
            self._is_member |= bool(subscriptions)

    def assign(self, queues: Iterable[MessageQueue], expression: str | MessageSelector | None = ALL_TAGS) -> None:
        """Read exactly these queues, from the group's committed offsets.

        This is also possible while the consumer is running.

        If a queue was already assigned, its messages in hand are kept.
        Raises TagExpressionInvalid, NameInvalid; ParameterInvalid for an item that is not a queue, and for a queue of a
        broker that is not in the settings; IllegalState after `subscribe`, and after shutdown; FilterDisabled while the
        consumer runs.
        """
        wanted, message_filter = frozenset(queues_of(queues)), filter_of(expression)
        for queue in wanted:
            check_topic_name(queue.topic)
        with self._lifecycle:
            self._require_not_shut_down()
            if self._is_member:
                raise IllegalState(str(self), "subscribed already; subscribe or assign, not both")
            if self._running is not None:
                for queue in wanted:
                    self._running.topics.check_broker(queue)
            filters = {queue.topic: message_filter for queue in sorted(wanted)}
            if self._running is not None and isinstance(self._running.strategy, AssignedPolls):
                self._running.strategy.choose(wanted, filters)
                self._running.members.read(filters, self._config.subscription_version)
            self._chosen, self._filters = wanted, filters

    def _require_not_shut_down(self) -> None:
        if self._state is _State.SHUT_DOWN:
            raise IllegalState(str(self), "shut down already; create another one")

    def fetch_message_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The readable queues of a topic on all brokers, in order. Raises RouteNotFound, BrokerUnavailable.

        For an unreachable broker, returns the queues last known to this process.
        """
        check_topic_name(topic)
        return self._require_running().topics.find(topic)

    def register_topic_message_queue_change_listener(
        self, topic: str, listener: TopicMessageQueueChangeListener
    ) -> None:
        """Call `listener(topic, queues)` when the queues of a topic have changed.

        The queues are checked every `topic_metadata_check_interval`, in a separate thread. A topic has one listener: a
        second call replaces the first listener. Raises NameInvalid, ParameterInvalid.
        """
        check_topic_name(topic)
        _TOPIC_LISTENER.check("listener", listener)
        with self._lifecycle:
            self._topic_listeners[topic] = listener
            if self._running is not None:
                self._running.watch.listen(topic, listener)

    # -- messages ---------------------------------------------------------------------------------

    def poll(self, timeout: timedelta | None = None) -> list[ReceivedMessage]:
        """Wait for messages and return up to `pull_batch_size`; [] after `timeout` (default: `poll_timeout`).

        Also returns [] if another thread shuts the consumer down during the poll. Raises ParameterInvalid, and
        IllegalState if the consumer is not running.
        """
        seconds = self._poll_seconds(timeout)
        return self._require_running().strategy.poll(self._config.pull_batch_size, seconds)

    def _poll_seconds(self, timeout: timedelta | None) -> float:
        wait = self._config.poll_timeout if timeout is None else timeout
        POLL_TIMEOUT.check("poll_timeout", wait)
        return seconds_to_wait(wait)

    def __iter__(self) -> Iterator[ReceivedMessage]:
        """Iterate over messages until the consumer is shut down.

        Raises IllegalState if the consumer has not been started.
        """
        strategy = self._require_running().strategy
        while self.is_running:
            yield from strategy.poll(1, self._poll_seconds(None))

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Stop returning messages of these queues until `resume`, even messages in hand.

        Queues that are not assigned are ignored, and a queue that rebalance moves away and back is no longer paused.
        Raises ParameterInvalid for items that are not queues, and IllegalState if the consumer is not running.
        """
        given = queues_of(queues)
        self._require_running().buffer.pause(given)

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Resume paused queues. Raises the same errors as `pause`."""
        given = queues_of(queues)
        self._require_running().buffer.resume(given)

    # -- offsets ----------------------------------------------------------------------------------

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Let the next poll start at an offset of a queue. Messages in hand and pulls under way are dropped.

        Messages of the queue that polls already returned count as done. Raises ParameterInvalid for an offset below the
        min or above the max offset, IllegalState for a queue that is not assigned, and the errors of `committed`.
        """
        running = self._require_running()
        place = running.topics.place(queue)
        ends = place.ends(queue)
        if not _is_offset(offset, ends):
            limits = f"from the min offset {ends.min_offset:,} to the max offset {ends.max_offset:,}"
            raise ParameterInvalid("offset", offset, f"must be a whole number {limits} of queue {queue}")
        running.seek(queue, place.queue_key, offset)

    def seek_to_begin(self, queue: MessageQueue) -> None:
        """Let the next poll start at the min offset of a queue. See `seek`."""
        running = self._require_running()
        place = running.topics.place(queue)
        running.seek(queue, place.queue_key, place.ends(queue).min_offset)

    def seek_to_end(self, queue: MessageQueue) -> None:
        """Let the next poll start at the max offset of a queue, with messages sent from now on. See `seek`."""
        running = self._require_running()
        place = running.topics.place(queue)
        running.seek(queue, place.queue_key, place.ends(queue).max_offset)

    def offset_for_timestamp(self, queue: MessageQueue, time: datetime) -> int:
        """The offset of the first message stored at `time` or later; the max offset if there is no such message.

        Raises ParameterInvalid for a time without a time zone, and the errors of `committed`.
        """
        instance, queue_key = self._require_running().topics.place(queue)
        with instance.connect() as connection:
            return search_offset(connection, queue_key, time)

    def committed(self, queue: MessageQueue) -> int | None:
        """The group's committed offset in any queue, as stored in the queue's broker; None if no offset is committed.

        Raises ParameterInvalid for an argument that is not a queue, and for a queue of a broker that is not in the
        settings; RouteNotFound, QueueNotFound; BrokerUnavailable and its subclasses; IllegalState if the consumer is
        not running.
        """
        instance, queue_key = self._require_running().topics.place(queue)
        with instance.connect() as connection:
            return committed_offsets(connection, self.group, [queue_key]).get(queue_key)

    def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit all messages that polls have returned, or the given next offsets, before returning.

        A given offset may be lower than the stored offset; an automatic commit replaces it once polls are beyond it. If
        polls have returned no messages since the last commit, this has no effect. Raises QueueLost if another member
        has taken a queue, or if another database has replaced the queue's broker; QueueOwned if the queue was assigned
        and a member owns it; ParameterInvalid for an invalid queue or offset; IllegalState for a queue that is not
        assigned; BrokerUnavailable and its subclasses. Even if this raises an error, all other offsets are committed.
        """
        running = self._require_running()
        if offsets is not None:
            _check_offsets(offsets)
            running.strategy.commit(running.members, running.buffer.agree_on(offsets))
            return
        handed = running.buffer.handed
        agreed = running.buffer.agree()
        running.strategy.commit(running.members, agreed)
        running.buffer.note_commit(agreed)
        running.buffer.acknowledge(handed)

    # -- life -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Connect and start reading. Without a subscription the consumer waits for `assign`.

        At least one broker must be up.
        Raises IllegalState if the consumer was started before, or if this process already has a consumer of the group;
        SubscriptionConflict, FilterDisabled; ParameterInvalid like `assign`; and the errors of `Cluster`.
        """
        with self._lifecycle:
            if self._state is not _State.CREATED:
                raise IllegalState(str(self), f"{self._state.value} already; create another one")
            with ExitStack() as undo:
                cluster = Cluster(self._settings, self._config.instance_name)
                undo.callback(cluster.release)
                topics = TopicQueues(cluster)
                for queue in self._chosen or ():
                    topics.check_broker(queue)
                strategy = self._strategy(cluster)
                members = Members(self._config, self._subscriptions if self._is_member else self._filters, strategy)
                members.start()
                undo.callback(members.leave)
                watch = TopicWatch(self.group, topics.find, self._config.topic_metadata_check_interval)
                for topic, listener in self._topic_listeners.items():
                    watch.listen(topic, listener)
                watch.start()
                undo.pop_all()
            running = self._running = _Running(strategy, members, topics, watch)
            self._state = _State.RUNNING
            me = weakref.ref(self)
            find_reason = partial(_why_abandoned, me, self._loops)
            self._end_watch = abandoned_clients.watch(
                repr(self), find_reason, partial(_abandon, me, running, self.group)
            )

    def _strategy(self, cluster: Cluster) -> SubscribedPolls:
        if self._is_member:
            return SubscribedPolls(cluster, self._config)
        return AssignedPolls(cluster, self._config, self._chosen or frozenset())

    def shutdown(self) -> None:
        """Commit done messages and leave the group; a poll in another thread returns. Calling it twice has no effect.

        The call also has no effect in a forked child, because the parent still uses the consumer. Raises
        ShutdownTimedOut, after leaving, if a topic listener has not returned within `shutdown_timeout`. Do not call
        this method in a signal handler: it waits for threads, which may wait for the interrupted poll.
        """
        self._leave()

    def _leave(self, *, is_listening: bool = False) -> None:
        """Shut down.

        `is_listening` means that a topic listener calls this method, which then does not wait for that listener.
        """
        if self._running is not None and self._running.strategy.cluster.is_forked:
            # The consumer's threads are not in this process, and may have held the lock.
            self._lifecycle = threading.RLock()
            self._running = None
            self._state = _State.SHUT_DOWN
            return
        with self._lifecycle:
            running, self._running = self._running, None
            self._state = _State.SHUT_DOWN
        # Without holding the lock: a running topic listener may call `assign`, which is then too late.
        if running is not None:
            self._end_watch()
            running.leave(self.group, is_listening=is_listening, timeout=self._config.shutdown_timeout)

    def _require_running(self) -> _Running:
        running = self._running
        if running is None:
            raise IllegalState(str(self), self._state.value)
        running.strategy.cluster.check_process()
        return running

    def __enter__(self) -> Self:
        self.start()
        return self

    def _finish(self) -> None:
        """Mark all messages returned by polls as done."""
        if (running := self._running) is not None:
            running.buffer.acknowledge(running.buffer.handed)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._finish()
        try:
            self.shutdown()
        except ShutdownTimedOut:
            if kind is None:  # otherwise it was logged, and the error that ends the block is raised
                raise

    def __repr__(self) -> str:
        return f"LitePullConsumer(group={self.group!r})"


def _why_abandoned(
    consumer: "weakref.ref[LitePullConsumer]", loops: "weakref.WeakSet[asyncio.AbstractEventLoop] | None"
) -> abandoned_clients.Reason:
    if consumer() is None:
        return "the program has dropped it"
    return None if loops is None else abandoned_clients.closed_loops(loops)


def _abandon(consumer: "weakref.ref[LitePullConsumer]", running: _Running, group: str) -> None:
    """Leave the group of a consumer that can no longer be polled, and shut the consumer down if it still exists."""
    left = consumer()
    if left is not None:
        left._leave(is_listening=True)
    else:
        running.leave(group, is_listening=True, timeout=timedelta(0))


def _check_offsets(offsets: object) -> None:
    if not isinstance(offsets, Mapping):
        reason = f"is {type(offsets).__name__}; give a dict of MessageQueues and their next offsets"
        raise ParameterInvalid("offsets", offsets, reason)
    for queue, offset in offsets.items():
        check_queue(queue)
        if not _is_offset(offset, _ANY):
            raise ParameterInvalid("offset", offset, "must be a whole number, 0 or more")


def _is_offset(offset: object, ends: Ends) -> bool:
    return is_whole(offset) and ends.min_offset <= offset <= ends.max_offset
