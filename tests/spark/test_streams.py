"""Streams as jobs: from a topic to Parquet files, and from Kafka rows to a topic and back."""

import json
import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import Connection

from mqdb.common.message import Message
from mqdb.pipeline.jobs.catching_up import catch_up, quiet, total_of
from mqdb.pipeline.jobs.mirroring import Mirror, count_to_kafka, from_records, package, to_records
from mqdb.pipeline.jobs.parquet_appending import count_to_parquet, to_parquet
from tests.fixtures.broker import append, dispatch_all, topic
from tests.fixtures.command_line import Place, assert_refused
from tests.fixtures.postgres import Database
from tests.fixtures.spark_page import blocks
from tests.fixtures.spark_sink import stored

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WHEN = datetime(2013, 1, 1, 5, 15, tzinfo=UTC)

#: Of Spark's Kafka source, with headers.
RECORDS = """key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp,
             timestampType int, headers array<struct<key: string, value: binary>>"""


@pytest.mark.long
def test_a_topic_is_appended_to_files_once(
    spark: "SparkSession", broker: Connection, database: Database, tmp_path: Path
) -> None:
    route = topic(broker)
    place = Place(tmp_path / "home", database.dsn)
    files, checkpoint = str(tmp_path / "files"), str(tmp_path / "checkpoint")
    append(broker, route, Message("orders", '{"id": 7}', "TagA"), Message("orders", "b"))
    dispatch_all(broker)
    seen: list[tuple[int, int, str]] = []

    def run() -> int:
        return to_parquet(
            spark, database.dsn, "orders", files, checkpoint, schema="id BIGINT",
            batch=1, on_progress=lambda *progress: seen.append(progress),
        )  # fmt: skip

    assert (count_to_parquet(spark, database.dsn, "orders", checkpoint), run(), run()) == (2, 2, 0)
    assert (2, 2, "batch 1") in seen
    append(broker, route, "c")
    dispatch_all(broker)
    command = ("spark", "to-parquet", "orders", files, "--checkpoint", checkpoint, "--json")
    planned = place.done(*command, "--dry-run")
    assert json.loads(planned)["messages"] == 1
    assert json.loads(place.done(*command, "--schema", "id BIGINT"))["messages"] == 1

    found = spark.read.parquet(files).orderBy("queue_offset").selectExpr("string(body)", "tags", "value.id")
    assert [tuple(row) for row in found.collect()] == [('{"id": 7}', "TagA", 7), ("b", None, None), ("c", None, None)]


def test_records_of_kafka_become_messages_and_come_back(
    spark: "SparkSession", broker: Connection, database: Database, tmp_path: Path
) -> None:
    """Kafka records become messages and come back. Files with the connector's columns take the place of Kafka."""
    route = topic(broker, queues=4)
    records, files, copies = (str(tmp_path / name) for name in ("records", "checkpoint", "copies"))
    mirror = Mirror(database.dsn, "orders", "kafka:9092", "shop.orders", keep_partitions=True)

    def add(key: bytes, value: bytes | None, partition: int, headers: list[tuple[str, bytes]] | None = None) -> None:
        row = (key, value, "shop.orders", partition, 0, WHEN, 0, headers)
        spark.createDataFrame([row], RECORDS).write.mode("append").parquet(records)

    def run_in() -> int:
        stream = spark.readStream.schema(RECORDS).parquet(records)
        return catch_up(from_records(stream, mirror, files), follow=False, on_progress=quiet)

    def run_out() -> int:
        writer = to_records(spark, mirror).writeStream.format("parquet").option("path", copies)
        return catch_up(writer.option("checkpointLocation", f"{copies}.c"), follow=False, on_progress=quiet)

    add(b"a1", b"x", 3, [("h", b"\0\xff")])
    add(b"a1", None, 3)
    assert (run_in(), run_in()) == (2, 0)
    [message, tombstone] = stored(broker, route, 3)
    assert (message.body, message.keys, message.born_time) == (b"x", ("a1",), WHEN)
    assert tombstone.properties["MQDB_KAFKA_VALUE"] == "null"

    assert (count_to_kafka(spark, mirror, f"{copies}.c"), run_out(), run_out()) == (2, 2, 0)
    add(b"\0", b"", 0)
    assert run_in() == 1
    dispatch_all(broker)
    assert run_out() == 1
    columns = "key", "value", "partition", "headers"
    came, gone = (
        sorted((tuple(row) for row in spark.read.parquet(path).select(*columns).collect()), key=str)
        for path in (records, copies)
    )
    assert gone == came


def test_offsets_of_both_sources_are_summed() -> None:
    one = {"topics": {"a": {"0": 3, "1": 4}}, "proofs": {"a": {"0": [3, "x", "y"]}}}
    assert total_of(json.dumps({"brokers": {"broker-a": one, "broker-b": {"topics": {"a": {"0": 2}}}}})) == 9
    assert total_of({"a": {"0": 3}, "b": {"0": 5}}) == 8
    assert total_of(None) == 0


def test_the_package_is_that_of_this_spark(spark: "SparkSession") -> None:
    assert package() == f"org.apache.spark:spark-sql-kafka-0-10_2.13:{spark.version}"


def test_a_mirror_has_one_direction(database: Database, tmp_path: Path) -> None:
    place = Place(tmp_path / "home", database.dsn)
    command = ("spark", "mirror", "orders", "--checkpoint", "c")

    for more in ((), ("--from-kafka", "a", "--to-kafka", "b")):
        assert_refused(place.call(*command, *more), "give either --from-kafka or --to-kafka")
    assert_refused(place.call(*command, "--to-kafka", "b", "--kafka-option", "x"), "must be written NAME=VALUE")


def test_the_commands_of_the_page_say_that_the_session_lacks_the_connector(
    spark: "SparkSession", broker: Connection, database: Database, tmp_path: Path
) -> None:
    topic(broker)
    assert spark.range(1).count() == 1
    place = Place(tmp_path / "home", database.dsn)

    for command in "".join(blocks("### From Kafka and back", "sh")).splitlines():
        _, *arguments = shlex.split(command.replace("/data", str(tmp_path)))
        assert_refused(place.call(*arguments), "Failed to find data source: kafka")
