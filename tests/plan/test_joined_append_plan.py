"""An append that finds its queue by the topic's name does not read all topics, whatever the statistics say."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from mqdb.broker.log.send import record
from mqdb.common.message import Message
from mqdb.common.unique_id import UniqueIdGenerator
from mqdb.store.log import joined_append
from tests.fixtures.log import Connection, scalar

TOPICS = 3_000


@pytest.fixture(params=["never analysed", "analysed"])
def many_topics(request: pytest.FixtureRequest, log: Connection) -> Connection:
    """A broker with many topics of four queues each."""
    log.execute(
        """INSERT INTO mqdb.topic (topic, read_queue_nums, write_queue_nums, perm)
           SELECT 'topic-' || number, 4, 4, 6 FROM generate_series(1, %s) AS number""",
        [TOPICS],
    )
    log.execute(
        """INSERT INTO mqdb.queue (topic_id, queue_id)
           SELECT topic_id, queue_id FROM mqdb.topic, generate_series(0, 3) AS queue_id
           WHERE topic LIKE 'topic-%'"""
    )
    if request.param == "analysed":
        log.execute("ANALYZE mqdb.topic, mqdb.queue")
    return log


@pytest.mark.parametrize("count", [1, 2, 500])
def test_topics_and_queues_are_found_by_their_indexes(many_topics: Connection, count: int) -> None:
    topics = [f"topic-{number % 5 + 1}" for number in range(count)]
    ids = UniqueIdGenerator()
    records = [record(Message(topic, "x"), 0, ids.next(), datetime.now(UTC), "here") for topic in topics]
    statement = joined_append.append(records, topics, dict.fromkeys(topics, 1), {})

    indexes = scans(generic_plan(many_topics, statement))

    assert indexes["topic"] == {"topic_topic_key"}
    assert indexes["queue"] == {"queue_topic_id_queue_id_key"} | ({"queue_pkey"} if count == 1 else set())


def generic_plan(connection: Connection, statement: joined_append.Statement) -> dict[str, Any]:
    names = list(dict.fromkeys(re.findall(r"%\((\w+)\)b", statement.text)))
    text = re.sub(r"%\((\w+)\)b", lambda found: f"${names.index(found[1]) + 1}", statement.text).replace("%%", "%")
    connection.execute("SET plan_cache_mode = force_generic_plan")
    connection.execute(f"PREPARE hot AS {text}".encode())
    plan = scalar(connection, f"EXPLAIN (FORMAT JSON) EXECUTE hot ({', '.join(['NULL'] * len(names))})")
    found: dict[str, Any] = plan[0]["Plan"]
    return found


def scans(plan: dict[str, Any]) -> dict[str, set[str]]:
    """The indexes by which each table is read, or the table's own name if it is read sequentially."""
    found: dict[str, set[str]] = {}
    for node in nodes(plan):
        if table := node.get("Relation Name"):
            found.setdefault(table, set()).add(node.get("Index Name", table))
    return found


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", []):
        yield from nodes(child)
