"""The push consumer: subscribe, give it a listener, start it. RocketMQ: DefaultMQPushConsumer."""

import threading
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from enum import Enum
from functools import partial
from queue import Empty, SimpleQueue
from typing import Final, Self

from mqdb.common.message import MessageQueue
from mqdb.common.topic import check_topic_name
from mqdb.errors import IllegalState, NotSupported, ShutdownTimedOut
from mqdb.selector.subscription import MessageFilter
from mqdb.selector.tags import ALL_TAGS
from mqdb_client.client_config import configured_by, settings_of
from mqdb_client.cluster import Cluster
from mqdb_client.consumer.following_member import FollowingMember
from mqdb_client.consumer.listeners.consume_hooks import ConsumeHooks, ConsumeMessageHook
from mqdb_client.consumer.listeners.message_listener import (
    MessageListener,
    MessageListenerExactlyOnce,
    MessageListenerOrderly,
)
from mqdb_client.consumer.listeners.stop_signals import on_stop_signal
from mqdb_client.consumer.member import Member
from mqdb_client.consumer.members import Members
from mqdb_client.consumer.message_selector import MessageSelector, filter_of
from mqdb_client.consumer.push_consumer_config import PushConsumerConfig
from mqdb_client.consumer.push_strategy import Consumption, PushStrategy
from mqdb_client.leaving import leave_in_time
from mqdb_client.option_rules import SHUTDOWN_TIMEOUT, or_none

_SIGNAL_SECONDS: Final = 0.1
_TIMEOUT: Final = or_none(SHUTDOWN_TIMEOUT)


class _State(Enum):
    CREATED = "not started"
    RUNNING = "running"
    SHUT_DOWN = "shut down"


class PushConsumer:
    """A member of a consumer group. The members share the messages of the group's topics.

    Up to `consume_thread_nums` threads call the listener concurrently, each with messages of one queue. The listener
    returns CONSUME_SUCCESS or RECONSUME_LATER; None and exceptions count as RECONSUME_LATER. Failed messages are
    retried after 10 s, 30 s, 1 min and so on, by any member of the group; other messages of the queue do not wait for
    them. After 16 retries a message goes to the dead letter queue, `%DLQ%group`, with the reason. Each message is
    consumed at least once: messages whose offsets were not committed are delivered again after a crash of this process,
    or when their queue is taken by force.

    The consumer waits for topics that do not exist yet. Use it in a `with` statement, call `start` and `shutdown`, or
    call `run`. If the settings name several brokers, the consumer reads the topic's queues on all of them. A broker
    that is down is added when it comes up, and a lost broker does not delay the other brokers.
    """

    @configured_by(PushConsumerConfig)
    def __init__(self, config: PushConsumerConfig) -> None:
        """Create a consumer that does not run yet. Raises NameInvalid, ParameterInvalid, SettingInvalid."""
        self._configure(config)

    def _configure(self, config: PushConsumerConfig) -> None:
        self._config = config
        self._settings = settings_of(config.dsn, config.settings)
        self._subscriptions: dict[str, MessageFilter] = {}
        self._consumption: Consumption | None = None
        self._hooks = ConsumeHooks(config.group)
        self._lifecycle = threading.RLock()
        self._state = _State.CREATED
        self._strategy: PushStrategy | None = None
        self._members: Members | None = None
        self._stop_requests: SimpleQueue[None] = SimpleQueue()
        self._has_left = threading.Event()
        self._has_left.set()

    @property
    def group(self) -> str:
        """The name of the group."""
        return self._config.group

    @property
    def assignment(self) -> tuple[MessageQueue, ...]:
        """The queues that this member currently reads on all brokers, in order."""
        members = self._members
        return members.assignment if members is not None else ()

    # -- before the start -----------------------------------------------------------------------

    def subscribe(
        self, topic: str, expression: str | MessageSelector | None = ALL_TAGS, *, version: int | None = None
    ) -> None:
        """Consume the messages of a topic with one of the tags in `TagA || TagB`; all messages with `*`, "" or None.

        For a condition on properties, pass `MessageSelector.by_sql("a > 1")`. A second call for a topic replaces the
        first call. All members of a group have to subscribe to the same topics with the same filters. To change
        subscriptions while other members run, announce a higher `version` than the other members have, first in one
        member and then in all others. Raises NameInvalid, TagExpressionInvalid and ParameterInvalid. While the consumer
        is running, also raises SubscriptionConflict, FilterDisabled and the errors of `start`.
        """
        check_topic_name(topic)
        self._subscribe_to(self._subscriptions | {topic: filter_of(expression)}, version)

    def unsubscribe(self, topic: str, *, version: int | None = None) -> None:
        """Stop consuming a topic; messages in hand are finished.

        Like `subscribe`, it can be called while the consumer runs.
        """
        check_topic_name(topic)
        remaining = {each: wanted for each, wanted in self._subscriptions.items() if each != topic}
        self._subscribe_to(remaining, version)

    def _subscribe_to(self, subscriptions: dict[str, MessageFilter], version: int | None) -> None:
        with self._lifecycle:
            if self._state is _State.SHUT_DOWN:
                raise IllegalState(str(self), "shut down; create another one")
            config = self._config if version is None else replace(self._config, subscription_version=version)
            if self._members is not None:
                self._members.read(subscriptions, config.subscription_version)
            self._subscriptions, self._config = subscriptions, config

    def register_listener(
        self,
        listener: MessageListener | MessageListenerOrderly | MessageListenerExactlyOnce,
        *,
        orderly: bool = False,
        exactly_once: bool = False,
    ) -> None:
        """Set the listener for all messages.

        The listener is called with messages and, if it takes one more argument, a context. With `orderly`, there is
        only one call at a time for each queue, in the order of offsets. With `exactly_once`, the listener gets a
        connection after the messages, and its writes on this connection are committed together with the offset, exactly
        once. Raises ParameterInvalid for a listener that does not take these arguments, and for a function without a
        context that never returns a status; NotSupported after the start.
        """
        with self._lifecycle:
            self._require_not_started("register_listener()")
            self._consumption = Consumption(listener, orderly, exactly_once)

    def register_consume_message_hook(self, hook: ConsumeMessageHook) -> None:
        """Call `hook` around each call of the listener, starting with the next call. Raises ParameterInvalid."""
        self._hooks.register(hook)

    def _require_not_started(self, what: str) -> None:
        if self._state is not _State.CREATED:
            raise NotSupported(f"{what} of a consumer that is {self._state.value}")

    # -- life -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Connect, join the group and consume. Messages sent after this has returned are always consumed.

        At least one broker must be up. If a group with LAST_OFFSET is new to a topic on a broker that is down, the
        group starts there at the max offset at the time when the broker comes up. Raises the errors of `Cluster`, and
        IllegalState without a subscription or a listener, if the consumer was started before, and if this process
        already has a consumer of the group.
        """
        with self._lifecycle:
            if self._state is not _State.CREATED:
                raise IllegalState(str(self), f"{self._state.value} already; create another one")
            if not self._subscriptions:
                raise IllegalState(str(self), "without a subscription; call subscribe() first")
            if self._consumption is None:
                raise IllegalState(str(self), "without a listener; call register_listener() first")
            self._consumption.check_model(self._config.message_model)
            cluster = Cluster(self._settings, self._config.instance_name)
            try:
                self._strategy = PushStrategy(
                    cluster, self._config, self._consumption, self._hooks, home=self._settings.home
                )
                make_member = FollowingMember if self._strategy.follows_group else Member
                self._members = Members(self._config, dict(self._subscriptions), self._strategy, make_member)
                self._members.start()
            except BaseException:
                self._members = self._strategy = None
                cluster.release()
                raise
            self._state = _State.RUNNING
            self._has_left.clear()

    def suspend(self) -> None:
        """Stop pulling until `resume`, and keep the queues. Messages in hand still go to the listener.

        Raises IllegalState if the consumer is not running.
        """
        self._require_running("suspend()").suspend()

    def resume(self) -> None:
        """Pull again after `suspend`. Raises IllegalState if the consumer is not running."""
        self._require_running("resume()").resume()

    def update_consume_thread_nums(self, consume_thread_nums: int) -> None:
        """Set the number of threads that call the listener, from 1 to 1,000. Raises ParameterInvalid, IllegalState.

        Surplus threads end when their listeners return. RocketMQ: updateCorePoolSize.
        """
        with self._lifecycle:
            config = replace(self._config, consume_thread_nums=consume_thread_nums)
            members = self._require_running("update_consume_thread_nums()")
            assert self._strategy is not None
            self._strategy.consume.threads.resize(config.consume_thread_nums)
            self._config = config
            for member in members.by_broker.values():
                member.look_again()  # a popping consumer has room for more messages now

    def _require_running(self, what: str) -> Members:
        members = self._members
        if members is None or self._state is not _State.RUNNING:
            raise IllegalState(str(self), f"{self._state.value}; {what} is for one that runs")
        return members

    def shutdown(self, timeout: timedelta | None = None) -> None:
        """Leave the group: stop calling the listener, wait for running calls, and commit the offsets.

        After `timeout` (default: `shutdown_timeout`), the consumer stops waiting for listeners, gives their queues back
        unfinished so that another member gets the messages, leaves the group, and raises ShutdownTimedOut. The call has
        no effect before the start, on a second call, and in a forked child, because the parent still consumes. Raises
        IllegalState in a listener, because the call would wait for this listener. Raises ParameterInvalid if `timeout`
        is not a timedelta; the consumer then keeps running.
        """
        _TIMEOUT.check("timeout", timeout)
        strategy = self._strategy
        if strategy is not None and strategy.cluster.is_forked:
            # The consumer's threads are not in this process, and may have held the lock.
            self._lifecycle = threading.RLock()
            self._members = self._strategy = None
            self._state = _State.SHUT_DOWN
            self._has_left.set()
            return
        if strategy is not None and strategy.consume.threads.is_own_thread():
            raise IllegalState(str(self), "waiting for this listener; call shutdown() in another thread")
        with self._lifecycle:
            members = self._members if self._state is _State.RUNNING else None
            self._state = _State.SHUT_DOWN
        # Without holding the lock: a running listener may call subscribe, which then raises that it is too late.
        try:
            if members is not None:
                self._leave(members, self._config.shutdown_timeout if timeout is None else timeout)
        finally:
            if members is not None:
                self._members = self._strategy = None
                self._has_left.set()
            self._stop_requests.put(None)
        self._has_left.wait()

    def _leave(self, members: Members, timeout: timedelta) -> None:
        assert self._strategy is not None
        calls, seconds = self._strategy.consume.calls, timeout.total_seconds()
        leave_in_time(self.group, partial(members.leave, seconds), lambda: len(calls.current()), seconds)

    def run(self) -> None:
        """Consume until SIGINT, SIGTERM or `shutdown` by another thread.

        Starts the consumer if needed, and shuts it down at the end.
        A second signal ends the process immediately, or calls your previous handler. Raises ShutdownTimedOut if
        listeners do not return within `shutdown_timeout`; their threads do not prevent the process from exiting.
        """
        with on_stop_signal(lambda: self._stop_requests.put(None)):
            if self._state is not _State.RUNNING:
                self.start()
            self._wait_for_stop_request()
            self.shutdown()

    def _wait_for_stop_request(self) -> None:
        # A signal just before a wait is only noted and does not wake the thread, so every wait needs a limit.
        while True:
            with suppress(Empty):
                # Its `put`, unlike the methods of Event, may interrupt its own `get`.
                return self._stop_requests.get(timeout=_SIGNAL_SECONDS)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.shutdown()
        except ShutdownTimedOut:
            if kind is None:  # otherwise it was logged, and the error that ends the block is raised
                raise

    def __repr__(self) -> str:
        return f"PushConsumer(group={self.group!r})"
