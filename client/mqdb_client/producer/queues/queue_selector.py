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
    """Chooses the queue of a message; any callable with these three parameters is one.

    It is called in the thread that sends, and from several threads at once if several send. An error that it raises
    ends the send, and reaches the caller unchanged.
    """

    # Any, so that a function may say which type of argument it expects.
    def __call__(self, queues: Sequence[MessageQueue], message: Message, argument: Any, /) -> MessageQueue:
        """One of `queues`, which are the write queues of the topic on all brokers; `argument` is the sender's."""


def select_by_hash(queues: Sequence[MessageQueue], message: Message, argument: object) -> MessageQueue:
    """The queue by the hash of `argument`. Equal arguments give the same queue as long as the queues of the topic stay.

    Takes text and whole numbers of up to 64 bits, with the hash that Java's String, Integer and, beyond 32 bits, Long
    have. Raises ParameterInvalid for other arguments.
    Source: SelectMessageQueueByHash.
    """
    return queues[_queue_of(_java_hash(argument), len(queues))]


def select_random(queues: Sequence[MessageQueue], message: Message, argument: object) -> MessageQueue:
    """Any queue, whatever the argument. Source: SelectMessageQueueByRandom."""
    return random.choice(queues)


def selected(
    selector: MessageQueueSelector, queues: Sequence[MessageQueue], message: Message, argument: object
) -> MessageQueue:
    """The queue that the selector returns. Raises ParameterInvalid if it is not in `queues`, and the selector's errors.

    Source: DefaultMQProducerImpl.sendSelectImpl, "select message queue return null."
    """
    # A selector of the user's own returns what it likes.
    chosen: object = selector(queues, message, argument)
    for queue in queues:
        if queue is chosen or queue == chosen:
            return queue
    reason = f"it returned this, and not one of the {len(queues)} queues that it was given"
    raise ParameterInvalid("selector", chosen, reason)


def check_sharding_key(sharding_key: object) -> None:
    """Raise ParameterInvalid unless a key is None, or text of at most MAX_SHARDING_KEY_BYTES in UTF-8.

    An empty text is a key like any other.
    """
    if not isinstance(sharding_key, str | None):
        raise ParameterInvalid("sharding_key", sharding_key, f"is {type(sharding_key).__name__}, not text; use str()")
    # A lone surrogate counts as well: it has a hash, as in Java.
    if sharding_key and (size := len(sharding_key.encode("utf-8", "surrogatepass"))) > MAX_SHARDING_KEY_BYTES:
        raise ParameterInvalid("sharding_key", sharding_key, f"has {size} bytes, the limit is {MAX_SHARDING_KEY_BYTES}")


def by_hash(sharding_key: str, queue_nums: int) -> int:
    """The queue of a sharding key. It stays the same queue as long as the number of queues does not change.

    It uses Java's hash and remainder, so that a RocketMQ client would choose the same queue.
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
    """Numbers whose remainders are queues in turn, from a random one on, so that not all producers begin at queue 0.

    Any thread may take the next. RocketMQ counts in each thread for itself; here all threads of a producer share one
    turn, and so the queues get equal numbers whatever threads do.
    """
    return count(random.randrange(1 << 16))
