"""Requests of RocketMQ's tools about topics, groups and the broker: listing, changing and deleting.

RocketMQ's name server stores which topics are ordered in a separate map (100, 101, 102). Here this is a setting of the
topic: the map is read from the setting, which tools have already set with 17 when they write to the map.
RocketMQ: AdminBrokerProcessor, DefaultRequestProcessor, mqadmin.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

from sqlalchemy import Connection as DatabaseConnection

from mqdb import __version__
from mqdb.broker.consumers import groups
from mqdb.broker.consumers.offset_reset import Boundary, ResetTarget, reset_offsets
from mqdb.broker.log.query import log_span, positions_since
from mqdb.broker.topics import topics
from mqdb.common.group import ConsumeFromWhere, ConsumeMode
from mqdb.common.topic import RETRY_PREFIX, MessageType, Perm, TopicConfig, is_system_topic, reply_topic
from mqdb.errors import GroupNotFound, ParameterInvalid, ResponseCode, TopicExists, TopicNotFound
from mqdb.fronts.database import Database
from mqdb.remoting.session.connection import Connection
from mqdb.remoting.tools import admin_bodies
from mqdb.remoting.wire.answers import Answer
from mqdb.remoting.wire.bodies import as_json, milliseconds_of, parsed_object, text_in
from mqdb.remoting.wire.frame import Frame
from mqdb.remoting.wire.signature import ACCESS_KEY
from mqdb.store.consumers import groups as stored_groups
from mqdb.store.topics.topics import find_topic, list_topics

_DAY: Final = timedelta(days=1)

#: Periods for which a rate is reported. Source: StoreStatsService.getPutTps.
_RATES: Final = (timedelta(seconds=10), timedelta(minutes=1), timedelta(minutes=10))

#: Figures that tools require but that do not exist here: thread pools, a timer wheel, a count of reads.
_ALWAYS_ZERO: Final = (
    *(f"{pool}ThreadPoolQueueSize" for pool in ("send", "pull", "query", "ack")),
    *(f"{pool}ThreadPoolQueueHeadWaitTimeMills" for pool in ("send", "pull", "query", "ack")),
    *("pageCacheLockTimeMills", "dispatchBehindBytes", "getTransferredTps", "getTransferedTps", "getTotalTps"),
    *("timerReadBehind", "timerOffsetBehind", "timerCongestNum", "timerEnqueueTps", "timerDequeueTps"),
    *("msgGetTotalYesterdayMorning", "msgGetTotalTodayMorning", "msgGetTotalTodayNow"),
)  # fmt: skip

_ORDERED_TOPICS: Final = "ORDER_TOPIC_CONFIG"


def actor_of(connection: Connection, frame: Frame) -> str:
    """The author of a change, for the list of operations: the access key, or the address of the connection."""
    return frame.fields.get(ACCESS_KEY) or f"remoting:{connection.peer}"


class Administration:
    """Requests of administrators to one broker. `address` is the front's address as clients know it."""

    def __init__(self, database: Database, address: tuple[str, int]) -> None:
        self._database = database
        self._instance = database.instance
        self._address = address
        self._started_at = time.time()

    # -- the broker ---------------------------------------------------------------------------

    async def runtime_info(self, _connection: Connection, _frame: Frame) -> Answer:
        """Code 28: figures of the broker, all of them as text."""
        return Answer(body=as_json({"table": await self._database.run(self._figures)}))

    def _figures(self, connection: DatabaseConnection) -> dict[str, str]:
        now = datetime.now(UTC)
        today = now.astimezone().replace(hour=0, minute=0, second=0, microsecond=0)
        span = log_span(connection)
        *puts, since_today, since_yesterday = positions_since(
            connection, [*(now - each for each in _RATES), today, today - _DAY]
        )
        up = timedelta(seconds=int(time.time() - self._started_at))
        hours, seconds = divmod(up.seconds, 3_600)
        return dict.fromkeys(_ALWAYS_ZERO, "0") | {
            "brokerActive": "true",
            "brokerVersionDesc": f"mqdb {__version__}",
            "bootTimestamp": str(int(self._started_at * 1_000)),
            "runtime": f"[ {up.days} days, {hours} hours, {seconds // 60} minutes, {seconds % 60} seconds ]",
            "putTps": " ".join(f"{count / each.total_seconds():.2f}" for count, each in zip(puts, _RATES, strict=True)),
            "commitLogMinOffset": str(span.lowest_pos),
            "commitLogMaxOffset": str(span.past_pos),
            "earliestMessageTimeStamp": str(milliseconds_of(span.oldest or now)),
            "msgPutTotalTodayNow": str(span.past_pos),
            "msgPutTotalTodayMorning": str(span.past_pos - since_today),
            "msgPutTotalYesterdayMorning": str(span.past_pos - since_yesterday),
        }

    async def broker_config(self, _connection: Connection, _frame: Frame) -> Answer:
        """Code 26: settings, as lines of a properties file.

        Settings of mqdb have their own names: see `mqdb config`.
        """
        host, port = self._address
        settings = {
            "brokerName": self._instance.broker_name,
            "brokerClusterName": self._instance.cluster_name,
            "brokerId": 0,
            "brokerIP1": host,
            "listenPort": port,
            "namesrvAddr": f"{host}:{port}",
        }
        return Answer(body="".join(f"{name}={value}\n" for name, value in settings.items()).encode())

    # -- topics -------------------------------------------------------------------------------

    async def topic_names(self, _connection: Connection, _frame: Frame) -> Answer:
        """Codes 206 and 224: the names of all topics, including those of the broker and of groups."""
        return await self._topic_list(lambda _: True)

    async def system_topic_names(self, _connection: Connection, _frame: Frame) -> Answer:
        """Codes 304 and 305: the names of the broker's own topics."""
        replies = reply_topic(self._instance.cluster_name)
        return await self._topic_list(lambda name: is_system_topic(name) or name == replies)

    async def _topic_list(self, is_wanted: Callable[[str], bool]) -> Answer:
        found = [each.config.name for each in await self._database.run(list_topics)]
        host, port = self._address
        said = {"topicList": [name for name in found if is_wanted(name)], "brokerAddr": f"{host}:{port}"}
        return Answer(body=as_json(said))

    async def topic_configs(self, _connection: Connection, _frame: Frame) -> Answer:
        """Code 21: all topics with their settings."""
        configs = [each.config for each in await self._database.run(list_topics)]
        table = ((config.name, admin_bodies.topic_config(config)) for config in configs)
        return Answer(body=admin_bodies.versioned("topicConfigTable", table))

    async def topic_config(self, _connection: Connection, frame: Frame) -> Answer:
        """Code 351: the settings of a topic. Raises TopicNotFound if the topic does not exist."""
        return Answer(body=as_json(admin_bodies.topic_config(await self._config(frame.text("topic")))))

    async def save_topic(self, connection: Connection, frame: Frame) -> Answer:
        """Code 17: create a topic, or change its settings. Raises the errors of `mqdb.broker.topics.topics`."""
        kind = _message_type(frame.fields.get("attributes") or "")
        config = TopicConfig(
            frame.text("topic"),
            frame.number("readQueueNums"),
            frame.number("writeQueueNums"),
            frame.number("perm", Perm.READ | Perm.WRITE),  # type: ignore[arg-type]  # it makes a Perm of it
            order=frame.truth("order"),
            message_type=kind or MessageType.NORMAL,
        )
        save = partial(_save_topic, config=config, kind=kind, actor=actor_of(connection, frame))
        await self._database.run(save)
        return Answer()

    async def delete_topic(self, connection: Connection, frame: Frame) -> Answer:
        """Code 215: delete a topic; a topic that does not exist is not an error. Raises TopicInUse, NameInvalid."""
        name, actor = frame.text("topic"), actor_of(connection, frame)
        await self._database.run(partial(topics.delete_topic, name=name, actor=actor))
        return Answer()

    async def forget_topic(self, _connection: Connection, _frame: Frame) -> Answer:
        """Codes 216 and 102: remove a deleted topic from a name server.

        Nothing to do here, because there is no separate name server.
        """
        return Answer()

    # -- which topics are ordered -------------------------------------------------------------

    async def save_value(self, _connection: Connection, frame: Frame) -> Answer:
        """Code 100: the queues of an ordered topic, which code 17 has already set.

        Raises ParameterInvalid for any other value.
        """
        _check_namespace(frame)
        config = await self._config(frame.text("key"))
        if not config.order:
            raise ParameterInvalid(
                "key", config.name, "is not an ordered topic; make it ordered with its other settings"
            )
        return Answer()

    async def value(self, _connection: Connection, frame: Frame) -> Answer:
        """Code 101: the queues of an ordered topic; returns 22 for other topics."""
        _check_namespace(frame)
        name = frame.text("key")
        found = await self._database.run(partial(find_topic, name=name))
        if found is None or not found.config.order:
            return Answer(ResponseCode.QUERY_NOT_FOUND, remark=f"no ordered topic {name}")
        return Answer(fields={"value": f"{self._instance.broker_name}:{found.config.write_queue_nums}"})

    # -- groups -------------------------------------------------------------------------------

    async def group_configs(self, _connection: Connection, _frame: Frame) -> Answer:
        """Code 201: all groups with their settings."""
        found = await self._database.run(stored_groups.find_all)
        table = ((name, admin_bodies.group_config(name, settings)) for name, settings in found.items())
        return Answer(body=admin_bodies.versioned("subscriptionGroupTable", table))

    async def group_config(self, _connection: Connection, frame: Frame) -> Answer:
        """Code 352: the settings of a group. Raises GroupNotFound if the group does not exist."""
        name = frame.text("group")
        settings = await self._database.run(partial(stored_groups.find, name=name))
        if settings is None:
            raise GroupNotFound(name)
        return Answer(body=as_json(admin_bodies.group_config(name, settings)))

    async def save_group(self, connection: Connection, frame: Frame) -> Answer:
        """Code 200: create a group, or change its settings. Settings that mqdb does not have are ignored."""
        said = parsed_object(frame.body)
        update = partial(
            groups.update_group,
            name=said.get("groupName"),  # type: ignore[arg-type]  # it checks what it is given
            consume_enable=_typed(said, "consumeEnable", bool),
            consume_broadcast_enable=_typed(said, "consumeBroadcastEnable", bool),
            retry_queue_nums=_typed(said, "retryQueueNums", int),
            retry_max_times=_typed(said, "retryMaxTimes", int),
            consume_message_orderly=_typed(said, "consumeMessageOrderly", bool),
            retry_delays=admin_bodies.retry_delays(said.get("groupRetryPolicy")),
            consume_from_where=_where(_typed(said, "consumeFromMinEnable", bool)),
            actor=actor_of(connection, frame),
        )
        await self._database.run(update)
        return Answer()

    async def set_request_mode(self, connection: Connection, frame: Frame) -> Answer:
        """Code 401: make a group pull or pop in all of its topics, not only in the one that the tool names.

        Raises TopicNotFound, GroupNotFound, and the errors of `mqdb.broker.consumers.groups.update_group`.
        """
        said = parsed_object(frame.body)
        topic, group, mode = text_in(said, "topic"), text_in(said, "consumerGroup"), text_in(said, "mode")
        if mode not in set(ConsumeMode):
            raise ParameterInvalid("mode", mode, f"must be one of {', '.join(ConsumeMode)}")
        if topic.startswith(RETRY_PREFIX):
            return Answer(
                ResponseCode.NO_PERMISSION, remark=f"{topic} is a retry topic: name a topic that the group reads"
            )
        await self._config(topic)
        set_mode = partial(_set_mode, group=group, mode=ConsumeMode(mode), actor=actor_of(connection, frame))
        await self._database.run(set_mode)
        return Answer()

    async def delete_group(self, connection: Connection, frame: Frame) -> Answer:
        """Code 207: delete a group with its offsets; a group that does not exist is not an error.

        Raises GroupInUse if the group has members.

        The group's topics stay: a tool deletes them next (215).
        """
        await self._database.run(
            partial(_delete_group, name=frame.text("groupName"), actor=actor_of(connection, frame))
        )
        return Answer()

    async def reset_offset(self, connection: Connection, frame: Frame) -> Answer:
        """Code 222: make a group continue at a time, or at an offset in one queue.

        Members detect the reset by their epochs.

        Raises the errors of `mqdb.broker.consumers.offset_reset.reset_offsets`.
        """
        topic, queue_id = frame.text("topic"), frame.number("queueId", -1)
        reset = partial(
            reset_offsets,
            group=frame.text("group"),
            topic=topic,
            target=_reset_target(frame),
            queue_id=None if queue_id < 0 else queue_id,
            reason="mqadmin",
            actor=actor_of(connection, frame),
        )
        table = {(each.topic, each.queue_id): each.new_offset for each in await self._database.run(reset)}
        return Answer(body=admin_bodies.encode_with_table("offsetTable", table, self._instance.broker_name))

    async def _config(self, name: str) -> TopicConfig:
        found = await self._database.run(partial(find_topic, name=name))
        if found is None:
            raise TopicNotFound(name)
        return found.config


def _save_topic(connection: DatabaseConnection, config: TopicConfig, kind: MessageType | None, actor: str) -> None:
    try:
        topics.create_topic(connection, config, actor=actor)
    except TopicExists:
        topics.update_topic(
            connection,
            config.name,
            read_queue_nums=config.read_queue_nums,
            write_queue_nums=config.write_queue_nums,
            perm=config.perm,
            order=config.order,
            message_type=kind,
            actor=actor,
        )


def _set_mode(connection: DatabaseConnection, group: str, mode: ConsumeMode, actor: str) -> None:
    stored_groups.existing(connection, group)
    groups.update_group(connection, group, consume_mode=mode, actor=actor)


def _delete_group(connection: DatabaseConnection, name: str, actor: str) -> None:
    if stored_groups.find(connection, name) is not None:
        groups.delete_group(connection, name, actor=actor)


def _message_type(attributes: str) -> MessageType | None:
    """The type in attributes such as `+message.type=FIFO,+c=d,-e`; None if it is missing. Raises ParameterInvalid."""
    for each in attributes.split(","):
        name, _, value = each.strip().partition("=")
        if name == "+message.type":
            if value not in set(MessageType):
                raise ParameterInvalid(
                    "attributes", attributes, f"message.type must be one of {', '.join(MessageType)}"
                )
            return MessageType(value)
    return None


def _reset_target(frame: Frame) -> ResetTarget:
    """The offset in a request, or its time; a time before 1970 means the end.

    Source: AdminBrokerProcessor.resetOffset.
    """
    offset, timestamp = frame.number("offset", -1), frame.number("timestamp")
    if offset >= 0:
        return offset
    if timestamp < 0:
        return Boundary.LATEST
    return frame.moment("timestamp")


def _check_namespace(frame: Frame) -> None:
    namespace = frame.text("namespace")
    if namespace != _ORDERED_TOPICS:
        raise ParameterInvalid("namespace", namespace, f"must be {_ORDERED_TOPICS}")


def _where(is_from_min: bool | None) -> ConsumeFromWhere | None:
    if is_from_min is None:
        return None
    return ConsumeFromWhere.FIRST_OFFSET if is_from_min else ConsumeFromWhere.LAST_OFFSET


def _typed(said: dict[str, Any], name: str, type_: type[Any]) -> Any:
    value = said.get(name)
    if value is not None and type(value) is not type_:
        raise ParameterInvalid(name, value, "has the wrong type")
    return value
