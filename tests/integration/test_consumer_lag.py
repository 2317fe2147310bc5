"""The view mqdb.consumer_lag: what each group has yet to consume, in messages and in seconds."""

from typing import Any

import pytest
from sqlalchemy import Connection, text

from mqdb.broker.offsets import commit_offsets, take_queues
from mqdb.group import FROM_FIRST_OFFSET
from mqdb.store import groups
from mqdb.store.consumer_offsets import OwnedQueue
from mqdb.store.groups import QueueProgress
from mqdb.store.topics import TopicRoute
from tests.fixtures import log as by_hand
from tests.fixtures.broker import append, dispatch_all, topic


@pytest.fixture
def route(broker: Connection) -> TopicRoute:
    """A topic with four messages in queue 0 and none in queue 1."""
    route = topic(broker, queues=2)
    append(broker, route, "a", "b", "c", "d")
    dispatch_all(broker)
    return route


@pytest.fixture
def owned(broker: Connection, route: TopicRoute) -> list[OwnedQueue]:
    """Both queues, taken by member `m` of group `readers`, which begins with the first message."""
    groups.save(broker, "readers", {})
    return take_queues(broker, "readers", "m", route.queue_keys, FROM_FIRST_OFFSET)


def lag(broker: Connection) -> list[QueueProgress]:
    return groups.progress(broker, "readers")


def commit(broker: Connection, owned: list[OwnedQueue], offset: int) -> None:
    assert commit_offsets(broker, "readers", [owned[0]._replace(next_offset=offset)]) == []


def test_a_queue_that_is_not_consumed_has_all_its_messages_as_its_lag(
    broker: Connection, owned: list[OwnedQueue]
) -> None:
    first, second = lag(broker)

    assert first[:6] == ("readers", "orders", 0, 0, 4, 4)
    assert (first.owner, first.epoch) == ("m", owned[0].epoch)
    assert second[:7] == ("readers", "orders", 1, 0, 0, 0, 0.0)


def test_lag_in_seconds_is_the_age_of_the_oldest_message_that_is_not_consumed(
    broker: Connection, route: TopicRoute, owned: list[OwnedQueue]
) -> None:
    broker.execute(text("SET mqdb.clock_offset = '1 h'"))
    append(broker, route, "e")
    dispatch_all(broker)
    broker.execute(text("SET mqdb.clock_offset = '3 h'"))
    seconds = []

    for offset in (0, 3, 4, 5):
        commit(broker, owned, offset)
        seconds.append(lag(broker)[0].lag_seconds)

    assert [round(each or 0, -2) for each in seconds] == [10_800, 10_800, 7_200, 0]
    assert seconds[-1] == 0


def test_commits_of_exactly_once_consumers_count_before_they_are_folded_in(
    broker: Connection, owned: list[OwnedQueue]
) -> None:
    broker.execute(
        text(
            """INSERT INTO mqdb.offset_commit (group_id, queue_key, from_offset, next_offset, segment, epoch)
               SELECT group_id, queue_key, o.from_offset, o.next_offset, 1, epoch
               FROM mqdb.consumer_offset, (VALUES (0, 1), (1, 3)) AS o (from_offset, next_offset)
               WHERE queue_key = :key"""
        ),
        {"key": owned[0].queue_key},
    )

    assert [(each.next_offset, each.lag) for each in lag(broker)] == [(3, 1), (0, 0)]


def test_what_retention_has_dropped_unread_is_no_lag(broker: Connection, owned: list[OwnedQueue]) -> None:
    broker.execute(text("UPDATE mqdb.queue SET base_offset = 3 WHERE queue_key = :key"), {"key": owned[0].queue_key})

    first, _ = lag(broker)

    assert (first.next_offset, first.lag) == (0, 1)
    assert first.lag_seconds is not None


def test_an_offset_behind_the_end_is_no_lag(broker: Connection, owned: list[OwnedQueue]) -> None:
    commit(broker, owned, 1_000)

    assert lag(broker)[0][3:7] == (1_000, 4, 0, 0.0)


def plan_nodes(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [plan, *(node for child in plan.get("Plans", []) for node in plan_nodes(child))]


def test_each_queue_costs_a_look_at_an_index_and_one_record(log: by_hand.Connection, broker: Connection) -> None:
    """However many segments there are: what lies before the segment that the group has reached is not looked at."""
    by_hand.small_segments(log, 100, ahead=20)
    keys = by_hand.create_topic(log, "orders", 50)
    for key in keys * 3:
        by_hand.append(log, key, 10)
        by_hand.dispatch(log)
    groups.save(broker, "readers", {})
    owned = take_queues(broker, "readers", "m", keys, FROM_FIRST_OFFSET)
    commit_offsets(broker, "readers", [queue._replace(next_offset=25, segment=10) for queue in owned])
    # Partitions of one page each, which a planner would rather read from end to end.
    log.execute("SET enable_seqscan = off")
    log.execute("SET enable_bitmapscan = off")

    explained = "EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) SELECT * FROM mqdb.consumer_lag"
    nodes = plan_nodes(by_hand.scalar(log, explained)[0]["Plan"])

    scans = [node for node in nodes if node["Actual Loops"] and "Scan" in node["Node Type"] and "Alias" in node]
    entries = [node for node in scans if node.get("Relation Name", "").startswith("consume_queue_")]
    records = [node for node in scans if node.get("Relation Name", "").startswith("commit_log_")]
    assert {node["Node Type"] for node in entries + records} <= {"Index Scan", "Index Only Scan"}
    assert min(int(node["Relation Name"].rpartition("_")[2]) for node in entries) >= 10
    assert sum(node["Actual Loops"] for node in records) == len(keys)


def test_who_asks_for_messages_only_does_not_pay_for_the_seconds(log: by_hand.Connection) -> None:
    explained = "EXPLAIN SELECT group_name, sum(lag) FROM mqdb.consumer_lag GROUP BY group_name"

    plan = "\n".join(row[0] for row in log.execute(explained))

    assert "commit_log" not in plan
