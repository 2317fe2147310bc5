"""Pulls of RocketMQ's clients: filters, verdicts, holds."""

import asyncio
from unittest.mock import Mock

import pytest
from sqlalchemy import Connection

from mqdb.broker.consumers.pull import pull
from mqdb.broker.topics import topics as admin
from mqdb.common.message import Message
from mqdb.common.topic import Perm
from mqdb.remoting.consuming import turns
from mqdb.remoting.wire.frame import Serializer
from tests.fixtures.broker import append, dispatch_all, drop_topic, topic
from tests.fixtures.processes import wait_until
from tests.fixtures.remoting_client import PATIENCE_SECONDS, UNDISTURBED, Fronts, RemotingClient, consumer, pulled
from tests.fixtures.variants import usually

FOUND, NO_NEW, NO_MATCHED, MOVED = 0, 19, 20, 21


def reader(fronts: Fronts, client_id: str = "1.2.3.4@1", **topics: str) -> RemotingClient:
    """A member of `readers`."""
    client = fronts.connect()
    assert client.heartbeat(client_id, consumer(**topics or {"orders": "*"})).code == 0
    return client


def test_a_pull_finds_messages_and_says_where_to_go_on(broker: Connection, fronts: Fronts) -> None:
    append(broker, topic(broker), "a", "b", "c")
    dispatch_all(broker)
    client = reader(fronts)

    assert client.query_offset("readers", "orders") == 0
    found = client.pull("readers", "orders", 0, limit=2)

    assert (found.code, found.next_offset, found.bodies) == (FOUND, 2, ["a", "b"])


def test_a_pull_with_a_binary_header_is_answered_by_one(broker: Connection, fronts: Fronts) -> None:
    append(broker, topic(broker), "a")
    dispatch_all(broker)
    client = fronts.connect(serializer=Serializer.ROCKETMQ)
    client.heartbeat("1.2.3.4@1", consumer(orders="*"))

    answer = client.begin_pull("readers", "orders", 0).result(PATIENCE_SECONDS)

    assert answer.serializer is Serializer.ROCKETMQ
    assert pulled(answer).bodies == ["a"]


@pytest.mark.parametrize("offset", [7, 2**63 - 1])
def test_a_pull_behind_the_end_or_before_the_beginning_is_told_where_to_go_on(
    broker: Connection, fronts: Fronts, offset: int
) -> None:
    append(broker, topic(broker), "a")
    dispatch_all(broker)
    client = reader(fronts)

    moved = client.pull("readers", "orders", offset)
    at_end = client.pull("readers", "orders", 1)

    assert (moved.code, moved.next_offset) == (MOVED, 1)
    assert (at_end.code, at_end.next_offset) == (NO_NEW, 1)


def test_a_filter_of_the_heartbeat_passes_other_messages_by(broker: Connection, fronts: Fronts) -> None:
    route = topic(broker)
    append(broker, route, "a", "b", tag="no")
    dispatch_all(broker)
    client = reader(fronts, orders="yes || Aa")

    passed = client.pull("readers", "orders", 0)
    append(broker, route, Message("orders", "same code", "BB"), Message("orders", "c", "yes"))
    dispatch_all(broker)
    found = client.pull("readers", "orders", passed.next_offset)

    assert (passed.code, passed.next_offset) == (NO_MATCHED, 2)
    assert (found.code, found.bodies, found.next_offset) == (FOUND, ["c"], 4)


def test_a_pull_may_name_its_filter(broker: Connection, fronts: Fronts) -> None:
    route = topic(broker)
    append(broker, route, Message("orders", "1", properties={"n": "1"}), Message("orders", "2", properties={"n": "2"}))
    dispatch_all(broker)
    client = fronts.connect()
    client.heartbeat("1.2.3.4@1", consumer(type="CONSUME_ACTIVELY"))  # what it is assigned it does not subscribe to

    found = client.pull("readers", "orders", 0, expression=("SQL92", "n = 2"), code=361)
    refused = client.pull("readers", "orders", 0, expression=("SQL92", "n ="), code=361)

    assert found.bodies == ["2"]
    assert refused.code == 23


def test_a_pull_without_a_subscription_is_refused(broker: Connection, fronts: Fronts) -> None:
    topic(broker)
    topic(broker, "others")
    silent, client = fronts.connect(), reader(fronts)

    assert silent.pull("readers", "orders", 0).code == 24
    assert silent.pull("readers", "%RETRY%readers", 0).code == 24
    assert client.pull("readers", "others", 0).code == 24


def test_a_client_that_subscribes_to_something_else_than_its_group_hears_it_with_each_pull(
    broker: Connection, fronts: Fronts
) -> None:
    topic(broker)
    reader(fronts, "1.2.3.4@1", orders="a")
    other = reader(fronts, "1.2.3.4@2", orders="b")

    answers = [other.pull("readers", "orders", 0), other.pull("readers", "orders", 0)]

    assert [answer.code for answer in answers] == [25, 25]
    assert "readers" in str(answers[0].remark)


def test_a_filter_that_cannot_be_read_is_told_to_its_pulls_and_leaves_other_groups_alone(
    broker: Connection, fronts: Fronts
) -> None:
    topic(broker)
    client = reader(fronts, orders="a")
    bad, good = consumer(orders="sql:a >"), consumer("others", orders="*")

    said = client.heartbeat("1.2.3.4@1", bad, good)
    told = client.pull("readers", "orders", 0)
    members = [client.members("readers"), client.members("others")]
    client.heartbeat("1.2.3.4@1", consumer(orders="a"), good)

    assert (said.code, told.code) == (0, 23)
    assert "a >" in str(told.remark)
    assert members == [[], ["1.2.3.4@1"]]
    assert client.pull("readers", "orders", 0).code == NO_NEW
    assert client.members("readers") == ["1.2.3.4@1"]


def test_a_pull_of_what_is_not_there_or_not_readable_is_refused(broker: Connection, fronts: Fronts) -> None:
    topic(broker)
    client = reader(fronts, orders="*", absent="*")

    assert client.pull("readers", "absent", 0).code == 17
    assert client.pull("readers", "orders", 0, queue_id=9).code == 29
    drop_topic(broker, "orders")
    assert client.pull("readers", "orders", 0).code == 17


def test_a_topic_without_the_permission_to_read_is_not_read(broker: Connection, fronts: Fronts) -> None:
    topic(broker)
    admin.update_topic(broker, "orders", perm=Perm.WRITE)

    assert reader(fronts).pull("readers", "orders", 0).code == 16


def test_a_held_pull_is_answered_when_a_message_arrives(broker: Connection, fronts: Fronts) -> None:
    route = topic(broker)
    fronts.start(UNDISTURBED)
    client = reader(fronts)
    held = client.begin_pull("readers", "orders", 0, hold_ms=20_000)
    assert client.query_offset("readers", "orders") == 0  # requests are answered meanwhile

    append(broker, route, "a")
    dispatch_all(broker)

    assert pulled(held.result(PATIENCE_SECONDS)).bodies == ["a"]


def test_a_held_pull_ends_after_its_time(broker: Connection, fronts: Fronts) -> None:
    topic(broker)
    client = reader(fronts)

    assert client.pull("readers", "orders", 0, hold_ms=50).code == NO_NEW


@pytest.mark.parametrize("tags", usually("a || c", of=["*", "a || c"]))
def test_a_backlog_is_read_ahead_each_message_once_and_in_order(
    broker: Connection, fronts: Fronts, monkeypatch: pytest.MonkeyPatch, tags: str
) -> None:
    calls = Mock(side_effect=pull)
    monkeypatch.setattr(turns, "pull", calls)
    route = topic(broker, queues=2)
    for queue_id in range(2):
        for tag in "abc" * 34:
            append(broker, route, tag, tag=tag, queue_id=queue_id)
    dispatch_all(broker)
    client = reader(fronts, orders=tags)

    read: list[list[str]] = [[], []]
    offsets, pulls = [0, 0], 0
    while min(offsets) < 102:
        for queue_id in range(2):
            found = client.pull("readers", "orders", offsets[queue_id], queue_id, limit=10)
            assert found.code == FOUND or offsets[queue_id] == 102
            assert len(found.bodies) <= 10
            read[queue_id] += found.bodies
            offsets[queue_id] = max(found.next_offset, offsets[queue_id])
            pulls += 1

    assert read == [[tag for tag in "abc" * 34 if tags == "*" or tag in tags]] * 2
    assert calls.call_count <= pulls // 2


def test_who_reads_on_elsewhere_gets_what_is_there(broker: Connection, fronts: Fronts) -> None:
    """A client that continues at another offset gets the messages there.

    Messages read ahead are only for a pull at their offset, with the same filter and limit.
    """
    route = topic(broker)
    append(broker, route, *map(str, range(40)))
    dispatch_all(broker)
    client = reader(fronts)
    client.pull("readers", "orders", 0, limit=4)

    assert client.pull("readers", "orders", 2, limit=4).bodies == ["2", "3", "4", "5"]
    assert client.pull("readers", "orders", 4, limit=2).bodies == ["4", "5"]
    assert client.pull("readers", "orders", 4, limit=4).bodies == ["4", "5", "6", "7"]
    assert client.pull("readers", "orders", 38, limit=4).bodies == ["38", "39"]
    append(broker, route, "40")
    dispatch_all(broker)
    assert client.pull("readers", "orders", 39, limit=4).bodies == ["39", "40"]


def test_an_answer_has_not_many_more_bytes_than_it_may(broker: Connection, fronts: Fronts) -> None:
    append(broker, topic(broker), "a" * 600, "b" * 600, "c" * 600)
    dispatch_all(broker)
    client = reader(fronts)

    assert len(client.pull("readers", "orders", 0, maxMsgBytes=1_000).bodies) < 3
    assert len(client.pull("readers", "orders", 0, maxMsgBytes=1).bodies) == 1


def test_pulls_of_several_groups_at_one_offset_share_an_answer(broker: Connection, fronts: Fronts) -> None:
    route = topic(broker)
    fronts.start(UNDISTURBED)
    clients = []
    for number in range(3):
        client = fronts.connect()
        client.heartbeat(f"1.2.3.4@{number}", consumer(f"group-{number}", orders="*"))
        clients.append(client)
    held = [each.begin_pull(f"group-{n}", "orders", 0, hold_ms=20_000) for n, each in enumerate(clients)]

    append(broker, route, "a")
    dispatch_all(broker)

    assert [pulled(each.result(PATIENCE_SECONDS)).bodies for each in held] == [["a"]] * 3


def test_a_connection_holds_so_many_pulls(broker: Connection, fronts: Fronts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqdb.remoting.consuming.waiting_tasks.MOST_HELD", 2)
    topic(broker)
    client = reader(fronts)
    for _ in range(2):
        client.begin_pull("readers", "orders", 0, hold_ms=20_000)

    assert client.pull("readers", "orders", 0, hold_ms=20_000).code == 2


def test_a_client_that_goes_leaves_no_held_pull(broker: Connection, fronts: Fronts) -> None:
    topic(broker)
    loop = fronts.start()._loop

    def answers_under_way() -> int:
        return sum("_answer" in repr(task) for task in asyncio.all_tasks(loop))

    client = reader(fronts)
    client.begin_pull("readers", "orders", 0, hold_ms=20_000)
    client.query_offset("readers", "orders")
    wait_until(lambda: answers_under_way() == 1)

    client.close()

    wait_until(lambda: answers_under_way() == 0)
