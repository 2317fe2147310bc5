"""The queue for the next message, where neither the user nor a sharding key chooses: pure rules.

RocketMQ: TopicPublishInfo.selectOneMessageQueue, MQFaultStrategy.selectOneMessageQueue.
"""

from collections.abc import Sequence
from typing import Protocol, TypeVar

from mqdb_client.producer.fault_tolerance import LatencyFaultTolerance
from mqdb_client.producer.queue_selector import RoundRobin


class OnBroker(Protocol):
    """A queue, or what stands for one."""

    @property
    def broker_name(self) -> str:
        """The broker of the queue."""


Q = TypeVar("Q", bound=OnBroker)


class QueueChooser:
    """Chooses queues of one topic in turn, over all its brokers. Any thread may use it.

    One for each topic: a producer that sends to two topics by turns would else leave out every second queue.
    """

    def __init__(self, fault_tolerance: LatencyFaultTolerance | None = None) -> None:
        """Without `fault_tolerance` a broker is left out only by the caller's `avoid`."""
        self._fault_tolerance = fault_tolerance
        self._turn = RoundRobin()
        # Of its own, so that what one broker does not get is spread evenly over the others: with one turn for both,
        # the first queue behind those of the broker that is down would get it all.
        self._turn_of_others = RoundRobin()

    def choose(self, queues: Sequence[Q], avoid: str | None = None) -> Q:
        """The next of `queues`, of which there must be one, if possible not on the broker `avoid`.

        `avoid` is the broker that has just failed; if the topic has no other, it is tried again. With fault tolerance
        the brokers that are available come first, those that are not only when there is no other.
        """
        # This runs for each message: the plain case is decided with no call but one.
        queue = queues[self._turn.next(len(queues))]
        if self._fault_tolerance is None:
            if avoid is None or queue.broker_name != avoid:
                return queue
        elif queue.broker_name != avoid and self._fault_tolerance.is_available(queue.broker_name):
            return queue
        return self.choose_other(queues, avoid)

    def choose_other(self, queues: Sequence[Q], avoid: str | None = None) -> Q:
        """The same in place of the one whose turn it was, and will not do."""
        brokers = self._brokers(list(dict.fromkeys(each.broker_name for each in queues)), avoid)
        others = [each for each in queues if each.broker_name in brokers]
        return others[self._turn_of_others.next(len(others))]

    def _brokers(self, every: list[str], avoid: str | None) -> list[str]:
        """The best of these brokers, at least one."""
        if self._fault_tolerance is None:
            return _without(avoid, every)
        if available := [name for name in every if self._fault_tolerance.is_available(name)]:
            return _without(avoid, available)
        rest = _without(avoid, every)
        picked = self._fault_tolerance.pick_one_at_least(rest)
        return rest if picked is None else [picked]


def _without(avoid: str | None, brokers: list[str]) -> list[str]:
    return [name for name in brokers if name != avoid] or brokers
