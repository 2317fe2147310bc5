"""Heartbeats: a client's description of itself, its groups and their filters. RocketMQ: HeartbeatData, ConsumerData."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from mqdb.common.group import ConsumeFromWhere, MessageModel, check_group_name
from mqdb.common.topic import RETRY_PREFIX, check_topic_name
from mqdb.errors import ParameterInvalid
from mqdb.remoting.wire.bodies import dicts, parsed_object

_MOST_OF_AN_ID: Final = 255

#: The client in C++ sends the numbers of Java's enums.
_BROADCASTING: Final = ("BROADCASTING", 0)
_ACTIVELY: Final = ("CONSUME_ACTIVELY", 0)
_WHERE: Final = {
    "CONSUME_FROM_FIRST_OFFSET": ConsumeFromWhere.FIRST_OFFSET,
    "CONSUME_FROM_TIMESTAMP": ConsumeFromWhere.TIMESTAMP,
    "4": ConsumeFromWhere.FIRST_OFFSET,
    "5": ConsumeFromWhere.TIMESTAMP,
}


class Heartbeat:
    """The contents of a heartbeat. Raises ParameterInvalid, and NameInvalid for the name of a group."""

    def __init__(self, body: bytes) -> None:
        said = parsed_object(body)
        client_id = said.get("clientID")
        if not isinstance(client_id, str) or not 0 < len(client_id) <= _MOST_OF_AN_ID:
            raise ParameterInvalid("clientID", client_id, f"must be a text of 1 to {_MOST_OF_AN_ID} characters")
        self.client_id = client_id
        self.producers = [str(each.get("groupName")) for each in dicts(said, "producerDataSet")]
        self.consumers = [ConsumerData(each) for each in dicts(said, "consumerDataSet")]
        self.is_broadcasting = any(each.model is MessageModel.BROADCASTING for each in self.consumers)


class ConsumerData:
    """The consumer in a heartbeat: the start of its group, its message model, and its subscriptions."""

    def __init__(self, said: Mapping[str, Any]) -> None:
        group = said.get("groupName")
        check_group_name(group)  # type: ignore[arg-type]
        assert isinstance(group, str)
        self.group = group
        self.model = MessageModel.BROADCASTING if said.get("messageModel") in _BROADCASTING else MessageModel.CLUSTERING
        self.where = _WHERE.get(str(said.get("consumeFromWhere")), ConsumeFromWhere.LAST_OFFSET)
        self.is_active = said.get("consumeType") in _ACTIVELY
        self._said = said

    def subscriptions(self) -> list["HeartbeatSubscription"]:
        """The subscriptions, except those to retry topics. Raises ParameterInvalid and NameInvalid."""
        found = [HeartbeatSubscription.of(each) for each in dicts(self._said, "subscriptionDataSet")]
        return [each for each in found if not each.topic.startswith(RETRY_PREFIX)]


class HeartbeatSubscription(NamedTuple):
    """A subscription: a topic, and the type and text of its filter."""

    topic: str
    expression_type: str
    expression: str

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> "HeartbeatSubscription":
        """Parse a subscription; raises NameInvalid for the topic, unless it is a retry topic."""
        topic, text = str(said.get("topic")), said.get("subString")
        if not topic.startswith(RETRY_PREFIX):
            check_topic_name(topic)
        return cls(topic, str(said.get("expressionType") or ""), "" if text is None else str(text))
