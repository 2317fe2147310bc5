"""Requests of operators to a running consumer: for its status (307), and to consume a message now (309).

A RocketMQ client that is connected to this front receives the request on its connection. For all others, the request
goes through the broker, as for `mqdb consumer status`: a client of mqdb answers itself, and for a RocketMQ client its
front does.

    307, 309 ──▶ row, NOTIFY c:<client id> ──▶ the front with that guest ── 307, 309 ──▶ the client

RocketMQ: AdminBrokerProcessor.callConsumer, ConsumerRunningInfo, ConsumeMessageDirectlyResult.
"""

import asyncio
import logging
from base64 import b64decode, b64encode
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any, Final

from sqlalchemy import Connection as DatabaseConnection

from mqdb.broker.clients import client_requests, membership
from mqdb.broker.clients.client_requests import ANSWER_TIMEOUT, RequestKind, ask, wait_for_answer
from mqdb.broker.log.messages import locate, read_copy
from mqdb.common.received_message import ReceivedMessage
from mqdb.errors import AccessDenied, ClientRequestTimeout, MqdbError, ResponseCode
from mqdb.fronts.access_keys import topic_right
from mqdb.fronts.database import Database
from mqdb.fronts.known_names import own_id
from mqdb.remoting.session.access import FrameAccess
from mqdb.remoting.session.client import Client
from mqdb.remoting.session.connection import Connection
from mqdb.remoting.session.members import FrontMembers
from mqdb.remoting.tools import admin_bodies
from mqdb.remoting.tools.admin_bodies import QueueId
from mqdb.remoting.tools.administration import actor_of
from mqdb.remoting.wire.answers import Answer, refusal
from mqdb.remoting.wire.bodies import as_json, milliseconds_of
from mqdb.remoting.wire.codes import RequestCode
from mqdb.remoting.wire.frame import Frame, decode_frame, encode_frame
from mqdb.remoting.wire.messages import decode_offset_id, encode_message
from mqdb.remoting.wire.signature import ACCESS_KEY, SECURITY_TOKEN, SIGNATURE
from mqdb.store import operations
from mqdb.store.acl import Access
from mqdb.store.clients.client_requests import ClientRequest
from mqdb.store.consumers.groups import MemberInfo, list_members
from mqdb.store.operations import Verb
from mqdb_client.outage import level_of

logger = logging.getLogger(__name__)

#: Maximum number of requests that wait for a client through the broker, each in a thread of the database.
_MOST_WAITING: Final = 2

_PYTHON: Final = "PYTHON"

#: Fields that the client need not receive.
_OF_ASKER: Final = frozenset({ACCESS_KEY, SIGNATURE, SECURITY_TOKEN})


class Questions:
    """Relays requests to the clients of one broker.

    `address` is the front's address. Use it in the front's event loop only.
    """

    def __init__(
        self, database: Database, members: FrontMembers, access: FrameAccess, address: tuple[str, int]
    ) -> None:
        self._database = database
        self._members = members
        self._access = access
        self._instance = database.instance
        self._address = address
        self._waiting = asyncio.Semaphore(_MOST_WAITING)
        #: Requests of other fronts to clients of this front that have no answer yet.
        self._in_progress: set[int] = set()
        self._handle = self._instance.on_request(database.in_loop(self._hear))

    def close(self) -> None:
        """Stop answering other fronts."""
        self._handle.cancel()

    async def running_info(self, _connection: Connection, frame: Frame) -> Answer:
        """Code 307: the properties and queues of a consumer, and its stacks if requested.

        Returns 206 if the consumer is not connected, and 207 if it does not answer in time.
        """
        client_id, group = frame.text("clientId"), frame.text("consumerGroup")
        if (connection := self._connection_of(client_id, group)) is not None:
            return await self._relay(connection, client_id, frame, b"")
        member = await self._member(client_id, group)
        if member is None:
            return _not_online(client_id, group)
        if member.language != _PYTHON:
            return await self._ask_elsewhere(member, frame)
        status = await self._ask(member, RequestKind.STATUS, {"group": group})
        return Answer(body=_running_info(member, status, self._instance.broker_name, frame.truth("jstackEnable")))

    async def consume_directly(self, connection: Connection, frame: Frame) -> Answer:
        """Code 309: make a consumer process the message with an offset id; no offset moves, and nothing is retried.

        Raises FrameInvalid for any other id, ParameterInvalid if there is no message, and AccessDenied if the consumer
        is a RocketMQ client whose key may not read the message.
        """
        client_id, group = frame.text("clientId"), frame.text("consumerGroup")
        _, _, log_pos = decode_offset_id(frame.text("msgId"))
        there = self._connection_of(client_id, group)
        member = None if there is not None else await self._member(client_id, group)
        if there is None and member is None:
            return _not_online(client_id, group)
        found = await self._database.run(partial(self._message, log_pos=log_pos))
        if there is not None:
            await self._require_right_to(found, there)
        # Recorded even without an answer, because the listener may have been called.
        await self._database.run(partial(_note, message=found, log_pos=log_pos, frame=frame, connection=connection))
        if there is not None:
            return await self._relay(there, client_id, frame, encode_message(found, self._address))
        assert member is not None
        if member.language != _PYTHON:
            return await self._ask_elsewhere(member, frame)
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

    def _message(self, database: DatabaseConnection, log_pos: int) -> ReceivedMessage:
        return read_copy(database, self._instance.broker_name, locate(database, log_pos))

    async def _require_right_to(self, message: ReceivedMessage, connection: Connection) -> None:
        """Raise AccessDenied if the key of a client may not read the message that a request would show to it."""
        right = topic_right(Access.READ, message.queue.topic)
        if right not in await self._access.held_by(connection.access_key, right):
            raise AccessDenied(connection.access_key, *right)

    def _connection_of(self, client_id: str, group: str) -> Connection | None:
        """The connection of a group member to this front; any of them if several have the same id."""
        for client, _ in self._members.consumers_of(group):
            if own_id(client.client_id) == client_id and client.connection is not None:
                return client.connection
        return None

    async def _member(self, client_id: str, group: str) -> MemberInfo | None:
        """A member of a group on any front; any of them if several have the same id."""
        found = await self._database.run(partial(list_members, name=group))
        return next((each for each in found if own_id(each.client_id) == client_id), None)

    async def _relay(self, connection: Connection, client_id: str, frame: Frame, body: bytes) -> Answer:
        seconds = ANSWER_TIMEOUT.total_seconds()
        try:
            answer = await connection.ask(RequestCode(frame.code), _asked(frame), body, seconds)
        except ConnectionResetError:
            return _not_online(client_id, frame.text("consumerGroup"))
        except TimeoutError as error:
            raise ClientRequestTimeout(client_id, RequestCode(frame.code).name, seconds) from error
        return Answer(answer.code, answer.fields, answer.body, answer.remark)

    async def _ask(self, member: MemberInfo, kind: RequestKind, arguments: Mapping[str, Any]) -> dict[str, Any]:
        async with self._waiting:
            return await self._database.run(partial(_answer, member=member, kind=kind, arguments=arguments))

    # -- clients of another front -------------------------------------------------------------

    async def _ask_elsewhere(self, member: MemberInfo, frame: Frame) -> Answer:
        """The answer of a RocketMQ client that is connected to another front."""
        request = {"group": member.group, "code": frame.code, "fields": _asked(frame)}
        said = await self._ask(member, RequestKind.REMOTING, request)
        answer = decode_frame(b64decode(said["frame"])[4:])
        return Answer(answer.code, answer.fields, answer.body, answer.remark)

    def _hear(self, client_ids: frozenset[str] | None) -> None:
        """Look for requests to clients of this front.

        Requests made while notifications were lost (None) get no answer (207).
        """
        for client in [self._members.clients.get(each) for each in client_ids or ()]:
            if client is not None:
                for group in client.consumers:
                    self._database.spawn(self._begin(client, group))

    async def _begin(self, client: Client, group: str) -> None:
        find = partial(self._open_requests, client=client, group=group, besides=list(self._in_progress))
        try:
            for request in await self._database.run(find):
                if request.request_id not in self._in_progress:
                    self._in_progress.add(request.request_id)
                    self._database.spawn(self._answer_for(client, request))
        except MqdbError as error:
            fields = {"client_id": client.client_id, "group": group, "reason": str(error)}
            sentence = "could not read the requests to client %(client_id)s of group %(group)s: %(reason)s"
            logger.log(level_of(error), sentence, fields, extra=fields)

    def _open_requests(
        self, database: DatabaseConnection, client: Client, group: str, besides: Collection[int]
    ) -> list[ClientRequest]:
        """The open requests to a client; empty if the client has moved to another front, which then answers."""
        host = self._instance.client_id
        if client.connection is None and not membership.is_guest(database, client.client_id, host):
            return []
        return client_requests.open_requests(database, client.client_id, group, besides)

    async def _answer_for(self, client: Client, request: ClientRequest) -> None:
        """Let a client answer a request. If the client does not answer in time, the request is withdrawn."""
        try:
            if request.kind == RequestKind.REMOTING:
                answer = partial(client_requests.answer, result={"frame": await self._frame_of(client, request)})
            else:
                answer = partial(client_requests.refuse, reason="it is a RocketMQ client: use mqadmin")
            await self._database.run(partial(answer, request_id=request.request_id))
        except MqdbError as error:
            fields = {
                "client_id": client.client_id,
                "request_id": request.request_id,
                "kind": request.kind,
                "reason": str(error),
            }
            sentence = "client %(client_id)s did not answer request %(request_id)s (%(kind)s): %(reason)s"
            logger.warning(sentence, fields, extra=fields)
        finally:
            self._in_progress.discard(request.request_id)

    async def _frame_of(self, client: Client, request: ClientRequest) -> str:
        """The answer of a client, as a frame in base64, because JSON in the database cannot hold every text."""
        asked = Frame(request.arguments["code"], request.arguments["fields"])
        try:
            answer = await self._answer_of(client, asked)
        except MqdbError as error:
            answer = refusal(error)
        frame = Frame(answer.code, dict(answer.fields), answer.body, remark=answer.remark)
        return b64encode(encode_frame(frame)).decode()

    async def _answer_of(self, client: Client, asked: Frame) -> Answer:
        connection, body = client.connection, b""
        if connection is None:
            return _not_online(own_id(client.client_id), asked.text("consumerGroup"))
        if asked.code == RequestCode.CONSUME_MESSAGE_DIRECTLY:
            _, _, log_pos = decode_offset_id(asked.text("msgId"))
            found = await self._database.run(partial(self._message, log_pos=log_pos))
            await self._require_right_to(found, connection)
            body = encode_message(found, self._address)
        return await self._relay(connection, client.client_id, asked, body)


def _asked(frame: Frame) -> dict[str, str]:
    """The fields of a request, without its sender's signature."""
    return {name: value for name, value in frame.fields.items() if name not in _OF_ASKER}


def _note(
    database: DatabaseConnection, message: ReceivedMessage, log_pos: int, frame: Frame, connection: Connection
) -> None:
    """Record who made a consumer process a message."""
    operations.record(
        database,
        Verb.CONSUMER_CONSUME,
        actor_of(connection, frame),
        topics=[message.queue.topic],
        groups=[frame.text("consumerGroup")],
        object=message.properties["UNIQ_KEY"],
        after={"client_id": frame.text("clientId"), "log_pos": log_pos},
    )


def _answer(
    connection: DatabaseConnection, member: MemberInfo, kind: RequestKind, arguments: Mapping[str, Any]
) -> dict[str, Any]:
    return wait_for_answer(connection, ask(connection, member.client_id, kind, arguments, member.principal))


def _not_online(client_id: str, group: str) -> Answer:
    return Answer(ResponseCode.CONSUMER_NOT_ONLINE, remark=f"The Consumer <{group}> <{client_id}> not online")


def _running_info(member: MemberInfo, status: Mapping[str, Any], broker_name: str, has_stacks: bool) -> bytes:
    """The status of an mqdb consumer, in the format of a RocketMQ consumer."""
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
    """The state of a queue as RocketMQ's ProcessQueueInfo."""
    return {
        "commitOffset": said.get("commit_offset", said["next_offset"]),
        "cachedMsgCount": said["in_hand"],
        "cachedMsgSizeInMiB": said.get("body_bytes", 0) >> 20,
        "droped": said.get("is_dropped", False),
    }
