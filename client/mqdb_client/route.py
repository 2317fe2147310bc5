"""Routes: which queues a topic has on one broker, remembered for half a minute. RocketMQ: topicRouteTable."""

from collections.abc import Callable
from contextlib import AbstractContextManager

from sqlalchemy import Connection

from mqdb.store.topics.topics import TopicRoute, find_topic, find_topics


class Routes:
    """The routes that a process has asked for. Any thread may use it; a known route costs one look into a dict.

    A topic that is not there is asked for again each time. A route that has not changed stays the same object.
    """

    def __init__(self, connect: Callable[[], AbstractContextManager[Connection]]) -> None:
        self._connect = connect
        self._known: dict[str, TopicRoute] = {}
        #: The route of a topic if it is in memory. Asked for each message sent: no call but the look into the dict.
        self.known: Callable[[str], TopicRoute | None] = self._known.get

    def find(self, topic: str) -> TopicRoute | None:
        """The route, from memory if it is there; None when the broker has no such topic."""
        known = self.known(topic)
        if known is not None:
            return known
        with self._connect() as connection:
            return self.ask(topic, connection)

    def ask(self, topic: str, connection: Connection) -> TopicRoute | None:
        """The route as the broker says now, remembered."""
        route = find_topic(connection, topic)
        if route is None:
            self.forget(topic)
            return None
        return self.remember(route)

    def remember(self, route: TopicRoute) -> TopicRoute:
        """A route that came with the answer to another request, such as the creation of the topic; as it is known."""
        if route == (known := self._known.get(route.config.name)):
            return known
        self._known[route.config.name] = route
        return route

    def forget(self, topic: str) -> None:
        """The route is doubtful: ask the broker when it is needed next."""
        self._known.pop(topic, None)

    def clear(self) -> None:
        """All routes are doubtful."""
        self._known.clear()

    def refresh(self) -> None:
        """Ask again for all that are known, and forget those that are gone."""
        topics = list(self._known)
        if topics:
            with self._connect() as connection:
                routes = find_topics(connection, topics)
            for topic in topics:
                if topic in routes:
                    self.remember(routes[topic])
                else:
                    self.forget(topic)
