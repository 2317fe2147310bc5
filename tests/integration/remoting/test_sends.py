"""Sends of RocketMQ's clients, and their requests about single messages: find, show, recall, send back, reply."""

import json
import time
from collections.abc import Mapping
from typing import Any

import pytest
from sqlalchemy import Connection, text

from mqdb.broker.topics import topics as admin
from mqdb.common.topic import Perm
from mqdb.remoting.producing import replies
from mqdb.remoting.wire.codes import RequestCode
from mqdb.remoting.wire.frame import Frame, Serializer
from mqdb.remoting.wire.messages import decode_properties, encode_properties
from mqdb.store.topics.topics import find_topic
from tests.fixtures.broker import append, dispatch_all, topic
from tests.fixtures.log import attend, settle
from tests.fixtures.postgres import Database
from tests.fixtures.remoting_client import PATIENCE_SECONDS, Fronts, RemotingClient, consumer

#: As a Java client of a machine with an IPv6 address makes it.
LONG_ID = "AB" * 28
SHORT_ID = "7F00000100AB18B4AAC2018B7A3C0001"


def send(client: RemotingClient, body: bytes = b"hello", code: int = 310, **more: object) -> Frame:
    """Send to `orders` with the short field names of the header."""
    return client.request(code, header(**more), body)


def header(**more: object) -> dict[str, object]:
    fields: dict[str, object] = {
        "a": "shop", "b": "orders", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": int(time.time() * 1000), "h": 0,
        "i": "", "j": 0, "k": "false", "m": "false",
    }  # fmt: skip
    return fields | more


def properties(**named: str) -> str:
    return encode_properties(named)


def stored(broker: Connection) -> Mapping[str, Any]:
    """The newest record of the log."""
    rows = broker.execute(text("SELECT * FROM mqdb.commit_log ORDER BY log_pos DESC LIMIT 1")).mappings()
    return dict(rows.one())


def position_of(answer: Frame) -> int:
    return int(answer.fields["msgId"][16:], 16)


@pytest.fixture
def client(fronts: Fronts) -> RemotingClient:
    return fronts.connect()


def test_a_message_is_stored_as_it_was_sent(broker: Connection, client: RemotingClient) -> None:
    topic(broker)

    answer = send(client, h=7, i=properties(TAGS="new", KEYS="a b", UNIQ_KEY=SHORT_ID, WAIT="true", x="y"))

    found = stored(broker)
    assert answer.code == 0
    assert answer.fields["queueOffset"] == "-1"  # dispatch gives it later
    assert position_of(answer) == found["log_pos"]
    assert (found["body"], found["tags"], found["keys"], found["flag"]) == (b"hello", "new", "a b", 7)
    assert str(found["msg_id"]).replace("-", "").upper() == SHORT_ID
    assert found["properties"] == {"x": "y"}


def test_the_answer_has_the_queue_offset_of_a_placed_message(
    broker: Connection, database: Database, fronts: Fronts
) -> None:
    topic(broker, queues=1)
    dispatch_all(broker)
    log = database.connect()
    attend(log)
    settle(log)

    client = fronts.connect()

    assert [send(client).fields["queueOffset"] for _ in range(3)] == ["0", "1", "2"]


def test_old_clients_send_with_long_names(broker: Connection, client: RemotingClient) -> None:
    topic(broker)
    names = {
        "producerGroup": "shop", "topic": "orders", "defaultTopic": "TBW102", "defaultTopicQueueNums": 4, "queueId": 0,
        "sysFlag": 0, "bornTimestamp": 1, "flag": 0, "properties": properties(TAGS="new"),
    }  # fmt: skip

    answer = client.request(RequestCode.SEND_MESSAGE, names, b"old")

    assert (answer.code, stored(broker)["tags"]) == (0, "new")


def test_a_binary_header_is_as_good(broker: Connection, fronts: Fronts) -> None:
    topic(broker)

    answer = send(fronts.connect(serializer=Serializer.ROCKETMQ), i=properties(TAGS="new"))

    assert (answer.serializer, answer.code, stored(broker)["tags"]) == (Serializer.ROCKETMQ, 0, "new")


def test_an_unknown_topic_is_made_after_the_template(broker: Connection, client: RemotingClient) -> None:
    answer = send(client, b="fresh", d=2)

    route = find_topic(broker, "fresh")
    assert answer.code == 0
    assert route is not None
    assert len(route.write_queue_keys) == 2


FAULTS: list[tuple[dict[str, Any], int]] = [
    ({"b": "SCHEDULE_TOPIC_XXXX"}, 16),
    ({"b": "no topic"}, 29),
    ({"b": ""}, 29),
    ({"e": 99}, 29),
    ({"e": "x"}, 29),
    ({"g": 2**62}, 29),
    ({"g": -1}, 29),
    ({"g": 253_370_764_800_000}, 29),  # the year 9999
    ({"f": 2**31}, 29),
    ({"h": -(2**31) - 1}, 29),
    ({"j": 2**31}, 29),
    ({"b": "%RETRY%a\0"}, 29),
    ({"i": "x\x01" + "y" * 32_767 + "\x02"}, 13),
    ({"i": properties(DELAY="soon")}, 13),
]


def test_a_faulty_send_is_refused_and_stores_nothing(broker: Connection, client: RemotingClient) -> None:
    topic(broker)

    for fault, code in FAULTS:
        answer = send(client, **fault)

        assert answer.code == code, (str(fault)[:80], answer.remark)
        assert answer.remark, str(fault)[:80]
        assert broker.scalar(text("SELECT count(*) FROM mqdb.commit_log")) == 0, str(fault)[:80]


def test_a_body_above_4_mib_is_refused(broker: Connection, client: RemotingClient) -> None:
    topic(broker)

    assert send(client, b"x" * (4 * 2**20)).code == 0
    assert send(client, b"x" * (4 * 2**20 + 1)).code == 13


def test_a_topic_that_is_closed_to_messages_is_refused(broker: Connection, client: RemotingClient) -> None:
    topic(broker)
    admin.update_topic(broker, "orders", perm=Perm.READ)

    assert send(client).code == 16


def test_a_topic_that_was_deleted_and_made_again_is_found_again(broker: Connection, client: RemotingClient) -> None:
    topic(broker)
    assert send(client).code == 0
    admin.delete_topic(broker, "orders")
    topic(broker)

    again = send(client)
    admin.delete_topic(broker, "orders")

    assert again.code == 0  # clients that do not wait would not send again
    assert send(client).code == 17  # and nobody makes it again behind the back of whoever has deleted it


def test_a_batch_is_stored_as_a_whole_in_one_queue(broker: Connection, client: RemotingClient) -> None:
    topic(broker)
    parts = b"".join(part(body, properties(TAGS=f"t{number}")) for number, body in enumerate((b"a", b"b", b"c")))

    answer = send(client, parts, RequestCode.SEND_BATCH_MESSAGE, m="true")

    assert len(answer.fields["msgId"].split(",")) == 3
    rows = broker.execute(text("SELECT body, tags FROM mqdb.commit_log ORDER BY log_pos")).all()
    assert [tuple(row) for row in rows] == [(b"a", "t0"), (b"b", "t1"), (b"c", "t2")]


def test_a_batch_that_is_none_is_refused(broker: Connection, client: RemotingClient) -> None:
    topic(broker)

    answers = [send(client, body, RequestCode.SEND_BATCH_MESSAGE, m="true") for body in (b"", b"rubbish")]

    assert [answer.code for answer in answers] == [29, 13]


def part(body: bytes, text: str) -> bytes:
    encoded = text.encode()
    numbers = [0, 0, 0, 0, len(body)]
    head = b"".join(number.to_bytes(4) for number in numbers)
    return head + body + len(encoded).to_bytes(2) + encoded


# -- single messages ----------------------------------------------------------------------------


@pytest.mark.parametrize("unique_id", [SHORT_ID, LONG_ID, "any text"])
def test_a_message_is_found_by_its_id_whatever_that_is(
    broker: Connection, client: RemotingClient, unique_id: str
) -> None:
    topic(broker)
    position = position_of(send(client, i=properties(UNIQ_KEY=unique_id)))
    send(client, b"other")
    dispatch_all(broker)

    by_id = find(client, unique_id, _UNIQUE_KEY_QUERY="true")
    by_position = client.request(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": position})

    assert [read(by_id.body), read(by_position.body)] == [("hello", unique_id)] * 2


def test_a_message_is_found_by_its_key_in_a_time(broker: Connection, client: RemotingClient) -> None:
    topic(broker)
    send(client, i=properties(KEYS="one two", UNIQ_KEY=SHORT_ID))
    dispatch_all(broker)

    assert read(find(client, "two").body) == ("hello", SHORT_ID)
    assert find(client, "three").code == 22
    assert find(client, "two", endTimestamp=1).code == 22
    assert find(client, "two", topic="absent").code == 17


def test_a_position_without_a_message_shows_none(client: RemotingClient) -> None:
    answer = client.request(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": 99})

    assert answer.code not in (0, None)
    assert answer.remark


def find(client: RemotingClient, key: str, **more: object) -> Frame:
    fields = {"topic": "orders", "key": key, "maxNum": 32, "beginTimestamp": 0, "endTimestamp": 2**62}
    return client.request(RequestCode.QUERY_MESSAGE, fields | more)


def read(data: bytes) -> tuple[str, str]:
    """The body and the unique id of the only message in the data."""
    total, length = int.from_bytes(data[:4]), int.from_bytes(data[84:88])
    assert total == len(data)
    at = 88 + length
    named = decode_properties(data[at + 1 + data[at] + 2 :].decode())
    return data[88:at].decode(), named["UNIQ_KEY"]


def test_a_message_with_a_time_is_taken_back_once(broker: Connection, client: RemotingClient) -> None:
    topic(broker)
    sent = send(client, i=properties(TIMER_DELAY_MS="600000", UNIQ_KEY=SHORT_ID))
    recall = {"topic": "orders", "recallHandle": sent.fields["recallHandle"], "producerGroup": "shop"}

    first = client.request(RequestCode.RECALL_MESSAGE, recall)
    again = client.request(RequestCode.RECALL_MESSAGE, recall)
    elsewhere = client.request(RequestCode.RECALL_MESSAGE, recall | {"topic": "others"})

    assert (first.code, first.fields["msgId"]) == (0, SHORT_ID)
    assert (again.code, elsewhere.code) == (604, 604)


# -- failures -----------------------------------------------------------------------------------


def test_a_failed_message_waits_for_its_level_and_then_is_dead(broker: Connection, client: RemotingClient) -> None:
    [position] = append(broker, topic(broker), "a")
    dispatch_all(broker)
    client.heartbeat("1.2.3.4@1", consumer(orders="*"))
    back = {"group": "readers", "offset": position, "delayLevel": 2, "maxReconsumeTimes": 16}

    later = client.request(RequestCode.CONSUMER_SEND_MSG_BACK, back)
    waiting = stored(broker)
    dead = client.request(RequestCode.CONSUMER_SEND_MSG_BACK, back | {"maxReconsumeTimes": 0})

    assert (later.code, dead.code) == (0, 0)
    assert dict(waiting["properties"])["DELAY"] == "2"
    assert dict(stored(broker)["properties"])["MQDB_FAILURE_HOST"] == "1.2.3.4@1"
    assert letters(broker) == 1


def test_a_group_that_is_not_there_gets_nothing_back(broker: Connection, client: RemotingClient) -> None:
    [position] = append(broker, topic(broker), "a")
    dispatch_all(broker)

    back = {"group": "nobody", "offset": position, "delayLevel": 0}

    assert client.request(RequestCode.CONSUMER_SEND_MSG_BACK, back).code == 26


@pytest.mark.parametrize(("times", "is_dead"), [(3, False), (4, True)])
def test_what_a_consumer_sends_to_its_retry_topic_too_often_is_dead(
    broker: Connection, client: RemotingClient, times: int, is_dead: bool
) -> None:
    topic(broker)
    client.heartbeat("1.2.3.4@1", consumer(orders="*"))

    answer = send(client, b="%RETRY%readers", i=properties(DELAY="3", RETRY_TOPIC="orders"), j=times, l=3)

    assert answer.code == 0, answer.remark
    assert letters(broker) == is_dead
    assert stored(broker)["reconsume_times"] == times


def letters(broker: Connection) -> int:
    """The number of dead letters of `readers`."""
    dispatch_all(broker)
    dead = "SELECT count(*) FROM mqdb.message WHERE topic = '%DLQ%readers'"
    return int(broker.scalar(text(dead)) or 0)


# -- requests and replies -----------------------------------------------------------------------


@pytest.mark.parametrize("is_known", [True, False], ids=["known", "before its first heartbeat"])
def test_a_reply_is_brought_to_who_has_asked(
    broker: Connection, fronts: Fronts, monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    monkeypatch.setattr(replies, "_TAKE_SECONDS", PATIENCE_SECONDS)
    topic(broker)
    requester, replier = fronts.connect(), fronts.connect()
    if is_known:
        requester.heartbeat("9.9.9.9@1", producers=["shop"])
    send(requester, i=properties(CORRELATION_ID="c1", REPLY_TO_CLIENT="9.9.9.9@1", TTL="3000"))
    request = dict(stored(broker)["properties"])
    said = properties(CORRELATION_ID="c1", REPLY_TO_CLIENT="9.9.9.9@1", MSG_TYPE="reply")

    replying = replier.begin(RequestCode.SEND_REPLY_MESSAGE_V2, header(b="DefaultCluster_REPLY_TOPIC", i=said), b"yes")
    pushed = requester.asked.get(timeout=30)
    requester.answer(pushed)

    assert request["CLUSTER"] == "DefaultCluster"  # without it no client can reply
    assert pushed.code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
    assert (pushed.body, decode_properties(pushed.fields["properties"])["CORRELATION_ID"]) == (b"yes", "c1")
    assert replying.result(30).code == 0


def test_a_reply_finds_its_requester_at_another_front(broker: Connection, fronts: Fronts) -> None:
    topic(broker)
    here, elsewhere = fronts.start(), fronts.start()
    requester, replier = fronts.connect(here), fronts.connect(elsewhere)
    requester.heartbeat("9.9.9.9@1", producers=["shop"])
    assert send(requester, i=properties(CORRELATION_ID="c1", REPLY_TO_CLIENT="9.9.9.9@1", TTL="3000")).code == 0
    said = properties(CORRELATION_ID="c1", REPLY_TO_CLIENT="9.9.9.9@1", MSG_TYPE="reply")

    answer = replier.request(324, header_long(i=said), b"yes")
    dispatch_all(broker)
    pushed = requester.asked.get(timeout=30)

    assert answer.code == 0
    assert (pushed.code, pushed.body) == (RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, b"yes")


def test_a_request_that_is_sent_to_a_retry_topic_leaves_its_replies_to_the_requester(
    broker: Connection, fronts: Fronts
) -> None:
    """A request sent to a retry topic leaves its replies to the requester.

    A consumer that has failed the request sends the copy, and must not receive the replies.
    """
    topic(broker)
    elsewhere, here = fronts.start(), fronts.start()
    requester, failing, replier = fronts.connect(elsewhere), fronts.connect(here), fronts.connect(here)
    asks = properties(CORRELATION_ID="c1", REPLY_TO_CLIENT="9.9.9.9@1", TTL="3000")
    assert send(requester, i=asks).code == 0
    failing.heartbeat("1.2.3.4@1", consumer(orders="*"))

    assert send(failing, b="%RETRY%readers", i=asks, j=1, l=3).code == 0
    said = properties(CORRELATION_ID="c1", REPLY_TO_CLIENT="9.9.9.9@1", MSG_TYPE="reply")
    assert replier.request(324, header_long(i=said), b"yes").code == 0
    dispatch_all(broker)

    assert requester.asked.get(timeout=30).body == b"yes"


def header_long(**more: object) -> dict[str, object]:
    """The header of a reply with the long field names."""
    return {
        "producerGroup": "shop", "topic": "DefaultCluster_REPLY_TOPIC", "defaultTopic": "TBW102",
        "defaultTopicQueueNums": 4, "queueId": 0, "sysFlag": 0, "bornTimestamp": 1, "flag": 0,
        "properties": more["i"],
    }  # fmt: skip


# -- routes -------------------------------------------------------------------------------------


def test_a_route_names_the_front_as_name_server_and_broker(broker: Connection, fronts: Fronts) -> None:
    topic(broker, queues=3)
    client = fronts.connect()

    answer = client.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})
    cluster = client.request(RequestCode.GET_BROKER_CLUSTER_INFO)

    said = json.loads(answer.body)
    address = str(fronts.start().address).partition(":")[0]
    assert said["brokerDatas"][0]["brokerAddrs"]["0"].startswith(address)
    assert (said["queueDatas"][0]["readQueueNums"], said["queueDatas"][0]["perm"]) == (3, 6)
    assert "broker-a" in json.loads(cluster.body)["brokerAddrTable"]


def test_a_retry_topic_is_made_when_it_is_asked_for(client: RemotingClient) -> None:
    assert client.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "%RETRY%readers"}).code == 0
    assert client.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "absent"}).code == 17


def test_what_is_no_request_of_the_protocol_is_answered_or_ends_the_connection(client: RemotingClient) -> None:
    assert client.request(9_999).code == 3
    client._socket.sendall(b"GET / HTTP/1.1\r\n\r\n")

    with pytest.raises(ConnectionError):
        client.request(RequestCode.GET_BROKER_CLUSTER_INFO)
