"""The simple consumer: receive messages and acknowledge each message. RocketMQ 5: SimpleConsumer."""

import threading
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Self

from mqdb.broker.consumers.pop import ack, change_invisible, forward_to_dlq
from mqdb.common.failure import Failure
from mqdb.common.received_message import ReceivedMessage
from mqdb.common.topic import check_topic_name
from mqdb.errors import IllegalState, ParameterInvalid, ReceiptHandleInvalid
from mqdb.selector.subscription import MessageFilter
from mqdb.selector.tags import ALL_TAGS
from mqdb_client.client_config import configured_by, settings_of
from mqdb_client.cluster import Cluster
from mqdb_client.consumer.message_selector import MessageSelector, filter_of
from mqdb_client.option_rules import seconds_to_wait
from mqdb_client.simple.receiving import PopReceiver, Receiving
from mqdb_client.simple.simple_config import (
    AWAIT,
    INVISIBLE,
    INVISIBLE_FROM_NOW,
    MAX_MESSAGES,
    SimpleConsumerConfig,
)


class SimpleConsumer:
    """A consumer for pools of workers: it receives messages from any queue of its topics and acknowledges each message.

        with SimpleConsumer("workers") as consumer:
            for message in consumer.receive(10, timedelta(minutes=5)):
                work(message)
                consumer.ack(message)

    No member owns a queue, so a topic with one queue can have many workers, and a slow worker does not delay the
    others. A received message is invisible to the group until it is acknowledged or its invisible time has passed. If
    the invisible time passes first, the message is redelivered with `delivery_attempt` raised by one. After the group's
    maximum number of deliveries, the message goes to the dead letter queue instead. Messages arrive in no particular
    order, unless the group has `consume_message_orderly`: a queue then returns its next messages only after the
    previous messages are acknowledged.

    The group has to use the consume mode pop, as a new group does: `mqdb group set workers --consume-mode pop`.
    A SimpleConsumer is thread-safe. If the settings name several brokers, the consumer reads all of them.
    """

    @configured_by(SimpleConsumerConfig)
    def __init__(self, config: SimpleConsumerConfig) -> None:
        """Create a consumer that does not run yet. Raises NameInvalid, ParameterInvalid, SettingInvalid."""
        self._configure(config)

    def _configure(self, config: SimpleConsumerConfig) -> None:
        self._config = config
        self._settings = settings_of(config.dsn, config.settings)
        self._filters: dict[str, MessageFilter] = {}
        self._lifecycle = threading.Lock()
        self._state = "not started"
        self._running: PopReceiver | None = None

    @property
    def group(self) -> str:
        """The name of the group."""
        return self._config.group

    @property
    def is_running(self) -> bool:
        """Whether the consumer has been started and not shut down."""
        return self._running is not None

    def subscribe(self, topic: str, expression: str | MessageSelector | None = ALL_TAGS) -> None:
        """Receive the messages of a topic with one of the tags in `TagA || TagB`; all messages with `*`.

        For a condition on properties, pass `MessageSelector.by_sql("a > 1")`. All members of a group have to use the
        same filter for a topic. Call `subscribe` before the start.
        Raises NameInvalid, TagExpressionInvalid, ParameterInvalid; IllegalState after the start.
        """
        check_topic_name(topic)
        with self._lifecycle:
            if self._state != "not started":
                raise IllegalState(str(self), f"{self._state}; subscribe before the start")
            self._filters[topic] = filter_of(expression)

    # -- messages ---------------------------------------------------------------------------------

    def receive(
        self, max_messages: int = 16, invisible_for: timedelta | None = None, timeout: timedelta | None = None
    ) -> list[ReceivedMessage]:
        """Receive up to `max_messages` as soon as there are any; [] after `timeout` (default: `await_duration`).

        The messages are invisible to the rest of the group for `invisible_for` (default: `invisible_duration`). Also
        returns [] if another thread shuts the consumer down. Raises ParameterInvalid, IllegalState if the consumer is
        not running, and BrokerUnavailable if no broker answers.
        """
        receiving = self._begin_receive(max_messages, invisible_for, timeout)
        woken = threading.Event()
        with receiving.woken_by(woken.set):
            while (messages := receiving.pop()) is None:
                woken.wait(receiving.seconds)
                woken.clear()
        return messages

    def _begin_receive(
        self, max_messages: int, invisible_for: timedelta | None, timeout: timedelta | None
    ) -> Receiving:
        MAX_MESSAGES.check("max_messages", max_messages)
        invisible = self._config.invisible_duration if invisible_for is None else invisible_for
        INVISIBLE.check("invisible_for", invisible)
        wait = self._config.await_duration if timeout is None else timeout
        AWAIT.check("timeout", wait)
        return Receiving(self._require_running(), max_messages, invisible, seconds_to_wait(wait))

    def ack(self, messages: ReceivedMessage | Iterable[ReceivedMessage]) -> None:
        """Acknowledge messages, so that they are not redelivered; one statement per broker.

        An acknowledged message can be acknowledged again during its invisible time. Raises ReceiptHandleInvalid if the
        invisible time of some messages has passed, after acknowledging the others; ParameterInvalid for a message that
        was not received from a SimpleConsumer; BrokerUnavailable; IllegalState if the consumer is not running.
        """
        given = [messages] if isinstance(messages, ReceivedMessage) else list(messages)
        running = self._require_running()
        refused: list[str] = []
        for broker_name, handles in _by_broker(given).items():
            with running.pops_of(broker_name).instance.connect() as connection:
                answers = ack(connection, self.group, handles)
            refused += [handle for handle, is_valid in zip(handles, answers, strict=True) if not is_valid]
        if refused:
            raise ReceiptHandleInvalid(tuple(refused))

    def change_invisible(self, message: ReceivedMessage, invisible_for: timedelta) -> None:
        """Set the time from now after which a message is redelivered: later if work takes longer, sooner if it failed.

        The message gets a new receipt handle. With 0 it is redelivered immediately. Raises ReceiptHandleInvalid if the
        message's invisible time has passed or the message is acknowledged, and the errors of `ack`.
        """
        INVISIBLE_FROM_NOW.check("invisible_for", invisible_for)
        running = self._require_running()
        [(broker_name, [handle])] = _by_broker([message]).items()
        with running.pops_of(broker_name).instance.connect() as connection:
            [changed] = change_invisible(connection, self.group, [handle], invisible_for)
        if changed is None:
            raise ReceiptHandleInvalid((handle,))
        message.popped(changed)

    def forward_to_dlq(self, message: ReceivedMessage, error: BaseException | str) -> None:
        """Append a message to the group's dead letter queue, with the reason; the message is not redelivered.

        Raises the errors of `ack`.
        """
        running = self._require_running()
        [(broker_name, _)] = _by_broker([message]).items()
        instance = running.pops_of(broker_name).instance
        now = datetime.now(UTC)
        if isinstance(error, BaseException):
            failure = Failure.of(error, instance.client_id, now)
        else:
            failure = Failure("RECONSUME_LATER", error, "", instance.client_id, now)
        with instance.connect() as connection:
            forward_to_dlq(connection, self.group, [message], failure)

    # -- life -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Connect and join the group. At least one broker must be up.

        Raises IllegalState if the consumer was started before or has no subscription, or if this process already has a
        consumer of the group; ConsumeModeConflict, SubscriptionConflict, FilterDisabled; the errors of `Cluster`.
        """
        with self._lifecycle:
            if self._state != "not started":
                raise IllegalState(str(self), f"{self._state} already; create another one")
            if not self._filters:
                raise IllegalState(str(self), "without a subscription; subscribe to a topic before the start")
            self._running = PopReceiver(
                Cluster(self._settings, self._config.instance_name), self._config, self._filters
            )
            self._state = "running"

    def shutdown(self) -> None:
        """Leave the group; a `receive` in another thread returns. Calling it twice has no effect.

        Unacknowledged messages are redelivered when their invisible time has passed.
        """
        with self._lifecycle:
            running, self._running = self._running, None
            self._state = "shut down"
        if running is not None:
            running.leave()

    def _require_running(self) -> PopReceiver:
        running = self._running
        if running is None:
            raise IllegalState(str(self), self._state)
        running.cluster.check_process()
        return running

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def __repr__(self) -> str:
        return f"SimpleConsumer(group={self.group!r})"


def _by_broker(messages: Iterable[ReceivedMessage]) -> dict[str, list[str]]:
    """The receipt handles of messages, by broker. Raises ParameterInvalid for a message without a receipt handle."""
    handles: dict[str, list[str]] = {}
    for message in messages:
        handle = message.receipt_handle
        if handle is None:
            raise ParameterInvalid("message", message, "was not received from a SimpleConsumer")
        handles.setdefault(message.queue.broker_name, []).append(handle)
    return handles
