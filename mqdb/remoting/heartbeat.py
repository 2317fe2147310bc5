"""Heartbeats: what a client says of itself, its groups and their filters. RocketMQ: HeartbeatData, ConsumerData."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from mqdb.common.group import ConsumeFromWhere, MessageModel, check_group_name
from mqdb.common.topic import RETRY_PREFIX, check_topic_name
from mqdb.errors import MqdbError, ParameterInvalid
from mqdb.selector.selector import compile_selector
from mqdb.selector.subscription import ExpressionType, MessageFilter, stored_form
from mqdb.selector.tags import parse_tag_expression
from mqdb.store.clients.clients import ClientKind, Registration

_MOST_OF_AN_ID: Final = 255

#: A body of JSON is read in the loop, where all clients wait meanwhile.
_MOST_BODY_BYTES: Final = 2**20


@dataclass(slots=True)
class Consumer:
    """A client as a consumer of a group, as its heartbeat says."""

    registration: Registration
    #: By topic; retry topics are not among them.
    filters: Mapping[str, MessageFilter]
    where: ConsumeFromWhere
    #: Whether it asks for messages by itself, and chooses where to begin: a lite pull consumer.
    is_active: bool
    #: Why the broker does not take it.
    refusal: MqdbError | None = None
    #: What is wrong with its subscriptions: until its client says others, the broker does not know it.
    fault: MqdbError | None = None
    #: Topics that were not there when it came: it has waited for all of their messages.
    awaited: set[str] = field(default_factory=set)

    @property
    def is_member(self) -> bool:
        """Whether it takes part in rebalance. One that subscribes to nothing reads queues that its user assigns."""
        return self.fault is None and (bool(self.filters) or not self.is_active)

    @property
    def why_not(self) -> MqdbError | None:
        """Why it may not consume."""
        return self.fault or self.refusal

    def check(self) -> None:
        """Raises why it may not consume."""
        if (error := self.why_not) is not None:
            raise error.with_traceback(None)  # which would grow each time, and keep what it leads to

    @property
    def shares(self) -> bool:
        """Whether it shares the messages with the other members of the group."""
        return self.registration.message_model is MessageModel.CLUSTERING


class Heartbeat:
    """What a heartbeat says. Raises ParameterInvalid, and NameInvalid for a group.

    Wrong subscriptions of one consumer are its own fault: the other groups of the client go on.
    """

    def __init__(self, body: bytes) -> None:
        said = parsed_object(body)
        client_id = said.get("clientID")
        if not isinstance(client_id, str) or not 0 < len(client_id) <= _MOST_OF_AN_ID:
            raise ParameterInvalid("clientID", client_id, f"must be a text of 1 to {_MOST_OF_AN_ID} characters")
        self.client_id = client_id
        self.producers = [str(each.get("groupName")) for each in _dicts(said, "producerDataSet")]
        self.consumers: dict[str, Consumer] = {}
        for each in _dicts(said, "consumerDataSet"):
            consumer = _consumer(each)
            self.consumers[consumer.registration.group] = consumer
        self.is_broadcasting = any(not consumer.shares for consumer in self.consumers.values())


def _consumer(said: Mapping[str, Any]) -> Consumer:
    group = said.get("groupName")
    check_group_name(group)  # type: ignore[arg-type]
    assert isinstance(group, str)
    filters: dict[str, MessageFilter] = {}
    fault: MqdbError | None = None
    try:
        for each in _dicts(said, "subscriptionDataSet"):
            topic = str(each.get("topic"))
            if not topic.startswith(RETRY_PREFIX):
                check_topic_name(topic)
                filters[topic] = filter_of(each)
    except MqdbError as error:
        filters, fault = {}, error
    model = MessageModel.BROADCASTING if said.get("messageModel") in _BROADCASTING else MessageModel.CLUSTERING
    # Without a version: a client's is when it has started, and one that has started earlier could not come back.
    subscriptions = tuple(sorted(stored_form(filters)))
    return Consumer(
        Registration("", ClientKind.CONSUMER, group, "", model, subscriptions=subscriptions),
        filters,
        _WHERE.get(str(said.get("consumeFromWhere")), ConsumeFromWhere.LAST_OFFSET),
        said.get("consumeType") in _ACTIVELY,
        fault=fault,
    )


#: The client in C++ writes the numbers of Java's enums.
_BROADCASTING: Final = ("BROADCASTING", 0)
_ACTIVELY: Final = ("CONSUME_ACTIVELY", 0)
_WHERE: Final = {
    "CONSUME_FROM_FIRST_OFFSET": ConsumeFromWhere.FIRST_OFFSET,
    "CONSUME_FROM_TIMESTAMP": ConsumeFromWhere.TIMESTAMP,
    "4": ConsumeFromWhere.FIRST_OFFSET,
    "5": ConsumeFromWhere.TIMESTAMP,
}


def filter_of(said: Mapping[str, Any]) -> MessageFilter:
    """The filter of a subscription. Raises what reading it raises."""
    text = said.get("subString")
    expression = "" if text is None else str(text)
    if said.get("expressionType") == ExpressionType.SQL92:
        return compile_selector(expression)
    return parse_tag_expression(expression)


def parsed_object(body: bytes) -> dict[str, Any]:
    """The JSON object in a body, whose texts PostgreSQL can store. Raises ParameterInvalid."""
    if len(body) > _MOST_BODY_BYTES:
        raise ParameterInvalid("body", len(body), f"has more than {_MOST_BODY_BYTES:,} bytes")
    try:
        found = json.loads(body)
        texts = "".join(_texts(found))
        texts.encode()  # which half of a surrogate pair stops
    except (ValueError, RecursionError) as error:
        raise ParameterInvalid("body", len(body), f"is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise ParameterInvalid("body", type(found).__name__, "is no object")
    if "\0" in texts:
        raise ParameterInvalid("body", len(body), "holds U+0000, which PostgreSQL cannot store")
    return found


def _texts(said: object) -> Iterator[str]:
    """All of a JSON value, the names too."""
    if isinstance(said, str):
        yield said
    elif isinstance(said, list):
        for each in said:
            yield from _texts(each)
    elif isinstance(said, dict):
        for name, each in said.items():
            yield name
            yield from _texts(each)


def _dicts(said: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    found = said.get(name) or []
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise ParameterInvalid(name, type(found).__name__, "is no list of objects")
    return found
