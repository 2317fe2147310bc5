"""Half messages of clients: clients report the outcome (37), or are asked for it (39).

    transaction checker ── NOTIFY c:<client id> ──▶ the front with that guest ── 39 ──▶ the client ── 37 ──▶ end

RocketMQ: EndTransactionProcessor, AbstractTransactionalMessageCheckListener, Broker2Client.
"""

import logging
from functools import partial
from typing import Final
from weakref import WeakSet

from mqdb.broker.log.query import aim_of
from mqdb.broker.transactions.transactions import EndTransaction, end
from mqdb.common.property import Property
from mqdb.common.transaction import LocalTransactionState
from mqdb.common.unique_id import unique_id_of
from mqdb.errors import MqdbError, ParameterInvalid
from mqdb.fronts.access_keys import topic_right
from mqdb.fronts.database import Database
from mqdb.fronts.known_names import group_of_key, own_group
from mqdb.remoting.session.access import FrameAccess
from mqdb.remoting.session.client import Client
from mqdb.remoting.session.connection import Connection
from mqdb.remoting.session.members import FrontMembers
from mqdb.remoting.wire.answers import Answer
from mqdb.remoting.wire.codes import RequestCode
from mqdb.remoting.wire.frame import Frame
from mqdb.remoting.wire.messages import encode_message, offset_id
from mqdb.store.acl import Access
from mqdb.store.transactions.half_checks import HalfCheck, open_checks
from mqdb_client.outage import level_of

logger = logging.getLogger(__name__)

#: Source: MessageSysFlag.TRANSACTION_COMMIT_TYPE, TRANSACTION_ROLLBACK_TYPE, TRANSACTION_NOT_TYPE.
_STATES: Final = {
    8: LocalTransactionState.COMMIT,
    12: LocalTransactionState.ROLLBACK,
    0: LocalTransactionState.UNKNOWN,
}

#: Maximum number of checks sent to a client at a time; the others follow after its answers.
_MOST_QUESTIONS: Final = 256


class ClientTransactions:
    """The transactions of one front's clients. `address` is the front's address as clients know it.

    Use it in the front's event loop only.
    """

    def __init__(
        self, database: Database, access: FrameAccess, members: FrontMembers, address: tuple[str, int]
    ) -> None:
        self._database = database
        self._access = access
        self._members = members
        self._instance = database.instance
        self._address = address
        #: Checks that a client has not answered: the positions, each with its number of checks so far.
        self._asked: dict[Client, dict[int, int]] = {}
        #: Connections whose last attempt to end a transaction was refused.
        self._refused: WeakSet[Connection] = WeakSet()
        self._handle = self._instance.on_request(database.in_loop(self._hear))

    def close(self) -> None:
        """Stop sending checks."""
        self._handle.cancel()

    async def end(self, connection: Connection, frame: Frame) -> Answer:
        """Code 37: end a half message. Raises the errors of `mqdb.broker.transactions.transactions.end`."""
        wanted = frame.number("commitOrRollback")
        state = _STATES.get(wanted)
        if state is None:
            raise ParameterInvalid("commitOrRollback", wanted, "must be 8 (commit), 12 (rollback) or 0 (unknown)")
        log_pos = frame.position("commitLogOffset")
        client = self._members.client_of(connection) if frame.truth("fromTransactionCheck") else None
        request = EndTransaction(
            group_of_key(frame.text("producerGroup"), connection.access_key),
            log_pos,
            unique_id_of(frame.fields.get("msgId") or frame.text("transactionId")),
            state,
            asked_client=None if client is None else client.client_id,
        )
        try:
            if self._access.are_asked_for:
                aim = await self._database.run(partial(aim_of, log_pos=log_pos))
                await self._access.require(frame, topic_right(Access.SEND, aim.real_topic or ""))
            await self._database.run(partial(end, request=request))
        except MqdbError as error:
            # The request is oneway, so the client does not receive the error. A client that repeats its mistake is
            # logged once.
            if connection not in self._refused:
                fields = {"peer": connection.peer, "group": request.group, "log_pos": log_pos, "reason": str(error)}
                logger.warning(
                    "refused the end of the transaction at position %(log_pos)s by %(peer)s of group %(group)s: "
                    "%(reason)s",
                    fields,
                    extra=fields,
                )
            self._refused.add(connection)
            raise
        self._refused.discard(connection)
        return Answer()

    def _hear(self, client_ids: frozenset[str] | None) -> None:
        for client in list(self._members.clients.values()):
            if (client_ids is None or client.client_id in client_ids) and any(client.producers.values()):
                self._database.spawn(self._ask(client))
        for client in self._asked.keys() - set(self._members.clients.values()):
            del self._asked[client]

    async def _ask(self, client: Client) -> None:
        """Code 39: send a client the checks that it has not received yet."""
        checks: list[HalfCheck] = []
        for group in [group for group, is_asked in client.producers.items() if is_asked]:
            find = partial(
                open_checks,
                broker_name=self._instance.broker_name,
                client_id=client.client_id,
                group=client.group_of_halves(group),
                limit=_MOST_QUESTIONS,
            )
            try:
                checks += await self._database.run(find)
            except MqdbError as error:  # the check is repeated at its next time
                fields = {"group": group, "reason": str(error)}
                sentence = "could not send checks of transactions to group %(group)s; will retry: %(reason)s"
                logger.log(level_of(error), sentence, fields, extra=fields)
                return
        asked = self._asked.get(client, {})
        self._asked[client] = {check.log_pos: check.check_times for check in checks}
        for check in checks:
            connection = client.connection
            if asked.get(check.log_pos) == check.check_times or connection is None:
                continue
            right = topic_right(Access.SEND, check.message.queue.topic)
            try:
                may_know = await self._access.held_by(connection.access_key, right)
            except MqdbError:  # as above
                return
            if may_know:
                self._tell(connection, check)

    def _tell(self, connection: Connection, check: HalfCheck) -> None:
        message = check.message
        # The client uses it to find its producer.
        message.properties[Property.PGROUP] = own_group(message.properties[Property.PGROUP])
        unique_id = message.properties["UNIQ_KEY"]
        fields = {
            "tranStateTableOffset": str(message.queue_offset),
            "commitLogOffset": str(check.log_pos),
            "msgId": unique_id,
            "transactionId": unique_id,
            "offsetMsgId": offset_id(*self._address, check.log_pos),
        }
        connection.tell(RequestCode.CHECK_TRANSACTION_STATE, fields, encode_message(message, self._address))
