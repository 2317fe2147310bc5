"""Publish routes: a producer looks up the queues of a topic on all brokers that have it.

The client instance of each broker caches the broker's route and refreshes it every 30 s. The queues that are built from
these routes are valid until a route changes. RocketMQ: TopicPublishInfo,
MQClientInstance.topicRouteData2TopicPublishInfo.
"""

import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from sqlalchemy import Connection

from mqdb.broker.topics.route import create_topic_automatically
from mqdb.errors import (
    BrokerUnavailable,
    MqdbError,
    RouteNotFound,
    SendGivenUp,
    StorageRefused,
    TopicNotFound,
)
from mqdb.store.topics.topics import TopicRoute
from mqdb_client.producer.append.broker_link import BrokerLink
from mqdb_client.producer.append.held_connection import IMPATIENT_SECONDS
from mqdb_client.producer.queues.fault_tolerance import LatencyFaultTolerance
from mqdb_client.producer.queues.queue_choice import BrokerPart, PublishQueues, QueueChooser, SendPlace

# The share of the remaining time for each of several brokers: a silent broker must not use up the time of the others.
_SHARE_OF_ONE: Final = 0.25

# A broker without the topic may get it, and a broker that was down may come back.
_WITHOUT_TOPIC_SECONDS: Final = 30.0
_WITHOUT_BROKER_SECONDS: Final = 1.0


class PublishRoutes:
    """The publish queues of all topics that a producer sends to. Thread-safe."""

    def __init__(
        self, links: Mapping[str, BrokerLink], queue_nums: int | None, faults: LatencyFaultTolerance | None
    ) -> None:
        """`queue_nums` is the number of queues of an automatically created topic; with None no topic is created."""
        self._links = tuple(links.values())
        self._queue_nums = queue_nums
        self._faults = faults
        #: The queues found so far; they may be outdated.
        self.known: dict[str, PublishQueues] = {}
        self._choosers: dict[str, QueueChooser] = {}

    def find(self, topic: str, deadline: float, timeout_seconds: float) -> PublishQueues:
        """The queues of a topic. The topic is created if no broker has it and creation is allowed.

        Raises RouteNotFound, TopicNotWritable; BrokerUnavailable and its subclasses if no broker can be reached;
        SendGivenUp at the deadline.
        """
        known = self.known.get(topic)
        if known is None or not known.is_current:
            known = self.known[topic] = self._learn(topic, deadline, SendGivenUp(topic, timeout_seconds))
        return known

    def forget(self, place: SendPlace) -> None:
        """Forget a route whose queue was refused, unless another send has fetched a newer route since.

        The route also stays unused while its broker cannot be reached. The next query uses a new connection, because
        the current one may lead to a server that was replaced.
        """
        topic, link = place.queue.topic, place.link
        route = link.instance.routes.known(topic)
        if route is not None:
            if route.history != place.history or place.queue_key not in route.queue_keys:
                return
            link.instance.routes.forget(topic)
            link.ask_anew()
        if (known := self.known.get(topic)) is not None:
            known.forget(link)

    def _learn(self, topic: str, deadline: float, late: SendGivenUp) -> PublishQueues:
        parts, trouble = self._ask_all(topic, deadline, late, may_create=False)
        if not parts and self._queue_nums is not None and len(trouble) < len(self._links):
            parts, trouble = self._ask_all(topic, deadline, late, may_create=True)
        is_silent = any(isinstance(error, SendGivenUp) for error in trouble.values())
        if not parts and is_silent and time.monotonic() < deadline:
            # No other broker has the topic, and this one may only be slow.
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
    ) -> tuple[list[BrokerPart], dict[str, MqdbError]]:
        """The brokers that have the topic, and the errors of unreachable brokers, which keep their old queues.

        With several brokers, each broker gets a part of the remaining time; the last round uses all the time that is
        left.
        """
        parts: list[BrokerPart] = []
        trouble: dict[str, MqdbError] = {}
        before = {part.link: part for part in self.known[topic].remembered} if topic in self.known else {}
        is_alone = len(self._links) == 1
        work = partial(self._create if may_create else _find, topic)
        for asked, link in enumerate(self._links):
            seconds = (deadline - time.monotonic()) / (len(self._links) - asked)
            if not is_alone and not is_last:
                seconds = max(IMPATIENT_SECONDS, (deadline - time.monotonic()) * _SHARE_OF_ONE)
            until = min(deadline, time.monotonic() + seconds)
            route = link.instance.routes.known(topic)
            try:
                # If there are other brokers, one that is down must not use up the time.
                route = route or _ask(link, partial(work, link), until, late, is_patient=is_alone)
            except (BrokerUnavailable, StorageRefused, SendGivenUp) as error:
                trouble[link.name] = error
                if link in before:
                    parts.append(before[link]._replace(is_doubtful=True))
            if route is not None:
                parts.append(BrokerPart(link, route))
        return parts, trouble

    def _create(self, topic: str, link: BrokerLink, connection: Connection) -> TopicRoute | None:
        assert self._queue_nums is not None
        try:
            route = create_topic_automatically(connection, topic, self._queue_nums)
        except TopicNotFound:  # the template on that broker forbids it
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
    """Query a broker through its link.

    A patient caller retries on a lost connection, which may have been lost long ago.
    """
    while True:
        try:
            return link.ask(work, deadline, late, is_patient)
        except BrokerUnavailable as error:
            if not error.may_pass or not is_patient or time.monotonic() >= deadline:
                raise


def _find(topic: str, link: BrokerLink, connection: Connection) -> TopicRoute | None:
    return link.instance.routes.ask(topic, connection)
