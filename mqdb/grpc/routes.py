"""Routes: the queues of topics, and the settings of groups, for clients. RocketMQ: RouteActivity."""

from functools import partial
from typing import Final

from mqdb.common.group import check_group_name
from mqdb.common.topic import Perm, check_topic_name
from mqdb.errors import NameInvalid, TopicNotFound
from mqdb.fronts.believed import Believed
from mqdb.fronts.database import Database
from mqdb.grpc.calls import Call
from mqdb.grpc.wire.messages import full_name
from mqdb.grpc.wire.rocketmq_pb2 import (
    Address,
    AddressScheme,
    Assignment,
    Broker,
    Code,
    Endpoints,
    MessageQueue,
    MessageType,
    Permission,
    QueryAssignmentRequest,
    QueryAssignmentResponse,
    QueryRouteRequest,
    QueryRouteResponse,
    Resource,
)
from mqdb.grpc.wire.status import OK, CallRefused
from mqdb.store.consumers import groups
from mqdb.store.consumers.groups import GroupSettings
from mqdb.store.topics.topics import TopicRoute

#: A topic accepts messages of all types, as in RocketMQ 4.
_ALL_TYPES: Final = (MessageType.NORMAL, MessageType.FIFO, MessageType.DELAY, MessageType.TRANSACTION)

_PERMISSIONS: Final = {
    Perm.READ: Permission.READ,
    Perm.WRITE: Permission.WRITE,
    Perm.READ | Perm.WRITE: Permission.READ_WRITE,
}


class SdkRoutes:
    """The routes of one broker. Call it from the event loop only."""

    def __init__(self, database: Database, address: tuple[str, int]) -> None:
        """`address` is the front's address, for clients that do not send the address that they use."""
        self._database = database
        self._routes = database.instance.routes
        self._own = Endpoints(scheme=AddressScheme.IPv4, addresses=[Address(host=address[0], port=address[1])])
        #: Cached settings of groups.
        self._groups = Believed(self.group)

    async def find(self, topic: str) -> TopicRoute:
        """The route of a topic. Raises TopicNotFound if the topic does not exist."""
        route = self._routes.known(topic) or await self._database.run(partial(self._routes.ask, topic))
        if route is None:
            raise TopicNotFound(topic)
        return route

    def forget(self, topic: str) -> None:
        """Forget the cached route of a topic, because it may have changed."""
        self._routes.forget(topic)

    async def group(self, name: str) -> GroupSettings | None:
        """The settings of a group; None if the group does not exist."""
        return await self._database.run(partial(groups.find, name=name))

    async def query(self, call: Call, request: QueryRouteRequest) -> QueryRouteResponse:
        """The queues of a topic, for producers and consumers. Raises CallRefused, TopicNotFound."""
        topic = topic_of(request.topic, call.namespace)
        queues = self.queues(request.topic, await self.find(topic), request.endpoints)
        return QueryRouteResponse(status=OK, message_queues=queues)

    async def assignment(self, call: Call, request: QueryAssignmentRequest) -> QueryAssignmentResponse:
        """The queues for a push consumer: any queue, or each queue separately in an ordered group.

        All members of a group get the same answer. Raises CallRefused, TopicNotFound.
        """
        topic, group = topic_of(request.topic, call.namespace), group_of(request.group, call.namespace)
        route, settings = await self.find(topic), await self._groups.get(group)
        numbers = range(len(route.read_queue_keys)) if settings and settings.consume_message_orderly else [-1]
        assignments = [
            Assignment(message_queue=self.queue(request.topic, number, request.endpoints)) for number in numbers
        ]
        return QueryAssignmentResponse(status=OK, assignments=assignments)

    def queues(self, topic: Resource, route: TopicRoute, endpoints: Endpoints) -> list[MessageQueue]:
        """The queues of a topic, in the form for clients.

        Their address is the one that the client used, which also works behind a NAT.
        """
        count = max(len(route.read_queue_keys), len(route.write_queue_keys))
        permission = _PERMISSIONS.get(route.config.perm & (Perm.READ | Perm.WRITE), Permission.NONE)
        return [self.queue(topic, number, endpoints, permission) for number in range(count)]

    def queue(
        self, topic: Resource, number: int, endpoints: Endpoints, permission: Permission = Permission.READ_WRITE
    ) -> MessageQueue:
        """A queue, in the form for clients; -1 stands for any queue."""
        where = endpoints if endpoints.addresses else self._own
        broker = Broker(name=self._database.instance.broker_name, endpoints=where)
        return MessageQueue(
            topic=topic, id=number, permission=permission, broker=broker, accept_message_types=_ALL_TYPES
        )


def topic_of(resource: Resource, namespace: str) -> str:
    """The full name of a topic. Raises CallRefused if the name is not valid."""
    name = full_name(resource, namespace)
    try:
        check_topic_name(name)
    except NameInvalid as error:
        raise CallRefused(Code.ILLEGAL_TOPIC, str(error)) from error
    return name


def group_of(resource: Resource, namespace: str) -> str:
    """The full name of a group. Raises CallRefused if the name is not valid."""
    name = full_name(resource, namespace)
    try:
        check_group_name(name)
    except NameInvalid as error:
        raise CallRefused(Code.ILLEGAL_CONSUMER_GROUP, str(error)) from error
    return name
