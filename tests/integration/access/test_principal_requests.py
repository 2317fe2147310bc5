"""Only the addressed client of a role answers a request, not even another member of its group."""

from collections.abc import Iterator
from typing import Any, TypeAlias

import psycopg
import pytest
from sqlalchemy import Connection

from mqdb.broker.clients import client_requests
from mqdb.store import locks
from mqdb.store.engine import create_engine, driver
from mqdb_client import Admin, PushConsumer, errors
from tests.fixtures.consumers import Inbox
from tests.fixtures.principals import Principal

Session: TypeAlias = "psycopg.Connection[Any]"

DESK = "desk"
MALLORY = "mallory"

SAME_CLIENT = """INSERT INTO mqdb.client (client_id, kind, group_name, language, version)
                 VALUES (%s, 'CONSUMER', 'billing', 'x', '1')"""


@pytest.fixture
def client_id(owner: Admin, principal: Principal) -> Iterator[str]:
    """The id of a running consumer of a role."""
    consumer = PushConsumer("billing", principal(DESK, read=["orders"], group=["billing"]))
    consumer.subscribe("orders")
    consumer.register_listener(Inbox())
    with consumer:
        [member] = owner.consumers.list("billing")
        assert member.principal == DESK
        yield member.client_id


@pytest.fixture
def mallory(principal: Principal, client_id: str) -> Iterator[Session]:
    """Another member of the group, connected with the same client id."""
    engine = create_engine(principal(MALLORY, read=["orders"], group=["billing"]))
    with engine.connect() as connection:
        session = driver(connection)
        key = locks.take_presence(connection)
        with session.transaction():  # a client without its lock would be removed
            session.execute(SAME_CLIENT, [client_id])
            session.execute("INSERT INTO mqdb.presence (client_id, lock_key) VALUES (%s, %s)", [client_id, key])
        yield session
    engine.dispose()


def test_only_the_client_that_is_asked_answers(owner: Admin, client_id: str, mallory: Session) -> None:
    status = owner.consumers.status(client_id, principal=DESK)

    assert [(each.principal, each.group, each.details["state"]) for each in status] == [(DESK, "billing", "running")]


def test_another_member_neither_sees_nor_answers_the_request(
    owner: Admin, broker: Connection, client_id: str, mallory: Session
) -> None:
    asked = {"group": "billing", "log_pos": 1}
    request_id = client_requests.ask(broker, client_id, "UNKNOWN KIND", asked, DESK)

    assert mallory.execute("SELECT FROM mqdb.client_request").fetchall() == []
    forged = mallory.execute("UPDATE mqdb.client_request SET answer = '{}', answered_at = mqdb.now()")
    assert forged.rowcount == 0
    with pytest.raises(errors.ClientRequestFailed, match="not supported"):
        client_requests.wait_for_answer(broker, request_id)


def test_whoever_asks_says_which_of_two_clients_is_meant(
    owner: Admin, broker: Connection, client_id: str, mallory: Session
) -> None:
    with pytest.raises(errors.ParameterInvalid, match="desk, mallory"):
        client_requests.ask(broker, client_id, "STATUS", {"group": "billing"})
    with pytest.raises(errors.ParameterInvalid, match="desk, mallory"):
        owner.consumers.consume(client_id, "billing", "0" * 32)
    with pytest.raises(errors.ClientOffline):
        client_requests.ask(broker, client_id, "STATUS", {"group": "billing"}, "somebody")


def test_a_client_that_is_not_there_keeps_nobody_from_asking_another_of_its_id(
    owner: Admin, client_id: str, mallory: Session
) -> None:
    mallory.execute("UPDATE mqdb.presence SET lock_key = 4711")

    [status] = owner.consumers.status(client_id)

    assert status.principal == DESK
