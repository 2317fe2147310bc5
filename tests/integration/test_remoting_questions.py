"""What people ask a running consumer through a front: how it is, and to consume one message."""

import pytest
from sqlalchemy import Connection

from mqdb.remoting.codes import RequestCode
from mqdb.remoting.wire_message import offset_id
from mqdb_client import Admin, PushConsumer
from tests.fixtures.broker import append, dispatch_all, topic
from tests.fixtures.consumers import Inbox
from tests.fixtures.postgres import Database
from tests.fixtures.remoting_client import Fronts, RemotingClient, consumer
from tests.integration.test_remoting_administration import INVALID, JAVA, NOT_ONLINE, operations, said


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
    asked = member.asked.get(timeout=30)
    while asked.code != RequestCode.GET_CONSUMER_RUNNING_INFO:  # the members have changed
        asked = member.asked.get(timeout=30)
    member.answer(asked, body=b'{"jstack":"..."}')

    assert dict(asked.fields) == fields  # whose question it is says nothing to it
    assert asking.result(30).body == b'{"jstack":"..."}'
    elsewhere = client.request(RequestCode.GET_CONSUMER_RUNNING_INFO, fields | {"clientId": "192.0.2.7@18"})
    assert elsewhere.code == NOT_ONLINE


def test_a_client_here_consumes_a_message_and_says_what_became_of_it(
    broker: Connection, fronts: Fronts, client: RemotingClient
) -> None:
    [log_pos] = append(broker, topic(broker), "again")
    dispatch_all(broker)
    member = fronts.connect()
    member.heartbeat(JAVA, consumer(orders="*"))
    fields = {"clientId": JAVA, "consumerGroup": "readers", "msgId": offset_id("127.0.0.1", 9876, log_pos)}

    asking = client.begin(RequestCode.CONSUME_MESSAGE_DIRECTLY, fields)
    asked = member.asked.get(timeout=30)
    while asked.code != RequestCode.CONSUME_MESSAGE_DIRECTLY:
        asked = member.asked.get(timeout=30)
    member.answer(asked, body=b'{"consumeResult":"CR_LATER"}')

    assert b"again" in asked.body
    assert asking.result(30).body == b'{"consumeResult":"CR_LATER"}'
    assert operations(broker) == [("consumer.consume", "remoting")]
    missing = fields | {"msgId": offset_id("127.0.0.1", 9876, log_pos + 1_000)}
    assert client.request(RequestCode.CONSUME_MESSAGE_DIRECTLY, missing).code == INVALID


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
