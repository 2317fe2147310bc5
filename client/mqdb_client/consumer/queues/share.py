"""Share: the queues that this member should read, given the current state of the broker.

A member waits for a topic that the broker does not have yet. When the topic appears, it is read from its beginning,
whatever the starting point of the group, because all its messages were sent after the subscription. The group's retry
topic is also read from its beginning.

A database can be reset to a time before the group had an offset in a topic. The group then starts at the time when this
member first checked the topic, not at the current end of the queue.
"""

import logging
import threading
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import Connection

from mqdb.broker.clients import membership
from mqdb.broker.log.query import server_time
from mqdb.common.clock import SystemClock
from mqdb.common.group import FROM_FIRST_OFFSET, ConsumeFromWhere, StartingPoint
from mqdb.common.message import MessageQueue
from mqdb.common.topic import retry_topic
from mqdb.rebalance import AllocationStrategy
from mqdb.store.clients.clients import members_of
from mqdb.store.topics.topics import TopicRoute, find_topics

logger = logging.getLogger(__name__)

#: The default starting time, relative to the unknown time of the start. Source: DefaultMQPushConsumer.consumeTimestamp.
_LOOK_BACK: Final = timedelta(minutes=30)


@dataclass(slots=True)
class Share:
    """Queues by key, at a given time by the broker's clock."""

    at: datetime
    queues: dict[int, MessageQueue] = field(default_factory=dict)
    #: Whether each subscribed topic exists on some broker.
    is_complete: bool = True


class TopicPresence:
    """The brokers that have a consumer's topics, as noted by its members. Thread-safe."""

    def __init__(self, group: str, brokers: int) -> None:
        self._group = group
        self._brokers = brokers
        self._guard = threading.Lock()
        self._heard: dict[str, dict[str, bool]] = {}
        self._is_reported: set[str] = set()

    def note(self, topic: str, broker_name: str, is_there: bool) -> bool:
        """Note whether a broker has the topic.

        Returns True if any broker has the topic; if no broker has it, this is logged once.
        """
        with self._guard:
            heard = self._heard.setdefault(topic, {})
            heard[broker_name] = is_there
            is_somewhere = any(heard.values())
            if not is_somewhere and len(heard) == self._brokers and topic not in self._is_reported:
                self._is_reported.add(topic)
                fields = {"group": self._group, "topic": topic}
                logger.warning("topic %(topic)s of group %(group)s does not exist yet", fields, extra=fields)
            return is_somewhere


class Shares:
    """Computes the share of one member, and remembers the topics for which the member has waited."""

    def __init__(
        self,
        group: str,
        client_id: str,
        broker_name: str,
        start: StartingPoint,
        presence: TopicPresence,
        strategy: AllocationStrategy[MessageQueue],
        *,
        is_member: bool = True,
    ) -> None:
        """`start` is the point at which the group starts in a topic that is new to the group.

        For a reader outside the group, `start` applies to each queue separately.
        """
        self._group = group
        self._client_id = client_id
        self._broker_name = broker_name
        self._start = start
        self._is_member = is_member
        self._presence = presence
        self._strategy = strategy
        self._has_consumed = True
        # This member also retries messages that failed before it joined.
        self._awaited: set[str] = {retry_topic(group)}
        #: When it first checked each topic or queue, by the broker's clock.
        self._since: dict[str | MessageQueue, datetime] = {}
        #: The queues of each topic, with the keys that they were made from.
        self._keys: dict[str, tuple[tuple[int, ...], dict[MessageQueue, int]]] = {}

    def find(self, connection: Connection, topics: Iterable[str]) -> Share:
        """The member's share of these topics, as the strategy divides them among the live members of the group.

        The share is empty while an operator has switched the group off (`consume_enable`).
        """
        share = Share(server_time(connection))
        if not self._may_consume(connection):
            return share
        members = members_of(connection, self._group)
        wanted = list(topics)
        routes = find_topics(connection, wanted)
        for topic in wanted:
            self._add(share, topic, routes.get(topic), members)
        return share

    def _may_consume(self, connection: Connection) -> bool:
        may_consume = membership.may_consume(connection, self._group)
        if may_consume is not self._has_consumed:
            self._has_consumed = may_consume
            fields = {"group": self._group}
            if may_consume:
                logger.warning("group %(group)s is switched on again", fields, extra=fields)
            else:
                logger.warning("group %(group)s is switched off and reads nothing", fields, extra=fields)
        return may_consume

    def starting_point(self, queue: MessageQueue, share: Share) -> StartingPoint:
        """The starting point of the group in a queue of the share, if the group has no offset in that queue."""
        if queue.topic in self._awaited:
            return FROM_FIRST_OFFSET
        since = self._since[self._looked_at(queue)]
        if self._start.where is not ConsumeFromWhere.LAST_OFFSET or since == share.at:
            return self._start
        return StartingPoint(ConsumeFromWhere.TIMESTAMP, since)

    def _looked_at(self, queue: MessageQueue) -> str | MessageQueue:
        return queue.topic if self._is_member else queue

    def _add(self, share: Share, topic: str, route: TopicRoute | None, members: Collection[str]) -> None:
        is_somewhere = self._presence.note(topic, self._broker_name, route is not None)
        if route is None:
            share.is_complete &= is_somewhere
            self._awaited.add(topic)
            return
        keys = self._keys_of(topic, route.read_queue_keys)
        for queue in self._strategy(self._group, self._client_id, list(keys), list(members)):
            share.queues[keys[queue]] = queue
            self._since.setdefault(self._looked_at(queue), share.at)

    def _keys_of(self, topic: str, read_queue_keys: tuple[int, ...]) -> dict[MessageQueue, int]:
        """The keys by queue. The objects stay the same until the queues of the topic change, which is rare."""
        known, keys = self._keys.get(topic, ((), {}))
        if known != read_queue_keys:
            keys = {MessageQueue(topic, self._broker_name, number): key for number, key in enumerate(read_queue_keys)}
            self._keys[topic] = read_queue_keys, keys
        return keys


def starting_point(where: ConsumeFromWhere, time: datetime | None) -> StartingPoint:
    """The starting point from a consumer's options; for TIMESTAMP without a time, half an hour ago."""
    if where is ConsumeFromWhere.TIMESTAMP and time is None:
        time = SystemClock().now() - _LOOK_BACK
    return StartingPoint(where, time)
