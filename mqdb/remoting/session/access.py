"""Access: identifies the sender of a request, and checks the rights of its access key.

Clients sign each request with their access key. As soon as one key has a secret, all requests except those for routes
have to be signed.
RocketMQ: PlainAccessValidator, DefaultAuthorizationContextBuilder.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeAlias

from mqdb.common.topic import DLQ_PREFIX, RETRY_PREFIX, TRACE_TOPIC
from mqdb.errors import AccessDenied, ParameterInvalid, SignatureInvalid
from mqdb.fronts.access_keys import ADMINISTRATION, AccessKeys, group_right, topic_right
from mqdb.remoting.session.connection import Connection
from mqdb.remoting.wire.bodies import parsed_object
from mqdb.remoting.wire.codes import RequestCode
from mqdb.remoting.wire.frame import Frame
from mqdb.remoting.wire.signature import ACCESS_KEY, verify
from mqdb.store.acl import Access, Resource, ResourceType

_Wanted: TypeAlias = list[Resource]


class FrameAccess(AccessKeys):
    """Checks the signatures of frames and the rights of their keys, for one front."""

    async def check(self, connection: Connection, frame: Frame) -> None:
        """Raise SignatureInvalid if a request is not signed by its key, and AccessDenied if the key lacks the rights.

        The key is stored in the connection.
        """
        if frame.code in _FREE:
            return
        self._check_signature(frame)
        connection.access_key = frame.fields[ACCESS_KEY]
        connection.admit()
        if (find := _ONE_OF.get(frame.code)) is not None:
            choice = find(frame)
            if not await self.allowed(frame, *choice):
                raise AccessDenied(frame.fields[ACCESS_KEY], *choice[0])
            return
        wanted = _RIGHTS.get(frame.code, _everything)(frame)
        await self.require(frame, *wanted)

    async def may_join(self, frame: Frame, group: str) -> bool:
        """Whether the sender of a request may be a member of a group.

        If keys are required, the request has to be signed.
        """
        with suppress(SignatureInvalid, AccessDenied):
            if self.are_asked_for:
                self._check_signature(frame)
            await self.require(frame, group_right(group))
            return True
        return False

    def _check_signature(self, frame: Frame) -> None:
        name = frame.fields.get(ACCESS_KEY, "")
        if not verify(self.secret_of(name), frame.fields, frame.body):
            raise SignatureInvalid(name)

    async def require(self, frame: Frame, *wanted: Resource) -> None:
        """Raise AccessDenied unless the key of a request has all these rights.

        While no key has a secret, everyone has all rights.
        """
        await self.require_of(frame.fields.get(ACCESS_KEY, ""), *wanted)

    async def allowed(self, frame: Frame, *wanted: Resource) -> set[Resource]:
        """The given rights that the key of a request has. While no key has a secret, everyone has all rights."""
        return await self.held_by(frame.fields.get(ACCESS_KEY, ""), *wanted)


def rights_to_see_group(group: str) -> _Wanted:
    """Rights of which one is enough to see that the group exists, and its settings, members and lag."""
    return [Resource(access, ResourceType.GROUP, group) for access in (Access.READ, Access.OPERATE, Access.ADMIN)]


def _to_see_group(name: str) -> Callable[[Frame], _Wanted]:
    return lambda frame: rights_to_see_group(frame.fields.get(name, ""))


def _to_see_topic(name: str = "topic") -> Callable[[Frame], _Wanted]:
    return lambda frame: _rights_to_see_topic(frame.fields.get(name, ""))


def _rights_to_see_topic(topic: str) -> _Wanted:
    """Rights of which one is enough to see that the topic exists, its settings and the ends of its queues."""
    if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        return rights_to_see_group(topic.removeprefix(RETRY_PREFIX).removeprefix(DLQ_PREFIX))
    return [Resource(access, ResourceType.TOPIC, topic) for access in Access]


def _administers_topic(name: str = "topic") -> Callable[[Frame], _Wanted]:
    return lambda frame: [_admin_right(frame.fields.get(name, ""))]


def _administers_group(frame: Frame) -> _Wanted:
    return [Resource(Access.ADMIN, ResourceType.GROUP, frame.fields.get("groupName", ""))]


def _administers_group_in_body(name: str) -> Callable[[Frame], _Wanted]:
    return lambda frame: [Resource(Access.ADMIN, ResourceType.GROUP, str(_parsed(frame).get(name, "")))]


def _admin_right(topic: str) -> Resource:
    if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        group = topic.removeprefix(RETRY_PREFIX).removeprefix(DLQ_PREFIX)
        return Resource(Access.ADMIN, ResourceType.GROUP, group)
    return Resource(Access.ADMIN, ResourceType.TOPIC, topic)


def _reset(frame: Frame) -> _Wanted:
    """Includes the right to read, because a reset by time reveals when messages were stored."""
    group = Resource(Access.OPERATE, ResourceType.GROUP, frame.fields.get("group", ""))
    return [group, topic_right(Access.READ, frame.fields.get("topic", ""))]


def _sends(name: str = "topic") -> Callable[[Frame], _Wanted]:
    def wanted(frame: Frame) -> _Wanted:
        """Message traces need no right, because no right covers their topic."""
        topic = frame.fields.get(name, "")
        return [] if topic == TRACE_TOPIC else [topic_right(Access.SEND, topic)]

    return wanted


def _reads_topic(frame: Frame) -> _Wanted:
    return [topic_right(Access.READ, frame.fields.get("topic", ""))]


def _on_group(name: str = "consumerGroup") -> Callable[[Frame], _Wanted]:
    return lambda frame: [group_right(frame.fields.get(name, ""))]


def _reads(frame: Frame) -> _Wanted:
    fields = frame.fields
    return [group_right(fields.get("consumerGroup", "")), topic_right(Access.READ, fields.get("topic", ""))]


def _in_body(frame: Frame) -> _Wanted:
    return [group_right(str(_parsed(frame).get("consumerGroup", "")))]


def _assigned(frame: Frame) -> _Wanted:
    """The right on a retry topic is the right on its group, which is required anyway."""
    said = _parsed(frame)
    group, topic = str(said.get("consumerGroup", "")), str(said.get("topic", ""))
    of_topic = [] if topic.startswith(RETRY_PREFIX) else [topic_right(Access.READ, topic)]
    return [group_right(group), *of_topic]


def _heartbeat(frame: Frame) -> _Wanted:
    wanted = []
    for consumer in _dicts(_parsed(frame).get("consumerDataSet")):
        wanted.append(group_right(str(consumer.get("groupName", ""))))
        topics = [str(each.get("topic", "")) for each in _dicts(consumer.get("subscriptionDataSet"))]
        wanted += [topic_right(Access.READ, topic) for topic in topics if not topic.startswith(RETRY_PREFIX)]
    return wanted


def _leave(frame: Frame) -> _Wanted:
    group = frame.fields.get("consumerGroup")
    return [] if group is None else [group_right(group)]


def _nothing(_frame: Frame) -> _Wanted:
    """No rights: the handler checks them once it knows the topic, or any key may send the request."""
    return []


def _everything(_frame: Frame) -> _Wanted:
    """The right to administer the broker."""
    return [ADMINISTRATION]


def _parsed(frame: Frame) -> dict[str, Any]:
    """The body as an object; empty if it is not an object, in which case the handler refuses the request."""
    with suppress(ParameterInvalid):
        return parsed_object(frame.body)
    return {}


def _dicts(found: object) -> list[dict[str, Any]]:
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


#: Requests that need no signature: a refusal would appear as "No route info of this topic".
_FREE: Final = frozenset({RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.GET_BROKER_CLUSTER_INFO})

_RIGHTS: Final[dict[int, Callable[[Frame], _Wanted]]] = {
    RequestCode.SEND_MESSAGE: _sends(),
    RequestCode.SEND_MESSAGE_V2: _sends("b"),
    RequestCode.SEND_BATCH_MESSAGE: _sends("b"),
    RequestCode.SEND_REPLY_MESSAGE: _nothing,
    RequestCode.SEND_REPLY_MESSAGE_V2: _nothing,
    RequestCode.END_TRANSACTION: _nothing,
    RequestCode.RECALL_MESSAGE: _sends(),
    RequestCode.HEART_BEAT: _heartbeat,
    RequestCode.UNREGISTER_CLIENT: _leave,
    RequestCode.CHECK_CLIENT_CONFIG: _nothing,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: _on_group(),
    RequestCode.PULL_MESSAGE: _reads,
    RequestCode.LITE_PULL_MESSAGE: _reads,
    RequestCode.QUERY_ASSIGNMENT: _assigned,
    RequestCode.POP_MESSAGE: _reads,
    RequestCode.ACK_MESSAGE: _on_group(),
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: _on_group(),
    RequestCode.QUERY_CONSUMER_OFFSET: _on_group(),
    RequestCode.UPDATE_CONSUMER_OFFSET: _reads,
    RequestCode.LOCK_BATCH_MQ: _in_body,
    RequestCode.UNLOCK_BATCH_MQ: _in_body,
    RequestCode.CONSUMER_SEND_MSG_BACK: _on_group("group"),
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: _reads_topic,
    RequestCode.GET_MAX_OFFSET: _reads_topic,
    RequestCode.GET_MIN_OFFSET: _reads_topic,
    RequestCode.GET_EARLIEST_MSG_STORETIME: _reads_topic,
    RequestCode.QUERY_MESSAGE: _reads_topic,
    RequestCode.VIEW_MESSAGE_BY_ID: _nothing,
    RequestCode.GET_BROKER_RUNTIME_INFO: _nothing,
    RequestCode.UPDATE_AND_CREATE_TOPIC: _administers_topic(),
    RequestCode.DELETE_TOPIC_IN_BROKER: _administers_topic(),
    RequestCode.DELETE_TOPIC_IN_NAMESRV: _administers_topic(),
    RequestCode.PUT_KV_CONFIG: _administers_topic("key"),
    RequestCode.GET_KV_CONFIG: _administers_topic("key"),
    RequestCode.DELETE_KV_CONFIG: _administers_topic("key"),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _administers_group_in_body("groupName"),
    RequestCode.SET_MESSAGE_REQUEST_MODE: _administers_group_in_body("consumerGroup"),
    RequestCode.DELETE_SUBSCRIPTIONGROUP: _administers_group,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: _reset,
}

#: Requests for which one of several rights is enough.
_ONE_OF: Final[dict[int, Callable[[Frame], _Wanted]]] = {
    RequestCode.GET_TOPIC_CONFIG: _to_see_topic(),
    RequestCode.GET_TOPIC_STATS_INFO: _to_see_topic(),
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: _to_see_topic(),
    RequestCode.VIEW_BROKER_STATS_DATA: _to_see_topic("statsKey"),
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: _to_see_group("group"),
    RequestCode.QUERY_TOPICS_BY_CONSUMER: _to_see_group("group"),
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: _to_see_group("group"),
    RequestCode.GET_CONSUME_STATS: _to_see_group("consumerGroup"),
    RequestCode.GET_CONSUMER_CONNECTION_LIST: _to_see_group("consumerGroup"),
}
