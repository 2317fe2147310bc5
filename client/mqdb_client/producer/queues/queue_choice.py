"""The choice of a queue, based on the caller's target and the topic's queues on all brokers.

    Target          the caller's choice: a sharding key, a queue, a selector, or nothing
    PublishQueues   the queues of one topic, for as long as no route changes
    QueueChooser    the next queue in turn, if the caller chooses nothing

RocketMQ: TopicPublishInfo.selectOneMessageQueue, MQFaultStrategy.selectOneMessageQueue.
"""

import copy
import math
import time
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol, TypeVar

from mqdb.common.message import Message, MessageQueue
from mqdb.common.topic import Perm
from mqdb.errors import MqdbError, ParameterInvalid, QueueNotFound, TopicNotWritable
from mqdb.store.log.history import History
from mqdb.store.topics.topics import TopicRoute
from mqdb_client.producer.append.broker_link import BrokerLink
from mqdb_client.producer.queues.fault_tolerance import LatencyFaultTolerance
from mqdb_client.producer.queues.queue_selector import (
    MessageQueueSelector,
    by_hash,
    check_sharding_key,
    selected,
    turns,
)
from mqdb_client.queue_argument import check_queue


class Target(NamedTuple):
    """The caller's choice of a queue for a message: one queue, or a rule that chooses it."""

    sharding_key: str | None = None
    queue: MessageQueue | None = None
    selector: MessageQueueSelector | None = None
    argument: object = None


#: The only target that leaves the choice to the producer.
ANYWHERE: Final = Target()


def target_of(
    message: object,
    sharding_key: str | None = None,
    queue: MessageQueue | None = None,
    selector: MessageQueueSelector | None = None,
    argument: object = None,
) -> Target:
    """Make the target from the caller's arguments.

    Raises ParameterInvalid if more than one of `queue`, `selector` and `sharding_key` is given, and for an argument
    without a selector.
    """
    if sharding_key is None and queue is None and selector is None and argument is None:
        return ANYWHERE
    if argument is not None and selector is None:
        reason = "there is no selector that would take it; give one, or leave it out"
        raise ParameterInvalid("selector_argument", argument, reason)
    check_sharding_key(sharding_key)
    if queue is not None:
        _check_queue(queue, message)
    if selector is not None and not callable(selector):
        raise ParameterInvalid("selector", selector, "give a callable that takes queues, message and argument")
    given = {"sharding_key": sharding_key, "queue": queue, "selector": selector}
    chosen = [name for name, value in given.items() if value is not None]
    if len(chosen) > 1:
        raise ParameterInvalid(chosen[1], given[chosen[1]], f"{chosen[0]} chooses the queue already; give one of them")
    return Target(sharding_key, queue, selector, argument)


def _check_queue(queue: MessageQueue, message: object) -> None:
    check_queue(queue)
    if isinstance(message, Message) and queue.topic != message.topic:
        raise ParameterInvalid("queue", str(queue), f"the message goes to topic {message.topic!r}")


class OnBroker(Protocol):
    """A queue, or an object that stands for a queue."""

    @property
    def broker_name(self) -> str:
        """The broker of the queue."""


Q = TypeVar("Q", bound=OnBroker)


class QueueChooser:
    """Chooses queues of one topic in turn, over all its brokers. Thread-safe.

    There is one chooser per topic. With a shared chooser, a producer that alternates between two topics would skip
    every second queue.
    """

    def __init__(self, fault_tolerance: LatencyFaultTolerance | None = None) -> None:
        """Without `fault_tolerance`, a broker is skipped only if the caller passes it as `avoid`."""
        self._fault_tolerance = fault_tolerance
        self._turns = turns()
        # A separate turn, so that the share of a broker that is down is spread evenly over the others: with one turn
        # for both, the first queue after those of that broker would get the whole share.
        self._turns_of_others = turns()

    def choose(self, queues: Sequence[Q], avoid: str | None = None) -> Q:
        """The next of `queues` (at least one), if possible not on the broker `avoid`.

        `avoid` is the broker that has just failed; if the topic has no other broker, `avoid` is tried again. With fault
        tolerance, available brokers come first; an unavailable broker is used only if there is no available broker.
        """
        # This runs for each message: the plain case needs only one call.
        queue = queues[next(self._turns) % len(queues)]
        if self._fault_tolerance is None:
            if avoid is None or queue.broker_name != avoid:
                return queue
        elif queue.broker_name != avoid and self._fault_tolerance.is_available(queue.broker_name):
            return queue
        return self.choose_other(queues, avoid)

    def choose_other(self, queues: Sequence[Q], avoid: str | None = None) -> Q:
        """Choose another queue, because the next queue in turn cannot be used."""
        brokers = self._brokers(list(dict.fromkeys(each.broker_name for each in queues)), avoid)
        others = [each for each in queues if each.broker_name in brokers]
        return others[next(self._turns_of_others) % len(others)]

    def _brokers(self, every: list[str], avoid: str | None) -> list[str]:
        """The best of these brokers, at least one broker."""
        if self._fault_tolerance is None:
            return _without(avoid, every)
        if available := [name for name in every if self._fault_tolerance.is_available(name)]:
            return _without(avoid, available)
        rest = _without(avoid, every)
        picked = self._fault_tolerance.pick_one_at_least(rest)
        return rest if picked is None else [picked]


def _without(avoid: str | None, brokers: list[str]) -> list[str]:
    return [name for name in brokers if name != avoid] or brokers


class BrokerPart(NamedTuple):
    """A broker that has the topic, and its route, which is doubtful while the broker cannot be reached."""

    link: BrokerLink
    route: TopicRoute
    is_doubtful: bool = False


class SendPlace(NamedTuple):
    """A queue and how to reach it: its broker, and its key in one history of the broker's log."""

    queue: MessageQueue
    link: BrokerLink
    queue_key: int
    history: History | None = None

    @property
    def broker_name(self) -> str:
        """The broker of the queue."""
        return self.queue.broker_name


class PublishQueues:
    """The queues of one topic, valid as long as `is_current`. Thread-safe."""

    def __init__(
        self,
        topic: str,
        parts: list[BrokerPart],
        chooser: QueueChooser,
        trouble: Mapping[str, MqdbError],
        expires_at: float,
    ) -> None:
        """`trouble` is the reason why some brokers could not be reached.

        Raises TopicNotWritable if no broker takes messages.
        """
        self.parts = parts
        #: The queues that may be reused while their broker cannot be reached.
        self.remembered = parts
        self._chooser = chooser
        self._trouble = trouble
        self._expires_at = expires_at
        self._topic = topic
        writable = [part for part in parts if part.route.write_queue_keys]
        if not writable:
            raise TopicNotWritable(topic, int(parts[0].route.config.perm))
        self.queues = tuple(
            MessageQueue(topic, link.name, number)
            for link, route, _ in writable
            for number in range(len(route.write_queue_keys))
        )
        self._places = tuple(map(self.place, self.queues))
        # Checked for each message: the route currently known for a broker, and the expected one.
        self._known = tuple(
            (link.instance.routes.known, None if is_doubtful else route) for link, route, is_doubtful in parts
        )

    @property
    def is_current(self) -> bool:
        """Whether this process has seen no change of a route since these queues were found."""
        for known, route in self._known:
            if known(self._topic) is not route:
                return False
        return self._expires_at == math.inf or time.monotonic() < self._expires_at

    def forget(self, link: BrokerLink) -> None:
        """Stop using these queues, and forget the cached route of a broker."""
        self.remembered = [part for part in self.remembered if part.link is not link]
        self._expires_at = 0.0

    def choose(self, message: Message, target: Target, avoid: str | None) -> SendPlace:
        """The queue for the next attempt, if possible not on the broker `avoid`.

        Raises the errors of a selector and, for a queue chosen by the caller, the errors of `place`.
        """
        if target is ANYWHERE:
            place = self._chooser.choose(self._places, avoid)
            if len(self.parts) > 1 and place.link.connection.is_lost:
                reachable = [each for each in self._places if not each.link.connection.is_lost]
                if reachable:  # saves an attempt that would fail or wait
                    place = self._chooser.choose_other(reachable, avoid)
            return place
        if target.sharding_key is not None:
            return self._places[by_hash(target.sharding_key, len(self._places))]
        if target.queue is not None:
            return self.place(target.queue)
        assert target.selector is not None
        return self.place(selected(target.selector, self.queues, message, target.argument))

    def place(self, queue: MessageQueue) -> SendPlace:
        """A queue and how to reach it.

        Raises QueueNotFound, ParameterInvalid for a broker without the topic, TopicNotWritable; BrokerUnavailable and
        its subclasses if its broker could not be reached.
        """
        # RocketMQ accepts explicit queues up to the larger of the two counts and ignores W; here W counts.
        for link, route, _ in self.parts:
            if link.name == queue.broker_name and 0 <= queue.queue_id < len(route.queue_keys):
                if not route.config.perm & Perm.WRITE:
                    raise TopicNotWritable(queue.topic, int(route.config.perm))
                return SendPlace(queue, link, route.queue_keys[queue.queue_id], route.history)
        queue_nums = [len(route.queue_keys) for link, route, _ in self.parts if link.name == queue.broker_name]
        if not queue_nums and queue.broker_name in self._trouble:
            raise copy.copy(self._trouble[queue.broker_name])
        if not queue_nums:
            brokers = ", ".join(link.name for link, *_ in self.parts)
            raise ParameterInvalid("queue", str(queue), f"that broker has not got the topic, but {brokers}")
        raise QueueNotFound(queue.topic, queue.queue_id, queue_nums[0])
