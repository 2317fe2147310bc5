"""A listener reports the lag of a streaming query, and the rows that its source and its sink have skipped."""

from pathlib import Path
from queue import Queue

from pyspark.sql import SparkSession
from sqlalchemy import Connection

from mqdb.pipeline import QueryMetrics, QueryMetricsListener
from tests.fixtures.broker import append, dispatch_all, topic
from tests.fixtures.postgres import Database


def test_each_batch_is_reported_with_its_backlog_and_its_bad_rows(
    spark: SparkSession, database: Database, broker: Connection, tmp_path: Path
) -> None:
    append(broker, topic(broker), '{"id": 1}', "{", '{"id": 0}', '{"id": 1}', '{"id": 1}', "{")
    topic(broker, "copies")
    dispatch_all(broker)
    reports: Queue[QueryMetrics] = Queue()
    listener = QueryMetricsListener(reports.put, sink_url=database.dsn)
    options = {"url": database.dsn, "subscribe": "orders", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "3"}
    stream = spark.readStream.format("mqdb").options(**options, schema="id int", onBadRow="skip").load()
    # An empty body, which the sink leaves out.
    writer = stream.selectExpr("IF(id = 0, CAST('' AS BINARY), body) AS body").writeStream.format("mqdb")
    writer = writer.options(url=database.dsn, topic="copies", onBadRow="skip", checkpointLocation=str(tmp_path))

    spark.streams.addListener(listener)
    try:
        writer.trigger(availableNow=True).start().awaitTermination()
        first, second = reports.get(timeout=60), reports.get(timeout=60)
    finally:
        spark.streams.removeListener(listener)

    assert [metrics.sources[0].total_behind for metrics in (first, second)] == [3, 0]
    assert [metrics.sources[0].rows_left_out for metrics in (first, second)] == [None, 1]
    assert [metrics.sink and metrics.sink.rows_left_out for metrics in (first, second)] == [1, 0]
