"""Replies to requests: codes 324 and 325, and 326 to the client that sent the request.

    replier ── 324 ──▶ front ── 326 ──▶ requester          the requester is connected here
                         └──▶ <CLUSTER>_REPLY_TOPIC        it is connected elsewhere: to another front, or to PostgreSQL
    <CLUSTER>_REPLY_TOPIC ──▶ front ── 326 ──▶ requester   the reply is from elsewhere

The front reads the reply topic from the first request of one of its clients on. The tag of a reply is the client id of
the requester. RocketMQ: ReplyMessageProcessor.
"""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from sqlalchemy import Connection as DatabaseConnection

from mqdb.broker.consumers.pull import PullRequest, PullResult, PullStatus, pull
from mqdb.broker.log import replies
from mqdb.common.message import MessageQueue
from mqdb.common.received_message import ReceivedMessage
from mqdb.errors import MqdbError, ResponseCode
from mqdb.fronts.database import Database
from mqdb.remoting.session.connection import Connection
from mqdb.remoting.session.members import FrontMembers
from mqdb.remoting.wire.answers import Answer
from mqdb.remoting.wire.codes import RequestCode
from mqdb.remoting.wire.frame import Frame
from mqdb.remoting.wire.messages import encode_properties
from mqdb.remoting.wire.send_header import SendHeader
from mqdb.selector.tags import TagExpression, tag_code
from mqdb_client.outage import level_of

logger = logging.getLogger(__name__)

#: Time that a requester has to accept its reply. Source: Broker2Client.callClient.
_TAKE_SECONDS: Final = 3.0

#: Number of other clients' replies that one pull skips: 10 ms of work.
_SCAN_LIMIT: Final = 100_000

#: An offset beyond any other, so that the answer contains the end of the queue.
_PAST_THE_END: Final = 2**62


class Replies:
    """The replies from and to the clients of one front. `address` is the front's address for clients.

    Use it in the front's event loop only.
    """

    def __init__(self, database: Database, members: FrontMembers, address: tuple[str, int]) -> None:
        self._database = database
        self._members = members
        self._instance = database.instance
        self._store_host = f"{address[0]}:{address[1]}"
        #: Clients that have sent requests, with their connections, possibly before their first heartbeat.
        self._requesters: dict[str, Connection] = {}
        self._places: list[PullRequest] = []
        self._beginning: asyncio.Task[None] | None = None
        self._reading = asyncio.Lock()
        self._handle = self._instance.on_arrival(database.in_loop(self._on_arrival))

    def close(self) -> None:
        """Stop relaying replies."""
        self._handle.cancel()

    async def bring(self, connection: Connection, frame: Frame, header: SendHeader, client_id: str) -> Answer | None:
        """Push a reply to its requester; None if the requester is not connected to this front."""
        requester = self._connection_of(client_id)
        if requester is None:
            return None
        fields = {
            "producerGroup": header.producer_group,
            "topic": header.topic,
            "queueId": str(header.queue_id),
            "sysFlag": str(header.sys_flag),
            "bornTimestamp": frame.fields.get("g" if "g" in frame.fields else "bornTimestamp", "0"),
            "flag": str(header.flag),
            "properties": encode_properties(header.properties),
            "bornHost": connection.peer,
            "reconsumeTimes": str(header.reconsume_times),
        }
        try:
            await self._push(requester, fields, frame.body)
        except (TimeoutError, ConnectionResetError) as error:
            return Answer(ResponseCode.SYSTEM_ERROR, remark=f"client {client_id} did not accept the reply: {error}")
        return Answer(fields={"msgId": "", "queueId": str(header.queue_id), "queueOffset": "-1"})

    def _connection_of(self, client_id: str) -> Connection | None:
        """The open connection of a client to this front, or None."""
        client = self._members.clients.get(client_id)
        known = None if client is None else client.connection
        connection = known or self._requesters.get(client_id)
        return connection if connection is not None and connection.is_open else None

    async def await_replies(self, connection: Connection, client_id: str) -> None:
        """Relay replies to a client from now on; call it before storing the client's request."""
        before = connection.requester_id
        if before is not None and self._requesters.get(before) is connection:
            del self._requesters[before]
        self._requesters[client_id], connection.requester_id = connection, client_id
        if self._beginning is None:
            self._beginning = self._database.spawn(self._begin())
        try:
            await asyncio.shield(self._beginning)
        except MqdbError:
            self._beginning = None  # the next request tries again
            raise

    # -- the topic ----------------------------------------------------------------------------

    async def _begin(self) -> None:
        self._places = [_next(result) for result in await self._database.run(self._ends)]

    def _ends(self, connection: DatabaseConnection) -> list[PullResult]:
        route = replies.find_topic(connection, self._instance.cluster_name)
        name, broker = route.config.name, self._instance.broker_name
        ends = [
            PullRequest(MessageQueue(name, broker, queue_id), key, _PAST_THE_END, history=route.history)
            for queue_id, key in enumerate(route.queue_keys)
        ]
        return pull(connection, ends)[0]

    def _on_arrival(self, queue_keys: frozenset[int] | None) -> None:
        if self._places and (queue_keys is None or any(place.queue_key in queue_keys for place in self._places)):
            self._database.spawn(self._read())

    async def _read(self) -> None:
        """Read all replies, and push those for this front's clients.

        Reads do not overlap; a later read covers later arrivals.
        """
        clients = self._members.clients
        self._requesters = {each: at for each, at in self._requesters.items() if at.is_open or each in clients}
        async with self._reading:
            has_more = bool(self._requesters)
            while has_more:
                wanted = frozenset(self._requesters)
                text, codes = " || ".join(wanted), tuple(map(tag_code, wanted))
                # Not parsed from a text, because an id may contain the separator of tags.
                chosen = TagExpression(text, wanted, codes, matches_all=False)
                try:
                    results, _ = await self._database.run(
                        partial(pull, requests=self._places, filter=chosen, scan_limit=_SCAN_LIMIT)
                    )
                except MqdbError as error:
                    unread = {"reason": str(error)}
                    logger.log(level_of(error), "could not read replies: %(reason)s", unread, extra=unread)
                    return
                if len(results) < len(self._places):  # the topic was deleted
                    await self._begin()
                    continue
                for result in results:
                    for message in result.messages:
                        self._relay(message)
                self._places = [_next(result) for result in results]
                has_more = any(
                    result.status is not PullStatus.OFFSET_ILLEGAL and result.next_begin_offset < result.max_offset
                    for result in results
                )

    def _relay(self, message: ReceivedMessage) -> None:
        requester = self._connection_of(message.tag or "")  # other tags may have the same code
        if requester is None:
            return
        fields = {
            "producerGroup": "",
            "topic": message.queue.topic,
            "queueId": str(message.queue.queue_id),
            "sysFlag": str(message.sys_flag),
            "bornTimestamp": str(message.born_ms),
            "flag": str(message.flag),
            "properties": encode_properties(message.properties),
            "bornHost": message.born_host,
            "reconsumeTimes": "0",
        }
        self._database.spawn(self._try_to_push(requester, fields, message.stored_body))

    async def _try_to_push(self, connection: Connection, fields: Mapping[str, str], body: bytes) -> None:
        try:
            await self._push(connection, fields, body)
        except (TimeoutError, ConnectionResetError):
            lost = {"peer": connection.peer}
            logger.warning("client %(peer)s did not accept a reply", lost, extra=lost)

    async def _push(self, connection: Connection, fields: Mapping[str, str], body: bytes) -> None:
        """Code 326: push a reply to a client, and wait for its answer, because the client may be gone.

        Raises TimeoutError, ConnectionResetError.
        """
        said = {
            **fields,
            "defaultTopic": "",
            "defaultTopicQueueNums": "0",
            "storeHost": self._store_host,
            "storeTimestamp": fields["bornTimestamp"],
            "unitMode": "false",
        }
        await connection.ask(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, said, body, _TAKE_SECONDS)


def _next(result: PullResult) -> PullRequest:
    return replace(result.request, offset=result.next_begin_offset, segment=result.segment)
