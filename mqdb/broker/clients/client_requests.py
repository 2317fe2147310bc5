"""Client requests: send a request to a running client and wait for its answer; and the client's side of this.

    ask ──▶ row, NOTIFY c:<client id> ──▶ open_requests ──▶ answer ──▶ wait_for_answer

RocketMQ: GET_CONSUMER_RUNNING_INFO, CONSUME_MESSAGE_DIRECTLY, AdminBrokerProcessor.callConsumer.
"""

import time
from collections.abc import Collection, Mapping
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final

from sqlalchemy import Connection

from mqdb.errors import ClientOffline, ClientRequestFailed, ClientRequestTimeout, ParameterInvalid
from mqdb.store.clients import client_requests, clients
from mqdb.store.clients.client_requests import ClientRequest
from mqdb.store.engine import transaction, translates

#: Source: AdminBrokerProcessor.callConsumer.
ANSWER_TIMEOUT: Final = timedelta(seconds=10)

#: The number of requests that a client answers at a time. Others wait as rows, because each may occupy a thread for as
#: long as a listener runs.
MAX_REQUESTS: Final = 16

#: Older requests are removed by the next request.
KEPT: Final = timedelta(days=1)

_FIRST_PAUSE_SECONDS: Final = 0.005
_LONGEST_PAUSE_SECONDS: Final = 0.1


class RequestKind(StrEnum):
    """The kinds of requests to a consumer. The arguments of each name its `group`."""

    #: The state, the queues, and the running listeners with their start times and stacks.
    STATUS = "STATUS"
    #: Consume one message now: the one at `log_pos`, or at `queue_offset` of queue `queue_id` of `topic`.
    CONSUME_DIRECTLY = "CONSUME_DIRECTLY"
    #: Answer a request of RocketMQ's protocol, given by `code` and `fields`. Only RocketMQ clients can do this.
    REMOTING = "REMOTING"


@translates
def ask(
    connection: Connection, client_id: str, kind: str, arguments: Mapping[str, Any], principal: str | None = None
) -> int:
    """Send a request to a client of a role; returns the number of the request. Only this role can answer.

    Raises ClientOffline; ParameterInvalid if several roles have a client with this id and no role is given.
    """
    with transaction(connection):
        live = clients.live_principals(connection, client_id)
        if not live or (principal is not None and principal not in live):
            raise ClientOffline(client_id)
        if principal is None and len(live) > 1:
            raise ParameterInvalid(
                "principal", principal, f"name the role; the clients with this id belong to {', '.join(live)}"
            )
        client_requests.prune(connection, KEPT)
        return client_requests.add(connection, client_id, principal or live[0], kind, arguments)


@translates
def wait_for_answer(connection: Connection, request_id: int, timeout: timedelta = ANSWER_TIMEOUT) -> dict[str, Any]:
    """The answer of the client. A request that is not answered in time is withdrawn.

    Raises ClientRequestTimeout, ClientOffline if the client leaves before it answers, and ClientRequestFailed if it
    reports a failure; ParameterInvalid if the request does not exist.
    """
    deadline = time.monotonic() + timeout.total_seconds()
    pause = _FIRST_PAUSE_SECONDS
    while (request := _found(connection, request_id)).answer is None:
        is_live = request.principal in clients.live_principals(connection, request.client_id)
        if is_live and time.monotonic() < deadline:
            time.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)
        elif client_requests.withdraw(connection, request_id):
            if not is_live:
                raise ClientOffline(request.client_id)
            raise ClientRequestTimeout(request.client_id, request.kind, timeout.total_seconds())
    if "error" in request.answer:
        raise ClientRequestFailed(request.client_id, request.kind, request.answer["error"])
    result: dict[str, Any] = request.answer["result"]
    return result


@translates
def open_requests(
    connection: Connection, client_id: str, group: str, besides: Collection[int] = (), limit: int = MAX_REQUESTS
) -> list[ClientRequest]:
    """The oldest waiting requests for a client's consumer of a group, except those in `besides`.

    The client is already answering the requests in `besides`.
    """
    return client_requests.open_of(connection, client_id, group, ANSWER_TIMEOUT, besides, limit)


@translates
def answer(connection: Connection, request_id: int, result: Mapping[str, Any]) -> bool:
    """Answer a request with values that JSON can represent; returns False if the request was withdrawn."""
    return client_requests.answer(connection, request_id, {"result": dict(result)})


@translates
def refuse(connection: Connection, request_id: int, reason: str) -> bool:
    """Refuse a request with a reason; returns False if the request was withdrawn."""
    return client_requests.answer(connection, request_id, {"error": reason})


def _found(connection: Connection, request_id: int) -> ClientRequest:
    request = client_requests.find(connection, request_id)
    if request is None:
        raise ParameterInvalid("request_id", request_id, "there is no such request")
    return request
