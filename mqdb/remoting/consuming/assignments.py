"""Assignments: the queues that a member reads, and whether it pulls or pops them. Request code 400.

A client that leaves rebalancing to the broker queries the assignment of each of its topics every 20 s, and when its
group changes.
RocketMQ: QueryAssignmentProcessor.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from sqlalchemy import Connection as DatabaseConnection

from mqdb.common.group import ConsumeMode
from mqdb.common.topic import RETRY_PREFIX, Perm, retry_topic
from mqdb.errors import ParameterInvalid, TopicNotFound
from mqdb.fronts.database import Database
from mqdb.fronts.known_names import own_id
from mqdb.rebalance import allocate_averagely, allocate_averagely_by_circle
from mqdb.remoting.consuming.places import Places
from mqdb.remoting.session.connection import Connection
from mqdb.remoting.wire.answers import Answer
from mqdb.remoting.wire.bodies import as_json, parsed_object, text_in
from mqdb.remoting.wire.frame import Frame
from mqdb.store.clients.clients import members_of
from mqdb.store.consumers import groups

#: Stands for all queues of a topic.
_ANY_QUEUE: Final = -1

_STRATEGIES: Final = {"AVG": allocate_averagely, "AVG_BY_CIRCLE": allocate_averagely_by_circle}

#: If the answer has no list, the client keeps its queues.
_UNKNOWN: Final = Answer(body=as_json({"messageQueueAssignments": None}))


class Assignments:
    """Answers the assignment queries of one front's clients."""

    def __init__(self, database: Database, places: Places) -> None:
        self._database = database
        self._places = places

    async def query(self, _connection: Connection, frame: Frame) -> Answer:
        """Code 400: the queues of a topic for a member. Raises ParameterInvalid if a field is missing in the body."""
        said = parsed_object(frame.body)
        topic, group = text_in(said, "topic"), text_in(said, "consumerGroup")
        if topic.startswith(RETRY_PREFIX) and topic != retry_topic(group):
            return self._assigned(topic, (), ConsumeMode.PULL)  # a retry topic for pops, which mqdb does not have
        mode, client_ids = await self._database.run(partial(_group, name=group))
        try:
            config = (await self._places.route(topic)).config
        except TopicNotFound:
            return _UNKNOWN
        queue_ids = range(config.read_queue_nums if config.perm & Perm.READ else 0)
        if said.get("messageModel") == "BROADCASTING":
            return self._assigned(topic, queue_ids, ConsumeMode.PULL)
        if mode is ConsumeMode.POP and not topic.startswith(RETRY_PREFIX):
            return self._assigned(topic, (_ANY_QUEUE,) if queue_ids else (), mode)
        name = said.get("strategyName")
        strategy = _STRATEGIES.get(str(name))
        if strategy is None:
            raise ParameterInvalid("strategyName", name, f"must be one of {', '.join(_STRATEGIES)}")
        queues = strategy(group, text_in(said, "clientId"), queue_ids, client_ids)
        return self._assigned(topic, queues, ConsumeMode.PULL)

    def _assigned(self, topic: str, queue_ids: Sequence[int], mode: ConsumeMode) -> Answer:
        broker_name = self._database.instance.broker_name
        assignments: list[dict[str, Any]] = [
            {"messageQueue": {"topic": topic, "brokerName": broker_name, "queueId": queue_id}, "mode": mode}
            for queue_id in queue_ids
        ]
        return Answer(body=as_json({"messageQueueAssignments": assignments}))


def _group(connection: DatabaseConnection, name: str) -> tuple[ConsumeMode, list[str]]:
    """The consume mode of a group, and the ids of its members as the members know them."""
    settings = groups.find(connection, name)
    client_ids = sorted({own_id(client_id) for client_id in members_of(connection, name)})
    return ConsumeMode.PULL if settings is None else settings.consume_mode, client_ids
