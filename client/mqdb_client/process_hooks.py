"""Hooks of all clients of the process, and the operations that hooks see besides sends and calls of a listener.

`register` covers existing and future producers and consumers. Without hooks a client has no overhead: its hook
containers are empty, as if the user had registered no hooks.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Protocol, TypeVar
from weakref import WeakSet

from mqdb.common.received_message import ReceivedMessage
from mqdb.common.user_error import attribute_of, log_error
from mqdb.errors import PropertiesBroken, shown

logger = logging.getLogger(__name__)


class ClientOperation(StrEnum):
    """The operations of a client besides sends and calls of a listener, with the type of their outcome."""

    #: A poll of a lite pull consumer, until it returns; `messages` are set at the end.
    RECEIVE = "receive"
    #: Messages that were not consumed are redelivered or go to the dead letter queue: a SentBack for each.
    SEND_BACK = "send_back"
    #: A call of `check_local_transaction`; the outcome is its LocalTransactionState.
    CHECK_TRANSACTION = "check_transaction"
    #: The end of a half message, sent to its broker; the outcome is the LocalTransactionState.
    END_TRANSACTION = "end_transaction"
    #: A recall; the outcome is the RecallStatus.
    RECALL = "recall"


@dataclass(slots=True, eq=False)
class OperationContext:
    """One operation, as hooks see it. `outcome` and `error` are set at the end; `attributes` are for use by hooks."""

    operation: ClientOperation
    group: str
    client_id: str
    #: "" if the messages have several topics, or there are no messages yet.
    topic: str
    #: "" if the messages may be on several brokers.
    broker_name: str
    message_ids: Sequence[str] = ()
    messages: Sequence[ReceivedMessage] = ()
    outcome: object = None
    error: BaseException | None = None
    attributes: dict[str, Any] = field(default_factory=dict)


class OperationHook(Protocol):
    """A hook for the operations of all clients of the process.

    The hook runs in the thread of the operation, so it must be quick.
    """

    #: Its name in the log.
    hook_name: str

    def operation_before(self, context: OperationContext) -> None:
        """Called before an operation."""

    def operation_after(self, context: OperationContext) -> None:
        """Called after an operation, in the same thread as `operation_before`."""


class _Named(Protocol):
    hook_name: str


_Hook = TypeVar("_Hook", bound=_Named)
_Context = TypeVar("_Context")


class HookContainer(Protocol):
    """The hooks of one client."""

    def adopt(self, hook: OperationHook) -> None:
        """Add a hook. Raises ParameterInvalid if the hook lacks a method that this client calls."""

    def dismiss(self, hook: object) -> None:
        """Stop calling a hook, except for the end of operations that have begun."""


class OperationHooks:
    """The hooks around operations; one object for the process. Errors of a hook are logged and have no other effect."""

    def __init__(self) -> None:
        self.is_empty = True
        self._hooks: tuple[OperationHook, ...] = ()

    def adopt(self, hook: OperationHook) -> None:
        """Add a hook, which is called from the next operation on."""
        self._hooks += (hook,)
        self.is_empty = False

    def dismiss(self, hook: object) -> None:
        """Stop calling a hook, except for the end of operations that have begun."""
        self._hooks = tuple(each for each in self._hooks if each is not hook)
        self.is_empty = not self._hooks

    def around(
        self,
        operation: ClientOperation,
        group: str,
        client_id: str,
        topic: str = "",
        broker_name: str = "",
        message_ids: Sequence[str] = (),
        messages: Sequence[ReceivedMessage] = (),
    ) -> AbstractContextManager[OperationContext | None]:
        """A context manager around an operation.

        The manager yields the OperationContext, or None (from a shared object) if there is no hook.
        """
        if self.is_empty:
            return _UNSEEN
        return self._around(
            OperationContext(operation, group, client_id, topic, broker_name, message_ids, messages), self._hooks
        )

    @contextmanager
    def _around(self, context: OperationContext, hooks: tuple[OperationHook, ...]) -> Iterator[OperationContext]:
        # In the main thread Ctrl-C may come while a hook runs. In other threads sys.exit() would end a client's thread.
        caught = Exception if threading.current_thread() is threading.main_thread() else BaseException
        call_each(hooks, lambda hook: hook.operation_before, context, context.group, caught)
        try:
            yield context
        except BaseException as error:
            context.error = error
            raise
        finally:
            call_each(hooks, lambda hook: hook.operation_after, context, context.group, caught)


def call_each(
    hooks: Sequence[_Hook],
    method_of: Callable[[_Hook], Callable[[_Context], None]],
    context: _Context,
    group: str,
    caught: type[BaseException] = Exception,
) -> None:
    """Call a method of each hook of a client in `group`. Errors in `caught` are logged, and the next hook is called."""
    for hook in hooks:
        try:
            method_of(hook)(context)
        except caught as error:
            name = attribute_of(hook, "hook_name")
            fields = {"group": group, "hook": name if type(name) is str else shown(name)}
            log_error(logger, "hook %(hook)s of group %(group)s failed", error, fields)


_UNSEEN: Final[AbstractContextManager[None]] = nullcontext()

#: The hook containers of all clients of the process.
operations: Final = OperationHooks()

_guard = threading.Lock()
_hooks: list[OperationHook] = []
_containers: "WeakSet[HookContainer]" = WeakSet()


def enroll(container: HookContainer) -> None:
    """Enroll the hook container of a new client, which gets all current and later hooks of the process."""
    with _guard:
        _containers.add(container)
        for hook in _hooks:
            container.adopt(hook)


def register(hook: OperationHook) -> None:
    """Let all clients of the process call a hook, which is also a SendMessageHook and a ConsumeMessageHook."""
    with _guard:
        _hooks.append(hook)
        for container in (operations, *_containers):
            container.adopt(hook)


def unregister(hook: OperationHook) -> None:
    """Stop calling a hook, except for the end of operations that have begun."""
    with _guard:
        _hooks.remove(hook)
        for container in (operations, *_containers):
            container.dismiss(hook)


def topic_of(messages: Sequence[ReceivedMessage]) -> str:
    """The topic to which messages were sent, not a retry topic; "" if there is not exactly one known topic."""
    try:
        topics = {message.topic for message in messages}
    except PropertiesBroken:
        return ""
    return topics.pop() if len(topics) == 1 else ""
