"""What people ask a running consumer: how it is (307), and to consume one message now (309).

A client of RocketMQ that is connected here is asked on its connection. One of mqdb is asked through the broker, as
`mqdb consumer status` does. A client of RocketMQ on another front cannot be asked here.
RocketMQ: AdminBrokerProcessor.callConsumer, ConsumerRunningInfo, ConsumeMessageDirectlyResult.
"""

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from sqlalchemy import Connection as DatabaseConnection

from mqdb.broker.clients.client_requests import ANSWER_TIMEOUT, RequestKind, ask, wait_for_answer
from mqdb.broker.log.messages import locate, read_copy
from mqdb.common.message import ReceivedMessage
from mqdb.errors import ClientRequestTimeout, ResponseCode
from mqdb.remoting import admin_bodies
from mqdb.remoting.admin_bodies import QueueId
from mqdb.remoting.administration import actor_of
from mqdb.remoting.answers import as_json
from mqdb.remoting.codes import RequestCode
from mqdb.remoting.connection import Answer, Connection
from mqdb.remoting.database import Database
from mqdb.remoting.fields import milliseconds_of, text, truth
from mqdb.remoting.frame import Frame
from mqdb.remoting.members import Members, own_id
from mqdb.remoting.signature import ACCESS_KEY, SECURITY_TOKEN, SIGNATURE
from mqdb.remoting.wire_message import decode_offset_id, encode_message
from mqdb.store import operations
from mqdb.store.consumers.groups import MemberInfo, list_members
from mqdb.store.operations import Verb

#: Those who wait for a client of mqdb, each in a thread of the database's.
_MOST_WAITING: Final = 2

_PYTHON: Final = "PYTHON"

#: What the client that is asked need not know.
_OF_ASKER: Final = frozenset({ACCESS_KEY, SIGNATURE, SECURITY_TOKEN})


class Questions:
    """What the clients of one broker are asked. Of the front's loop. `address` is that of the front."""

    def __init__(self, database: Database, members: Members, address: tuple[str, int]) -> None:
        self._database = database
        self._members = members
        self._instance = database.instance
        self._address = address
        self._waiting = asyncio.Semaphore(_MOST_WAITING)

    async def running_info(self, _connection: Connection, frame: Frame) -> Answer:
        """307: the properties, queues and, if asked for, the stacks of a consumer. Not there: 206; too slow: 207."""
        client_id, group = text(frame, "clientId"), text(frame, "consumerGroup")
        if (connection := self._connection_of(client_id, group)) is not None:
            return await self._relay(connection, client_id, frame, b"")
        member = await self._member(client_id, group)
        if member is None:
            return _not_online(client_id, group)
        status = await self._ask(member, RequestKind.STATUS, {"group": group})
        return Answer(body=_running_info(member, status, self._instance.broker_name, truth(frame, "jstackEnable")))

    async def consume_directly(self, connection: Connection, frame: Frame) -> Answer:
        """309: have a consumer consume the message with an offset id; no offset moves, and nothing is retried.

        Raises FrameInvalid for another id, ParameterInvalid where there is no message.
        """
        client_id, group = text(frame, "clientId"), text(frame, "consumerGroup")
        _, _, log_pos = decode_offset_id(text(frame, "msgId"))
        there = self._connection_of(client_id, group)
        member = None if there is not None else await self._member(client_id, group)
        if there is None and member is None:
            return _not_online(client_id, group)
        # Before the answer: without one, the listener may have been called all the same.
        found = await self._database.run(partial(self._noted, log_pos=log_pos, frame=frame, connection=connection))
        if there is not None:
            return await self._relay(there, client_id, frame, encode_message(found, self._address))
        assert member is not None
        request = {"group": group, "log_pos": log_pos}
        result = await self._ask(member, RequestKind.CONSUME_DIRECTLY, request)
        said = {
            "order": result["is_orderly"],
            "autoCommit": True,
            "consumeResult": result["result"],
            "remark": "\n".join(filter(None, (result["remark"], result["traceback"]))) or None,
            "spentTimeMills": round(result["spent_ms"]),
        }
        return Answer(body=as_json(said))

    def _noted(
        self, database: DatabaseConnection, log_pos: int, frame: Frame, connection: Connection
    ) -> ReceivedMessage:
        """The message, once it is noted who has it consumed."""
        copy = locate(database, log_pos)
        message = read_copy(database, self._instance.broker_name, copy)
        operations.record(
            database,
            Verb.CONSUMER_CONSUME,
            actor_of(connection, frame),
            topics=[copy.topic],
            groups=[text(frame, "consumerGroup")],
            object=message.properties["UNIQ_KEY"],
            after={"client_id": text(frame, "clientId"), "log_pos": log_pos},
        )
        return message

    def _connection_of(self, client_id: str, group: str) -> Connection | None:
        """That of a member of a group which is connected here; of one of those that have the same id."""
        for client, _ in self._members.consumers_of(group):
            if own_id(client.client_id) == client_id and client.connection is not None:
                return client.connection
        return None

    async def _member(self, client_id: str, group: str) -> MemberInfo | None:
        """A member of a group that is a client of mqdb."""
        found = await self._database.run(partial(list_members, name=group))
        return next((each for each in found if each.client_id == client_id and each.language == _PYTHON), None)

    async def _relay(self, connection: Connection, client_id: str, frame: Frame, body: bytes) -> Answer:
        seconds = ANSWER_TIMEOUT.total_seconds()
        asked = {name: value for name, value in frame.fields.items() if name not in _OF_ASKER}
        try:
            answer = await connection.ask(RequestCode(frame.code), asked, body, seconds)
        except ConnectionResetError:
            return _not_online(client_id, text(frame, "consumerGroup"))
        except TimeoutError as error:
            raise ClientRequestTimeout(client_id, RequestCode(frame.code).name, seconds) from error
        return Answer(answer.code, answer.fields, answer.body, answer.remark)

    async def _ask(self, member: MemberInfo, kind: RequestKind, arguments: Mapping[str, Any]) -> dict[str, Any]:
        async with self._waiting:
            return await self._database.run(partial(_answer, member=member, kind=kind, arguments=arguments))


def _answer(
    connection: DatabaseConnection, member: MemberInfo, kind: RequestKind, arguments: Mapping[str, Any]
) -> dict[str, Any]:
    return wait_for_answer(connection, ask(connection, member.client_id, kind, arguments, member.principal))


def _not_online(client_id: str, group: str) -> Answer:
    return Answer(ResponseCode.CONSUMER_NOT_ONLINE, remark=f"The Consumer <{group}> <{client_id}> not online")


def _running_info(member: MemberInfo, status: Mapping[str, Any], broker_name: str, has_stacks: bool) -> bytes:
    """What a consumer of mqdb says, in the form of one of RocketMQ's."""
    said = {name: str(value) for name, value in status.items() if not isinstance(value, list | dict)}
    properties = {
        "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
        "PROP_CLIENT_VERSION": f"mqdb {member.version}",
        "PROP_CONSUMEORDERLY": "false",
        "PROP_CONSUMER_START_TIMESTAMP": str(milliseconds_of(member.registered_at)),
        "messageModel": member.message_model,
        **said,
    }
    subscriptions = [
        admin_bodies.subscription_data(each["topic"], each["expression_type"], each["expression"])
        for each in status.get("subscriptions", [])
    ]
    stacks = [
        "\n".join(f"{call['thread']}  {line}" for line in str(call["stack"]).splitlines())
        for call in status.get("listeners", [])
    ]
    rest = {
        "properties": properties,
        "subscriptionSet": subscriptions,
        "statusTable": {},
        "userConsumerInfo": {},
        "jstack": "\n\n".join(stacks) if has_stacks else None,
    }
    table = {_queue_id(each["queue"]): _process_queue(each) for each in status.get("queues", [])}
    return admin_bodies.encode_with_table("mqTable", table, broker_name, rest)


def _queue_id(queue: str) -> QueueId:
    place, _, number = queue.rpartition(":")
    return place.rpartition("@")[0], int(number)


def _process_queue(said: Mapping[str, Any]) -> dict[str, Any]:
    """RocketMQ: ProcessQueueInfo."""
    return {
        "commitOffset": said.get("commit_offset", said["next_offset"]),
        "cachedMsgCount": said["in_hand"],
        "cachedMsgSizeInMiB": said.get("body_bytes", 0) >> 20,
        "droped": said.get("is_dropped", False),
    }
