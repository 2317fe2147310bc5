"""Requests of RocketMQ's tools to a front: the answer to each code, the errors, and the recorded operations."""

import json
import re
import time
from typing import Any

import pytest
from sqlalchemy import Connection, text

from mqdb.broker.consumers.group_offsets import commit_without_owner
from mqdb.broker.consumers.groups import update_group
from mqdb.broker.topics.topics import update_topic
from mqdb.common.message import Message
from mqdb.common.topic import MessageType
from mqdb.remoting.wire.codes import RequestCode
from mqdb.remoting.wire.frame import Frame
from mqdb.store.consumers.group_offsets import ReadQueue
from mqdb.store.topics.topics import find_topic
from mqdb_client import Admin, PushConsumer
from tests.fixtures.broker import append, dispatch_all, topic
from tests.fixtures.consumers import Inbox
from tests.fixtures.postgres import Database
from tests.fixtures.remoting_client import Fronts, RemotingClient, consumer

SYSTEM_ERROR, NO_TOPIC, NOT_FOUND, NO_GROUP, INVALID, NOT_ONLINE, IN_USE = 1, 17, 22, 26, 29, 206, 604

_QUEUE = re.compile(r'\{"brokerName": "broker-a", "queueId": (\d+), "topic": "([^"]+)"\}:')


@pytest.fixture
def client(fronts: Fronts) -> RemotingClient:
    return fronts.connect()


def said(answer: Frame) -> Any:
    """The body of an answer, in which a queue as a key is written as `topic:number`."""
    assert answer.code == 0, answer.remark
    return json.loads(_QUEUE.sub(r'"\2:\1":', answer.body.decode()))


def operations(broker: Connection) -> list[tuple[str, str]]:
    """The recorded changes of tools, with their actors, but without their addresses."""
    noted = "SELECT verb, actor FROM mqdb.operation WHERE actor IS NOT NULL ORDER BY operation_id"
    return [(row.verb, row.actor.partition(":")[0]) for row in broker.execute(text(noted))]


def save_topic(client: RemotingClient, name: str = "orders", **more: object) -> Frame:
    fields = {
        "topic": name, "defaultTopic": "TBW102", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6,
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false", "attributes": "",
    }  # fmt: skip
    return client.request(RequestCode.UPDATE_AND_CREATE_TOPIC, fields | more)


def commit(broker: Connection, group: str, name: str, offset: int) -> None:
    """Set a group's offset in queue 0."""
    route = find_topic(broker, name)
    assert route is not None
    position = ReadQueue(route.queue_keys[0], offset, 0, None, route.history)
    commit_without_owner(broker, group, [position])


# -- the broker -----------------------------------------------------------------------------------


def test_figures_of_the_broker_count_what_was_put_today(broker: Connection, client: RemotingClient) -> None:
    before = said(client.request(RequestCode.GET_BROKER_RUNTIME_INFO))["table"]
    append(broker, topic(broker), "a", "b", "c")

    after = said(client.request(RequestCode.GET_BROKER_RUNTIME_INFO))["table"]

    assert int(after["msgPutTotalTodayNow"]) - int(before["msgPutTotalTodayNow"]) == 3
    assert int(after["msgPutTotalTodayNow"]) - int(after["msgPutTotalTodayMorning"]) == 3
    assert after["putTps"] == "0.30 0.05 0.01"  # over 10 s, a minute and 10 minutes
    assert abs(int(after["earliestMessageTimeStamp"]) / 1_000 - time.time()) < 60
    assert after["brokerVersionDesc"].startswith("mqdb ")


def test_settings_of_the_broker_say_where_it_is(fronts: Fronts) -> None:
    front = fronts.start()

    lines = fronts.connect(front).request(RequestCode.GET_BROKER_CONFIG).body.decode().splitlines()

    assert {"brokerName=broker-a", f"listenPort={front.address.port}"} < set(lines)


# -- topics ---------------------------------------------------------------------------------------


def test_topics_are_listed_with_and_without_settings(broker: Connection, client: RemotingClient) -> None:
    topic(broker, queues=2)
    update_topic(broker, "orders", message_type=MessageType.FIFO)

    names = said(client.request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER))["topicList"]
    of_broker = said(client.request(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS))["topicList"]
    table = said(client.request(RequestCode.GET_ALL_TOPIC_CONFIG))["topicConfigTable"]
    one = said(client.request(RequestCode.GET_TOPIC_CONFIG, {"topic": "orders"}))

    assert set(names) - set(of_broker) == {"orders"}
    assert "TBW102" in of_broker
    assert table["orders"] == one
    assert (one["topicName"], one["readQueueNums"], one["perm"]) == ("orders", 2, 6)
    assert one["attributes"] == {"message.type": "FIFO"}
    assert client.request(RequestCode.GET_TOPIC_CONFIG, {"topic": "nothing"}).code == NO_TOPIC


def test_a_topic_is_made_and_then_changed(broker: Connection, client: RemotingClient) -> None:
    made = save_topic(client, attributes="+message.type=FIFO")
    changed = save_topic(client, readQueueNums=8, writeQueueNums=6, perm=4, order="true")

    route = find_topic(broker, "orders")
    assert (made.code, changed.code) == (0, 0)
    assert route is not None
    config = route.config
    assert (config.read_queue_nums, config.write_queue_nums, int(config.perm), config.order) == (8, 6, 4, True)
    assert config.message_type is MessageType.FIFO  # it was not said again
    assert operations(broker) == [("topic.create", "remoting"), ("topic.update", "remoting")]


def test_a_topic_that_cannot_be_is_refused(broker: Connection, client: RemotingClient) -> None:
    refused: list[dict[str, Any]] = [
        {"topic": "bad/name"},
        {"perm": 9},
        {"readQueueNums": 0},
        {"attributes": "+message.type=ODD"},
        {"topic": "TBW102"},
    ]
    for fields in refused:
        answer = save_topic(client, **fields)

        assert answer.code == INVALID, fields
        assert operations(broker) == []


def test_a_deleted_topic_is_gone_and_one_that_was_not_there_too(broker: Connection, client: RemotingClient) -> None:
    topic(broker)

    for name in ("orders", "orders"):
        assert client.request(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": name}).code == 0
        assert client.request(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": name, "clusterName": "x"}).code == 0

    assert find_topic(broker, "orders") is None
    assert operations(broker) == [("topic.delete", "remoting")]


def test_a_topic_that_a_cron_names_is_not_deleted(
    broker: Connection, client: RemotingClient, database: Database
) -> None:
    topic(broker)
    with Admin(database.dsn) as admin:
        admin.crons.add("nightly", "0 3 * * *", Message("orders", "go"))

    answer = client.request(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "orders"})

    assert answer.code == IN_USE
    assert "nightly" in str(answer.remark)


def test_an_ordered_topic_has_a_value_of_its_own(broker: Connection, client: RemotingClient) -> None:
    save_topic(client, order="true")
    save_topic(client, "letters")
    key = {"namespace": "ORDER_TOPIC_CONFIG", "key": "orders"}

    assert client.request(RequestCode.PUT_KV_CONFIG, key | {"value": "broker-a:4"}).code == 0
    assert client.request(RequestCode.GET_KV_CONFIG, key).fields == {"value": "broker-a:4"}
    assert client.request(RequestCode.GET_KV_CONFIG, key | {"key": "letters"}).code == NOT_FOUND
    assert client.request(RequestCode.PUT_KV_CONFIG, key | {"key": "letters", "value": "x"}).code == INVALID
    assert client.request(RequestCode.GET_KV_CONFIG, key | {"namespace": "OTHERS"}).code == INVALID
    assert client.request(RequestCode.DELETE_KV_CONFIG, key).code == 0


def test_figures_of_a_topic_say_where_its_queues_end(broker: Connection, client: RemotingClient) -> None:
    append(broker, topic(broker, queues=2), "a", "b", "c")
    dispatch_all(broker)

    found = said(client.request(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "orders"}))

    written, empty = found["offsetTable"]["orders:0"], found["offsetTable"]["orders:1"]
    assert (written["minOffset"], written["maxOffset"]) == (0, 3)
    assert abs(written["lastUpdateTimestamp"] / 1_000 - time.time()) < 60
    assert empty == {"minOffset": 0, "maxOffset": 0, "lastUpdateTimestamp": 0}
    assert found["topicPutTps"] == 3 / 60
    puts = client.request(RequestCode.VIEW_BROKER_STATS_DATA, {"statsName": "TOPIC_PUT_NUMS", "statsKey": "orders"})
    assert said(puts)["statsHour"] == {"sum": 3, "tps": 3 / 3_600, "avgpt": 0.0}
    gets = {"statsName": "GROUP_GET_NUMS", "statsKey": "orders@readers"}
    assert client.request(RequestCode.VIEW_BROKER_STATS_DATA, gets).code == SYSTEM_ERROR
    assert client.request(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "nothing"}).code == NO_TOPIC


# -- groups ---------------------------------------------------------------------------------------


def save_group(client: RemotingClient, **more: object) -> Frame:
    settings = {"groupName": "readers", "consumeEnable": True, "consumeBroadcastEnable": False} | more
    return client.request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=settings)


def test_a_group_is_made_shown_and_deleted(broker: Connection, client: RemotingClient) -> None:
    assert save_group(client, retryQueueNums=2, retryMaxTimes=5, whichBrokerWhenConsumeSlowly=1).code == 0

    one = said(client.request(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "readers"}))
    table = said(client.request(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG))["subscriptionGroupTable"]

    assert table == {"readers": one}
    assert (one["retryQueueNums"], one["retryMaxTimes"]) == (2, 5)
    assert (one["consumeEnable"], one["consumeBroadcastEnable"]) == (True, False)
    for _ in range(2):  # one that is not there is deleted as well
        fields = {"groupName": "readers", "cleanOffset": "true"}
        assert client.request(RequestCode.DELETE_SUBSCRIPTIONGROUP, fields).code == 0
    assert client.request(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "readers"}).code == NO_GROUP
    assert operations(broker) == [("group.update", "remoting"), ("group.delete", "remoting")]


def test_a_group_says_when_failed_messages_come_again_and_where_it_begins(
    broker: Connection, client: RemotingClient
) -> None:
    def shown() -> tuple[object, object]:
        config = said(client.request(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "readers"}))
        return config["groupRetryPolicy"], config["consumeFromMinEnable"]

    ladder = {"type": "CUSTOMIZED"}
    listed = ladder | {"customizedRetryPolicy": {"next": [1000, 60000]}}
    grown = {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 1000, "max": 5000, "multiplier": 2}}
    assert save_group(client, groupRetryPolicy=listed, consumeFromMinEnable=True).code == 0
    assert shown() == (listed, True)
    assert save_group(client, groupRetryPolicy=grown).code == 0
    assert shown() == (ladder | {"customizedRetryPolicy": {"next": [1000, 2000, 4000, 5000]}}, True)
    assert save_group(client, groupRetryPolicy=ladder, consumeFromMinEnable=False).code == 0
    assert shown() == (ladder, False)


def test_a_group_that_cannot_be_is_refused(broker: Connection, client: RemotingClient) -> None:
    refused: list[dict[str, Any]] = [
        {"groupName": "bad name"},
        {"groupName": None},
        {"retryMaxTimes": "5"},
        {"retryQueueNums": 0},
        {"groupRetryPolicy": "soon"},
        {"groupRetryPolicy": {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": "soon"}}},
        {"groupRetryPolicy": {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [-1]}}},
        {"groupRetryPolicy": {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1e300]}}},
    ]
    for more in refused:
        assert save_group(client, **more).code == INVALID, more


def test_a_group_with_members_is_not_deleted(broker: Connection, client: RemotingClient) -> None:
    topic(broker)
    client.heartbeat("1.2.3.4@1", consumer(orders="*"))

    assert client.request(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "readers"}).code == IN_USE


def test_a_group_goes_on_where_it_is_told(broker: Connection, client: RemotingClient) -> None:
    append(broker, topic(broker), "a", "b", "c")
    dispatch_all(broker)
    commit(broker, "readers", "orders", 2)
    asked = {"topic": "orders", "group": "readers", "isForce": "true", "queueId": -1, "offset": -1}

    places: list[tuple[dict[str, Any], int]] = [
        ({"timestamp": 1_000_000_000_000}, 0),
        ({"timestamp": 4_000_000_000_000}, 3),
        ({"timestamp": -1, "queueId": 0, "offset": 1}, 1),
        ({"timestamp": -1}, 3),
    ]
    for number, (fields, offset) in enumerate(places, 1):
        found = said(client.request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, asked | fields))

        assert found == {"offsetTable": {"orders:0": offset}}
        assert broker.scalar(text("SELECT next_offset FROM mqdb.consumer_offset")) == offset
        assert operations(broker) == [("offset.reset", "remoting")] * number


def test_a_reset_names_a_group_and_a_topic(broker: Connection, client: RemotingClient) -> None:
    topic(broker)
    asked = {"topic": "orders", "group": "nobody", "timestamp": -1}

    assert client.request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, asked).code == NO_GROUP
    assert client.request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, asked | {"topic": "x"}).code == NO_TOPIC
    assert client.request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, asked | {"timestamp": 2**62}).code == INVALID


def test_figures_of_a_group_say_how_far_it_is(broker: Connection, client: RemotingClient) -> None:
    append(broker, topic(broker), "a", "b", "c")
    dispatch_all(broker)
    commit(broker, "readers", "orders", 2)
    read_last = (
        "SELECT floor(extract(epoch FROM store_time) * 1000) FROM mqdb.commit_log ORDER BY log_pos LIMIT 1 OFFSET 1"
    )
    stored = broker.scalar(text(read_last))

    found = said(client.request(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "readers"}))

    assert found["offsetTable"]["orders:0"] == {
        "brokerOffset": 3, "consumerOffset": 2, "pullOffset": 2, "lastTimestamp": stored
    }  # fmt: skip
    other = said(client.request(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "readers", "topic": "others"}))
    assert other["offsetTable"] == {}
    assert client.request(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "nobody"}).code == NO_GROUP
    readers = client.request(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "orders"})
    assert said(readers) == {"groupList": ["readers"]}


# -- clients --------------------------------------------------------------------------------------

JAVA = "192.0.2.7@17#4711"


def test_members_of_a_group_are_listed_wherever_they_are(
    broker: Connection, client: RemotingClient, database: Database
) -> None:
    topic(broker)
    client.heartbeat(JAVA, consumer("mixed", orders="*"))
    python = PushConsumer("mixed", database.dsn)
    python.subscribe("orders")
    python.register_listener(Inbox())
    with python:
        found = said(client.request(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "mixed"}))

    java, other = sorted(found["connectionSet"], key=lambda each: str(each["language"]))
    assert (java["clientId"], java["language"], java["version"]) == (JAVA, "JAVA", 409)
    assert java["clientAddr"].startswith("127.0.0.1:")
    assert other["language"] == "PYTHON"
    assert {name: each["subString"] for name, each in found["subscriptionTable"].items()} == {
        "orders": "*", "%RETRY%mixed": "*"
    }  # fmt: skip
    assert (found["consumeType"], found["messageModel"]) == ("CONSUME_PASSIVELY", "CLUSTERING")
    assert found["consumeFromWhere"] == "CONSUME_FROM_FIRST_OFFSET"


def test_a_member_of_a_broadcasting_group_is_known_by_its_own_id(broker: Connection, client: RemotingClient) -> None:
    topic(broker)
    client.heartbeat("192.0.2.7@DEFAULT", consumer(model="BROADCASTING", orders="a || b"))

    found = said(client.request(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "readers"}))

    assert [each["clientId"] for each in found["connectionSet"]] == ["192.0.2.7@DEFAULT"]
    assert found["messageModel"] == "BROADCASTING"
    topics = said(client.request(RequestCode.QUERY_TOPICS_BY_CONSUMER, {"group": "readers"}))
    assert topics == {"topicList": ["orders"]}
    asked = {"group": "readers", "topic": "orders"}
    subscription = said(client.request(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, asked))["subscriptionData"]
    assert (subscription["subString"], subscription["expressionType"]) == ("a || b", "TAG")


def test_a_group_without_members_is_not_online(broker: Connection, client: RemotingClient) -> None:
    update_group(broker, "readers", consume_enable=True)

    asked = RequestCode.GET_CONSUMER_CONNECTION_LIST
    assert client.request(asked, {"consumerGroup": "readers"}).code == NOT_ONLINE
    assert client.request(asked, {"consumerGroup": "nobody"}).code == NO_GROUP


def test_producers_of_a_group_are_listed(broker: Connection, client: RemotingClient) -> None:
    client.heartbeat(JAVA, producers=["shop"])

    asked = RequestCode.GET_PRODUCER_CONNECTION_LIST
    of_group = said(client.request(asked, {"producerGroup": "shop"}))["connectionSet"]
    [of_all] = said(client.request(RequestCode.GET_ALL_PRODUCER_INFO))["data"]["shop"]

    assert [each["clientId"] for each in of_group] == [JAVA]
    assert (of_all["clientId"], of_all["remoteIP"]) == (JAVA, of_group[0]["clientAddr"])
    assert client.request(asked, {"producerGroup": "nobody"}).code == SYSTEM_ERROR
