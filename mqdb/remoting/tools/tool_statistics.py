"""The progress of topics and groups, and the connected clients, for RocketMQ's tools.

RocketMQ: AdminBrokerProcessor, TopicStatsTable, ConsumeStats, ConsumerConnection, ProducerConnection.
"""

from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

from sqlalchemy import Connection as DatabaseConnection

from mqdb.broker.consumers.groups import GroupDetails, show_group
from mqdb.broker.consumers.offsets import search_offsets
from mqdb.broker.topics.topics import group_progress, topic_stats
from mqdb.common.group import ConsumeFromWhere
from mqdb.common.topic import retry_topic
from mqdb.errors import ResponseCode, TopicNotFound
from mqdb.fronts.database import Database
from mqdb.fronts.known_names import own_id
from mqdb.remoting.session.access import FrameAccess, rights_to_see_group
from mqdb.remoting.session.client import Client
from mqdb.remoting.session.connection import Connection
from mqdb.remoting.session.members import FrontMembers
from mqdb.remoting.tools import admin_bodies
from mqdb.remoting.tools.admin_bodies import QueueId
from mqdb.remoting.wire.answers import Answer
from mqdb.remoting.wire.bodies import as_json, milliseconds_of
from mqdb.remoting.wire.frame import Frame
from mqdb.store.consumers.groups import MemberInfo, consumed_at
from mqdb.store.topics.topics import find_topic

_A_MINUTE: Final = timedelta(minutes=1)
_PERIODS: Final = {"Minute": _A_MINUTE, "Hour": timedelta(hours=1), "Day": timedelta(days=1)}

#: Source: BrokerStatsManager.
_PUTS: Final = "TOPIC_PUT_NUMS"

#: Languages as RocketMQ spells them; any other is shown as OTHER. Source: LanguageCode.
_LANGUAGES: Final = frozenset({"JAVA", "CPP", "DOTNET", "PYTHON", "GO", "RUST", "PHP", "NODE_JS"})

#: The version that tools show for a client whose version is not an ordinal of RocketMQ: V4_9_8, like the front's.
#: Source: MQVersion.
_VERSION: Final = 409


class Statistics:
    """The figures of one broker, and its clients. Use it in the front's event loop only."""

    def __init__(self, database: Database, members: FrontMembers, access: FrameAccess) -> None:
        self._database = database
        self._members = members
        self._access = access
        self._broker_name = database.instance.broker_name

    # -- topics -------------------------------------------------------------------------------

    async def topic_stats(self, _connection: Connection, frame: Frame) -> Answer:
        """Code 202: the first and last offsets of each queue, and the store time of its newest message.

        Raises TopicNotFound if the topic does not exist.
        """
        table, puts = await self._database.run(partial(_topic_stats, name=frame.text("topic")))
        said = {"topicPutTps": puts / _A_MINUTE.total_seconds()}
        return Answer(body=admin_bodies.encode_with_table("offsetTable", table, self._broker_name, said))

    async def puts(self, _connection: Connection, frame: Frame) -> Answer:
        """Code 315: the number of messages that a topic received in a minute, an hour and a day.

        Other statistics are not available.
        """
        name, kind = frame.text("statsKey"), frame.text("statsName")
        if kind != _PUTS:
            return Answer(ResponseCode.SYSTEM_ERROR, remark=f"The stats <{kind}> not exist")
        counts = await self._database.run(partial(_puts, name=name, spans=_PERIODS.values()))
        said = {
            f"stats{period}": {"sum": count, "tps": count / span.total_seconds(), "avgpt": 0.0}
            for (period, span), count in zip(_PERIODS.items(), counts, strict=True)
        }
        return Answer(body=as_json(said))

    async def readers(self, _connection: Connection, frame: Frame) -> Answer:
        """Code 300: the groups with an offset in a topic, limited to groups that the sender may see."""
        progress = await self._database.run(partial(group_progress, name=frame.text("topic")))
        groups = sorted({each.group for each in progress})
        seen = await self._access.allowed(frame, *(right for group in groups for right in rights_to_see_group(group)))
        names = {right.name for right in seen}
        return Answer(body=as_json({"groupList": [group for group in groups if group in names]}))

    # -- groups -------------------------------------------------------------------------------

    async def consume_stats(self, _connection: Connection, frame: Frame) -> Answer:
        """Code 208: the offset of a group in each queue, of one topic or of all topics.

        Raises GroupNotFound if the group does not exist.

        Only clients know which messages were pulled but not committed.
        """
        find = partial(_consume_stats, group=frame.text("consumerGroup"), topic=frame.fields.get("topic") or None)
        table = await self._database.run(find)
        said = {"consumeTps": 0.0}
        return Answer(body=admin_bodies.encode_with_table("offsetTable", table, self._broker_name, said))

    async def topics_of_group(self, _connection: Connection, frame: Frame) -> Answer:
        """Code 343: the topics to which a group has subscribed or in which it has an offset.

        Raises GroupNotFound if the group does not exist.
        """
        found = await self._details(frame.text("group"))
        names = {each.topic for each in found.subscriptions} | {each.topic for each in found.progress}
        return Answer(body=as_json({"topicList": sorted(names)}))

    async def subscription(self, _connection: Connection, frame: Frame) -> Answer:
        """Code 345: the subscription of a group to a topic. Raises GroupNotFound if the group does not exist."""
        group, topic = frame.text("group"), frame.text("topic")
        data = _subscription_table(await self._details(group)).get(topic)
        return Answer(body=as_json({"group": group, "topic": topic, "subscriptionData": data}))

    # -- clients ------------------------------------------------------------------------------

    async def consumers(self, _connection: Connection, frame: Frame) -> Answer:
        """Code 203: the members of a group, whichever front they are connected to; 206 if it has no members."""
        group = frame.text("consumerGroup")
        found = await self._details(group)
        if not found.members:
            return Answer(ResponseCode.CONSUMER_NOT_ONLINE, remark=f"the consumer group[{group}] not online")
        here = [consumer for _, consumer in self._members.consumers_of(group)]
        where = here[0].where if here else ConsumeFromWhere.LAST_OFFSET
        is_active = any(consumer.is_active for consumer in here)
        said = {
            "connectionSet": [self._connection_of(member) for member in found.members],
            "subscriptionTable": _subscription_table(found),
            "consumeType": "CONSUME_ACTIVELY" if is_active else "CONSUME_PASSIVELY",
            "messageModel": found.members[0].message_model,
            "consumeFromWhere": f"CONSUME_FROM_{where.value}",
        }
        return Answer(body=as_json(said))

    async def producers(self, _connection: Connection, frame: Frame) -> Answer:
        """Code 204: the producers of a group that are connected to this front."""
        group = frame.text("producerGroup")
        found = [each for each in self._members.clients.values() if group in each.producers]
        if not found:
            return Answer(ResponseCode.SYSTEM_ERROR, remark=f"the producer group[{group}] not exist")
        return Answer(body=as_json({"connectionSet": [_describe(each) for each in found]}))

    async def all_producers(self, _connection: Connection, _frame: Frame) -> Answer:
        """Code 328: the producers of all groups."""
        table: dict[str, list[dict[str, Any]]] = {}
        for client in self._members.clients.values():
            for group in client.producers:
                table.setdefault(group, []).append(_producer(client))
        return Answer(body=as_json({"data": table}))

    async def _details(self, group: str) -> GroupDetails:
        return await self._database.run(partial(show_group, name=group))

    def _connection_of(self, member: MemberInfo) -> Mapping[str, Any]:
        client = self._members.clients.get(member.client_id)
        if client is not None:
            return _describe(client)
        return _said_of(member.client_id, _host_of(member.client_id), member.language, member.version)


def _topic_stats(connection: DatabaseConnection, name: str) -> tuple[dict[QueueId, object], int]:
    found = topic_stats(connection, name)
    table: dict[QueueId, object] = {
        (name, each.queue_id): {
            "minOffset": each.min_offset,
            "maxOffset": each.max_offset,
            "lastUpdateTimestamp": milliseconds_of(each.last_store_time),
        }
        for each in found
    }
    return table, _puts(connection, name, [_A_MINUTE])[0]


def _puts(connection: DatabaseConnection, name: str, spans: Collection[timedelta]) -> list[int]:
    """Number of messages that a topic has received in each period until now."""
    route = find_topic(connection, name)
    if route is None:
        raise TopicNotFound(name)
    now, end = datetime.now(UTC), sum(each.max_offset for each in topic_stats(connection, name))
    starts = (search_offsets(connection, route.queue_keys, now - span) for span in spans)
    return [max(end - sum(offsets.values()), 0) for offsets in starts]


def _consume_stats(connection: DatabaseConnection, group: str, topic: str | None) -> dict[QueueId, object]:
    found = show_group(connection, group, topic)
    consumed = consumed_at(connection, group)
    return {
        (each.topic, each.queue_id): {
            "brokerOffset": each.max_offset,
            "consumerOffset": each.next_offset,
            "pullOffset": each.next_offset,
            "lastTimestamp": milliseconds_of(consumed.get((each.topic, each.queue_id))),
        }
        for each in found.progress
    }


def _subscription_table(found: GroupDetails) -> dict[str, dict[str, Any]]:
    """The subscriptions of a group, including the one to its retry topic, which tools expect of every group."""
    retries = retry_topic(found.group)
    table = {
        each.topic: admin_bodies.subscription_data(each.topic, each.expression_type, each.expression, each.version)
        for each in found.subscriptions
    }
    return table | {retries: admin_bodies.subscription_data(retries, "TAG", "*")}


def _describe(client: Client) -> dict[str, Any]:
    return _said_of(client.client_id, _peer(client), client.language, client.version)


def _producer(client: Client) -> dict[str, Any]:
    said = _describe(client)
    now = milliseconds_of(datetime.now(UTC))
    return said | {"remoteIP": said["clientAddr"], "lastUpdateTimestamp": now}


def _peer(client: Client) -> str:
    """The address of a client; while it has no connection, only its host is known."""
    return _host_of(client.client_id) if client.connection is None else client.connection.peer


def _host_of(client_id: str) -> str:
    """The host at the beginning of a client id, with port 0. The real port is unknown."""
    return f"{client_id.partition('@')[0]}:0"


def _said_of(client_id: str, address: str, language: str, version: str) -> dict[str, Any]:
    return {
        "clientId": own_id(client_id),
        "clientAddr": address,
        "language": language if language in _LANGUAGES else "OTHER",
        "version": int(version) if version.isdecimal() else _VERSION,
    }
