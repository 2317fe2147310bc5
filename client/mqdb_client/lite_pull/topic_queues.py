"""Topic queues: the readable queues of a topic on all brokers. RocketMQ: fetchSubscribeMessageQueues."""

from typing import NamedTuple

from mqdb.broker.consumers.group_offsets import queue_ends
from mqdb.common.message import MessageQueue
from mqdb.errors import BrokerUnavailable, ParameterInvalid, QueueNotFound, RouteNotFound
from mqdb.store.dispatch.queues import Ends
from mqdb.store.topics.topics import TopicRoute
from mqdb_client.cluster import Cluster
from mqdb_client.instance import ClientInstance
from mqdb_client.queue_argument import check_queue


class PollQueue(NamedTuple):
    """A queue's broker, and the queue's key on that broker."""

    instance: ClientInstance
    queue_key: int

    def ends(self, queue: MessageQueue) -> Ends:
        """The min and max offset of the queue.

        Raises RouteNotFound; BrokerUnavailable and its subclasses.
        """
        with self.instance.connect() as connection:
            ends = queue_ends(connection, self.queue_key)
        if ends is None:
            raise RouteNotFound(queue.topic)
        return ends


class TopicQueues:
    """Queries the brokers for queues. For an unreachable broker, its last known queues are used."""

    def __init__(self, cluster: Cluster) -> None:
        self._instances = {instance.broker_name: instance for instance in cluster.instances}

    def find(self, topic: str) -> tuple[MessageQueue, ...]:
        """The readable queues, in order; empty without permission to read.

        Raises RouteNotFound if no broker has the topic; BrokerUnavailable and its subclasses if no broker can be
        reached.
        """
        routes: dict[str, TopicRoute] = {}
        troubles: list[BrokerUnavailable] = []
        for name, instance in self._instances.items():
            try:
                route = _ask(instance, topic)
            except BrokerUnavailable as trouble:
                troubles.append(trouble)
                route = instance.routes.known(topic)
            if route is not None:
                routes[name] = route
        if not routes and len(troubles) == len(self._instances):
            raise troubles[0]
        if not routes:
            raise RouteNotFound(topic)
        return tuple(
            sorted(
                MessageQueue(topic, name, number)
                for name, route in routes.items()
                for number in range(len(route.read_queue_keys))
            )
        )

    def place(self, queue: MessageQueue) -> PollQueue:
        """The broker and the key of a queue.

        Raises ParameterInvalid for an argument that is not a queue, the errors of `check_broker`, RouteNotFound,
        QueueNotFound; BrokerUnavailable.
        """
        check_queue(queue)
        self.check_broker(queue)
        instance = self._instances[queue.broker_name]
        route = _ask(instance, queue.topic)
        if route is None:
            raise RouteNotFound(queue.topic)
        if not 0 <= queue.queue_id < len(route.queue_keys):
            raise QueueNotFound(queue.topic, queue.queue_id, len(route.queue_keys))
        return PollQueue(instance, route.queue_keys[queue.queue_id])

    def check_broker(self, queue: MessageQueue) -> None:
        """Raise ParameterInvalid for a queue of a broker that the settings do not name."""
        if queue.broker_name not in self._instances:
            names = ", ".join(self._instances)
            raise ParameterInvalid("queue", str(queue), f"must belong to a broker of the settings: {names}")


def _ask(instance: ClientInstance, topic: str) -> TopicRoute | None:
    with instance.connect() as connection:
        return instance.routes.ask(topic, connection)
