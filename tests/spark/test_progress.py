"""A streaming query with the option `group` appears in mqdb.consumer_lag without any further call."""

from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from sqlalchemy import Connection, text

from mqdb.store.topics.topics import TopicRoute
from tests.fixtures.broker import append, dispatch_all, topic
from tests.fixtures.postgres import Database


def query(spark: SparkSession, database: Database, checkpoint: Path) -> StreamingQuery:
    """A query that reads all messages, one in each batch, and stops."""
    options = {"url": database.dsn, "subscribe": "orders", "startingOffsets": "earliest", "group": "stats"}
    stream = spark.readStream.format("mqdb").options(**options, maxOffsetsPerTrigger="2").load()
    writer = stream.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    return writer.trigger(availableNow=True).start()


def lag(broker: Connection) -> list[tuple[int, int, int]]:
    """Queue, next offset and lag of the query's group."""
    view = "SELECT queue_id, next_offset, lag FROM mqdb.consumer_lag WHERE group_name = 'stats' ORDER BY queue_id"
    return [tuple(row) for row in broker.execute(text(view))]


def send(broker: Connection, route: TopicRoute, *bodies: str, queue_id: int = 0) -> None:
    append(broker, route, *bodies, queue_id=queue_id)
    dispatch_all(broker)


def test_the_lag_of_a_query_is_seen_beside_consumers_from_its_first_to_its_last_batch(
    spark: SparkSession, database: Database, broker: Connection, tmp_path: Path
) -> None:
    orders = topic(broker, queues=2)
    send(broker, orders, "a", "b", "c")
    send(broker, orders, "d", queue_id=1)

    query(spark, database, tmp_path).awaitTermination()
    after_first_run = lag(broker)
    send(broker, orders, "e", "f")
    while_it_is_down = lag(broker)
    query(spark, database, tmp_path).awaitTermination()

    assert after_first_run == [(0, 3, 0), (1, 1, 0)]
    assert while_it_is_down == [(0, 3, 2), (1, 1, 0)]
    assert lag(broker) == [(0, 5, 0), (1, 1, 0)]
