"""Routes: the queues of a topic on one broker, cached for half a minute. RocketMQ: topicRouteTable."""

from collections.abc import Callable
from contextlib import AbstractContextManager

from sqlalchemy import Connection

from mqdb.store.topics.topics import TopicRoute, find_topic, find_topics


class Routes:
    """The routes that a process has requested. Thread-safe; a known route costs one dict lookup.

    For a topic that does not exist, the broker is queried each time. An unchanged route stays the same object.
    """

    def __init__(self, connect: Callable[[], AbstractContextManager[Connection]]) -> None:
        self._connect = connect
        self._known: dict[str, TopicRoute] = {}
        #: The route of a topic if it is in memory. Used for each sent message, so it is nothing but a dict lookup.
        self.known: Callable[[str], TopicRoute | None] = self._known.get

    def find(self, topic: str) -> TopicRoute | None:
        """The route, from the cache if possible; None if the broker does not have the topic."""
        known = self.known(topic)
        if known is not None:
            return known
        with self._connect() as connection:
            return self.ask(topic, connection)

    def ask(self, topic: str, connection: Connection) -> TopicRoute | None:
        """Fetch a route from the broker, and cache it."""
        route = find_topic(connection, topic)
        if route is None:
            self.forget(topic)
            return None
        return self.remember(route)

    def remember(self, route: TopicRoute) -> TopicRoute:
        """Cache a route that came with another answer, such as the creation of the topic; returns the cached route."""
        if route == (known := self._known.get(route.config.name)):
            return known
        self._known[route.config.name] = route
        return route

    def forget(self, topic: str) -> None:
        """Forget a doubtful route, so that the broker is queried when the route is needed next."""
        self._known.pop(topic, None)

    def clear(self) -> None:
        """Forget all routes, because they are doubtful."""
        self._known.clear()

    def refresh(self) -> None:
        """Fetch all cached routes again, and forget the routes of deleted topics."""
        topics = list(self._known)
        if topics:
            with self._connect() as connection:
                routes = find_topics(connection, topics)
            for topic in topics:
                if topic in routes:
                    self.remember(routes[topic])
                else:
                    self.forget(topic)
