"""Spark's JDBC reader returns exactly the messages that the options select, whatever happens during a read."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import DataFrame, SparkSession
from sqlalchemy import Connection, text

from mqdb.common.message import Message
from mqdb.embedded import EmbeddedPostgres
from mqdb.errors import TopicNotFound
from mqdb.pipeline import read_jdbc
from mqdb.pipeline.errors import JarNotFound, OffsetOutOfRange, OptionUnknown
from mqdb.pipeline.read.jdbc_driver import ensure_driver
from mqdb.pipeline.read.schema import MESSAGE_COLUMNS
from mqdb.store.topics.topics import TopicRoute
from tests.fixtures.broker import append, dispatch_all, topic
from tests.fixtures.postgres import Database, set_rounds
from tests.fixtures.spark_page import blocks


@pytest.fixture(scope="module", autouse=True)
def rounds(postgres: EmbeddedPostgres) -> Iterator[None]:
    """Store passwords with more hash rounds, because Java's driver refuses a server with fewer."""
    set_rounds(postgres, 4_096)
    yield
    set_rounds(postgres, 1)


@pytest.fixture(autouse=True)
def driver(spark: SparkSession) -> None:
    try:
        ensure_driver(spark)
    except JarNotFound as error:
        pytest.skip(str(error))


@pytest.fixture
def orders(broker: Connection) -> TopicRoute:
    """A topic with two queues: four messages in the first and two in the second."""
    route = topic(broker, queues=2)
    append(broker, route, "a0", "a1", "a2", "a3", tag="TagA")
    append(broker, route, "b0", Message("orders", "b1", "TagB", keys="K1 K2"), queue_id=1)
    dispatch_all(broker)
    return route


def bodies(frame: DataFrame) -> list[str]:
    return sorted(bytes(row.body).decode() for row in frame.select("body").collect())


@pytest.mark.usefixtures("orders")
def test_a_topic_has_the_columns_and_types_of_the_data_source(spark: SparkSession, database: Database) -> None:
    frame = read_jdbc(spark, database.dsn, "orders")

    assert {field.name: field.dataType.simpleString() for field in frame.schema} == MESSAGE_COLUMNS
    [row] = frame.where("body = CAST('b1' AS BINARY)").collect()
    assert (row.topic, row.queue_id, row.queue_offset, row["keys"], row.tags) == ("orders", 1, 1, "K1 K2", "TagB")
    assert len(row.msg_id) == 32
    assert timedelta() <= datetime.now(UTC) - row.store_timestamp.astimezone(UTC) < timedelta(hours=1)


@pytest.mark.usefixtures("orders")
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ["a0", "a1", "a2", "a3", "b0", "b1"]),
        pytest.param(
            {"splitBy": "segment", "minPartitions": "3"}, ["a0", "a1", "a2", "a3", "b0", "b1"], marks=pytest.mark.long
        ),
        (
            {"splitBy": "queue", "recordsPerTask": "1", "maxRecordsPerPartition": "1"},
            ["a0", "a1", "a2", "a3", "b0", "b1"],
        ),
        ({"startingOffsets": '{"orders": {"0": 3, "1": -2}}', "columns": "body"}, ["a3", "b0", "b1"]),
        pytest.param({"endingOffsets": '{"orders": {"0": 1, "1": 0}}'}, ["a0"], marks=pytest.mark.long),
        ({"subExpression": "TagB"}, ["b1"]),
        ({"startingTimestamp": "2099-01-01T00:00Z", "startingOffsetsByTimestampStrategy": "latest"}, []),
    ],
    ids=["all", "slices", "one-message-a-task", "from-offsets", "to-offsets", "tag", "nothing"],
)
def test_the_options_say_what_is_read(
    spark: SparkSession, database: Database, options: dict[str, str], expected: list[str]
) -> None:
    assert bodies(read_jdbc(spark, database.dsn, "orders", **options)) == expected  # type: ignore[arg-type]


def test_queues_may_be_assigned(spark: SparkSession, database: Database, orders: TopicRoute) -> None:
    assert bodies(read_jdbc(spark, database.dsn, None, assign='{"orders": [1]}')) == ["b0", "b1"]


@pytest.mark.long
def test_messages_that_come_later_are_not_read(
    spark: SparkSession, database: Database, broker: Connection, orders: TopicRoute
) -> None:
    frame = read_jdbc(spark, database.dsn, "orders")
    append(broker, orders, "late")
    dispatch_all(broker)

    assert frame.count() == 6


@pytest.mark.usefixtures("orders")
def test_columns_and_filters_are_left_to_postgresql(
    spark: SparkSession, database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = read_jdbc(spark, database.dsn, "orders").where("tags = 'TagA'").select("queue_offset")

    frame.explain()

    plan = capsys.readouterr().out
    assert "PushedFilters: [*IsNotNull(tags), *EqualTo(tags,TagA)]" in plan
    assert "ReadSchema: struct<queue_offset:bigint>" in plan


@pytest.mark.usefixtures("orders")
def test_a_partition_that_is_gone_is_an_error_and_no_gap(
    spark: SparkSession, database: Database, broker: Connection
) -> None:
    from py4j.protocol import Py4JJavaError

    frame = read_jdbc(spark, database.dsn, "orders")
    broker.execute(text("ALTER TABLE mqdb.queue_run DETACH PARTITION mqdb.queue_run_1"))
    broker.execute(text("DROP TABLE mqdb.queue_run_1"))

    with pytest.raises(Py4JJavaError, match="queue_run_1"):
        frame.collect()


def test_what_cannot_be_read_is_said_before_any_job_starts(
    spark: SparkSession, database: Database, orders: TopicRoute
) -> None:
    with pytest.raises(TopicNotFound):
        read_jdbc(spark, database.dsn, "missing")
    with pytest.raises(OffsetOutOfRange):
        read_jdbc(spark, database.dsn, "orders", startingOffsets='{"orders": {"0": 9, "1": 0}}')
    with pytest.raises(OptionUnknown, match="did you mean 'columns'"):
        read_jdbc(spark, database.dsn, "orders", colums="body")
    with pytest.raises(JarNotFound, match=r"jar=/nowhere\.jar"):
        read_jdbc(spark, database.dsn, "orders", jar="/nowhere.jar")


@pytest.mark.long
@pytest.mark.usefixtures("orders")
def test_both_ways_to_count_of_the_page(spark: SparkSession, database: Database) -> None:
    [block] = blocks("### Counting", "python")
    *before, narrow, by_jdbc = block.splitlines()
    names: dict[str, object] = {"spark": spark, "dsn": database.dsn, "read_jdbc": read_jdbc}

    exec("\n".join(before), names)

    assert [eval(each, names) for each in (narrow, by_jdbc)] == [6, 6]
