"""Requests of operators to a running consumer: for its stacks, and to consume a message now.

    mqdb consumer status ── row, NOTIFY c:<client id> ──▶ the front with that guest ── its stream ──▶ the client

Java's SDK answers both requests; if a client does not answer, the request times out.
RocketMQ: PrintThreadStackTraceCommand, VerifyMessageCommand.
"""

import logging
import time
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from mqdb.broker.clients import client_requests
from mqdb.broker.clients.client_requests import RequestKind
from mqdb.broker.log.messages import locate, read_copy
from mqdb.errors import MqdbError
from mqdb.fronts.access_keys import AccessKeys, topic_right
from mqdb.fronts.database import Database
from mqdb.grpc.members import SdkClient, SdkMembers
from mqdb.grpc.wire.messages import message_for
from mqdb.grpc.wire.rocketmq_pb2 import (
    Code,
    PrintThreadStackTraceCommand,
    Status,
    TelemetryCommand,
    ThreadStackTrace,
    VerifyMessageCommand,
    VerifyMessageResult,
)
from mqdb.grpc.wire.status import OK
from mqdb.store.acl import Access
from mqdb.store.clients.client_requests import ClientRequest
from mqdb_client.outage import level_of

logger = logging.getLogger(__name__)

#: Maximum length of stored stacks, which are read on a screen.
_MOST_CHARACTERS: Final = 256 * 1024

#: Maximum number of unanswered requests of one front. Beyond it, the oldest are forgotten.
_MOST_OPEN: Final = 1_000


class SdkQuestions:
    """Relays requests to the clients of one front. Call it from the event loop only."""

    def __init__(self, database: Database, keys: AccessKeys, members: SdkMembers, store_host: str) -> None:
        self._database = database
        self._keys = keys
        self._members = members
        self._instance = database.instance
        self._store_host = store_host
        #: The client and the time of each relayed request, by its number, which is the nonce of the command.
        self._open: dict[str, tuple[SdkClient, float]] = {}
        self._handle = self._instance.on_request(database.in_loop(self._hear))

    def close(self) -> None:
        """Stop relaying requests."""
        self._handle.cancel()

    def stacks(self, client: SdkClient, said: ThreadStackTrace) -> None:
        """A client has sent its stacks."""
        if (seconds := self._seconds_of(client, said.nonce)) is not None:
            stack = said.thread_stack_trace.replace("\0", "")[:_MOST_CHARACTERS]
            result = {"state": "running", "queues": [], "listeners": [], "answered_in_seconds": seconds, "stack": stack}
            self._database.spawn(self._answer(said.nonce, result))

    def consumed(self, client: SdkClient, said: VerifyMessageResult, status: Status) -> None:
        """A client has consumed the message of a request, or failed to."""
        if (seconds := self._seconds_of(client, said.nonce)) is not None:
            result = {
                "result": "CR_SUCCESS" if status.code in (Code.OK, Code.CODE_UNSPECIFIED) else "CR_LATER",
                "remark": status.message.replace("\0", ""),
                "traceback": "",
                "spent_ms": seconds * 1_000,
                "is_orderly": False,
            }
            self._database.spawn(self._answer(said.nonce, result))

    def _seconds_of(self, client: SdkClient, nonce: str) -> float | None:
        """Seconds for which a request was open; None if it was not sent to this client."""
        asked, at = self._open.get(nonce, (None, 0.0))
        if asked is not client:
            return None
        del self._open[nonce]
        return round(time.monotonic() - at, 3)

    def _hear(self, client_ids: frozenset[str] | None) -> None:
        """Look for requests to these clients. Requests made while notifications were lost (None) are not answered."""
        for client in [self._members.clients.get(each) for each in client_ids or ()]:
            if client is not None and client.stream is not None:
                for group in client.consumers:
                    self._database.spawn(self._pass_on(client, group))

    async def _pass_on(self, client: SdkClient, group: str) -> None:
        passed = [int(nonce) for nonce, (asked, _) in self._open.items() if asked is client]
        find = partial(client_requests.open_requests, client_id=client.call.client_id, group=group, besides=passed)
        try:
            for request in await self._database.run(find):
                nonce = str(request.request_id)
                if nonce not in self._open:
                    self._open[nonce] = (client, time.monotonic())
                    if len(self._open) > _MOST_OPEN:
                        del self._open[next(iter(self._open))]
                    await self._ask(client, request, nonce)
        except MqdbError as error:
            fields = {"client_id": client.call.client_id, "group": group, "reason": str(error)}
            sentence = "could not read the requests to client %(client_id)s of group %(group)s: %(reason)s"
            logger.log(level_of(error), sentence, fields, extra=fields)

    async def _ask(self, client: SdkClient, request: ClientRequest, nonce: str) -> None:
        command: TelemetryCommand | None = None
        reason = "it is an SDK of RocketMQ 5, which cannot answer this request"
        try:
            if request.kind == RequestKind.STATUS:
                stacks = PrintThreadStackTraceCommand(nonce=nonce)
                command = TelemetryCommand(status=OK, print_thread_stack_trace_command=stacks)
            elif request.kind == RequestKind.CONSUME_DIRECTLY and isinstance(
                log_pos := request.arguments.get("log_pos"),
                int,  # any writer of the table may have written it
            ):
                command = await self._verification(client, log_pos, nonce)
        except MqdbError as error:
            reason = str(error)
        if command is not None and client.stream is not None:
            client.stream.tell(command)
            return
        self._open.pop(nonce, None)
        await self._database.run(partial(client_requests.refuse, request_id=request.request_id, reason=reason))

    async def _verification(self, client: SdkClient, log_pos: int, nonce: str) -> TelemetryCommand:
        """Raise AccessDenied if the key of the client may not read the message that the command shows to it."""
        call, name = client.call, self._instance.broker_name
        found = await self._database.run(lambda connection: read_copy(connection, name, locate(connection, log_pos)))
        await self._keys.require_of(call.access_key, topic_right(Access.READ, found.queue.topic))
        message = message_for(found, call.namespace, self._store_host)
        return TelemetryCommand(status=OK, verify_message_command=VerifyMessageCommand(nonce=nonce, message=message))

    async def _answer(self, nonce: str, result: Mapping[str, Any]) -> None:
        try:
            await self._database.run(partial(client_requests.answer, request_id=int(nonce), result=result))
        except MqdbError as error:
            fields = {"request_id": nonce, "reason": str(error)}
            sentence = "lost the answer of a client to request %(request_id)s: %(reason)s"
            logger.log(level_of(error), sentence, fields, extra=fields)
