"""Messages through the front for RocketMQ 5's SDKs: routes, sends, receives, acknowledgements."""

import gzip
from datetime import UTC, datetime
from hashlib import md5
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from sqlalchemy import Connection

from mqdb.grpc.wire import rocketmq_pb2 as pb
from mqdb.grpc.wire.times import timestamp
from mqdb.store.topics.topics import find_topic
from mqdb_client import Admin
from tests.fixtures.broker import append, dispatch_all, topic
from tests.fixtures.grpc_client import GrpcClient, GrpcFronts, message, resource, subscription, texts
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until

Code = pb.Code
BEGUN = """
    SELECT g.group_name FROM mqdb.subscription_group g JOIN mqdb.consumer_offset o USING (group_id)
    JOIN mqdb.queue q USING (queue_key) JOIN mqdb.topic t USING (topic_id) WHERE t.topic = 'orders'
"""


@pytest.fixture
def client(broker: Connection, grpc_fronts: GrpcFronts) -> GrpcClient:
    """A client whose group `workers` has begun in the topic `orders` of four queues."""
    topic(broker, "orders", 4)
    client = grpc_fronts.connect()
    stream = client.telemetry()
    assert stream.ask(subscription("workers", orders="*")).status.code == Code.OK
    stream.close()
    return client


def sent(broker: Connection, client: GrpcClient, *bodies: str, **system: Any) -> pb.SendMessageResponse:
    response = client.send("orders", *bodies, **system)
    assert response.status.code == Code.OK, response
    dispatch_all(broker)
    return response


# -- routes ---------------------------------------------------------------------------------------


def test_a_route_has_all_queues_where_the_client_has_found_the_front(
    broker: Connection, grpc_fronts: GrpcFronts
) -> None:
    topic(broker, "orders", 3)
    there = pb.Endpoints(scheme=pb.AddressScheme.DOMAIN_NAME, addresses=[pb.Address(host="mq.example.org", port=443)])

    answer = grpc_fronts.connect().call("QueryRoute", pb.QueryRouteRequest(topic=resource("orders"), endpoints=there))

    assert answer.status.code == Code.OK
    assert [queue.id for queue in answer.message_queues] == [0, 1, 2]
    for queue in answer.message_queues:
        assert queue.broker.name == "broker-a"
        assert queue.broker.endpoints == there
        assert queue.permission == pb.Permission.READ_WRITE
        assert list(queue.accept_message_types) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("name", "code"), [("absent", Code.TOPIC_NOT_FOUND), ("", Code.ILLEGAL_TOPIC), ("no topic", Code.ILLEGAL_TOPIC)]
)
def test_a_topic_that_is_not_there_has_no_route(
    broker: Connection, grpc_fronts: GrpcFronts, name: str, code: int
) -> None:
    answer = grpc_fronts.connect().call("QueryRoute", pb.QueryRouteRequest(topic=resource(name)))

    assert answer.status.code == code


def test_who_says_no_client_id_is_refused(broker: Connection, grpc_fronts: GrpcFronts) -> None:
    client = grpc_fronts.connect("")

    answer = client.call("Heartbeat", pb.HeartbeatRequest())

    assert answer.status.code == Code.CLIENT_ID_REQUIRED


# -- sends ----------------------------------------------------------------------------------------


def test_a_message_comes_as_it_was_sent(broker: Connection, client: GrpcClient) -> None:
    born = datetime(2026, 1, 2, 3, 4, 5, 678_000, UTC)
    given = message("orders", "hello", {"a": "1", "ä": "ö"}, tag="t", keys=["k1", "k2"], born_timestamp=timestamp(born))

    answer = client.send_messages(given)
    dispatch_all(broker)
    [got] = client.receive("workers", "orders")

    [entry] = answer.entries
    assert (entry.status.code, entry.message_id) == (Code.OK, given.system_properties.message_id)
    assert (got.topic, got.body, dict(got.user_properties)) == (given.topic, b"hello", {"a": "1", "ä": "ö"})
    system = got.system_properties
    assert (system.message_id, system.tag, list(system.keys)) == (entry.message_id, "t", ["k1", "k2"])
    assert (system.born_host, system.born_timestamp) == ("some-host", timestamp(born))
    assert (system.message_type, system.body_encoding) == (pb.MessageType.NORMAL, pb.Encoding.IDENTITY)
    assert system.body_digest.type == pb.DigestType.MD5
    assert system.body_digest.checksum == md5(b"hello", usedforsecurity=False).hexdigest().upper()
    assert (system.delivery_attempt, bool(system.receipt_handle)) == (1, True)


def test_a_message_is_found_by_the_id_that_its_sender_knows(
    database: Database, broker: Connection, client: GrpcClient
) -> None:
    [entry] = sent(broker, client, "this one").entries
    with Admin(database.dsn) as admin:
        [found] = admin.messages.show(entry.message_id)

    assert found.body == b"this one"
    assert found.properties["UNIQ_KEY"] == entry.message_id


def test_a_compressed_body_comes_plain(broker: Connection, client: GrpcClient) -> None:
    client.send_messages(message("orders", gzip.compress(b"long" * 1000), body_encoding=pb.Encoding.GZIP))
    dispatch_all(broker)

    [got] = client.receive("workers", "orders")

    assert got.body == b"long" * 1000


def test_messages_of_clients_in_python_are_read_too(broker: Connection, client: GrpcClient) -> None:
    route = find_topic(broker, "orders")
    assert route is not None
    append(broker, route, "from Python", queue_id=2, tag="t")
    dispatch_all(broker)

    [got] = client.receive("workers", "orders")

    assert (got.body, got.system_properties.tag, got.system_properties.queue_id) == (b"from Python", "t", 2)


WRONG: list[tuple[pb.Message, int]] = [
    (message("orders", ""), Code.MESSAGE_BODY_EMPTY),
    (message("orders", b"x" * (4 * 2**20 + 1)), Code.MESSAGE_BODY_TOO_LARGE),
    (message("orders", "x", message_id=""), Code.ILLEGAL_MESSAGE_ID),
    (message("orders", "x", tag="a|b"), Code.ILLEGAL_MESSAGE_TAG),
    (message("orders", "x", tag=" "), Code.ILLEGAL_MESSAGE_TAG),
    (message("orders", "x", keys=["a b"]), Code.ILLEGAL_MESSAGE_KEY),
    (message("orders", "x", {"TAGS": "t"}), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
    (message("orders", "x", {"__SHARDINGKEY": "t"}), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
    (message("orders", "x", {"a": "\x02"}), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
    (message("orders", "x", {"a": "\0"}), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
    (message("orders", "x", {str(number): "" for number in range(129)}), Code.MESSAGE_PROPERTIES_TOO_LARGE),
    (message("orders", "x", {"a": "x" * 16_384}), Code.MESSAGE_PROPERTIES_TOO_LARGE),
    (message("orders", "x", message_group="g" * 64), Code.ILLEGAL_MESSAGE_GROUP),
    (message("orders", "x", message_group=""), Code.ILLEGAL_MESSAGE_GROUP),
    (
        message("orders", "x", message_type=pb.MessageType.NORMAL, message_group="g"),
        Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
    ),
    (message("orders", "x", message_type=pb.MessageType.FIFO), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    (
        message("orders", "x", message_type=pb.MessageType.TRANSACTION, message_group="g"),
        Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
    ),
    (message("orders", "x", born_timestamp=Timestamp(seconds=-1)), Code.BAD_REQUEST),
    (message("orders", "x", born_timestamp=Timestamp(seconds=253_370_764_800)), Code.BAD_REQUEST),
    # A message with a priority, as the newest SDKs have it.
    (message("orders", "x", message_type=6), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    (message("orders", "no gzip", body_encoding=pb.Encoding.GZIP), Code.MESSAGE_CORRUPTED),
    (message("absent", "x"), Code.TOPIC_NOT_FOUND),
    (message("no topic", "x"), Code.ILLEGAL_TOPIC),
]


def test_messages_that_cannot_be_stored_are_refused(broker: Connection, client: GrpcClient) -> None:
    for wrong, code in WRONG:
        answer = client.send_messages(wrong)

        assert (answer.status.code, len(answer.entries)) == (code, 0), f"{wrong}: {answer}"
        assert answer.status.message


def test_the_messages_of_a_call_are_for_one_topic(broker: Connection, client: GrpcClient) -> None:
    topic(broker, "others")

    nothing = client.send_messages()
    two = client.send_messages(message("orders", "x"), message("others", "x"))
    many = client.send("orders", *map(str, range(5)))

    assert (nothing.status.code, two.status.code) == (Code.MESSAGE_CORRUPTED, Code.MESSAGE_CORRUPTED)
    assert (many.status.code, len(many.entries)) == (Code.OK, 5)


def test_messages_of_a_group_go_to_one_queue(broker: Connection, client: GrpcClient) -> None:
    sent(broker, client, *map(str, range(6)), message_group="customer 7", message_type=pb.MessageType.FIFO)

    got = client.receive("workers", "orders")

    assert texts(got) == list("012345")
    assert len({each.system_properties.queue_id for each in got}) == 1
    assert {each.system_properties.message_group for each in got} == {"customer 7"}
    assert {each.system_properties.message_type for each in got} == {pb.MessageType.FIFO}


# -- receives -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"tags": "a"}, ["1"]),
        ({"tags": "a || b"}, ["1", "2"]),
        ({"sql": "size > 2"}, ["3"]),
        ({"sql": "TAGS = 'b' AND size < 3"}, ["2"]),
    ],
)
def test_a_receive_brings_what_its_filter_lets_through(
    broker: Connection, client: GrpcClient, options: dict[str, str], found: list[str]
) -> None:
    for number, tag in enumerate("abc", start=1):
        client.send_messages(message("orders", str(number), {"size": str(number)}, tag=tag))
    dispatch_all(broker)

    assert sorted(texts(client.receive("workers", "orders", **options))) == found


def test_a_receive_waits_for_messages(broker: Connection, client: GrpcClient) -> None:
    frames = client.begin_receive("workers", "orders", poll=20)
    sent(broker, client, "later")

    assert next(frames).status.code == Code.OK
    assert next(frames).message.body == b"later"


def test_a_batch_has_up_to_32_messages(broker: Connection, client: GrpcClient) -> None:
    sent(broker, client, *map(str, range(40)))

    first, second = client.receive("workers", "orders", most=100), client.receive("workers", "orders", most=3)

    assert (len(first), len(second)) == (32, 3)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"invisible": None}, Code.ILLEGAL_INVISIBLE_TIME),
        ({"invisible": 9.9}, Code.ILLEGAL_INVISIBLE_TIME),
        ({"invisible": 12 * 3600 + 1}, Code.ILLEGAL_INVISIBLE_TIME),
        ({"sql": "a >"}, Code.ILLEGAL_FILTER_EXPRESSION),
        ({"most": 0}, Code.BAD_REQUEST),
    ],
)
def test_a_receive_that_asks_for_the_impossible_is_refused(
    broker: Connection, client: GrpcClient, options: dict[str, Any], code: int
) -> None:
    assert client.refused_receive("workers", "orders", **options).code == code


def test_a_receive_of_what_is_not_there_is_refused(broker: Connection, client: GrpcClient) -> None:
    assert client.refused_receive("workers", "absent").code == Code.TOPIC_NOT_FOUND
    assert client.refused_receive("no group", "orders").code == Code.ILLEGAL_CONSUMER_GROUP


def test_a_group_that_pulls_does_not_pop(broker: Connection, client: GrpcClient) -> None:
    broker.exec_driver_sql("INSERT INTO mqdb.subscription_group (group_name) VALUES ('pullers')")

    status = client.refused_receive("pullers", "orders")

    assert status.code == Code.BAD_REQUEST
    assert "group 'pullers' consumes by pull" in status.message


# -- acknowledgements -----------------------------------------------------------------------------


def test_an_acknowledged_message_does_not_come_again(broker: Connection, client: GrpcClient) -> None:
    sent(broker, client, "1", "2")
    first, second = client.receive("workers", "orders")

    assert client.ack("workers", "orders", first) == [Code.OK]
    assert client.ack("workers", "orders", first, second) == [Code.OK, Code.OK]
    rows = broker.exec_driver_sql("SELECT count(*) FROM mqdb.pop_batch").scalar_one()
    assert rows == 0


def test_a_handle_that_is_none_is_refused_and_the_others_count(broker: Connection, client: GrpcClient) -> None:
    sent(broker, client, "1")
    [got] = client.receive("workers", "orders")

    codes = client.ack_handles("workers", "orders", "nonsense", got.system_properties.receipt_handle, "", "\0")

    wrong = Code.INVALID_RECEIPT_HANDLE
    assert codes == [wrong, Code.OK, wrong, wrong]
    request = pb.AckMessageRequest(group=resource("workers"), topic=resource("orders"))
    assert client.call("AckMessage", request).status.code == Code.BAD_REQUEST


def test_a_failed_message_comes_again_with_another_handle(broker: Connection, client: GrpcClient) -> None:
    sent(broker, client, "1")
    [first] = client.receive("workers", "orders")

    changed = client.change("workers", first.system_properties.receipt_handle, 0)
    [again] = client.receive("workers", "orders")

    assert (changed.status.code, bool(changed.receipt_handle)) == (Code.OK, True)
    assert (again.body, again.system_properties.delivery_attempt) == (b"1", 2)
    assert again.system_properties.message_id == first.system_properties.message_id
    handles = {each.system_properties.receipt_handle for each in (first, again)} | {changed.receipt_handle}
    assert len(handles) == 3


def test_a_change_that_is_impossible_is_refused(broker: Connection, client: GrpcClient) -> None:
    sent(broker, client, "1")
    [got] = client.receive("workers", "orders")

    codes = [
        client.change("workers", got.system_properties.receipt_handle, seconds).status.code
        for seconds in (-1, 12 * 3600 + 1)
    ]

    assert codes == [Code.ILLEGAL_INVISIBLE_TIME, Code.ILLEGAL_INVISIBLE_TIME]
    for handle in ("nonsense", "\0"):
        assert client.change("workers", handle, 10).status.code == Code.INVALID_RECEIPT_HANDLE


def test_a_message_that_has_failed_too_often_for_its_client_is_dead(broker: Connection, client: GrpcClient) -> None:
    stream = client.telemetry()
    stream.ask(subscription("undertakers", **{"%DLQ%workers": "*"}))
    sent(broker, client, "1")
    [got] = client.receive("workers", "orders")
    handle = got.system_properties.receipt_handle
    request = pb.ForwardMessageToDeadLetterQueueRequest(
        group=resource("workers"), topic=resource("orders"), receipt_handle=handle, delivery_attempt=3
    )
    nonsense = pb.ForwardMessageToDeadLetterQueueRequest(group=resource("workers"), receipt_handle="nonsense")

    answers = [client.call("ForwardMessageToDeadLetterQueue", request).status.code for _ in range(2)]
    request.receipt_handle = "\0"
    answers.append(client.call("ForwardMessageToDeadLetterQueue", request).status.code)

    assert answers == [Code.OK, Code.OK, Code.INVALID_RECEIPT_HANDLE]  # an SDK asks until it hears OK
    refused = client.call("ForwardMessageToDeadLetterQueue", nonsense).status.code
    assert refused == Code.INVALID_RECEIPT_HANDLE
    dispatch_all(broker)
    [dead] = client.receive("undertakers", "%DLQ%workers", poll=20)
    assert dead.body == b"1"
    assert dead.system_properties.dead_letter_queue.topic == "orders"
    assert dead.system_properties.dead_letter_queue.message_id == got.system_properties.message_id


def test_what_a_client_does_not_get_any_more_goes_to_another(broker: Connection, client: GrpcClient) -> None:
    """A message that one client can no longer receive goes to another.

    The client left while it waited; the message may have been popped for it.
    """
    frames = client.begin_receive("workers", "orders", poll=20, invisible=3600)
    frames.cancel()
    sent(broker, client, "1")

    [got] = client.receive("workers", "orders", poll=20)

    assert (got.body, got.system_properties.delivery_attempt) == (b"1", 1)


def test_the_request_of_a_receive_says_all(broker: Connection, grpc_fronts: GrpcFronts) -> None:
    """A receive request contains everything that the front needs.

    No settings have arrived, and both the client and the group are new to the front. A new group begins at the end.
    """
    route = topic(broker, "orders")
    append(broker, route, "before")
    dispatch_all(broker)
    client = grpc_fronts.connect()

    frames = client.begin_receive("new", "orders", poll=20)
    wait_until(lambda: broker.exec_driver_sql(BEGUN).all() == [("new",)])
    sent(broker, client, "after")

    assert [frame.message.body for frame in frames if frame.HasField("message")] == [b"after"]
