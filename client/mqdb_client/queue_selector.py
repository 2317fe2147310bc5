"""Which queue a message goes to: pure rules.

RocketMQ: MessageQueueSelector, SelectMessageQueueByHash, ThreadLocalIndex.
"""

import random
from itertools import count

from mqdb.errors import ParameterInvalid
from mqdb.selector.tags import java_string_hash


def check_sharding_key(sharding_key: object) -> None:
    """Raises ParameterInvalid unless it is text or None. An empty text is a key like any other."""
    if not isinstance(sharding_key, str | None):
        raise ParameterInvalid("sharding_key", sharding_key, f"is {type(sharding_key).__name__}, not text; use str()")


def by_hash(sharding_key: str, queue_nums: int) -> int:
    """The queue of a sharding key: the same for each message as long as the topic has so many queues.

    Java's hash and remainder, so that a RocketMQ client would choose the same.
    """
    # Java's remainder has the sign of the hash and is made positive afterwards.
    return abs(java_string_hash(sharding_key)) % queue_nums


class RoundRobin:
    """Queues in turn, from a random one on, so that not all producers begin at queue 0. Any thread may ask.

    RocketMQ counts in each thread for itself; here all threads of a producer share one turn, and so the queues get
    equal numbers whatever threads do.
    """

    def __init__(self) -> None:
        self._numbers = count(random.randrange(1 << 16))

    def next(self, queue_nums: int) -> int:
        """The next queue."""
        return next(self._numbers) % queue_nums
