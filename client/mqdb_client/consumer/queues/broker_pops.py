"""Pops from one broker, for all topics that a consumer reads: topics with the same filter are popped together."""

import random
from collections.abc import Mapping
from datetime import timedelta
from typing import Final

from sqlalchemy import Connection

from mqdb.broker.consumers.offsets import begin_queues
from mqdb.broker.consumers.pop import NOTHING_SEEN, Popped, Seen, pop
from mqdb.common.group import FROM_FIRST_OFFSET, StartingPoint
from mqdb.common.message import MessageQueue
from mqdb.common.received_message import ReceivedMessage
from mqdb.common.topic import retry_topic
from mqdb.errors import MqdbError
from mqdb.selector.subscription import MessageFilter
from mqdb.store.topics.topics import TopicRoute
from mqdb_client.consumer.queues.share import TopicPresence
from mqdb_client.instance import ClientInstance

#: A popping consumer checks again after this time, even without an announcement.
LONGEST_WAIT_SECONDS: Final = 5.0


class BrokerPops:
    """Pops from one broker.

    Thread-safe. A topic that the broker does not have yet is read from its beginning when it appears.
    """

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        filters: Mapping[str, MessageFilter],
        start: StartingPoint,
        presence: TopicPresence,
        max_reconsume_times: int | None = None,
    ) -> None:
        """`filters` are the filters of the topics to read, and `start` is the point at which the group starts.

        `max_reconsume_times` is the number of retries before a message becomes a dead letter; None means the group's
        setting.
        """
        self.instance = instance
        self.filters = filters
        self._group = group
        self._start = start
        self._presence = presence
        self._max_reconsume_times = max_reconsume_times
        self._awaited: set[str] = {retry_topic(group)}
        #: The queues of each topic in which the group has started, with the keys that they were made from.
        self._begun: dict[str, tuple[object, dict[int, MessageQueue]]] = {}
        self._seen: dict[MessageFilter | None, Seen] = {}

    def concerns(self, queue_keys: frozenset[int] | None) -> bool:
        """Whether an arrival may be in one of the queues that are read; None stands for any queue."""
        if queue_keys is None or not self._begun.keys() >= self.filters.keys():
            return True
        return any(not queue_keys.isdisjoint(queues) for _, queues in list(self._begun.values()))

    def await_topic(self, topic: str) -> None:
        """Note that a topic is missing, so that it is read from its beginning when it appears."""
        self._awaited.add(topic)

    def awaits(self, topic: str) -> bool:
        """Whether a topic was missing and has not been read since."""
        return topic in self._awaited and topic not in self._begun

    def begin(self) -> None:
        """Let a new group start now in the topics that exist. Raises BrokerUnavailable and its subclasses."""
        with self.instance.connect() as connection:
            self._queues(connection)

    def pop(self, limit: int, invisible: timedelta, client_id: str | None = None) -> Popped:
        """Pop up to `limit` messages. If an error occurs after some messages were popped, those messages are returned.

        `client_id` is the owner of the messages, if this client is not their owner. Raises the errors of
        `mqdb.broker.consumers.pop.pop`, and BrokerUnavailable.
        """
        messages: list[ReceivedMessage] = []
        waits: list[float] = []
        with self.instance.connect() as connection:
            by_filter = self._queues(connection)
            # In random order, so that no topic starves the others.
            for message_filter in random.sample(list(by_filter), len(by_filter)):
                try:
                    popped = pop(
                        connection,
                        self._group,
                        client_id or self.instance.client_id,
                        by_filter[message_filter],
                        limit=limit - len(messages),
                        invisible=invisible,
                        filter=message_filter,
                        seen=self._seen.get(message_filter, NOTHING_SEEN),
                        max_reconsume_times=self._max_reconsume_times,
                    )
                except MqdbError:
                    if not messages:
                        raise
                    break
                self._seen[message_filter] = popped.seen
                messages += popped.messages
                if popped.seconds_to_next is not None:
                    waits.append(popped.seconds_to_next)
                if len(messages) == limit:
                    break
        return Popped(messages, NOTHING_SEEN, min(waits, default=None))

    def _queues(self, connection: Connection) -> dict[MessageFilter | None, dict[int, MessageQueue]]:
        """The queues by key, grouped by filter."""
        found: dict[MessageFilter | None, dict[int, MessageQueue]] = {}
        for topic, message_filter in self.filters.items():
            route = self.instance.routes.known(topic) or self.instance.routes.ask(topic, connection)
            self._presence.note(topic, self.instance.broker_name, route is not None)
            if route is None:
                self._awaited.add(topic)
            else:
                key = None if message_filter.matches_all else message_filter
                found.setdefault(key, {}).update(self._begin(connection, topic, route))
        return found

    def _begin(self, connection: Connection, topic: str, route: TopicRoute) -> dict[int, MessageQueue]:
        """Let the group start in queues that are new to this consumer."""
        made_of = route.read_queue_keys, route.history
        known, queues = self._begun.get(topic, (None, {}))
        if known != made_of:
            start = FROM_FIRST_OFFSET if topic in self._awaited else self._start
            begin_queues(connection, self._group, route.read_queue_keys, start)
            broker_name = self.instance.broker_name
            queues = {key: MessageQueue(topic, broker_name, number) for number, key in enumerate(route.read_queue_keys)}
            self._begun[topic] = made_of, queues
        return queues
