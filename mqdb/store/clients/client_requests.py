"""Client requests: requests of operators to a running client, and its answers.

The caller writes a row; NOTIFY wakes the client, which looks for its unanswered requests.
"""

from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    Connection,
    Interval,
    Text,
    all_,
    cast,
    delete,
    func,
    insert,
    literal,
    select,
    text,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY

from mqdb.store.clients.clients import CHANNEL
from mqdb.store.fragments import full_group
from mqdb.store.tables import client_request


class ClientRequest(NamedTuple):
    """A request to a client. `answer` is None until the client has answered."""

    request_id: int
    client_id: str
    principal: str
    kind: str
    arguments: dict[str, Any]
    answer: dict[str, Any] | None


def add(connection: Connection, client_id: str, principal: str, kind: str, arguments: Mapping[str, Any]) -> int:
    """Add a request to a client of a role; the client is notified when the transaction commits."""
    values = {"client_id": client_id, "principal": principal, "kind": kind, "arguments": dict(arguments)}
    row = insert(client_request).values(values)
    request_id: int = connection.execute(row.returning(client_request.c.request_id)).scalar_one()
    connection.execute(select(func.pg_notify(CHANNEL, f"c:{client_id}")))
    return request_id


def find(connection: Connection, request_id: int) -> ClientRequest | None:
    """The request with this number."""
    row = connection.execute(_requests().where(client_request.c.request_id == request_id)).one_or_none()
    return None if row is None else ClientRequest(*row)


def open_of(
    connection: Connection, client_id: str, group: str, patience: timedelta, besides: Collection[int], limit: int
) -> list[ClientRequest]:
    """The oldest open requests for a client's consumer of this group, except those in `besides`.

    The client must belong to the current role. Requests older than `patience` are no longer open. Uses
    client_request_open.
    """
    rows = _requests().where(
        client_request.c.client_id == client_id,
        client_request.c.principal == cast(text("session_user"), Text),
        client_request.c.answered_at.is_(None),
        client_request.c.created_at > func.mqdb.now() - literal(patience, Interval()),
        client_request.c.arguments["group"].astext == full_group(group),
        client_request.c.request_id != all_(literal(list(besides), ARRAY(BigInteger))),
    )
    return [ClientRequest(*row) for row in connection.execute(rows.order_by(client_request.c.request_id).limit(limit))]


def answer(connection: Connection, request_id: int, given: Mapping[str, Any]) -> bool:
    """Answer a request; returns False if it was withdrawn."""
    is_open = client_request.c.request_id == request_id, client_request.c.answered_at.is_(None)
    answered = update(client_request).where(*is_open).values(answer=dict(given), answered_at=func.mqdb.now())
    return connection.execute(answered).rowcount == 1


def withdraw(connection: Connection, request_id: int) -> bool:
    """Withdraw a request; returns False if it has just been answered."""
    is_open = client_request.c.request_id == request_id, client_request.c.answered_at.is_(None)
    return connection.execute(delete(client_request).where(*is_open)).rowcount == 1


def prune(connection: Connection, age: timedelta) -> None:
    """Remove requests older than `age`."""
    is_old = client_request.c.created_at < func.mqdb.now() - literal(age, Interval())
    connection.execute(delete(client_request).where(is_old))


def _requests() -> Any:
    return select(*(client_request.c[name] for name in ClientRequest._fields))
