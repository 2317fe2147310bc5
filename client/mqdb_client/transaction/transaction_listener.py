"""The listener of a transaction producer: runs local transactions, and says later what has become of them."""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

from mqdb.common.message import Message, ReceivedMessage
from mqdb.common.transaction import LocalTransactionState
from mqdb.errors import ParameterInvalid

logger = logging.getLogger(__name__)

_NONE: Final[Mapping[str, str]] = {}


@dataclass(frozen=True, slots=True, init=False, repr=False)
class PreparedMessage(Message):
    """A message that is stored, and delivered when its transaction commits. Its consumers see the same `message_id`."""

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
    """What a transaction producer calls. An exception, and None, count as UNKNOWN: the broker asks again."""

    def execute_local_transaction(self, message: PreparedMessage, argument: Any) -> LocalTransactionState | None:
        """Run the local transaction, in the thread that sends, and say what has become of it.

        Write `message.message_id` down in it, so that `check_local_transaction` can tell.
        """

    def check_local_transaction(self, message: ReceivedMessage) -> LocalTransactionState | None:
        """Say what has become of a local transaction, perhaps one of another process of the group.

        Called in a thread of the producer, one for each broker. UNKNOWN while it goes on.
        """


Execute: TypeAlias = Callable[[PreparedMessage, Any], LocalTransactionState | None]
Check: TypeAlias = Callable[[ReceivedMessage], LocalTransactionState | None]


class _TwoCallables:
    def __init__(self, execute: Execute, check: Check) -> None:
        self._execute = execute
        self._check = check

    def execute_local_transaction(self, message: PreparedMessage, argument: Any) -> LocalTransactionState | None:
        return self._execute(message, argument)

    def check_local_transaction(self, message: ReceivedMessage) -> LocalTransactionState | None:
        return self._check(message)


def listener_of(
    listener: TransactionListener | None, execute: Execute | None, check: Check | None
) -> TransactionListener:
    """The listener that was given, or one of two callables. Raises ParameterInvalid for neither and for both."""
    if listener is not None and execute is None and check is None:
        for name in ("execute_local_transaction", "check_local_transaction"):
            if not callable(getattr(listener, name, None)):
                raise ParameterInvalid("listener", listener, f"has no method {name}")
        return listener
    if listener is None and callable(execute) and callable(check):
        return _TwoCallables(execute, check)
    reason = "give a TransactionListener, or execute_local_transaction and check_local_transaction, which are functions"
    raise ParameterInvalid("listener", listener, reason)


def answer_of(what: str, message_id: str, ask: Callable[[], object]) -> LocalTransactionState:
    """What a listener answers; UNKNOWN for an exception, None, and what is no LocalTransactionState.

    Source: DefaultMQProducerImpl.sendMessageInTransaction, checkTransactionState.
    """
    fields = {"call": what, "transaction_id": message_id}
    try:
        answer = ask()
    except Exception:
        logger.exception("a transaction listener failed; the broker will ask again", extra=fields)
        return LocalTransactionState.UNKNOWN
    if isinstance(answer, LocalTransactionState):
        return answer
    if answer is not None:
        logger.error("a transaction listener gave no LocalTransactionState", extra=fields | {"answer": repr(answer)})
    return LocalTransactionState.UNKNOWN
