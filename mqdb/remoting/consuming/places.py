"""Places: the queue that a request refers to."""

from functools import lru_cache, partial
from typing import NamedTuple

from mqdb.common.message import MessageQueue
from mqdb.errors import QueueNotFound, TopicNotFound
from mqdb.fronts.database import Database
from mqdb.remoting.wire.frame import Frame
from mqdb.store.log.history import History
from mqdb.store.topics.topics import TopicRoute


class Place(NamedTuple):
    """A queue, its key, and the history of the log in which the key was found."""

    queue: MessageQueue
    queue_key: int
    history: History


class Places:
    """Finds queues in the routes that the client instance has cached."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._instance = database.instance

    async def route(self, topic: str) -> TopicRoute:
        """The route of a topic. Raises TopicNotFound if the topic does not exist."""
        routes = self._instance.routes
        route = routes.known(topic) or await self._database.run(partial(routes.ask, topic))
        if route is None:
            raise TopicNotFound(topic)
        return route

    async def of(self, frame: Frame) -> Place:
        """The queue that a request names. Raises TopicNotFound, QueueNotFound, ParameterInvalid."""
        topic, queue_id = frame.fields.get("topic", ""), frame.number("queueId")
        return self.place(await self.route(topic), topic, queue_id)

    def place(self, route: TopicRoute, topic: str, queue_id: int) -> Place:
        """A queue of a route. Raises QueueNotFound if the number is out of range."""
        keys = route.queue_keys
        if not 0 <= queue_id < len(keys):
            raise QueueNotFound(topic, queue_id, len(keys))
        return Place(_queue(topic, self._instance.broker_name, queue_id), keys[queue_id], route.history)

    def forget(self, topic: str) -> None:
        """Forget the cached queues of a topic, because they have changed."""
        self._instance.routes.forget(topic)


@lru_cache(maxsize=4_096)
def _queue(topic: str, broker_name: str, queue_id: int) -> MessageQueue:
    return MessageQueue(topic, broker_name, queue_id)
