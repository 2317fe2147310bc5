"""The push consumer: subscribe, give it a listener, start it. RocketMQ: DefaultMQPushConsumer."""

import threading
from contextlib import suppress
from datetime import timedelta
from enum import Enum
from queue import Empty, SimpleQueue
from typing import Final, Self

from mqdb.errors import IllegalState, NotSupported
from mqdb.group import ConsumeFromWhere, MessageModel
from mqdb.message import MessageQueue
from mqdb.selector.tags import ALL_TAGS, TagExpression
from mqdb.settings import Settings
from mqdb.topic import check_topic_name
from mqdb_client.cluster import Cluster
from mqdb_client.consumer.config import PushConsumerConfig
from mqdb_client.consumer.members import Members
from mqdb_client.consumer.message_listener import MessageListener
from mqdb_client.consumer.message_selector import MessageSelector
from mqdb_client.consumer.stop_signals import on_stop_signal
from mqdb_client.instance import settings_of

_SIGNAL_SECONDS: Final = 0.1


class _State(Enum):
    CREATED = "not started"
    RUNNING = "running"
    SHUT_DOWN = "shut down"


class PushConsumer:
    """A member of a consumer group. The members share the messages of the group's topics.

    The listener is called by `consume_thread_nums` threads at once, with messages of one queue, and answers
    CONSUME_SUCCESS or RECONSUME_LATER; None and exceptions count as the latter. What it does not consume is kept
    here and given to it again after 5 s, as often as it takes. Its queue goes on meanwhile, but the group's offset
    does not pass it. Each message is consumed at least once: after a crash of this process, or when another member
    takes the queue, all messages from that offset on come again.

    A topic that does not exist yet is waited for. Use it in a `with`, or call `start` and `shutdown`, or `run`.

    Where the settings name several brokers it reads the topic's queues on all of them. One that is down joins in when
    it comes, and one that is lost holds up no other.
    """

    def __init__(
        self,
        group: str,
        dsn: str | None = None,
        settings: Settings | None = None,
        *,
        consume_from_where: ConsumeFromWhere = ConsumeFromWhere.LAST_OFFSET,
        message_model: MessageModel = MessageModel.CLUSTERING,
        consume_thread_nums: int = 20,
        consume_message_batch_max_size: int = 1,
        pull_batch_size: int = 32,
        pull_threshold_for_queue: int = 1_000,
        pull_threshold_size_for_queue: int = 100,
        consume_concurrently_max_span: int = 2_000,
        persist_consumer_offset_interval: timedelta = timedelta(seconds=5),
        rebalance_interval: timedelta = timedelta(seconds=20),
        hand_over_grace: timedelta = timedelta(seconds=30),
    ) -> None:
        """PushConsumerConfig says what the options mean. Raises NameInvalid, ParameterInvalid, NotSupported."""
        self._config = PushConsumerConfig(
            group=group,
            consume_from_where=consume_from_where,
            message_model=message_model,
            consume_thread_nums=consume_thread_nums,
            consume_message_batch_max_size=consume_message_batch_max_size,
            pull_batch_size=pull_batch_size,
            pull_threshold_for_queue=pull_threshold_for_queue,
            pull_threshold_size_for_queue=pull_threshold_size_for_queue,
            consume_concurrently_max_span=consume_concurrently_max_span,
            persist_consumer_offset_interval=persist_consumer_offset_interval,
            rebalance_interval=rebalance_interval,
            hand_over_grace=hand_over_grace,
        )
        self._settings = settings_of(dsn, settings)
        self._subscriptions: dict[str, TagExpression] = {}
        self._listener: MessageListener | None = None
        self._lifecycle = threading.RLock()
        self._state = _State.CREATED
        self._members: Members | None = None
        self._stop_requests: SimpleQueue[None] = SimpleQueue()

    @property
    def group(self) -> str:
        """The name of the group."""
        return self._config.group

    @property
    def assignment(self) -> tuple[MessageQueue, ...]:
        """The queues that this member reads now, in order, those of all brokers together."""
        return self._members.assignment if self._members else ()

    # -- before the start -----------------------------------------------------------------------

    def subscribe(self, topic: str, expression: str | MessageSelector | None = ALL_TAGS) -> None:
        """Consume the messages of a topic with one of the tags of `TagA || TagB`; of all with `*`, "" or None.

        All members of a group have to subscribe to the same. Again for the same topic: the last one counts.
        Raises NameInvalid, TagExpressionInvalid; NotSupported after the start.
        """
        check_topic_name(topic)
        selector = expression if isinstance(expression, MessageSelector) else MessageSelector.by_tag(expression)
        with self._lifecycle:
            self._require_not_started("subscribe()")
            self._subscriptions[topic] = selector.tag_expression

    def register_listener(self, listener: MessageListener, *, orderly: bool = False) -> None:
        """The listener for all messages. Raises NotSupported after the start, and for orderly consumption."""
        if orderly:
            raise NotSupported("orderly consumption")
        with self._lifecycle:
            self._require_not_started("register_listener()")
            self._listener = listener

    def _require_not_started(self, what: str) -> None:
        if self._state is not _State.CREATED:
            raise NotSupported(f"{what} of a consumer that is {self._state.value}")

    # -- life -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Connect, join the group and consume. What is sent after it has returned is consumed in any case.

        Of several brokers one at least must be up. A group under LAST_OFFSET that is new to a topic on one that is
        down starts there at the max offset of the time when it comes.
        Raises IllegalState without a subscription or a listener, when started before, and when this process has a
        consumer of the group already; what `Cluster` raises.
        """
        with self._lifecycle:
            if self._state is not _State.CREATED:
                raise IllegalState(str(self), f"{self._state.value} already; create another one")
            if not self._subscriptions:
                raise IllegalState(str(self), "without a subscription; call subscribe() first")
            if self._listener is None:
                raise IllegalState(str(self), "without a listener; call register_listener() first")
            cluster = Cluster(self._settings)
            self._members = Members(cluster, self._config, dict(self._subscriptions), self._listener)
            try:
                self._members.start()
            except BaseException:
                self._members = None
                raise
            self._state = _State.RUNNING

    def shutdown(self, timeout: timedelta | None = None) -> None:
        """Leave the group: nothing more is started, running listeners return, offsets are committed.

        After `timeout` it does not wait for listeners any longer; what they have in hand goes to another member.
        Before the start, and again: nothing happens. Raises IllegalState in a listener, for which it would wait.
        """
        if self._members is not None and self._members.is_listening_thread():
            raise IllegalState(str(self), "waiting for this listener; call shutdown() in another thread")
        with self._lifecycle:
            if self._state is _State.RUNNING and self._members is not None:
                self._members.leave(timeout.total_seconds() if timeout is not None else None)
            self._members = None
            self._state = _State.SHUT_DOWN
        self._stop_requests.put(None)

    def run(self) -> None:
        """Consume until SIGINT, SIGTERM or `shutdown` by another thread; starts it if need be, and shuts it down.

        A second signal does what signals did before: it does not wait for listeners.
        """
        with on_stop_signal(lambda: self._stop_requests.put(None)):
            if self._state is not _State.RUNNING:
                self.start()
            self._wait_for_stop_request()
        self.shutdown()

    def _wait_for_stop_request(self) -> None:
        # A signal in the instant before a wait is only noted, and wakes nobody: no wait may be without end.
        while True:
            with suppress(Empty):
                # Its put, unlike the methods of an Event, may come in the middle of its get.
                return self._stop_requests.get(timeout=_SIGNAL_SECONDS)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def __repr__(self) -> str:
        return f"PushConsumer(group={self.group!r})"
