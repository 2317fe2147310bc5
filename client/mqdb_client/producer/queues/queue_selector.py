"""The rules that choose a queue for a message, as pure functions.

RocketMQ: MessageQueueSelector, SelectMessageQueueByHash, SelectMessageQueueByRandom, ThreadLocalIndex.
"""

import random
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any, Protocol

from mqdb.common.message import MAX_SHARDING_KEY_BYTES, Message, MessageQueue
from mqdb.errors import ParameterInvalid
from mqdb.selector.tags import java_string_hash


class MessageQueueSelector(Protocol):
    """Chooses the queue for a message; any callable with these three parameters is a selector.

    A selector is called in the sending thread, so it must be thread-safe if several threads send. An error raised by a
    selector ends the send and reaches the caller unchanged.
    """

    # Any, so that a function may declare which type of argument it expects.
    def __call__(self, queues: Sequence[MessageQueue], message: Message, argument: Any, /) -> MessageQueue:
        """Return one of `queues`, the write queues of the topic on all brokers; `argument` comes from the sender."""


def select_by_hash(queues: Sequence[MessageQueue], message: Message, argument: object) -> MessageQueue:
    """Choose the queue by the hash of `argument`: equal arguments get the same queue until the topic's queues change.

    Accepts strings and integers of up to 64 bits, hashed like Java's String, Integer and, beyond 32 bits, Long. Raises
    ParameterInvalid for other arguments. Source: SelectMessageQueueByHash.
    """
    return queues[_queue_of(_java_hash(argument), len(queues))]


def select_random(queues: Sequence[MessageQueue], message: Message, argument: object) -> MessageQueue:
    """Choose a random queue and ignore the argument. Source: SelectMessageQueueByRandom."""
    return random.choice(queues)


def selected(
    selector: MessageQueueSelector, queues: Sequence[MessageQueue], message: Message, argument: object
) -> MessageQueue:
    """The queue that the selector returns.

    Raises ParameterInvalid if this queue is not in `queues`, and the selector's errors.

    Source: DefaultMQProducerImpl.sendSelectImpl, "select message queue return null."
    """
    # A user-defined selector may return anything.
    chosen: object = selector(queues, message, argument)
    for queue in queues:
        if queue is chosen or queue == chosen:
            return queue
    reason = f"it returned this, and not one of the {len(queues)} queues that it was given"
    raise ParameterInvalid("selector", chosen, reason)


def check_sharding_key(sharding_key: object) -> None:
    """Raise ParameterInvalid unless a key is None or a string of at most MAX_SHARDING_KEY_BYTES in UTF-8.

    An empty string is a key like any other.
    """
    if not isinstance(sharding_key, str | None):
        raise ParameterInvalid("sharding_key", sharding_key, f"is {type(sharding_key).__name__}, not text; use str()")
    # A lone surrogate is allowed: it has a hash, as in Java.
    if sharding_key and (size := len(sharding_key.encode("utf-8", "surrogatepass"))) > MAX_SHARDING_KEY_BYTES:
        raise ParameterInvalid("sharding_key", sharding_key, f"has {size} bytes, the limit is {MAX_SHARDING_KEY_BYTES}")


def by_hash(sharding_key: str, queue_nums: int) -> int:
    """The queue of a sharding key. The queue stays the same until the number of queues changes.

    The queue is computed with Java's hash and remainder, so that a RocketMQ client would choose the same queue.
    """
    return _queue_of(java_string_hash(sharding_key), queue_nums)


def _queue_of(java_hash: int, queue_nums: int) -> int:
    # Java's remainder has the sign of the hash and is made positive afterwards.
    return abs(java_hash) % queue_nums


def _java_hash(argument: object) -> int:
    match argument:
        case str():
            return java_string_hash(argument)
        case bool():
            reason = "is bool"
        case int() if -(2**31) <= argument < 2**31:
            return argument
        case int() if -(2**63) <= argument < 2**63:
            folded = (argument ^ argument >> 32) & 0xFFFF_FFFF
            return folded - 0x1_0000_0000 if folded >= 0x8000_0000 else folded
        case int():
            reason = "has more than 64 bits"
        case _:
            reason = f"is {type(argument).__name__}"
    raise ParameterInvalid("selector_argument", argument, f"{reason}; give text or a whole number of 64 bits")


def turns() -> Iterator[int]:
    """Numbers whose remainders are the queues in turn, from a random start, so that not all producers begin at queue 0.

    Thread-safe. RocketMQ counts in each thread separately; here all threads of a producer share one turn, so the queues
    get equal numbers of messages, whichever threads send.
    """
    return count(random.randrange(1 << 16))
