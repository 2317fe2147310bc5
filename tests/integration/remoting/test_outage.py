"""A front whose database hangs or is down: clients get answers before they close their connections, and pulls wait."""

import time
from collections.abc import Iterator

import pytest
from sqlalchemy import Connection

from mqdb.remoting.wire.codes import RequestCode
from tests.fixtures.broker import append, dispatch_all
from tests.fixtures.postgres import Database
from tests.fixtures.proxy import Proxy
from tests.fixtures.remoting_client import PATIENCE_SECONDS, Fronts, consumer, pulled
from tests.fixtures.remoting_groups import A, filled, joined
from tests.integration.remoting.test_sends import header

FOUND, ERROR, MAY_BE_STORED = 0, 1, 14
NO_ANSWER = "the database did not answer in time"
NO_DATABASE = "the broker currently has no connection to its database"
ROUTE = {"topic": "orders"}


@pytest.fixture
def fronts(proxy: Proxy) -> Iterator[Fronts]:
    """Fronts that reach the test's database through a proxy that can be cut."""
    fronts = Fronts(Database(proxy.dsn))
    yield fronts
    fronts.close()


def test_who_asks_while_the_server_hangs_is_answered_and_keeps_its_connection(
    broker: Connection, fronts: Fronts, proxy: Proxy
) -> None:
    """A client that sends a request while the server hangs gets an answer and keeps its connection.

    If it waited in vain, it would close the connection, and the answers to its pulls would be lost.
    """
    route = filled(broker)
    client = joined(fronts)
    client.pull("readers", "orders", 0)
    held = client.begin_pull("readers", "orders", 10, hold_ms=20_000)
    client.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, ROUTE)

    proxy.freeze()
    asked = [
        client.begin(RequestCode.GET_ROUTEINFO_BY_TOPIC, ROUTE),
        client.begin(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "readers"}),
        client.begin(RequestCode.GET_MAX_OFFSET, {"topic": "orders", "queueId": 0}),
    ]
    answers = [future.result(PATIENCE_SECONDS) for future in asked]
    proxy.restore()
    append(broker, route, "later")
    dispatch_all(broker)
    restored_at = time.monotonic()
    found = pulled(held.result(PATIENCE_SECONDS))

    assert [(answer.code, answer.remark) for answer in answers] == [(ERROR, NO_ANSWER)] * 3
    assert found.bodies == ["later"], f"{found}, {time.monotonic() - restored_at:.1f} s after the way was restored"


def test_locks_and_sends_to_new_topics_are_answered_while_the_server_hangs(
    broker: Connection, fronts: Fronts, proxy: Proxy
) -> None:
    filled(broker)
    client = joined(fronts)
    queues = [{"topic": "orders", "brokerName": "broker-a", "queueId": 0}]

    proxy.freeze()
    lock = client.begin(RequestCode.LOCK_BATCH_MQ, body={"consumerGroup": "readers", "clientId": A, "mqSet": queues})
    send = client.begin(RequestCode.SEND_MESSAGE_V2, header(b="new"), b"x")
    locked, sent = lock.result(PATIENCE_SECONDS), send.result(PATIENCE_SECONDS)
    proxy.restore()

    assert (locked.code, locked.remark) == (ERROR, NO_ANSWER)
    assert (sent.code, sent.remark) == (MAY_BE_STORED, "the database did not answer; the message may be stored")


def test_a_pull_waits_for_the_database_as_for_messages(broker: Connection, fronts: Fronts, proxy: Proxy) -> None:
    """A pull waits for the database as it waits for messages.

    A C++ client whose pull is refused retries at once, about 1,000 times a second.
    """
    route = filled(broker)
    client = joined(fronts)
    client.pull("readers", "orders", 0)

    proxy.cut()
    pull = client.begin_pull("readers", "orders", 10, hold_ms=20_000)
    refused = client.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, ROUTE)
    append(broker, route, "later")
    dispatch_all(broker)
    proxy.restore()

    assert (refused.code, refused.remark) == (ERROR, NO_DATABASE)
    found = pulled(pull.result(PATIENCE_SECONDS))
    assert (found.code, found.bodies) == (FOUND, ["later"])


def test_a_pull_that_may_not_be_held_hears_that_there_is_no_database(
    broker: Connection, fronts: Fronts, proxy: Proxy
) -> None:
    filled(broker)
    client = fronts.connect()
    client.heartbeat(A, consumer(orders="*"))
    client.pull("readers", "orders", 0)

    proxy.cut()
    found = client.pull("readers", "orders", 10)

    assert (found.code, found.remark) == (ERROR, NO_DATABASE)
