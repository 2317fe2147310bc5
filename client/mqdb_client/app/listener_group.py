"""The listeners of one group of an application: together they are the listener of its consumer.

A message goes to the listener of the topic to which it was sent, also when it is redelivered. This listener's policy
determines how often and when the message is retried, and which errors make it a dead letter immediately.
"""

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from contextvars import copy_context
from typing import Any, Final, TypeAlias

from mqdb.common.received_message import ReceivedMessage
from mqdb.common.user_error import for_future
from mqdb.errors import BodyUnreadable, ListenerMissing, ParameterInvalid
from mqdb.selector.tags import SEPARATOR, TagExpression
from mqdb_client.app.listener import Listener
from mqdb_client.consumer.listeners.message_listener import (
    ConsumeConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyContext,
    ConsumeOrderlyStatus,
)
from mqdb_client.consumer.message_selector import MessageSelector

_Context: TypeAlias = ConsumeConcurrentlyContext | ConsumeOrderlyContext


class ListenerGroup:
    """Listeners of one group."""

    def __init__(self, name: str, listeners: Sequence[Listener]) -> None:
        """Raises ParameterInvalid for listeners that cannot form one consumer."""
        self.name = name
        self.listeners = listeners
        self._by_topic: dict[str, list[Listener]] = {}
        for listener in listeners:
            self._by_topic.setdefault(listener.topic, []).append(listener)
        first = listeners[0]
        self.orderly: Final = first.orderly
        self.exactly_once: Final = first.exactly_once
        for other in listeners[1:]:
            for what in ("orderly", "exactly_once"):
                if getattr(other, what) is not getattr(first, what):
                    reason = f"differs between {first.name} and {other.name}, which are one consumer of group {name!r}"
                    raise ParameterInvalid(what, getattr(other, what), reason)
        for topic, ones in self._by_topic.items():
            _check_disjoint(name, topic, ones)
        #: Whether it runs in an event loop, which is the case if at least one listener does.
        self.is_asynchronous: Final = any(each.is_asynchronous for each in listeners)
        if self.exactly_once and self.is_asynchronous and not all(each.is_asynchronous for each in listeners):
            reason = f"some are coroutine functions; make all exactly-once listeners of group {name!r} such, or none"
            raise ParameterInvalid("listeners", [each.name for each in listeners], reason)
        self._success = ConsumeOrderlyStatus.SUCCESS if self.orderly else ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    @property
    def subscriptions(self) -> dict[str, str | MessageSelector]:
        """The subscription of the consumer for each topic."""
        return {topic: _together(listeners) for topic, listeners in self._by_topic.items()}

    @property
    def callback(self) -> Any:
        """The listener to register with the consumer, a PushConsumer or an AsyncPushConsumer."""
        if self.is_asynchronous:
            return self.call_in_loop_in_transaction if self.exactly_once else self.call_in_loop
        return self.call_in_transaction if self.exactly_once else self.call

    def call(self, messages: list[ReceivedMessage], context: _Context) -> object:
        """The listener of a PushConsumer, which gets one message at a time."""
        return self.call_in_transaction(messages, None, context)

    def call_in_transaction(self, messages: list[ReceivedMessage], transaction: Any, context: _Context) -> object:
        """The listener of a PushConsumer that consumes exactly once."""
        message = messages[0]
        listener = self._listener_of(message)
        try:
            listener.arguments.call(message, transaction)
        except BaseException as error:  # also sys.exit(), after which the message is redelivered
            _judge(listener, message, context, error)
            raise
        return self._success

    async def call_in_loop(self, messages: list[ReceivedMessage], context: _Context) -> object:
        """The listener of an AsyncPushConsumer. Plain functions run in threads."""
        return await self.call_in_loop_in_transaction(messages, None, context)

    async def call_in_loop_in_transaction(
        self, messages: list[ReceivedMessage], transaction: Any, context: _Context
    ) -> object:
        """The listener of an AsyncPushConsumer that consumes exactly once."""
        message = messages[0]
        listener = self._listener_of(message)
        try:
            if listener.is_asynchronous:
                await listener.arguments.call_in_loop(message, transaction)
            else:
                await _call_in_thread(listener, message)
        except BaseException as error:
            _judge(listener, message, context, error)
            raise
        return self._success

    def _listener_of(self, message: ReceivedMessage) -> Listener:
        """The listener that takes a message. Raises ListenerMissing."""
        listener = next((each for each in self.listeners if each.takes(message)), None)
        if listener is None:
            raise ListenerMissing(self.name, message.topic, message.tag)
        return listener


def _judge(listener: Listener, message: ReceivedMessage, context: _Context, error: BaseException) -> None:
    """Set the retry of the message in the context of a failed call. Raises the errors of a backoff function.

    This is not a context manager: contextlib writes to the error, which fails for a frozen dataclass.
    """
    if issubclass(type(error), (BodyUnreadable, *listener.dead_letter_on)):
        context.max_reconsume_times = 0
        return
    context.max_reconsume_times = listener.retries
    wait = listener.wait_before(message.reconsume_times + 1)
    if isinstance(context, ConsumeOrderlyContext):
        context.suspend_current_queue_time = wait
    else:
        context.delay_when_next_consume = wait


async def _call_in_thread(listener: Listener, message: ReceivedMessage) -> None:
    """Call a plain function in a daemon thread, because a closing loop waits for the threads of its executor."""
    called: Future[None] = Future()
    context = copy_context()

    def call() -> None:
        try:
            context.run(listener.arguments.call, message)
        except BaseException as error:  # noqa: BLE001 - raised in the task, which waits for it
            called.set_exception(for_future(error))
        else:
            called.set_result(None)

    called.set_running_or_notify_cancel()  # a cancelled task no longer waits
    threading.Thread(target=call, name=f"{listener.group}-listener", daemon=True).start()
    await asyncio.wrap_future(called)


def _check_disjoint(group: str, topic: str, listeners: Sequence[Listener]) -> None:
    """Raise ParameterInvalid unless each message has only one listener."""
    if len(listeners) == 1:
        return
    taken: dict[str, Listener] = {}
    for listener in listeners:
        if not isinstance(listener.filter, TagExpression) or listener.filter.matches_all:
            reason = f"group {group!r} has several listeners for topic {topic!r}, so each needs tags of its own"
            raise ParameterInvalid("tag", listener.expression, f"{reason}; see {listener.name}")
        for tag in listener.filter.tags:
            if (other := taken.setdefault(tag, listener)) is not listener:
                reason = f"{other.name} and {listener.name} take it both, of topic {topic!r} and group {group!r}"
                raise ParameterInvalid("tag", tag, reason)


def _together(listeners: Sequence[Listener]) -> str | MessageSelector:
    """The joint subscription of the listeners of one topic."""
    if len(listeners) == 1:
        return listeners[0].expression
    return f" {SEPARATOR} ".join(listener.filter.canonical_text for listener in listeners)
