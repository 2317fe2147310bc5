"""A streaming query restarts repeatedly while the processors are overloaded."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from sqlalchemy import Connection

from tests.fixtures.broker import append, bodies, dispatch_all, topic
from tests.fixtures.postgres import Database
from tests.fixtures.spark_sink import stored

RESTARTS = 20
BUSY_PROCESSES = 8


@contextmanager
def crowded(processes: int) -> Iterator[None]:
    """Keep this many processes busy until the end of the block."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
        assert [process.poll() for process in busy] == [None] * processes
    finally:
        for process in busy:
            process.kill()
            process.wait()


@pytest.mark.long
@pytest.mark.timeout(1_800)
def test_a_query_starts_twenty_times_on_a_busy_machine(
    spark: SparkSession, broker: Connection, database: Database, tmp_path: Path
) -> None:
    orders, copies = topic(broker), topic(broker, "copies")
    sent: list[str] = []
    with crowded(BUSY_PROCESSES):
        for number in range(RESTARTS):
            sent.append(f"message {number:02}")
            append(broker, orders, sent[-1])
            dispatch_all(broker)
            reader = spark.readStream.format("mqdb").options(url=database.dsn, subscribe="orders")
            rows = reader.option("startingOffsets", "earliest").load().select("body")
            writer = rows.writeStream.format("mqdb").options(url=database.dsn, topic="copies")
            query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
            query.awaitTermination()

    assert bodies(stored(broker, copies)) == sent
