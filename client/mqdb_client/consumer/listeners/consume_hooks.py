"""Hooks of a consumer: user code that is called before and after each call of the listener.

Errors of a hook are logged and have no other effect. RocketMQ: ConsumeMessageHook, ConsumeMessageContext,
ConsumeReturnType.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final, Protocol, runtime_checkable

from mqdb.common.message import MessageQueue
from mqdb.common.received_message import ReceivedMessage
from mqdb.errors import ParameterInvalid
from mqdb_client.process_hooks import OperationHook, call_each, enroll, topic_of

#: Also sys.exit(), which would end the thread of the listener.
_CAUGHT: Final = BaseException


class ConsumeReturnType(StrEnum):
    """The outcome of a call of the listener."""

    SUCCESS = "SUCCESS"
    #: The listener returned, but took longer than `consume_timeout`.
    TIME_OUT = "TIME_OUT"
    EXCEPTION = "EXCEPTION"
    RETURNNULL = "RETURNNULL"
    #: The listener asked for redelivery.
    FAILED = "FAILED"


@dataclass(slots=True, eq=False)
class ConsumeMessageContext:
    """One call of the listener, as hooks see it.

    `status`, `return_type`, `is_success` and `error` are set after the call. A hook can keep data in `attributes`,
    under its own names.
    """

    group: str
    queue: MessageQueue
    messages: Sequence[ReceivedMessage]
    is_success: bool = False
    status: object = None
    return_type: ConsumeReturnType | None = None
    attributes: dict[str, Any] = field(default_factory=dict)
    client_id: str = ""
    #: The error that the listener raised. The MQDB_FAILURE_* properties of the redelivered copy describe it.
    error: BaseException | None = None
    #: The hooks that saw the beginning: the same hooks see the end.
    _hooks: "tuple[ConsumeMessageHook, ...]" = field(default=(), init=False, repr=False)

    @property
    def topic(self) -> str:
        """The topic of messages and their retries; the queue's topic if the retries come from several topics."""
        return topic_of(self.messages) or self.queue.topic


@runtime_checkable
class ConsumeMessageHook(Protocol):
    """A hook, called before and after each call of the listener.

    The hook runs in the calling thread, so it must return quickly.
    """

    #: Its name in the log.
    hook_name: str

    def consume_message_before(self, context: ConsumeMessageContext) -> None:
        """Called before the listener."""

    def consume_message_after(self, context: ConsumeMessageContext) -> None:
        """Called after the listener has returned or raised."""


class ConsumeHooks:
    """The hooks of a consumer, in the order of registration. Thread-safe.

    A consumer without hooks makes no context:

        context = hooks.begin(queue, messages)
        ...
        if context is not None:
            hooks.end(context, status, return_type, error)
    """

    def __init__(self, group: str) -> None:
        self._group = group
        self._guard = threading.Lock()
        self._hooks: tuple[ConsumeMessageHook, ...] = ()
        #: Set when the consumer starts.
        self.client_id = ""
        enroll(self)

    def adopt(self, hook: OperationHook) -> None:
        """Add a process-wide hook, from the next call of the listener on."""
        self.register(hook)

    def dismiss(self, hook: object) -> None:
        """Stop calling a hook for calls of the listener that begin from now on."""
        with self._guard:
            self._hooks = tuple(each for each in self._hooks if each is not hook)

    def register(self, hook: object) -> None:
        """Call a hook from the next call of the listener on. Raises ParameterInvalid if `hook` is not a hook."""
        if not isinstance(hook, ConsumeMessageHook):
            fault = "is not a ConsumeMessageHook, which has consume_message_after, consume_message_before, hook_name"
            raise ParameterInvalid("hook", hook, fault)
        with self._guard:
            self._hooks += (hook,)

    def begin(self, queue: MessageQueue, messages: Sequence[ReceivedMessage]) -> ConsumeMessageContext | None:
        """Call the hooks before a call of the listener; None if there are no hooks."""
        if not self._hooks:
            return None
        context = ConsumeMessageContext(self._group, queue, messages, client_id=self.client_id)
        context._hooks = self._hooks
        call_each(context._hooks, lambda hook: hook.consume_message_before, context, context.group, _CAUGHT)
        return context

    def end(
        self,
        context: ConsumeMessageContext,
        status: object,
        return_type: ConsumeReturnType,
        error: BaseException | None = None,
    ) -> None:
        """Call the hooks after a call of the listener. Raises nothing."""
        context.status, context.return_type, context.error = status, return_type, error
        context.is_success = return_type is ConsumeReturnType.SUCCESS
        call_each(context._hooks, lambda hook: hook.consume_message_after, context, context.group, _CAUGHT)


def return_type_of(
    answer: object, is_success: bool, error: BaseException | None, seconds: float, consume_timeout: timedelta
) -> ConsumeReturnType:
    """The outcome of a call that took `seconds`. Source: ConsumeMessageConcurrentlyService.ConsumeRequest."""
    if error is not None:
        return ConsumeReturnType.EXCEPTION
    if answer is None:
        return ConsumeReturnType.RETURNNULL
    if seconds >= consume_timeout.total_seconds():
        return ConsumeReturnType.TIME_OUT
    return ConsumeReturnType.SUCCESS if is_success else ConsumeReturnType.FAILED
