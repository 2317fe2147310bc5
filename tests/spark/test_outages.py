"""A streaming query of format("mqdb") stays active while PostgreSQL is down, and loses or duplicates no message.

Each run prints the seed for the moments at which PostgreSQL goes down. Every second time PostgreSQL crashes. A longer
run:

    MQDB_FAULT_OUTAGES=10 pytest -m "" tests/spark/test_outages.py
"""

import os
import random
import sys
import threading
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession

from mqdb.store.engine import connected
from mqdb.store.topics.topics import find_topic
from tests.fixtures.broker import bodies
from tests.fixtures.history import QUEUES, Past
from tests.fixtures.spark_sink import stored

OUTAGES: Final = int(os.environ.get("MQDB_FAULT_OUTAGES", "2"))


@pytest.mark.long
@pytest.mark.timeout(120 + 60 * OUTAGES)
@pytest.mark.parametrize("seconds", [1, 8, 25])  # one is longer than Spark's attempts at a task take together
def test_a_stream_outlives_outages(spark: SparkSession, past: Past, tmp_path: Path, seconds: float) -> None:
    seed = random.randrange(1_000_000)
    chance = random.Random(seed)
    past.create_topic("copies")
    past.log_stage()
    orders = spark.readStream.format("mqdb").options(url=past.dsn, subscribe="orders", startingOffsets="earliest")
    writer = orders.option("maxOffsetsPerTrigger", "20").load().select("body").writeStream.format("mqdb")
    query = writer.options(url=past.dsn, topic="copies", checkpointLocation=str(tmp_path)).start()

    sent: list[str] = []
    for outage in range(OUTAGES):
        bodies_sent = [f"{outage:02} {number:03}" for number in range(200)]
        past.store(*bodies_sent)
        sent += bodies_sent
        pause(chance.uniform(0, 3))  # so that each outage meets another step of a batch
        if outage % 2:
            past.end_at_once()
        with past.stopped():
            pause(seconds)
        assert query.isActive, (seed, outage, query.exception())
    query.processAllAvailable()

    sys.stdout.write(f"seed {seed}: active after {OUTAGES} outages of {seconds} s\n")
    assert (query.isActive, query.exception()) == (True, None)
    query.stop()
    with connected(past.dsn, "test") as connection:
        route = find_topic(connection, "copies")
        assert route is not None
        copies = [body for queue_id in range(QUEUES) for body in bodies(stored(connection, route, queue_id))]
    assert sorted(copies) == sent


def pause(seconds: float) -> None:
    """Let some time pass, which the test needs."""
    threading.Event().wait(seconds)
