"""A streaming query of format("mqdb") while PostgreSQL is stopped and started."""

import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from mqdb.store.engine import connected
from mqdb.store.topics.topics import find_topic
from tests.fixtures.broker import bodies
from tests.fixtures.history import QUEUES, Past
from tests.fixtures.spark_sink import stored

#: Longer than Spark's attempts at a task take together.
_OUTAGE_SECONDS = 8


@pytest.mark.long
def test_a_stream_outlives_three_outages_and_loses_and_doubles_nothing(
    spark: SparkSession, past: Past, tmp_path: Path
) -> None:
    past.create_topic("copies")
    orders = spark.readStream.format("mqdb").options(url=past.dsn, subscribe="orders", startingOffsets="earliest")
    writer = orders.option("maxOffsetsPerTrigger", "20").load().select("body").writeStream.format("mqdb")
    query = writer.options(url=past.dsn, topic="copies", checkpointLocation=str(tmp_path)).start()

    sent: list[str] = []
    for outage in range(3):
        bodies_sent = [f"{outage} {number:03}" for number in range(200)]
        past.store(*bodies_sent)
        sent += bodies_sent
        time.sleep(outage)  # so that each outage meets another part of a batch
        with past.stopped():
            time.sleep(_OUTAGE_SECONDS)
        assert query.isActive, query.exception()
    query.processAllAvailable()

    assert (query.isActive, query.exception()) == (True, None)
    query.stop()
    with connected(past.dsn, "test") as connection:
        route = find_topic(connection, "copies")
        assert route is not None
        copies = [body for queue_id in range(QUEUES) for body in bodies(stored(connection, route, queue_id))]
    assert sorted(copies) == sent
