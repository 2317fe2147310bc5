"""The account of the demo: the messages that were sent, that each group should get, and that it got.

Pure functions: nothing here sends.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from mqdb.selector.tags import TagExpression


class Sent(NamedTuple):
    """A message that the broker acknowledged. `time` is in seconds, taken just before the send."""

    message_id: str
    tag: str | None
    body: bytes
    sharding_key: str
    time: float


class Delivery(NamedTuple):
    """A message as a listener received it; `time` is in seconds, by the same clock as in `Sent`."""

    message_id: str
    queue_id: int
    queue_offset: int
    body: bytes
    time: float


class GroupTally(NamedTuple):
    """The account of one group; every number counts messages."""

    sent: int
    matched: int
    received: int
    lost: int
    duplicated: int
    #: Received by mistake: the tag does not match, or the body differs from the one that was sent.
    wrong: int

    @property
    def is_exact(self) -> bool:
        """Whether each matching message arrived once and unchanged, and no other message did."""
        return self.received == self.matched and not (self.lost or self.duplicated or self.wrong)


def settle(sent: Sequence[Sent], deliveries: Iterable[Delivery], expression: TagExpression) -> GroupTally:
    """Compare the messages that a group received with those that match its expression."""
    expected = {each.message_id: each.body for each in sent if expression.matches(each.tag)}
    received = list(deliveries)
    times = Counter(each.message_id for each in received)
    return GroupTally(
        sent=len(sent),
        matched=len(expected),
        received=len(received),
        lost=len(expected.keys() - times.keys()),
        duplicated=sum(count - 1 for count in times.values()),
        wrong=sum(expected.get(each.message_id) != each.body for each in received),
    )


def count_disorder(sent: Sequence[Sent], deliveries: Iterable[Delivery]) -> int:
    """Count the messages that arrived before an earlier message with the same sharding key, or in another queue."""
    places = {each.message_id: (each.queue_id, each.queue_offset) for each in deliveries}
    by_key: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for each in sent:
        if each.message_id in places:
            by_key[each.sharding_key].append(places[each.message_id])
    return sum(one[0] != next_[0] or one[1] >= next_[1] for way in by_key.values() for one, next_ in pairwise(way))


def latencies(sent: Sequence[Sent], deliveries: Iterable[Delivery]) -> list[float]:
    """Seconds from the send to the listener, ascending."""
    started = {each.message_id: each.time for each in sent}
    return sorted(each.time - started[each.message_id] for each in deliveries if each.message_id in started)


def percentile(ascending: Sequence[float], percent: float) -> float:
    """The smallest value that is not below `percent` of all values (nearest rank); 0 if there are no values."""
    return ascending[max(math.ceil(len(ascending) * percent / 100) - 1, 0)] if ascending else 0.0
