"""Requests from operators to a running consumer through a front: its status, and consuming one message."""

import pytest
from sqlalchemy import Connection

from mqdb.errors import ClientRequestFailed
from mqdb.remoting.wire.codes import RequestCode
from mqdb.remoting.wire.messages import offset_id
from mqdb_client import Admin, PushConsumer
from tests.fixtures.broker import append, dispatch_all, topic
from tests.fixtures.consumers import Inbox
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.remoting_client import Fronts, RemotingClient, consumer, next_asked
from tests.fixtures.variants import usually
from tests.integration.remoting.test_administration import INVALID, JAVA, NOT_ONLINE, operations, said


@pytest.fixture
def client(fronts: Fronts) -> RemotingClient:
    return fronts.connect()


def test_a_client_here_says_how_it_is_itself(broker: Connection, fronts: Fronts, client: RemotingClient) -> None:
    topic(broker)
    member = fronts.connect()
    member.heartbeat(JAVA, consumer(orders="*"))
    fields = {"clientId": JAVA, "consumerGroup": "readers", "jstackEnable": "true"}

    signature = {"AccessKey": "ops", "Signature": "s"}
    asking = client.begin(RequestCode.GET_CONSUMER_RUNNING_INFO, fields | signature)
    asked = next_asked(member, RequestCode.GET_CONSUMER_RUNNING_INFO)
    member.answer(asked, body=b'{"jstack":"..."}')

    assert dict(asked.fields) == fields  # whose question it is says nothing to it
    assert asking.result(30).body == b'{"jstack":"..."}'
    nobody = client.request(RequestCode.GET_CONSUMER_RUNNING_INFO, fields | {"clientId": "192.0.2.7@18"})
    assert nobody.code == NOT_ONLINE


def test_a_client_here_consumes_a_message_and_says_what_became_of_it(
    broker: Connection, fronts: Fronts, client: RemotingClient
) -> None:
    [log_pos] = append(broker, topic(broker), "again")
    dispatch_all(broker)
    member = fronts.connect()
    member.heartbeat(JAVA, consumer(orders="*"))
    fields = {"clientId": JAVA, "consumerGroup": "readers", "msgId": offset_id("127.0.0.1", 9876, log_pos)}

    asking = client.begin(RequestCode.CONSUME_MESSAGE_DIRECTLY, fields)
    asked = next_asked(member, RequestCode.CONSUME_MESSAGE_DIRECTLY)
    member.answer(asked, body=b'{"consumeResult":"CR_LATER"}')

    assert b"again" in asked.body
    assert asking.result(30).body == b'{"consumeResult":"CR_LATER"}'
    assert operations(broker) == [("consumer.consume", "remoting")]
    missing = fields | {"msgId": offset_id("127.0.0.1", 9876, log_pos + 1_000)}
    assert client.request(RequestCode.CONSUME_MESSAGE_DIRECTLY, missing).code == INVALID


@pytest.fixture
def elsewhere(fronts: Fronts, client: RemotingClient) -> RemotingClient:
    """A member of `readers` on another front than `client`, which uses the first one."""
    member = fronts.connect(fronts.start())
    member.heartbeat(JAVA, consumer(orders="*"))
    return member


def test_a_client_of_another_front_is_asked_there(
    broker: Connection, client: RemotingClient, elsewhere: RemotingClient
) -> None:
    topic(broker)
    fields = {"clientId": JAVA, "consumerGroup": "readers", "jstackEnable": "true"}

    asking = client.begin(RequestCode.GET_CONSUMER_RUNNING_INFO, fields | {"AccessKey": "ops", "Signature": "s"})
    asked = next_asked(elsewhere, RequestCode.GET_CONSUMER_RUNNING_INFO)
    elsewhere.answer(asked, 1, {"a": "b\0"}, b'{"jstack":"\0 \xff"}')

    assert dict(asked.fields) == fields
    answer = asking.result(30)
    assert (answer.code, answer.fields, answer.body) == (1, {"a": "b\0"}, b'{"jstack":"\0 \xff"}')


@pytest.mark.parametrize("is_elsewhere", usually(True, of=[False, True]), ids=["same front", "another front"])
def test_a_client_that_has_lost_its_connection_is_not_online(
    broker: Connection, fronts: Fronts, is_elsewhere: bool
) -> None:
    """A client that has lost its connection is offline; the request does not wait for its return."""
    [log_pos] = append(broker, topic(broker), "again")
    dispatch_all(broker)
    front = fronts.start()
    client = fronts.connect(fronts.start() if is_elsewhere else front)
    member = fronts.connect(front)
    member.heartbeat(JAVA, consumer(orders="*"))
    connections = front.traffic.connections
    member.close()
    wait_until(lambda: front.traffic.connections < connections)
    fields = {"clientId": JAVA, "consumerGroup": "readers", "msgId": offset_id("127.0.0.1", 9876, log_pos)}

    for code in (RequestCode.GET_CONSUMER_RUNNING_INFO, RequestCode.CONSUME_MESSAGE_DIRECTLY):
        assert client.request(code, fields).code == NOT_ONLINE


def test_a_client_that_calls_itself_otherwise_is_no_more_what_it_was(
    broker: Connection, fronts: Fronts, client: RemotingClient
) -> None:
    """A client that changes its id is no longer known by the old one, for example when it starts broadcasting.

    Under the old id it would be silent, and its connection would be closed.
    """
    topic(broker)
    member = fronts.connect()
    member.heartbeat(JAVA, consumer(orders="*"))
    member.heartbeat("192.0.2.8@20", consumer(orders="*"))
    question = {"clientId": JAVA, "consumerGroup": "readers"}

    assert client.request(RequestCode.GET_CONSUMER_RUNNING_INFO, question).code == NOT_ONLINE

    asking = client.begin(RequestCode.GET_CONSUMER_RUNNING_INFO, question | {"clientId": "192.0.2.8@20"})
    member.answer(next_asked(member, RequestCode.GET_CONSUMER_RUNNING_INFO))
    assert asking.result(30).code == 0


def test_a_client_that_has_come_to_another_front_is_asked_there(
    broker: Connection, fronts: Fronts, client: RemotingClient, elsewhere: RemotingClient
) -> None:
    """A client that has moved to another front is asked there, although the first front still waits for it."""
    topic(broker)
    member = fronts.connect(fronts.start())
    elsewhere.close()
    member.heartbeat(JAVA, consumer(orders="*"))

    asking = client.begin(RequestCode.GET_CONSUMER_RUNNING_INFO, {"clientId": JAVA, "consumerGroup": "readers"})
    asked = next_asked(member, RequestCode.GET_CONSUMER_RUNNING_INFO)
    member.answer(asked, body=b"{}")

    assert (asking.result(30).code, asking.result(30).body) == (0, b"{}")


def test_a_client_of_another_front_consumes_a_message(
    broker: Connection, client: RemotingClient, elsewhere: RemotingClient
) -> None:
    [log_pos] = append(broker, topic(broker), "again")
    dispatch_all(broker)
    fields = {"clientId": JAVA, "consumerGroup": "readers", "msgId": offset_id("127.0.0.1", 9876, log_pos)}

    asking = client.begin(RequestCode.CONSUME_MESSAGE_DIRECTLY, fields)
    asked = next_asked(elsewhere, RequestCode.CONSUME_MESSAGE_DIRECTLY)
    elsewhere.answer(asked, body=b'{"consumeResult":"CR_LATER"}')

    assert b"again" in asked.body
    assert asking.result(30).body == b'{"consumeResult":"CR_LATER"}'
    assert operations(broker) == [("consumer.consume", "remoting")]


def test_a_client_of_a_front_refuses_what_only_those_of_mqdb_can_answer(
    broker: Connection, elsewhere: RemotingClient, database: Database
) -> None:
    with Admin(database.dsn) as admin, pytest.raises(ClientRequestFailed, match="mqadmin"):
        admin.consumers.status(JAVA)


def test_a_client_of_mqdb_is_asked_through_the_broker(
    broker: Connection, client: RemotingClient, database: Database
) -> None:
    [log_pos] = append(broker, topic(broker), "again")
    dispatch_all(broker)
    consumer = PushConsumer("readers", database.dsn)
    consumer.subscribe("orders")
    consumer.register_listener(inbox := Inbox())
    with consumer, Admin(database.dsn) as admin:
        [member] = admin.consumers.list("readers")
        fields = {"clientId": member.client_id, "consumerGroup": "readers", "jstackEnable": "true"}
        info = said(client.request(RequestCode.GET_CONSUMER_RUNNING_INFO, fields))
        direct = fields | {"msgId": offset_id("127.0.0.1", 9876, log_pos)}
        result = said(client.request(RequestCode.CONSUME_MESSAGE_DIRECTLY, direct))

    assert info["properties"]["PROP_CLIENT_VERSION"].startswith("mqdb ")
    assert info["properties"]["state"] == "running"
    assert [each["topic"] for each in info["subscriptionSet"]] == ["orders"]
    assert (result["consumeResult"], result["order"]) == ("CR_SUCCESS", False)
    assert inbox.bodies == ["again"]
