"""format("mqdb") in Spark itself: behaviour that only a JVM can show.

The rules are in tests/integration/spark/test_reader.py.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, EqualTo, Filter
from sqlalchemy import Connection

from mqdb.common.message import Message
from mqdb.pipeline.read.schema import KAFKA_COLUMNS, MESSAGE_COLUMNS
from mqdb.store.topics.topics import TopicRoute
from tests.fixtures.broker import append, dispatch_all, topic
from tests.fixtures.postgres import Database, password_of


@pytest.fixture
def orders(broker: Connection) -> TopicRoute:
    """A topic with three messages in one queue and two in the other."""
    route = topic(broker, queues=2)
    send(broker, route, *(Message("orders", body, "TagA", (f"k-{body}",), {"region": "north"}) for body in "abc"))
    send(broker, route, "d", "e", queue_id=1)
    return route


def send(broker: Connection, route: TopicRoute, *messages: Message | str, queue_id: int = 0) -> None:
    append(broker, route, *messages, queue_id=queue_id)
    dispatch_all(broker)


def load(spark: SparkSession, database: Database, **options: str) -> DataFrame:
    return spark.read.format("mqdb").options(url=database.dsn, subscribe="orders", **options).load()


def bodies(frame: DataFrame) -> list[str]:
    return sorted(bytes(row.body).decode() for row in frame.select("body").collect())


@pytest.mark.usefixtures("orders")
def test_a_topic_is_read_without_a_jar_and_without_registration(spark: SparkSession, database: Database) -> None:
    frame = load(spark, database)

    assert {field.name: field.dataType.simpleString() for field in frame.schema} == MESSAGE_COLUMNS
    assert bodies(frame) == ["a", "b", "c", "d", "e"]
    assert frame.where("tags = 'TagA' AND get_json_object(properties, '$.region') = 'north'").count() == 3


@pytest.mark.usefixtures("orders")
def test_a_schema_of_the_users_own_prunes_columns(spark: SparkSession, database: Database) -> None:
    reader = spark.read.format("mqdb").options(url=database.dsn, subscribe="orders", splitBy="segment")

    rows = reader.schema("body binary, queue_id int").load().where("queue_id = 1").collect()

    assert sorted(bytes(row.body) for row in rows) == [b"d", b"e"]


@pytest.mark.usefixtures("orders")
def test_a_query_for_kafka_reads_messages(spark: SparkSession, database: Database) -> None:
    options = {"rowFormat": "kafka", "includeHeaders": "true"}
    frame = load(spark, database, **options, startingOffsets='{"orders": {"0": 0, "1": -1}}')

    assert {field.name: field.dataType.simpleString() for field in frame.schema} == KAFKA_COLUMNS
    found = frame.selectExpr(
        "CAST(key AS STRING) AS key", "CAST(filter(headers, h -> h.key = 'region')[0].value AS STRING)"
    )
    assert sorted(map(tuple, found.collect())) == [("k-a", "north"), ("k-b", "north"), ("k-c", "north")]


def test_a_loaded_frame_is_a_snapshot(
    spark: SparkSession, database: Database, broker: Connection, orders: TopicRoute
) -> None:
    frame = load(spark, database)
    before = frame.count()

    send(broker, orders, "f")

    assert (before, frame.count(), load(spark, database).count()) == (5, 5, 6)


@pytest.mark.usefixtures("orders")
@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"startingOffset": "earliest"}, "did you mean 'startingOffsets'?"),
        pytest.param({"subscribe": "flights"}, "topic 'flights' does not exist", marks=pytest.mark.long),
        pytest.param({"selector": "a >"}, "a >", marks=pytest.mark.long),
    ],
    ids=["option", "topic", "selector"],
)
def test_what_is_wrong_is_said_before_any_job_starts(
    spark: SparkSession, database: Database, options: dict[str, str], sentence: str
) -> None:
    jobs = spark.sparkContext.statusTracker()
    before = set(jobs.getJobIdsForGroup())

    with pytest.raises(PySparkException) as caught:
        spark.read.format("mqdb").options(**{"url": database.dsn, "subscribe": "orders"} | options).load().count()

    assert sentence in str(caught.value)
    assert set(jobs.getJobIdsForGroup()) == before


def test_load_says_what_is_wrong_and_the_error_of_a_stream_what_no_stream_has(
    spark: SparkSession, database: Database, tmp_path: Path
) -> None:
    with pytest.raises(PySparkException, match=r"minPartitions = 'none': write a whole number above 0"):
        load(spark, database, minPartitions="none")

    stream = (
        spark.readStream.format("mqdb").options(url=database.dsn, subscribe="orders", endingOffsets="latest").load()
    )
    query = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
    with pytest.raises(PySparkException, match=r"spark\.readStream has no such option") as caught:
        query.awaitTermination()
    assert "UnboundLocalError" not in str(caught.value)


@pytest.mark.usefixtures("orders")
def test_neither_plans_nor_errors_nor_checkpoints_show_the_password(
    spark: SparkSession, database: Database, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    password = password_of(database.dsn)
    frame = load(spark, database, readUrl=database.dsn)
    frame.explain("formatted")
    frame.explain(extended=True)
    stream = spark.readStream.format("mqdb").options(url=database.dsn, subscribe="orders").load()
    query = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
    query.processAllAvailable()
    query.explain(extended=True)
    query.stop()
    with pytest.raises(PySparkException) as caught:
        load(spark, database, readUrl=database.dsn + "&port=1", brokerWaitSeconds="0").count()

    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert written
    assert password.encode() not in b"".join(written)
    shown = capfd.readouterr()
    assert "mqdb" in shown.out
    assert password not in shown.out + shown.err + str(caught.value)


def run(spark: SparkSession, database: Database, folder: Path) -> list[int]:
    """Read all messages into Parquet, two in each batch, and stop; returns the row count of each batch."""
    stream = spark.readStream.format("mqdb").options(url=database.dsn, subscribe="orders", startingOffsets="earliest")
    writer = stream.option("maxOffsetsPerTrigger", "2").load().writeStream.format("parquet")
    options = {"path": str(folder / "out"), "checkpointLocation": str(folder / "checkpoint")}
    query = writer.options(**options).trigger(availableNow=True).start()
    query.awaitTermination()
    return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]


def test_a_stream_goes_on_where_it_has_stopped(
    spark: SparkSession, database: Database, broker: Connection, orders: TopicRoute, tmp_path: Path
) -> None:
    first = run(spark, database, tmp_path)
    send(broker, orders, "f", queue_id=1)
    second = run(spark, database, tmp_path)

    assert (sorted(first), second) == ([1, 2, 2], [1])
    assert bodies(spark.read.parquet(str(tmp_path / "out"))) == ["a", "b", "c", "d", "e", "f"]


def test_spark_still_mixes_up_filters_that_are_pushed_down(spark: SparkSession) -> None:
    """If this test fails, Spark plans a read for each query: then the data source may accept filters, too."""

    class Numbers(DataSource):
        @classmethod
        def name(cls) -> str:
            return "numbers"

        def schema(self) -> str:
            return "a int"

        def reader(self, schema: Any) -> DataSourceReader:
            return NumbersReader()

    class NumbersReader(DataSourceReader):
        def __init__(self) -> None:
            self.wanted = range(10)

        def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:
            for each in filters:
                if isinstance(each, EqualTo):
                    self.wanted = range(each.value, each.value + 1)
                else:
                    yield each

        def read(self, partition: Any) -> Iterator[tuple[int]]:
            return ((number,) for number in self.wanted)

    spark.dataSource.register(Numbers)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = spark.read.format("numbers").load()
        filtered = frame.where("a = 3").count()
        everything = frame.count()
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")

    assert filtered == 1
    assert everything == 1, "of 10: this was wrong in Spark 4.3.0"
