"""Hooks of a producer: user code that sees each send and may forbid it.

Hooks are called for each attempt, so several times for a send that is retried:

    check_forbidden        an error ends the send and reaches the caller; the other hooks are not called
    send_message_before    an error is logged
    send_message_after     an error is logged; called whether the attempt failed or not

To add properties, a hook does not change the message: it puts the properties into `extra_properties`.

RocketMQ: CheckForbiddenHook, SendMessageHook, DefaultMQProducerImpl.sendKernelImpl.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

from mqdb.common.message import Message, MessageQueue
from mqdb.errors import ParameterInvalid
from mqdb_client.process_hooks import OperationHook, call_each, enroll
from mqdb_client.producer.sends.send_result import SendResult


class SendMode(StrEnum):
    """The way in which the caller waits for the result. RocketMQ: CommunicationMode."""

    SYNC = "SYNC"
    ASYNC = "ASYNC"
    ONEWAY = "ONEWAY"


@dataclass(slots=True, eq=False)
class SendMessageContext:
    """One attempt to send, as hooks see it: one message or the messages of a batch, with their ids in the same order.

    `results` and `error` are set after the attempt. There are as many results as messages, or no results after an error
    and for ONEWAY. A hook can keep data in `attributes`, under its own names; all attempts of a send share these
    attributes. `extra_properties` has a dict for each message. Properties that a hook puts there before the attempt are
    stored with the message, within the limits for a sender's properties. Existing properties of the message are not
    changed.
    """

    producer_group: str
    messages: Sequence[Message]
    message_ids: Sequence[str]
    queue: MessageQueue
    mode: SendMode
    born_host: str
    results: Sequence[SendResult] = ()
    error: BaseException | None = None
    attributes: dict[str, Any] = field(default_factory=dict)
    client_id: str = ""
    extra_properties: Sequence[dict[str, str]] = field(init=False)
    #: The hooks that saw the beginning: the same hooks see the end.
    _hooks: "tuple[SendMessageHook, ...]" = field(default=(), init=False, repr=False)

    def __post_init__(self) -> None:
        self.extra_properties = [{} for _ in self.messages]

    def messages_to_store(self) -> list[Message]:
        """The messages, with the properties that hooks have added."""
        return [
            message.with_properties(extra) if extra else message
            for message, extra in zip(self.messages, self.extra_properties, strict=True)
        ]

    @property
    def message(self) -> Message:
        """The message, or the first message of a batch."""
        return self.messages[0]

    @property
    def result(self) -> SendResult | None:
        """The result, or the result of the first message of a batch."""
        return self.results[0] if self.results else None

    @property
    def broker_name(self) -> str:
        """The broker of the queue."""
        return self.queue.broker_name


@runtime_checkable
class SendMessageHook(Protocol):
    """A hook, called before and after each attempt.

    The hook runs in the thread that sends or receives the answer, so it must be quick.
    """

    #: Its name in the log.
    hook_name: str

    def send_message_before(self, context: SendMessageContext) -> None:
        """Called before the attempt."""

    def send_message_after(self, context: SendMessageContext) -> None:
        """Called after the attempt; for ONEWAY, once the attempt was handed over."""


@runtime_checkable
class CheckForbiddenHook(Protocol):
    """Decides whether an attempt may be made."""

    #: Its name in the log.
    hook_name: str

    def check_forbidden(self, context: SendMessageContext) -> None:
        """Raise an error, which reaches the caller of the send, if the message must not be sent."""


class Hooks:
    """The hooks of a producer, in the order of registration. Thread-safe.

    The hooks are used around each attempt in this way, so that a producer without hooks makes no context:

        context = None
        if not hooks.is_empty:
            hooks.begin(context := SendMessageContext(...))
        ...
        if context is not None:
            hooks.end(context, results, error)
    """

    def __init__(self) -> None:
        self.is_empty = True
        self._guard = threading.Lock()
        self._check_forbidden: tuple[CheckForbiddenHook, ...] = ()
        self._send_message: tuple[SendMessageHook, ...] = ()
        enroll(self)

    def adopt(self, hook: OperationHook) -> None:
        """Add a process-wide hook, from the next attempt on."""
        self.register_send_message_hook(hook)

    def dismiss(self, hook: object) -> None:
        """Stop calling a hook for attempts that begin from now on."""
        with self._guard:
            self._send_message = tuple(each for each in self._send_message if each is not hook)
            self.is_empty = not (self._send_message or self._check_forbidden)

    def register_send_message_hook(self, hook: object) -> None:
        """Call a hook from the next attempt on, once for each registration.

        Raises ParameterInvalid if `hook` is not a hook.
        """
        if not isinstance(hook, SendMessageHook):
            raise _no_hook(hook, SendMessageHook)
        with self._guard:
            self._send_message += (hook,)
            self.is_empty = False

    def register_check_forbidden_hook(self, hook: object) -> None:
        """Call a hook from the next attempt on. Raises ParameterInvalid if `hook` is not a hook."""
        if not isinstance(hook, CheckForbiddenHook):
            raise _no_hook(hook, CheckForbiddenHook)
        with self._guard:
            self._check_forbidden += (hook,)
            self.is_empty = False

    def begin(self, context: SendMessageContext) -> None:
        """Call the hooks before an attempt.

        Raises the errors of a CheckForbiddenHook. In that case the attempt is not made, and `end` must not be called.
        """
        for hook in self._check_forbidden:
            hook.check_forbidden(context)
        context._hooks = self._send_message
        call_each(context._hooks, lambda hook: hook.send_message_before, context, context.producer_group)

    def end(
        self, context: SendMessageContext, results: Sequence[SendResult] = (), error: BaseException | None = None
    ) -> None:
        """Call the hooks after an attempt. Raises nothing."""
        context.results, context.error = results, error
        call_each(context._hooks, lambda hook: hook.send_message_after, context, context.producer_group)


def _no_hook(hook: object, kind: type) -> ParameterInvalid:
    names = sorted(name for name in {*vars(kind), *kind.__annotations__} if not name.startswith("_"))
    return ParameterInvalid("hook", hook, f"is not a {kind.__name__}, which has {', '.join(names)}")
