"""The eleven reads and writes in Spark's Kafka guide work with all their options; only format and address are changed.

Source: Structured Streaming + Kafka Integration Guide of Spark 4. Kafka's own options are kept, as in a migrated job.
"""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from sqlalchemy import Connection

from mqdb.common.message import Message
from tests.fixtures.broker import append, dispatch_all, topic
from tests.fixtures.postgres import Database
from tests.fixtures.variants import usually

SERVERS = {"kafka.bootstrap.servers": "host1:9092,host2:9092"}
TEXTS = "CAST(key AS STRING)", "CAST(value AS STRING)"
#: From where each queue is read, and up to where: -2 stands for the first message, -1 for the end.
SOME = {
    "startingOffsets": '{"topic1": {"0": 1, "1": -2}, "topic2": {"0": -2}}',
    "endingOffsets": '{"topic1": {"0": 2, "1": -1}, "topic2": {"0": -1}}',
}
ALL = {"startingOffsets": "earliest", "endingOffsets": "latest"}
FROM_THE_BEGINNING = {"startingOffsets": "earliest"}

READS: dict[str, tuple[bool, dict[str, str], list[str]]] = {
    "a stream of one topic": (True, {"subscribe": "topic1"}, ["a", "b", "c"]),
    "a stream with headers": (True, {"subscribe": "topic1", "includeHeaders": "true"}, ["a", "b", "c"]),
    "a stream of several topics": (True, {"subscribe": "topic1,topic2"}, ["a", "b", "c", "d"]),
    "a stream of topics by a pattern": (True, {"subscribePattern": "topic.*"}, ["a", "b", "c", "d"]),
    "a batch of one topic": (False, {"subscribe": "topic1"}, ["a", "b", "c"]),
    "a batch of several topics by offsets": (False, {"subscribe": "topic1,topic2", **SOME}, ["b", "c", "d"]),
    "a batch of topics by a pattern": (False, {"subscribePattern": "topic.*", **ALL}, ["a", "b", "c", "d"]),
}

WRITES = {
    "a stream to one topic": (True, {"topic": "copy"}),
    "a stream to the topic of each row": (True, {}),
    "a batch to one topic": (False, {"topic": "copy"}),
    "a batch to the topic of each row": (False, {}),
}


@pytest.fixture(autouse=True)
def topics(broker: Connection) -> None:
    """Three messages in two queues of one topic, and one message in another topic."""
    first, second = topic(broker, "topic1", queues=2), topic(broker, "topic2")
    topic(broker, "copy")
    append(broker, first, *(Message("topic1", body, None, (f"k-{body}",), {"region": "north"}) for body in "ab"))
    append(broker, first, "c", queue_id=1)
    append(broker, second, "d")
    dispatch_all(broker)


def stream(spark: SparkSession, database: Database, options: dict[str, str]) -> DataFrame:
    reader = spark.readStream.format("mqdb").option("url", database.dsn).option("rowFormat", "kafka")
    # The guide begins at the end, where nothing is to be seen yet.
    return reader.options(**SERVERS, **FROM_THE_BEGINNING, **options).load()


def batch(spark: SparkSession, database: Database, options: dict[str, str]) -> DataFrame:
    reader = spark.read.format("mqdb").option("url", database.dsn).option("rowFormat", "kafka")
    return reader.options(**SERVERS, **options).load()


@pytest.mark.parametrize("name", usually("a stream with headers", "a batch of several topics by offsets", of=READS))
def test_a_read_gives_keys_and_values(spark: SparkSession, database: Database, tmp_path: Path, name: str) -> None:
    is_stream, options, expected = READS[name]
    columns = (*TEXTS, "headers") if "includeHeaders" in options else TEXTS
    if is_stream:
        frame = stream(spark, database, options).selectExpr(*columns)
        query = frame.writeStream.format("memory").queryName("found").option("checkpointLocation", str(tmp_path))
        query.trigger(availableNow=True).start().awaitTermination()
        rows: list[Any] = spark.sql("SELECT * FROM found").collect()
    else:
        rows = batch(spark, database, options).selectExpr(*columns).collect()

    assert sorted(row.value for row in rows) == expected
    if "headers" in columns:
        assert {row.key: row.headers and row.headers[0].key for row in rows} == {
            "k-a": "region",
            "k-b": "region",
            None: None,
        }


@pytest.mark.parametrize("name", usually("a stream to one topic", of=WRITES))
def test_a_write_takes_keys_and_values(
    spark: SparkSession, database: Database, broker: Connection, tmp_path: Path, name: str
) -> None:
    is_stream, options = WRITES[name]
    columns = TEXTS if options else ("'copy' AS topic", *TEXTS)
    source = {"subscribe": "topic1"}
    if is_stream:
        frame = stream(spark, database, source).selectExpr(*columns)
        writer = frame.writeStream.format("mqdb").option("url", database.dsn).options(**SERVERS, **options)
        writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start().awaitTermination()
    else:
        frame = batch(spark, database, source).selectExpr(*columns)
        # Kafka's sink takes no mode, and Spark's own default is refused for sources in Python.
        frame.write.format("mqdb").option("url", database.dsn).options(**SERVERS, **options).mode("append").save()

    dispatch_all(broker)
    found = batch(spark, database, {"subscribe": "copy"}).selectExpr(*TEXTS).collect()
    assert sorted((row.value, row.key) for row in found) == [("a", "k-a"), ("b", "k-b"), ("c", None)]
