"""Message listener: the function that a user writes to consume messages, and its answers.

A listener is called with messages of one queue, in ascending order. A listener that takes a second argument gets a
context, through which it can add details to its answer.

RocketMQ: MessageListenerConcurrently, MessageListenerOrderly, and their statuses and contexts.
"""

import inspect
import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final, TypeAlias, TypeGuard, TypeVar

from sqlalchemy import Connection

from mqdb.common.message import MessageQueue
from mqdb.common.received_message import ReceivedMessage
from mqdb.common.retry import Retry
from mqdb.errors import ParameterInvalid, shown
from mqdb_client.option_rules import Rule, or_none
from mqdb_client.process_hooks import topic_of

logger = logging.getLogger(__name__)

#: The log message for a listener that raised an error, with the fields of `where`.
LISTENER_FAILED: Final = (
    "listener of group %(group)s failed at message %(message_id)s of topic %(topic)s, delivery %(delivery)s, "
    "batch of %(count)s"
)

_T = TypeVar("_T")


class ConsumeConcurrentlyStatus(StrEnum):
    """The answer of a listener for all messages of its call."""

    CONSUME_SUCCESS = "CONSUME_SUCCESS"
    RECONSUME_LATER = "RECONSUME_LATER"


class ConsumeOrderlyStatus(StrEnum):
    """The answer of an orderly listener. COMMIT and ROLLBACK are for listeners without auto_commit."""

    SUCCESS = "SUCCESS"
    SUSPEND_CURRENT_QUEUE_A_MOMENT = "SUSPEND_CURRENT_QUEUE_A_MOMENT"
    COMMIT = "COMMIT"
    ROLLBACK = "ROLLBACK"


@dataclass(slots=True)
class ConsumeConcurrentlyContext:
    """The details that a listener may add to its answer. Source: ConsumeConcurrentlyContext."""

    queue: MessageQueue
    #: With CONSUME_SUCCESS: the index of the last consumed message; the messages after it have failed.
    ack_index: int = sys.maxsize
    #: For failed messages: -1 sends them directly to the DLQ, 0 uses the next delay level, a higher number is the
    #: level.
    delay_level_when_next_consume: int = 0
    #: For failed messages: they are redelivered after exactly this time, instead of by a delay level.
    delay_when_next_consume: timedelta | None = None
    #: For failed messages: the retries before they go to the DLQ; None uses the consumer's or the group's setting.
    max_reconsume_times: int | None = None


@dataclass(slots=True)
class ConsumeOrderlyContext:
    """The details that an orderly listener may add to its answer. Source: ConsumeOrderlyContext."""

    queue: MessageQueue
    #: If False, SUCCESS commits nothing: only COMMIT does, for all messages since the last COMMIT.
    auto_commit: bool = True
    #: The pause of the queue after SUSPEND_CURRENT_QUEUE_A_MOMENT, from 10 ms to 30 s; None: as configured.
    suspend_current_queue_time: timedelta | None = None
    #: For failed messages: the retries before they go to the DLQ; None uses the consumer's setting.
    max_reconsume_times: int | None = None


def status_of(answer: object) -> str | None:
    """The answer as a plain str, without methods of a user's subclass; None if the answer is not a string.

    A subclass may override hashes and comparisons, and any class may override `__class__`, which isinstance() reads.
    """
    if type(answer) is ConsumeConcurrentlyStatus or type(answer) is ConsumeOrderlyStatus:
        return answer
    return str.__str__(answer) if _is_a(answer, str) else None


def _is_a(value: object, kind: type[_T]) -> TypeGuard[_T]:
    return issubclass(type(value), kind)


def _plain(value: object) -> object:
    """A number or a time without the methods of a subclass, which may override comparisons; other values unchanged."""
    if _is_a(value, int) and type(value) is not bool:
        return int.__int__(value)
    return timedelta.__pos__(value) if _is_a(value, timedelta) else value


_DELAY: Final = or_none(Rule(lambda value: type(value) is timedelta, "must be a timedelta"))
_RETRIES: Final = or_none(Rule(lambda value: type(value) is int and value >= 0, "must be a whole number from 0"))
#: The rule for each option that a context may set for failed messages. The rules apply to the values of `_plain`.
_REQUESTS: Final = {
    "delay_level_when_next_consume": Rule(lambda value: type(value) is int, "must be a whole number"),
    "delay_when_next_consume": _DELAY,
    "max_reconsume_times": _RETRIES,
    "suspend_current_queue_time": _DELAY,
}


def asked(group: str, context: ConsumeConcurrentlyContext | ConsumeOrderlyContext, name: str) -> Any:
    """An option that a listener has set in its context.

    An invalid value is logged, and the default is returned.
    """
    value, rule = _plain(getattr(context, name)), _REQUESTS[name]
    if rule.allows(value):
        return value
    fields = {
        "group": group,
        "queue": str(context.queue),
        "option": name,
        "value": shown(value),
        "reason": rule.reason,
    }
    sentence = "ignored %(option)s = %(value)s of the listener of group %(group)s in queue %(queue)s: it %(reason)s"
    logger.error(sentence, fields, extra=fields)
    return 0 if name == "delay_level_when_next_consume" else None


def retry_of(group: str, context: ConsumeConcurrentlyContext) -> Retry:
    """The retry that a listener requests for its failed messages."""
    wishes = ("delay_level_when_next_consume", "delay_when_next_consume", "max_reconsume_times")
    return Retry(*(asked(group, context, wish) for wish in wishes))


def where(group: str, messages: Sequence[ReceivedMessage]) -> dict[str, object]:
    """The fields of a log record about the messages of one call: the fields of the first message, and the count."""
    first = messages[0]
    return {
        "group": group,
        "topic": topic_of([first]) or first.queue.topic,
        "message_id": first.message_id,
        "delivery": first.delivery_attempt,
        "count": len(messages),
        "queue": str(first.queue),
        "queue_offset": first.queue_offset,
    }


#: Called by several threads concurrently, with 1 to `consume_message_batch_max_size` messages of one queue, ascending.
MessageListener: TypeAlias = (
    Callable[[list[ReceivedMessage]], ConsumeConcurrentlyStatus | None]
    | Callable[[list[ReceivedMessage], ConsumeConcurrentlyContext], ConsumeConcurrentlyStatus | None]
)

#: Called by one thread per queue.
MessageListenerOrderly: TypeAlias = (
    Callable[[list[ReceivedMessage]], ConsumeOrderlyStatus | None]
    | Callable[[list[ReceivedMessage], ConsumeOrderlyContext], ConsumeOrderlyStatus | None]
)

#: Called in a transaction that commits its writes together with the offset; orderly listeners get the other context.
MessageListenerExactlyOnce: TypeAlias = (
    Callable[[list[ReceivedMessage], Connection], Any]
    | Callable[[list[ReceivedMessage], Connection, ConsumeConcurrentlyContext], Any]
    | Callable[[list[ReceivedMessage], Connection, ConsumeOrderlyContext], Any]
)

_KINDS: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def takes_context(listener: Callable[..., Any], plain: int = 1, *, is_asynchronous: bool = False) -> bool:
    """Whether a listener takes the context after its `plain` arguments.

    Raises ParameterInvalid if a listener can be called neither way, and if it is a coroutine function but must not be,
    or the reverse.
    """
    if any(map(inspect.iscoroutinefunction, (listener, type(listener).__call__))) is not is_asynchronous:
        reason = "is asynchronous; pass it to an AsyncPushConsumer, or write a function without async"
        if is_asynchronous:
            reason = "is not a coroutine function; write async def, or pass it to a PushConsumer"
        raise ParameterInvalid("listener", listener, reason)
    arguments = "messages, connection" if plain == 2 else "messages"
    reason = f"must take ({arguments}) or ({arguments}, context)"
    if not callable(listener):
        raise ParameterInvalid("listener", listener, f"is not callable; it {reason}")
    try:
        parameters = inspect.signature(listener).parameters.values()
    except (TypeError, ValueError):  # some callables written in C have no signature
        return False
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        return True
    positional = [parameter for parameter in parameters if parameter.kind in _KINDS]
    needed = sum(parameter.default is parameter.empty for parameter in positional)
    if needed > plain + 1 or len(positional) < plain:
        raise ParameterInvalid("listener", listener, reason)
    return needed > plain


def with_context(listener: Callable[..., Any], plain: int = 1, *, is_asynchronous: bool = False) -> Callable[..., Any]:
    """The listener as a function that always takes a context. Raises ParameterInvalid."""
    if takes_context(listener, plain, is_asynchronous=is_asynchronous):
        return listener
    return lambda *arguments: listener(*arguments[:plain])
