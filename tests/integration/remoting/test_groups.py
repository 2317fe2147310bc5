"""Groups of RocketMQ's clients: the owner of each queue, and the group's progress."""

import gc
import threading
import traceback

import pytest
from sqlalchemy import Connection, text

from mqdb.broker.consumers.offsets import take_queues_at
from mqdb.errors import SubscriptionConflict
from mqdb.remoting.session import members
from mqdb.remoting.wire.codes import RequestCode
from tests.fixtures.broker import append, dispatch_all, topic
from tests.fixtures.processes import wait_until
from tests.fixtures.remoting_client import PATIENCE_SECONDS, Fronts, consumer, pulled
from tests.fixtures.remoting_groups import (
    NO_MATCHED,
    NO_NEW,
    NONE,
    PATIENT,
    A,
    B,
    filled,
    joined,
    owner,
    stored,
    wait_for_pull,
)
from tests.fixtures.variants import usually


def test_a_member_that_asks_for_the_offset_takes_the_queue(broker: Connection, fronts: Fronts) -> None:
    route = filled(broker)

    assert joined(fronts).query_offset("readers", "orders") == 0

    assert owner(broker, route) == A


def test_a_group_begins_where_its_consumer_says(broker: Connection, fronts: Fronts) -> None:
    filled(broker)

    assert joined(fronts, where="CONSUME_FROM_LAST_OFFSET").query_offset("readers", "orders") == 10


def test_what_is_sent_when_a_start_has_returned_is_for_the_new_group(broker: Connection, fronts: Fronts) -> None:
    """A message sent after a start has returned is delivered to the new group.

    The client requests the offset later, in a separate thread.
    """
    route = filled(broker)
    client = joined(fronts, where="CONSUME_FROM_LAST_OFFSET")

    append(broker, route, "sent now")
    dispatch_all(broker)

    assert client.query_offset("readers", "orders") == 10


def test_who_is_no_member_only_reads_the_offset(broker: Connection, fronts: Fronts) -> None:
    route = filled(broker)
    stranger = fronts.connect()
    before = stranger.take("readers", "orders")
    joined(fronts).query_offset("readers", "orders")

    assert before == (NONE, None)
    assert stranger.query_offset("readers", "orders") == 0
    assert owner(broker, route) == A


def test_a_queue_that_another_member_has_is_waited_for_by_the_pulls(broker: Connection, fronts: Fronts) -> None:
    route = filled(broker)
    fronts.start(PATIENT)
    client, other = joined(fronts), joined(fronts, B)
    client.query_offset("readers", "orders")
    held = client.begin_pull("readers", "orders", 10, hold_ms=20_000)

    offset = other.query_offset("readers", "orders")
    waiting = other.begin_pull("readers", "orders", 0, hold_ms=20_000)
    client.commit("readers", "orders", 4)
    client.leave(A, "readers")
    told = pulled(waiting.result(PATIENCE_SECONDS))
    if told.code == NO_NEW:
        told = wait_for_pull(other, 0, lambda each: each.code != NO_NEW)

    assert offset == 0
    assert (told.code, told.next_offset) == (NO_MATCHED, 4)  # forward without the stand-still of a 21
    assert other.pull("readers", "orders", 4).bodies[0] == "0-4"
    assert owner(broker, route) == B
    assert not held.done() or pulled(held.result()).bodies == []


def test_a_client_without_its_own_choice_of_a_start_reads_from_its_first_pull_on(
    broker: Connection, fronts: Fronts
) -> None:
    """A client without its own choice of a start reads from its first pull on.

    The start that a lite pull consumer sends is not its user's choice, and no time is sent at all.
    """
    for number, options in enumerate(({"type": "CONSUME_ACTIVELY"}, {"where": "CONSUME_FROM_TIMESTAMP"})):
        group = f"group-{number}"
        if number == 0:
            route = filled(broker, queues=2)
        client = fronts.connect()
        client.heartbeat(f"1.2.3.4@{number}", consumer(group, orders="*", **options))

        assert client.take(group, "orders") == (NONE, None)
        assert client.pull(group, "orders", 7).bodies == ["0-7", "0-8", "0-9"]
        assert client.query_offset(group, "orders") == 7
        assert stored(broker, route, 1, group) is None


def test_a_client_has_a_thousand_groups_and_a_heartbeat_a_mebibyte_at_most(fronts: Fronts) -> None:
    client = fronts.connect()
    groups = [consumer(f"group-{number}", type="CONSUME_ACTIVELY") for number in range(1_000)]

    assert client.heartbeat(A, *groups).code == 0
    one_more = client.heartbeat(A, consumer("one-more", type="CONSUME_ACTIVELY"))
    too_long = client.heartbeat(A, producers=["p" * 2**20])

    assert "consumerDataSet = 1001: a client can have at most 1,000 groups" in (one_more.remark or "")
    assert "has more than 1,048,576 bytes" in (too_long.remark or "")
    assert client.heartbeat(A, groups[0]).code == 0


def test_a_time_has_a_lower_and_an_upper_boundary(broker: Connection, fronts: Fronts) -> None:
    filled(broker, 5)
    for log_pos, seconds in enumerate((1_000, 2_000, 2_000, 2_000, 4_000), 1):
        stored_at = {"log_pos": log_pos, "seconds": seconds}
        broker.execute(
            text("UPDATE mqdb.commit_log SET store_time = to_timestamp(:seconds + 0.0004) WHERE log_pos = :log_pos"),
            stored_at,
        )
    client = fronts.connect()

    def offset(milliseconds: int, boundary: str) -> int:
        fields = {"topic": "orders", "queueId": 0, "timestamp": milliseconds, "boundaryType": boundary}
        return int(client.request(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, fields).fields["offset"])

    times = (999_999, 1_000_000, 2_000_000, 3_000_000, 4_000_000, 4_000_001)
    assert [offset(each, "LOWER") for each in times] == [0, 0, 1, 4, 4, 5]
    assert [offset(each, "UPPER") for each in times] == [0, 0, 3, 3, 4, 4]


def test_queues_are_taken_where_a_member_says(broker: Connection) -> None:
    route = filled(broker, queues=2)
    broker.execute(text("SELECT mqdb.make_group('readers')"))

    [owned] = take_queues_at(broker, "readers", A, {route.queue_keys[0]: 3, 999_999: 1})
    [again] = take_queues_at(broker, "readers", A, {route.queue_keys[0]: 8})

    assert (owned.next_offset, again.next_offset) == (3, 3)
    assert again.epoch > owned.epoch
    assert stored(broker, route, 1) is None


def test_ends_and_times_of_queues_are_answered(broker: Connection, fronts: Fronts) -> None:
    filled(broker, 3)
    client = fronts.connect()
    fields = {"topic": "orders", "queueId": 0}

    def offset(code: int, **more: object) -> str:
        return client.request(code, fields | more).fields["offset"]

    assert offset(RequestCode.GET_MAX_OFFSET) == "3"
    assert offset(RequestCode.GET_MIN_OFFSET) == "0"
    assert offset(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, timestamp=0) == "0"
    assert offset(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, timestamp=4_000_000_000_000) == "3"
    assert client.request(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, fields | {"timestamp": 2**62}).code != 0
    earliest = client.request(RequestCode.GET_EARLIEST_MSG_STORETIME, fields).fields["timestamp"]
    stored_at = broker.scalar(text("SELECT min(store_time) FROM mqdb.commit_log"))
    assert stored_at is not None
    assert int(earliest) == int(stored_at.timestamp() * 1_000)
    topic(broker, "empty")
    assert client.request(RequestCode.GET_EARLIEST_MSG_STORETIME, {"topic": "empty", "queueId": 0}).fields == {
        "timestamp": "-1"
    }
    assert client.request(RequestCode.GET_MAX_OFFSET, {"topic": "absent", "queueId": 0}).code == 17


# -- commits -------------------------------------------------------------------------------------


def test_commits_are_written_soon_by_15_and_by_pulls(broker: Connection, fronts: Fronts) -> None:
    route = filled(broker)
    client = joined(fronts)
    client.query_offset("readers", "orders")

    client.commit("readers", "orders", 3)
    wait_until(lambda: stored(broker, route) == 3)
    client.pull("readers", "orders", 8, commit=5)
    wait_until(lambda: stored(broker, route) == 5)


def test_a_commit_does_not_go_back_but_for_a_client_that_seeks(broker: Connection, fronts: Fronts) -> None:
    route = filled(broker, queues=2)
    client, seeking = joined(fronts), fronts.connect()
    seeking.heartbeat(B, consumer("seekers", type="CONSUME_ACTIVELY", orders="*"))
    client.query_offset("readers", "orders")
    seeking.pull("seekers", "orders", 9)

    for group, each in (("readers", client), ("seekers", seeking)):
        each.commit(group, "orders", 8)
        wait_until(lambda group=group: stored(broker, route, 0, group) == 8)  # type: ignore[misc]
        each.commit(group, "orders", 2)

    wait_until(lambda: stored(broker, route, 0, "seekers") == 2)
    assert stored(broker, route) == 8


def test_what_was_committed_before_the_end_counts(broker: Connection, fronts: Fronts) -> None:
    route = filled(broker, queues=2)
    front = fronts.start(PATIENT)
    leaving, staying = joined(fronts), joined(fronts, B)
    leaving.query_offset("readers", "orders", 0)
    staying.query_offset("readers", "orders", 1)
    leaving.commit("readers", "orders", 3, 0)
    staying.commit("readers", "orders", 4, 1)
    staying.request(RequestCode.GET_MAX_OFFSET, {"topic": "orders", "queueId": 0})

    leaving.leave(A, "readers")
    assert stored(broker, route, 0) == 3
    front.stop()

    assert stored(broker, route, 1) == 4


def test_a_commit_that_comes_behind_the_end_counts(broker: Connection, fronts: Fronts) -> None:
    """A commit that arrives after the unregistration counts.

    Java's clients send the two in separate threads, so the commit may come second.
    """
    route = filled(broker)
    front, client, sent = fronts.start(), joined(fronts), threading.Event()
    client.query_offset("readers", "orders")
    assert front._loop is not None

    front._loop.call_soon_threadsafe(sent.wait)  # it reads the two together, for it waits 50 ms for the second
    leaving = client.begin(RequestCode.UNREGISTER_CLIENT, {"clientID": A, "consumerGroup": "readers"})
    client.commit("readers", "orders", 8)
    sent.set()
    leaving.result(PATIENCE_SECONDS)

    assert stored(broker, route) == 8


def test_a_reader_without_a_subscription_commits_what_no_member_has(broker: Connection, fronts: Fronts) -> None:
    route = filled(broker)
    client = fronts.connect()
    client.heartbeat(A, consumer(type="CONSUME_ACTIVELY"))

    client.pull("readers", "orders", 2, expression=("TAG", "*"))
    client.commit("readers", "orders", 6)
    wait_until(lambda: stored(broker, route) == 6)
    client.commit("readers", "orders", 5)
    wait_until(lambda: stored(broker, route) == 5)

    assert owner(broker, route) is None
    assert client.members("readers") == []


def test_what_was_committed_is_answered_at_once(broker: Connection, fronts: Fronts) -> None:
    filled(broker)
    fronts.start(PATIENT)
    client, reading = joined(fronts), fronts.connect()
    client.query_offset("readers", "orders")
    client.commit("readers", "orders", 3)
    client.request(RequestCode.HEART_BEAT, body={"clientID": A})  # in turn
    reading.commit("others", "orders", 4)
    reading.request(RequestCode.HEART_BEAT, body={"clientID": B})

    assert reading.query_offset("readers", "orders") == 3
    assert reading.query_offset("others", "orders") == 4


def test_who_broadcasts_owns_nothing(broker: Connection, fronts: Fronts) -> None:
    route = filled(broker)
    clients = [joined(fronts, A, model="BROADCASTING") for _ in range(2)]

    assert [len(each.pull("readers", "orders", 0).bodies) for each in clients] == [10, 10]
    assert owner(broker, route) is None
    assert clients[0].members("readers") == [A]


OTHERS = [{"orders": "a"}, {"model": "BROADCASTING"}]


@pytest.mark.parametrize("old", usually(OTHERS[0], of=OTHERS), ids=["subscription", "message model"])
def test_a_killed_client_does_not_stand_in_the_way_of_its_successor(
    broker: Connection, fronts: Fronts, monkeypatch: pytest.MonkeyPatch, old: dict[str, str]
) -> None:
    """A killed client does not block its successor.

    This happens when a program is killed, changed, and started again.
    """
    monkeypatch.setattr(members, "GRACE_SECONDS", 600)  # it is waited for all the time
    filled(broker)
    killed = joined(fronts, **old)
    killed.pull("readers", "orders", 0)
    killed.close()

    wait_until(lambda: joined(fronts, B).pull("readers", "orders", 0).code == 0)


def test_a_client_that_was_refused_is_taken_when_the_other_has_left(broker: Connection, fronts: Fronts) -> None:
    filled(broker)
    first, second = joined(fronts, orders="a"), joined(fronts, B)
    refused = second.pull("readers", "orders", 0)

    first.leave(A, "readers")

    assert (refused.code, "subscribed to orders by TAG 'a'" in str(refused.remark)) == (25, True)
    assert wait_for_pull(second, 0, lambda each: each.code == 0).bodies


def test_a_refusal_does_not_grow(broker: Connection, fronts: Fronts) -> None:
    filled(broker)
    joined(fronts, orders="a")
    refused = joined(fronts, B)
    for _ in range(20):
        assert refused.pull("readers", "orders", 0).code == 25

    wait_until(lambda: len(conflicts()) == 1)  # when others come, it is refused anew
    [error] = conflicts()
    assert len(list(traceback.walk_tb(error.__traceback__))) < 10


def conflicts() -> list[SubscriptionConflict]:
    gc.collect()  # those of other tests
    return [each for each in gc.get_objects() if isinstance(each, SubscriptionConflict)]


def test_a_client_in_cpp_says_numbers_for_java_s_enums(broker: Connection, fronts: Fronts) -> None:
    """A C++ client sends numbers for Java's enums: message model 0 is broadcasting, and start 4 is the first offset."""
    route = filled(broker)
    broadcasting = {**consumer("all", orders="*"), "messageModel": 0, "consumeType": 1, "consumeFromWhere": 0}
    sharing = {**consumer(orders="*"), "messageModel": 1, "consumeType": 1, "consumeFromWhere": 4}
    client, other = fronts.connect(), fronts.connect()
    client.heartbeat(A, broadcasting)
    other.heartbeat(B, sharing)

    assert len(client.pull("all", "orders", 0).bodies) == 10
    assert other.query_offset("readers", "orders") == 0
    assert owner(broker, route) == B


def test_a_member_that_was_there_before_its_topic_gets_all_of_it(broker: Connection, fronts: Fronts) -> None:
    """A member that existed before its topic receives all its messages.

    The member learns of the topic up to 30 s later. RocketMQ begins at 0 while a topic is young.
    """
    client = fronts.connect()
    client.heartbeat(A, consumer(where="CONSUME_FROM_LAST_OFFSET", orders="*"))

    filled(broker)

    assert client.query_offset("readers", "orders") == 0
    late = fronts.connect()
    late.heartbeat(B, consumer("late", where="CONSUME_FROM_LAST_OFFSET", orders="*"))
    assert late.query_offset("late", "orders") == 10
