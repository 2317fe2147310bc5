"""The queues of a topic on several brokers, in the order in which a producer numbers them."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from mqdb.errors import TopicNotFound, TopicNotWritable


class BrokerQueue(NamedTuple):
    """A queue on the broker with the number `place` in the list."""

    place: int
    queue_key: int


def cluster_queues(lookups: Iterable[Callable[[str], tuple[int, ...]]], topic: str) -> tuple[BrokerQueue, ...]:
    """The write queues of a topic, in the order used by a producer that sends to these brokers.

    `lookups` find the queues of each broker. Raises TopicNotFound if no broker has the topic, TopicNotWritable if it is
    not writable on any of them.
    """
    queues: list[BrokerQueue] = []
    refused: TopicNotWritable | None = None
    for place, find_queues in enumerate(lookups):
        try:
            queues += [BrokerQueue(place, key) for key in find_queues(topic)]
        except TopicNotFound:
            continue  # it is on other brokers
        except TopicNotWritable as error:
            refused = error
    if not queues:
        raise refused or TopicNotFound(topic)
    return tuple(queues)
