"""The listener of a transaction producer: it runs local transactions, and reports their states later."""

import inspect
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from mqdb.common.message import Message
from mqdb.common.received_message import ReceivedMessage
from mqdb.common.transaction import LocalTransactionState
from mqdb.common.user_error import log_error
from mqdb.errors import ParameterInvalid, shown
from mqdb_client.option_rules import takes

logger = logging.getLogger(__name__)

_NONE: Final[Mapping[str, str]] = {}


@dataclass(frozen=True, slots=True, init=False, repr=False)
class PreparedMessage(Message):
    """A stored message that is delivered when its transaction commits.

    Consumers of the message see the same `message_id`.
    """

    message_id: str

    def __init__(
        self,
        topic: str,
        body: bytes | str,
        tag: str | None = None,
        keys: Iterable[str] | str = (),
        properties: Mapping[str, str] = _NONE,
        flag: int = 0,
        system_properties: Mapping[str, str] = _NONE,
        message_id: str = "",
    ) -> None:
        Message.__init__(self, topic, body, tag, keys, properties, flag, system_properties)
        object.__setattr__(self, "message_id", message_id)


class TransactionListener(Protocol):
    """The callbacks of a transaction producer. An exception and None count as UNKNOWN: the broker checks again."""

    def execute_local_transaction(self, message: PreparedMessage, argument: Any) -> LocalTransactionState | None:
        """Run the local transaction, in the thread that sends, and return its state.

        Store `message.message_id` in the transaction, so that `check_local_transaction` can look it up.
        """

    def check_local_transaction(self, message: ReceivedMessage) -> LocalTransactionState | None:
        """Return the state of a local transaction, which may have run in another process of the group.

        This is called in a thread of the producer; each broker has one such thread. Return UNKNOWN while the
        transaction is still running.
        """


Execute: TypeAlias = Callable[[PreparedMessage, Any], LocalTransactionState | None]
Check: TypeAlias = Callable[[ReceivedMessage], LocalTransactionState | None]


class TwoCallables:
    """Wraps two functions as a listener, or two coroutine functions as an asynchronous listener."""

    def __init__(self, execute: Callable[..., Any], check: Callable[..., Any]) -> None:
        self.execute_local_transaction = execute
        self.check_local_transaction = check


_Listener = TypeVar("_Listener")

_CALLED_WITH: Final = {"execute_local_transaction": ("message", "argument"), "check_local_transaction": ("message",)}


def listener_of(
    listener: _Listener | None,
    execute: Callable[..., Any] | None,
    check: Callable[..., Any] | None,
    *,
    is_asynchronous: bool = False,
) -> _Listener | TwoCallables:
    """The given listener, or a listener made of two callables.

    Raises ParameterInvalid if neither or both are given, if a callable is a coroutine function but must not be, or the
    reverse, and if a callable does not take the arguments of its call.
    """
    given: _Listener | TwoCallables
    if listener is not None and execute is None and check is None:
        given = listener
    elif listener is None and callable(execute) and callable(check):
        given = TwoCallables(execute, check)
    else:
        reason = "give a TransactionListener, or execute_local_transaction and check_local_transaction, as functions"
        raise ParameterInvalid("listener", listener, reason)
    for name, arguments in _CALLED_WITH.items():
        method = getattr(given, name, None)
        if not callable(method):
            raise ParameterInvalid("listener", listener, f"has no method {name}")
        if any(map(inspect.iscoroutinefunction, (method, type(method).__call__))) is not is_asynchronous:
            reason = "is a coroutine function, which only an AsyncTransactionProducer can call"
            if is_asynchronous:
                reason = "is not a coroutine function; write async def, or pass it to a TransactionProducer"
            raise ParameterInvalid(name, method, reason)
        takes(*arguments).check(name, method)
    return given


class TransactionAnswer:
    """The answer of a listener; None before the answer."""

    given: object = None

    def __init__(
        self, call: str, group: str, topic: str, message_id: str, failures: type[BaseException] = Exception
    ) -> None:
        """Exceptions of the types in `failures` are logged and count as a missing answer."""
        self._failures = failures
        self._fields: dict[str, object] = {"call": call, "group": group, "topic": topic, "transaction_id": message_id}

    def __enter__(self) -> "TransactionAnswer":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> bool:
        if error is None or kind is None or not issubclass(kind, self._failures):
            return False
        sentence = (
            "transaction listener of group %(group)s failed in %(call)s for message %(transaction_id)s of topic "
            "%(topic)s; the broker will ask again"
        )
        log_error(logger, sentence, error, self._fields)
        return True

    @property
    def state(self) -> LocalTransactionState:
        """The answer; UNKNOWN after an exception, and if the answer is not a LocalTransactionState.

        Source: DefaultMQProducerImpl.sendMessageInTransaction, checkTransactionState.
        """
        if type(self.given) is LocalTransactionState:  # isinstance() would read its `__class__`
            return self.given
        if self.given is not None:
            fields = self._fields | {"answer": shown(self.given)}
            logger.error(
                "transaction listener of group %(group)s returned %(answer)s instead of a LocalTransactionState in "
                "%(call)s for message %(transaction_id)s of topic %(topic)s",
                fields,
                extra=fields,
            )
        return LocalTransactionState.UNKNOWN
