"""Spark copies a topic of two brokers to another topic; its driver is killed with -9 between the commits of a batch.

At that moment only one broker has the batch. After the restart Spark cuts the same batch into other tasks. In the end
the copy equals the topic: nothing is lost or duplicated, and the messages of each key are in order. Each kill has a
seed, which is printed with a summary of the run. A longer run:

    MQDB_FAULT_RUNS=100 pytest tests/acceptance/test_spark_cluster_faults.py -m ""

MQDB_FAULT_SEED is the seed of the first kill.
"""

import os
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeAlias

import pytest
from sqlalchemy import Connection, text

from mqdb.store.topics.topics import TopicRoute
from tests.fixtures.broker import append, dispatch_all, topic
from tests.fixtures.fault_spark import SparkApplication, require_java
from tests.fixtures.fault_trouble import wait_while
from tests.fixtures.postgres import Database
from tests.fixtures.producers import TwoBrokers
from tests.fixtures.spark_sink import SESSIONS

RUNS: Final = int(os.environ.get("MQDB_FAULT_RUNS", "10"))
FIRST_SEED: Final = int(os.environ.get("MQDB_FAULT_SEED", "0")) or random.randrange(1, 1_000_000)

# What a busy machine may take to start a JVM, and Spark to try again.
_PATIENCE_SECONDS: Final = 240.0

#: Queues of both topics on each broker.
_QUEUES: Final = (2, 3)

_LAST_BATCH: Final = text("SELECT coalesce(max(batch_id), -1) FROM mqdb.sink_batch")
_COPIED: Final = text(
    "SELECT count(*) FROM mqdb.commit_log l JOIN mqdb.queue q USING (queue_key) JOIN mqdb.topic t USING (topic_id) "
    "WHERE t.topic = 'copies'"
)
_TEXTS: Final = text("SELECT queue_id, text FROM mqdb.message WHERE topic = :topic ORDER BY queue_id, queue_offset")

Both: TypeAlias = tuple[Connection, Connection]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(600 + 120 * RUNS)
def test_a_topic_is_copied_exactly_once_whenever_the_driver_dies_between_two_commits(
    two_brokers: TwoBrokers, both: Both, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    require_java()
    routes = [topic(connection, "orders", queues) for connection, queues in zip(both, _QUEUES, strict=True)]
    for connection, queues in zip(both, _QUEUES, strict=True):
        topic(connection, "copies", queues)
    arguments = {"source": "orders", "target": "copies", "folder": str(tmp_path), "stores": False}
    application = SparkApplication(tmp_path, dsn=two_brokers.dsn, **arguments)
    sent = 0
    try:
        for seed in range(FIRST_SEED, FIRST_SEED + RUNS):
            chance = random.Random(seed)
            application.start(records_per_task=str(chance.choice([7, 40, 100, 1_000])))
            sent += send(both, routes, chance, sent)
            wait_until_copied(both, sent)
            with shut(two_brokers.b):
                sent += send(both, routes, chance, sent)
                wait_while(lambda: not waits_for_ledger(both[1]), _PATIENCE_SECONDS, "no commit waits")
                application.kill()
            batches = [connection.scalar(_LAST_BATCH) for connection in both]
            assert batches[0] == batches[1] + 1, "killed elsewhere"
            with capsys.disabled():
                print(f"\nseed {seed}: killed between the commits of batch {batches[0]}; {sent:,} messages sent")  # noqa: T201
            # Before the restart, so that the batch is planned again with more messages in its queues.
            sent += send(both, routes, chance, sent)
        application.start(records_per_task="50")
        wait_until_copied(both, sent)
    finally:
        application.kill()

    for connection in both:
        dispatch_all(connection)
    orders, copies = ([connection.execute(_TEXTS, {"topic": name}).all() for connection in both] for name in TOPICS)
    assert len(bodies(orders)) == sent
    difference = Counter(bodies(copies))
    difference.subtract(bodies(orders))
    assert {body: times for body, times in difference.items() if times} == {}, "not copied exactly once"
    assert all(copies), "one broker got nothing"
    assert in_order(copies), "the order of a key has changed"


TOPICS: Final = ("orders", "copies")

Rows: TypeAlias = Iterable[Iterable[tuple[int, str]]]


def send(both: Both, routes: list[TopicRoute], chance: random.Random, number: int) -> int:
    """Send some messages to both brokers, every second one without a key; returns how many.

    The messages of a key are in one queue.
    """
    count = 0
    for place, (connection, route) in enumerate(zip(both, routes, strict=True)):
        for queue_id in range(len(route.queue_keys)):
            texts = []
            for _ in range(chance.randrange(5, 60)):
                key = f"key-{place}-{queue_id}-{chance.randrange(4)}:" if chance.random() < 0.5 else "none "
                texts.append(f"{key}{number + count:06}")
                count += 1
            append(connection, route, *texts, queue_id=queue_id)
        dispatch_all(connection)
    return count


def wait_until_copied(both: Both, sent: int) -> None:
    """Wait until there are as many copies as messages."""

    def missing() -> bool:
        return sum(connection.scalar(_COPIED) or 0 for connection in both) < sent

    wait_while(missing, _PATIENCE_SECONDS, "not all is copied")


@contextmanager
def shut(database: Database) -> Iterator[None]:
    """During the block no session can write to the ledger of a broker, but all sessions can read it."""
    holder = database.connect()
    with holder.transaction():
        holder.execute("LOCK TABLE mqdb.sink_batch IN SHARE MODE")
        yield


def waits_for_ledger(connection: Connection) -> bool:
    """Whether a commit has reached the ledger, and waits there."""
    return bool(connection.exec_driver_sql(SESSIONS).one()[1])


def bodies(rows: Rows) -> list[str]:
    """The bodies of the messages of all brokers."""
    return [body for of_broker in rows for _, body in of_broker]


def in_order(rows: Rows) -> bool:
    """Whether each key has one queue of one broker, with its messages in the order in which they were sent."""
    keys: defaultdict[str, list[tuple[int, int, str]]] = defaultdict(list)
    for place, of_broker in enumerate(rows):
        for queue_id, body in of_broker:
            key, colon, number = body.partition(":")
            if colon:
                keys[key].append((place, queue_id, number))
    return bool(keys) and all(
        found == sorted(found) and len({queue[:2] for queue in found}) == 1 for found in keys.values()
    )
