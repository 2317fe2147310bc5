"""Half messages of clients: clients report the outcome, or are asked for it.

    transaction checker ── NOTIFY c:<client id> ──▶ the front with that guest ── its stream ──▶ the client ── end

SDKs have no producer groups, so the topic is used as the group, as in RocketMQ's proxy: any client that sends to the
topic may be asked. The transaction id is the position of the half message in the log.
RocketMQ: EndTransactionActivity, TransactionService, GrpcClientChannel.
"""

import logging
from functools import partial
from typing import Final

from mqdb.broker.transactions.transactions import EndTransaction, end
from mqdb.common.transaction import LocalTransactionState
from mqdb.common.unique_id import unique_id_of
from mqdb.errors import MqdbError
from mqdb.fronts.access_keys import AccessKeys, topic_right
from mqdb.fronts.database import Database
from mqdb.grpc.calls import Call
from mqdb.grpc.members import SdkClient, SdkMembers
from mqdb.grpc.routes import topic_of
from mqdb.grpc.wire.messages import TRANSACTION_ID, message_for
from mqdb.grpc.wire.rocketmq_pb2 import (
    Code,
    EndTransactionRequest,
    EndTransactionResponse,
    RecoverOrphanedTransactionCommand,
    TelemetryCommand,
    TransactionResolution,
    TransactionSource,
)
from mqdb.grpc.wire.status import OK, CallRefused
from mqdb.store.acl import Access
from mqdb.store.transactions.half_checks import HalfCheck, open_checks
from mqdb_client.outage import level_of

logger = logging.getLogger(__name__)

_STATES: Final = {
    TransactionResolution.COMMIT: LocalTransactionState.COMMIT,
    TransactionResolution.ROLLBACK: LocalTransactionState.ROLLBACK,
}

#: Maximum number of checks sent to a client at a time; the others follow after its answers.
_MOST_QUESTIONS: Final = 256


class SdkTransactions:
    """The transactions of one front's clients. Call it from the event loop only."""

    def __init__(self, database: Database, keys: AccessKeys, members: SdkMembers, store_host: str) -> None:
        self._database = database
        self._keys = keys
        self._members = members
        self._instance = database.instance
        self._store_host = store_host
        #: Checks that a client has not answered, by client and topic: the positions, each with its number of checks so
        #: far.
        self._asked: dict[tuple[SdkClient, str], dict[int, int]] = {}
        self._handle = self._instance.on_request(database.in_loop(self._hear))

    def close(self) -> None:
        """Send no further checks."""
        self._handle.cancel()

    async def end(self, call: Call, request: EndTransactionRequest) -> EndTransactionResponse:
        """End a half message. Raises the errors of `mqdb.broker.transactions.transactions.end`."""
        topic = topic_of(request.topic, call.namespace)
        await self._keys.require_of(call.access_key, topic_right(Access.SEND, topic))
        if not (request.transaction_id.isdecimal() and len(request.transaction_id) < 19 and request.message_id):
            raise CallRefused(Code.INVALID_TRANSACTION_ID, f"{request.transaction_id!r} is not a transaction id")
        is_answer = request.source == TransactionSource.SOURCE_SERVER_CHECK
        ended = EndTransaction(
            call.producer_group(topic),
            int(request.transaction_id),
            unique_id_of(request.message_id),
            _STATES.get(request.resolution, LocalTransactionState.UNKNOWN),
            asked_client=call.client_id if is_answer else None,
        )
        await self._database.run(partial(end, request=ended))
        return EndTransactionResponse(status=OK)

    def _hear(self, client_ids: frozenset[str] | None) -> None:
        clients = self._members.clients.values()
        for client in list(clients):
            if client_ids is None or client.call.client_id in client_ids:
                for topic in [topic for topic, is_asked in client.topics.items() if is_asked]:
                    self._database.spawn(self._ask(client, topic))
        there = set(clients)
        self._asked = {key: asked for key, asked in self._asked.items() if key[0] in there}

    async def _ask(self, client: SdkClient, topic: str) -> None:
        """Send a client the checks that it has not received yet."""
        call, right = client.call, topic_right(Access.SEND, topic)
        find = partial(
            open_checks,
            broker_name=self._instance.broker_name,
            client_id=call.client_id,
            group=call.producer_group(topic),
            limit=_MOST_QUESTIONS,
        )
        try:
            checks = await self._database.run(find)
            may_know = right in await self._keys.held_by(call.access_key, right)
        except MqdbError as error:  # the check is repeated at its next time
            fields = {"topic": topic, "reason": str(error)}
            sentence = "could not send checks of transactions in topic %(topic)s; will retry: %(reason)s"
            logger.log(level_of(error), sentence, fields, extra=fields)
            return
        asked = self._asked.get((client, topic), {})
        self._asked[client, topic] = {check.log_pos: check.check_times for check in checks}
        for check in checks:
            if may_know and self._keys.is_known(call.access_key) and asked.get(check.log_pos) != check.check_times:
                self._tell(client, check)

    def _tell(self, client: SdkClient, check: HalfCheck) -> None:
        if client.stream is None:
            return
        transaction_id = str(check.log_pos)
        message = message_for(check.message, client.call.namespace, self._store_host)
        message.user_properties[TRANSACTION_ID] = transaction_id
        command = RecoverOrphanedTransactionCommand(message=message, transaction_id=transaction_id)
        client.stream.tell(TelemetryCommand(status=OK, recover_orphaned_transaction_command=command))
