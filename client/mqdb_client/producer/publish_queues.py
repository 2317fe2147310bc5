"""Publish queues: the queues of a topic that a producer chooses from, over all brokers that have it.

Each broker's route is remembered by its client instance, which asks again every 30 s; what is made of them here is
good for as long as they stay the same. RocketMQ: TopicPublishInfo, MQClientInstance.topicRouteData2TopicPublishInfo.
"""

import copy
import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, NamedTuple

from sqlalchemy import Connection

from mqdb.broker.route import create_topic_automatically
from mqdb.errors import (
    BrokerUnavailable,
    MqdbError,
    ParameterInvalid,
    QueueNotFound,
    RouteNotFound,
    SendGivenUp,
    StorageRefused,
    TopicNotFound,
    TopicNotWritable,
)
from mqdb.message import MessageQueue
from mqdb.store.history import History
from mqdb.store.topics import TopicRoute
from mqdb.topic import Perm
from mqdb_client.producer.broker_link import BrokerLink
from mqdb_client.producer.delivery import ANYWHERE, Delivery
from mqdb_client.producer.fault_tolerance import LatencyFaultTolerance
from mqdb_client.producer.held_connection import IMPATIENT_SECONDS
from mqdb_client.producer.queue_chooser import QueueChooser
from mqdb_client.producer.queue_selector import by_hash, selected

# Of the time that is left, for each of several brokers: one that is silent must not use up what another one needs.
_SHARE_OF_ONE: Final = 0.25

# A broker that has not got the topic may get it, one that was down may come.
_WITHOUT_TOPIC_SECONDS: Final = 30.0
_WITHOUT_BROKER_SECONDS: Final = 1.0


class _Part(NamedTuple):
    """A broker that has the topic, and its route; a doubtful one is of a broker that cannot be asked again now."""

    link: BrokerLink
    route: TopicRoute
    is_doubtful: bool = False


class Place(NamedTuple):
    """A queue, and the way there: its broker, and its key in one history of the log there."""

    queue: MessageQueue
    link: BrokerLink
    queue_key: int
    history: History | None = None

    @property
    def broker_name(self) -> str:
        """The broker of the queue."""
        return self.queue.broker_name


class PublishQueues:
    """The queues of one topic, for as long as `is_current`. Any thread may use it."""

    def __init__(
        self,
        topic: str,
        parts: list[_Part],
        chooser: QueueChooser,
        trouble: Mapping[str, MqdbError],
        expires_at: float,
    ) -> None:
        """`trouble` is why some brokers could not be asked. Raises TopicNotWritable when no broker takes messages."""
        self.parts = parts
        #: Those of them that may be used again while their broker cannot be asked.
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
        self._places = tuple(map(self._place, self.queues))
        # What is asked for each message: how a broker's route is known now, and what it has to be.
        self._known = tuple(
            (link.instance.routes.known, None if is_doubtful else route) for link, route, is_doubtful in parts
        )

    @property
    def is_current(self) -> bool:
        """Whether no route has changed since, as far as this process knows."""
        for known, route in self._known:
            if known(self._topic) is not route:
                return False
        return self._expires_at == math.inf or time.monotonic() < self._expires_at

    def forget(self, link: BrokerLink) -> None:
        """Not to be used any more, nor what was remembered of a broker."""
        self.remembered = [part for part in self.remembered if part.link is not link]
        self._expires_at = 0.0

    def choose(self, delivery: Delivery) -> Place:
        """The queue for the next try.

        Raises what a selector raises; for a queue that the caller wants, or that the last try went to: QueueNotFound,
        ParameterInvalid for a broker without the topic, TopicNotWritable; BrokerUnavailable and its kin when its
        broker could not be asked.
        """
        target = delivery.target
        if delivery.queue is not None:
            return self._place(delivery.queue)
        if target is ANYWHERE:
            place = self._chooser.choose(self._places, delivery.avoid)
            if len(self.parts) > 1 and place.link.connection.is_lost:
                reachable = [each for each in self._places if not each.link.connection.is_lost]
                if reachable:  # a try that would fail, or wait, is spared
                    place = self._chooser.choose_other(reachable, delivery.avoid)
            return place
        if target.sharding_key is not None:
            return self._places[by_hash(target.sharding_key, len(self._places))]
        if target.queue is not None:
            return self._place(target.queue)
        assert target.selector is not None
        return self._place(selected(target.selector, self.queues, delivery.messages[0], target.argument))

    def _place(self, queue: MessageQueue) -> Place:
        # RocketMQ takes explicit queues up to the larger of the two counts, and does not look at W; here W counts.
        for link, route, _ in self.parts:
            if link.name == queue.broker_name and 0 <= queue.queue_id < len(route.queue_keys):
                if not route.config.perm & Perm.WRITE:
                    raise TopicNotWritable(queue.topic, int(route.config.perm))
                return Place(queue, link, route.queue_keys[queue.queue_id], route.history)
        queue_nums = [len(route.queue_keys) for link, route, _ in self.parts if link.name == queue.broker_name]
        if not queue_nums and queue.broker_name in self._trouble:
            raise copy.copy(self._trouble[queue.broker_name])
        if not queue_nums:
            brokers = ", ".join(link.name for link, *_ in self.parts)
            raise ParameterInvalid("queue", str(queue), f"that broker has not got the topic, but {brokers}")
        raise QueueNotFound(queue.topic, queue.queue_id, queue_nums[0])


class PublishRoutes:
    """The publish queues of all topics that a producer sends to. Any thread may use it."""

    def __init__(
        self, links: Mapping[str, BrokerLink], queue_nums: int | None, faults: LatencyFaultTolerance | None
    ) -> None:
        """`queue_nums` are those of a topic that is made automatically; None: none is."""
        self._links = tuple(links.values())
        self._queue_nums = queue_nums
        self._faults = faults
        self._known: dict[str, PublishQueues] = {}
        self._choosers: dict[str, QueueChooser] = {}

    def find(self, topic: str, deadline: float, timeout_seconds: float) -> PublishQueues:
        """The queues of a topic, which is created where none of the brokers has it and that is allowed.

        Raises RouteNotFound, TopicNotWritable; BrokerUnavailable and its kin when no broker can be asked;
        SendGivenUp at the deadline.
        """
        known = self._known.get(topic)
        if known is None or not known.is_current:
            known = self._known[topic] = self._learn(topic, deadline, SendGivenUp(topic, timeout_seconds))
        return known

    def forget(self, place: Place) -> None:
        """Forget a route whose queue was refused, unless another send has asked for a newer one since.

        It is not used either while its broker cannot be asked. The next question goes by a new connection, for this one
        may lead to a server that was replaced.
        """
        topic, link = place.queue.topic, place.link
        route = link.instance.routes.known(topic)
        if route is not None:
            if route.history != place.history or place.queue_key not in route.queue_keys:
                return
            link.instance.routes.forget(topic)
            link.ask_anew()
        if (known := self._known.get(topic)) is not None:
            known.forget(link)

    def _learn(self, topic: str, deadline: float, late: SendGivenUp) -> PublishQueues:
        parts, trouble = self._ask_all(topic, deadline, late, may_create=False)
        if not parts and self._queue_nums is not None and len(trouble) < len(self._links):
            parts, trouble = self._ask_all(topic, deadline, late, may_create=True)
        is_silent = any(isinstance(error, SendGivenUp) for error in trouble.values())
        if not parts and is_silent and time.monotonic() < deadline:
            # No other one has the topic, and perhaps it is only slow.
            parts, trouble = self._ask_all(topic, deadline, late, may_create=False, is_last=True)
        if not parts:
            raise next(iter(trouble.values()), RouteNotFound(topic))
        expires_at = math.inf
        if trouble:
            expires_at = time.monotonic() + _WITHOUT_BROKER_SECONDS
        elif len(parts) < len(self._links):
            expires_at = time.monotonic() + _WITHOUT_TOPIC_SECONDS
        chooser = self._choosers.setdefault(topic, QueueChooser(self._faults))
        return PublishQueues(topic, parts, chooser, trouble, expires_at)

    def _ask_all(
        self, topic: str, deadline: float, late: SendGivenUp, *, may_create: bool, is_last: bool = False
    ) -> tuple[list[_Part], dict[str, MqdbError]]:
        """The brokers that have the topic, and why some could not be asked: those keep the queues that they had.

        Of several each gets a part of the time that is left, and all together all of it when it is the last time.
        """
        parts: list[_Part] = []
        trouble: dict[str, MqdbError] = {}
        before = {part.link: part for part in self._known[topic].remembered} if topic in self._known else {}
        is_alone = len(self._links) == 1
        work = partial(self._create if may_create else _find, topic)
        for asked, link in enumerate(self._links):
            seconds = (deadline - time.monotonic()) / (len(self._links) - asked)
            if not is_alone and not is_last:
                seconds = max(IMPATIENT_SECONDS, (deadline - time.monotonic()) * _SHARE_OF_ONE)
            until = min(deadline, time.monotonic() + seconds)
            route = link.instance.routes.known(topic)
            try:
                # With others to turn to, one that is down must not use up the time.
                route = route or _ask(link, partial(work, link), until, late, is_patient=is_alone)
            except (BrokerUnavailable, StorageRefused, SendGivenUp) as error:
                trouble[link.name] = error
                if link in before:
                    parts.append(before[link]._replace(is_doubtful=True))
            if route is not None:
                parts.append(_Part(link, route))
        return parts, trouble

    def _create(self, topic: str, link: BrokerLink, connection: Connection) -> TopicRoute | None:
        assert self._queue_nums is not None
        try:
            route = create_topic_automatically(connection, topic, self._queue_nums)
        except TopicNotFound:  # forbidden by the template there
            return None
        return link.instance.routes.remember(route)


def _ask(
    link: BrokerLink,
    work: Callable[[Connection], TopicRoute | None],
    deadline: float,
    late: SendGivenUp,
    *,
    is_patient: bool,
) -> TopicRoute | None:
    """Ask as the link does. A patient caller asks again if the connection is lost: it may have been lost long ago."""
    while True:
        try:
            return link.ask(work, deadline, late, is_patient)
        except BrokerUnavailable as error:
            if type(error) is not BrokerUnavailable or not is_patient or time.monotonic() >= deadline:
                raise


def _find(topic: str, link: BrokerLink, connection: Connection) -> TopicRoute | None:
    return link.instance.routes.ask(topic, connection)
