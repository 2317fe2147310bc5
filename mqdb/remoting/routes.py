"""Routes: the existing topics, and the address of their broker.

Request codes 105 and 106. RocketMQ: RouteInfoManager, TopicRouteData.
"""

from functools import partial

from mqdb.broker.topics.route import find_or_create_retry_topic
from mqdb.common.topic import RETRY_PREFIX
from mqdb.errors import ResponseCode
from mqdb.fronts.database import Database
from mqdb.remoting.session.access import FrameAccess
from mqdb.remoting.session.connection import Connection
from mqdb.remoting.session.members import FrontMembers
from mqdb.remoting.wire.answers import Answer
from mqdb.remoting.wire.bodies import as_json
from mqdb.remoting.wire.frame import Frame


class NameServer:
    """The name server in a front. `address` is the broker address that clients receive."""

    def __init__(
        self, database: Database, access: FrameAccess, members: FrontMembers, address: tuple[str, int]
    ) -> None:
        self._database = database
        self._access = access
        self._members = members
        self._instance = database.instance
        self.address = address

    async def route(self, connection: Connection, frame: Frame) -> Answer:
        """Code 105: the queues of a topic.

        A retry topic is created when a client that may join its group first queries it, because a consumer that does
        not find the topic only tries again 30 s later.
        """
        topic = self._members.retry_topic_of(connection, frame.fields.get("topic", ""))
        routes = self._instance.routes
        route = await self._database.run(partial(routes.ask, topic))
        if route is None and topic.startswith(RETRY_PREFIX):
            group = topic.removeprefix(RETRY_PREFIX)
            if await self._access.may_join(frame, group):
                route = await self._database.run(partial(find_or_create_retry_topic, group=group))
        if route is None:
            return Answer(ResponseCode.TOPIC_NOT_EXIST, remark=f"no route info of this topic: {topic}")
        config = route.config
        queues = {
            "brokerName": self._instance.broker_name,
            "readQueueNums": config.read_queue_nums,
            "writeQueueNums": config.write_queue_nums,
            "perm": int(config.perm),
            "topicSysFlag": 0,
            "topicSynFlag": 0,
        }
        said = {"brokerDatas": [self._broker()], "queueDatas": [queues], "filterServerTable": {}}
        return Answer(body=as_json(said))

    async def cluster(self, _connection: Connection, _frame: Frame) -> Answer:
        """Code 106: the brokers of the cluster."""
        name, cluster = self._instance.broker_name, self._instance.cluster_name
        said = {"brokerAddrTable": {name: self._broker()}, "clusterAddrTable": {cluster: [name]}}
        return Answer(body=as_json(said))

    def _broker(self) -> dict[str, object]:
        host, port = self.address
        return {
            "cluster": self._instance.cluster_name,
            "brokerName": self._instance.broker_name,
            "brokerAddrs": {"0": f"{host}:{port}"},
        }
