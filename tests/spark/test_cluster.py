"""format("mqdb") with two brokers in a real Spark: one load, one write, and one checkpoint for both."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from sqlalchemy import Connection

from tests.fixtures.broker import dispatch_all, topic
from tests.fixtures.producers import TwoBrokers
from tests.fixtures.spark_sink import forget_last_commit


def run_copy(spark: SparkSession, brokers: TwoBrokers, folder: Path) -> list[int]:
    """Copy new messages of a topic on both brokers to another topic, and stop; returns the rows of each batch."""
    reader = spark.readStream.format("mqdb").options(url=brokers.dsn, subscribe="orders", startingOffsets="earliest")
    rows = reader.load().selectExpr("body", "IF(broker = 'broker-a', NULL, CAST(body AS STRING)) AS key")
    writer = rows.writeStream.format("mqdb").options(url=brokers.dsn, topic="copies")
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]


@pytest.mark.long
def test_two_brokers_are_written_read_and_copied_with_one_checkpoint(
    spark: SparkSession, two_brokers: TwoBrokers, both: tuple[Connection, Connection], tmp_path: Path
) -> None:
    for connection in both:
        for name in ("orders", "copies"):
            topic(connection, name, queues=2)

    def write(first: int, past: int) -> None:
        frame = spark.sql(f"SELECT string(id) AS body FROM range({first}, {past}, 1, 2)")
        frame.write.format("mqdb").mode("append").options(
            url=two_brokers.dsn, topic="orders", writeId=str(first)
        ).save()
        for connection in both:
            dispatch_all(connection)

    write(0, 100)
    first = run_copy(spark, two_brokers, tmp_path)
    forget_last_commit(tmp_path)
    write(100, 130)
    second = run_copy(spark, two_brokers, tmp_path)

    for connection in both:
        dispatch_all(connection)
    copies = spark.read.format("mqdb").options(url=two_brokers.dsn, subscribe="copies").load()
    rows = copies.selectExpr("int(CAST(body AS STRING))", "broker").collect()
    assert sorted(number for number, _ in rows) == list(range(130))
    assert {broker for _, broker in rows} == {"broker-a", "broker-b"}
    assert (first, second) == ([100], [100, 30])
