"""Running consumers, and requests to them. RocketMQ: mqadmin consumerStatus, consumeMessage."""

from typing import Any, NamedTuple

from sqlalchemy import Connection

from mqdb.broker.clients.client_requests import RequestKind, ask, wait_for_answer
from mqdb.broker.consumers import groups
from mqdb.broker.log import messages
from mqdb.broker.log.messages import StoredCopy
from mqdb.common.unique_id import format_unique_id, parse_unique_id
from mqdb.errors import ClientOffline, ClientRequestFailed, ParameterInvalid, ServerIsStandby
from mqdb.store import operations
from mqdb.store.clients.clients import live_principals
from mqdb.store.consumers.groups import MemberInfo, list_members
from mqdb.store.engine import target_of
from mqdb.store.operations import Verb
from mqdb.store.replication import is_standby
from mqdb_client.admin.subject import Subject
from mqdb_client.consumer.listeners.direct_consumption import ConsumeMessageDirectlyResult, DirectResult


class ConsumerStatus(NamedTuple):
    """The status that a consumer reports. `details` has at least `state`, `queues` and `listeners`."""

    client_id: str
    group: str
    details: dict[str, Any]
    principal: str
    """The role with which the client has logged in."""


class DirectConsumption(NamedTuple):
    """The copy of a message that was passed to a listener, and the listener's answer."""

    topic: str
    queue_id: int
    result: ConsumeMessageDirectlyResult


class Consumers(Subject):
    """The consumers that are registered with a broker."""

    def status(self, client_id: str, *, group: str | None = None, principal: str | None = None) -> list[ConsumerStatus]:
        """Ask a client for its status in each group in which it is a consumer, or in one group.

        Waits for at most 10 seconds per group. If several roles have a client with this id, all connected clients with
        the id are asked, or only the client of `principal`.

        Raises ClientOffline, ClientRequestTimeout, ClientRequestFailed.
        """
        with self._access.connected() as connection:
            return [
                ConsumerStatus(
                    client_id,
                    member.group,
                    _answer(connection, client_id, RequestKind.STATUS, {"group": member.group}, member.principal),
                    member.principal,
                )
                for member in _memberships(connection, client_id, principal, group)
            ]

    def consume(
        self,
        client_id: str,
        group: str,
        message_id: str,
        *,
        principal: str | None = None,
        actor: str | None = None,
    ) -> DirectConsumption:
        """Make a consumer consume one message now. No offset moves, and a failure is not retried.

        If the message was retried, the consumer gets the first remaining copy in a topic to which the group has
        subscribed. Waits for at most 10 seconds.
        Raises ClientOffline, ClientRequestTimeout, ClientRequestFailed; ParameterInvalid if the client is not a member
        of the group, if the message does not exist, or if several roles have a client with this id in the group and
        `principal` is None.
        """
        unique_id = parse_unique_id(message_id)
        with self._access.dispatched() as connection:
            memberships = _memberships(connection, client_id, principal)
            roles = [each.principal for each in memberships if each.group == group]
            if not roles:
                raise ParameterInvalid("group", group, f"client {client_id} is not a member of it")
            if len(roles) > 1:
                reason = f"several roles have a client with this id: {', '.join(roles)}; name the role"
                raise ParameterInvalid("principal", principal, reason)
            copies = messages.find_copies(connection, unique_id)
            if not copies:
                raise ParameterInvalid("message_id", message_id, "there is no such message")
            copy = _copy_for(connection, group, copies)
            request = {"group": group, "log_pos": copy.log_pos}
            # Before the answer: even without an answer the listener may have been called.
            operations.record(
                connection,
                Verb.CONSUMER_CONSUME,
                actor or self._access.actor,
                topics=[copy.topic],
                groups=[group],
                object=format_unique_id(unique_id),
                after={"client_id": client_id, "principal": roles[0], "log_pos": copy.log_pos},
            )
            answer = _answer(connection, client_id, RequestKind.CONSUME_DIRECTLY, request, roles[0])
        try:
            result = ConsumeMessageDirectlyResult(**answer | {"result": DirectResult(answer["result"])})
        except (KeyError, TypeError, ValueError) as error:  # a client of another version
            raise ClientRequestFailed(
                client_id, RequestKind.CONSUME_DIRECTLY, f"cannot read its answer: {error}"
            ) from error
        return DirectConsumption(copy.topic, copy.queue_id, result)

    def list(self, group: str | None = None) -> list[MemberInfo]:
        """The registered consumers of a group or of all groups, sorted by group and client id."""
        with self._access.connected() as connection:
            return list_members(connection, group)


def _memberships(
    connection: Connection, client_id: str, principal: str | None, group: str | None = None
) -> list[MemberInfo]:
    of_client = (member for member in list_members(connection, group) if member.client_id == client_id)
    found = [member for member in of_client if principal in (None, member.principal)]
    live = live_principals(connection, client_id)
    # If there are none, the request says so.
    found = [member for member in found if member.principal in live] or found
    if not found:
        raise ClientOffline(client_id)
    return found


def _copy_for(connection: Connection, group: str, copies: list[StoredCopy]) -> StoredCopy:
    topics = {each.topic for each in groups.show_group(connection, group).subscriptions}
    return next((copy for copy in copies if copy.topic in topics), copies[0])


def _answer(
    connection: Connection, client_id: str, kind: str, arguments: dict[str, Any], principal: str
) -> dict[str, Any]:
    try:
        request = ask(connection, client_id, kind, arguments, principal)
    except ClientOffline:
        if is_standby(connection):  # clients are connected to the primary
            raise ServerIsStandby(target_of(connection), "it asks a client") from None
        raise
    return wait_for_answer(connection, request)
