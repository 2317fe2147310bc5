"""format("mqdb") as a sink in a real Spark: batch jobs, streams that fail and restart, and bad input."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from sqlalchemy import Connection

from mqdb.store.topics import topics
from mqdb_client import Admin
from tests.fixtures.broker import bodies, dispatch_all, topic
from tests.fixtures.postgres import Database
from tests.fixtures.principals import Principal
from tests.fixtures.spark_sink import forget_last_commit, rows_in, stored


def write(frame: DataFrame, database: Database, **options: str) -> None:
    """Run a batch job."""
    frame.write.format("mqdb").mode("append").option("url", database.dsn).options(**options).save()


def run_stream(spark: SparkSession, database: Database, folder: Path, **options: str) -> None:
    """Write the new text files of a folder, one file in each batch; a row is a number and a key's name."""
    lines = spark.readStream.schema("line string").option("maxFilesPerTrigger", 1).text(str(folder / "in"))
    (
        lines.selectExpr("line AS body", "split(line, ':')[0] AS sharding_key")
        .writeStream.format("mqdb")
        .option("url", database.dsn)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .options(**options)
        .trigger(availableNow=True)
        .start()
        .awaitTermination()
    )


def add_file(folder: Path, name: str, *lines: str) -> None:
    (folder / "in").mkdir(exist_ok=True)
    (folder / "in" / name).write_text("\n".join(lines) + "\n")


def test_a_dataframe_is_written_with_all_its_columns(
    spark: SparkSession, broker: Connection, database: Database
) -> None:
    route = topic(broker, queues=2)
    frame = spark.sql(
        """SELECT concat('body ', id) AS body, 'TagA' AS tags, concat('k', id) AS keys, 'one' AS sharding_key,
                  map('n', string(id)) AS properties, timestamp'2013-01-01 05:15:00Z' AS born_timestamp,
                  timestamp'2000-01-01 00:00:00Z' AS deliver_at
           FROM range(0, 1000, 1, 3)"""
    )
    write(frame, database, topic="orders")

    messages = stored(broker, route, 0) or stored(broker, route, 1)
    assert [message.body.decode() for message in messages] == [f"body {number}" for number in range(1_000)]
    last = messages[-1]
    assert (last.tag, last.keys, last.properties["n"]) == ("TagA", ("k999",), "999")
    assert last.born_time.isoformat() == "2013-01-01T05:15:00+00:00"


def test_a_role_that_may_send_to_the_topic_writes_jobs_and_streams(
    spark: SparkSession, broker: Connection, owner: Admin, principal: Principal, tmp_path: Path
) -> None:
    owner.topics.create("single", queues=1)
    route = topics.find_topic(broker, "single")
    assert route is not None
    etl = Database(principal("etl", send=["single"]))
    write(spark.sql("SELECT string(id) AS body FROM range(0, 100, 1, 3)"), etl, topic="single")
    add_file(tmp_path, "1.txt", "a:1", "b:1")
    run_stream(spark, etl, tmp_path, topic="single")
    forget_last_commit(tmp_path)
    add_file(tmp_path, "2.txt", "a:2")
    run_stream(spark, etl, tmp_path, topic="single")

    assert bodies(stored(broker, route)) == [*map(str, range(100)), "a:1", "b:1", "a:2"]
    assert rows_in(broker, "sink_batch", "sink_write", "sink_stage") == [2, 0, 0]
    with pytest.raises(PySparkException, match="has no right SEND on TOPIC 'secret'"):
        write(spark.sql("SELECT 'a' AS body"), etl, topic="secret")


def test_a_job_whose_task_fails_once_writes_each_row_once(
    spark: SparkSession, broker: Connection, database: Database, tmp_path: Path
) -> None:
    route = topic(broker)
    trace = str(tmp_path / "failed")

    def fail_once(numbers: Iterable[int]) -> Iterator[tuple[str]]:
        for number in numbers:
            yield (str(number),)
        if not Path(trace).exists():
            Path(trace).touch()
            raise ConnectionError("after all rows were given")

    rows = spark.sparkContext.parallelize(range(100), 2).mapPartitions(fail_once)
    write(rows.toDF("body string"), database, topic="orders")

    assert sorted(map(int, bodies(stored(broker, route)))) == list(range(100))
    assert rows_in(broker, "sink_write", "sink_stage") == [0, 0]


def test_a_job_with_a_write_id_may_be_run_again(spark: SparkSession, broker: Connection, database: Database) -> None:
    route = topic(broker)
    for _ in range(2):
        write(spark.sql("SELECT 'a' AS value"), database, topic="orders", writeId="nightly")

    assert bodies(stored(broker, route)) == ["a"]


def test_a_stream_goes_on_where_it_was_and_repeats_no_batch(
    spark: SparkSession, broker: Connection, database: Database, tmp_path: Path
) -> None:
    route = topic(broker)
    add_file(tmp_path, "1.txt", "a:1", "b:1")
    run_stream(spark, database, tmp_path, topic="orders")
    forget_last_commit(tmp_path)
    add_file(tmp_path, "2.txt", "a:2")

    run_stream(spark, database, tmp_path, topic="orders")

    assert bodies(stored(broker, route)) == ["a:1", "b:1", "a:2"]
    assert rows_in(broker, "sink_batch", "sink_stage") == [2, 0]


@pytest.mark.long
def test_changes_of_an_aggregate_are_written_once_by_batches(
    spark: SparkSession, broker: Connection, database: Database, tmp_path: Path
) -> None:
    """Changes of an aggregate are written once, by batches, as docs/spark.md shows for outputMode('update')."""
    route = topic(broker)
    failures = ["after the first batch was written"]

    def write_batch(rows: DataFrame, batch_id: int) -> None:
        write(rows, database, topic="orders", writeId=f"totals-{batch_id}")
        if failures:
            raise ConnectionError(failures.pop())

    def run() -> None:
        lines = spark.readStream.schema("line string").option("maxFilesPerTrigger", 1).text(str(tmp_path / "in"))
        totals = lines.groupBy("line").count().selectExpr("line AS key", "concat(line, ' ', count) AS body")
        writer = totals.writeStream.outputMode("update").foreachBatch(write_batch)
        writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()

    add_file(tmp_path, "1.txt", "a", "b", "a")
    with pytest.raises(PySparkException):
        run()
    add_file(tmp_path, "2.txt", "a")
    run()

    found = [message.body.decode() for queue_id in range(route.config.read_queue_nums)
             for message in stored(broker, route, queue_id)]  # fmt: skip
    assert sorted(found) == ["a 2", "a 3", "b 1"]


def test_a_topic_to_a_frame_to_a_topic_is_the_same_topic(
    spark: SparkSession, broker: Connection, database: Database
) -> None:
    for name in ("orders", "copy", "plain-copy"):
        topic(broker, name, queues=4)
    records = spark.sql(
        """SELECT CASE WHEN id % 7 = 0 THEN NULL WHEN id % 5 = 0 THEN unhex(sha1(string(id)))
                       ELSE encode(concat('{"id":  ', id % 50, '}'), 'UTF-8') END AS key,
                  IF(id % 11 = 0, NULL, encode(repeat('x', int(id % 3)), 'UTF-8')) AS value,
                  IF(id % 2 = 0, NULL, array(struct('z' AS key, unhex('ff00') AS value),
                                             struct('a' AS key, IF(id % 3 = 0, NULL, encode('1', 'UTF-8')) AS value)))
                    AS headers,
                  int(id % 4) AS partition
           FROM range(0, 10000, 1, 3)"""
    )
    write(records, database, topic="orders")
    dispatch_all(broker)
    reader = spark.read.format("mqdb").option("url", database.dsn)
    kafka = {"rowFormat": "kafka", "includeHeaders": "true"}
    write(reader.options(**kafka).load(subscribe="orders"), database, topic="copy")
    write(reader.option("rowFormat", "mqdb").load(subscribe="orders"), database, topic="plain-copy")
    dispatch_all(broker)

    def found(frame: DataFrame) -> list[tuple[Any, ...]]:
        parts = "coalesce(hex(key), 'null')", "coalesce(hex(value), 'null')", "to_json(headers) AS headers", "partition"
        return sorted(map(tuple, frame.selectExpr(*parts).na.fill("null").collect()))

    expected = found(records)
    for name in ("orders", "copy", "plain-copy"):
        assert found(reader.options(**kafka).load(subscribe=name)) == expected


def test_what_is_wrong_is_said_before_any_task_runs(
    spark: SparkSession, broker: Connection, database: Database, tmp_path: Path
) -> None:
    topic(broker)
    trace = str(tmp_path / "ran")

    def leave_a_trace(number: int) -> tuple[str]:
        Path(trace).touch()
        return (str(number),)

    never = spark.sparkContext.parallelize([1]).map(leave_a_trace).toDF("body string")
    wrong: dict[str, tuple[DataFrame, dict[str, str]]] = {
        "topic 'nowhere' does not exist": (never, {"topic": "nowhere"}),
        "unknown option 'topik'; did you mean 'topic'?": (never, {"topic": "orders", "topik": "x"}),
        "column 'price': no message has this column": (never.selectExpr("body", "1 AS price"), {"topic": "orders"}),
        "column 'body': is bigint; body is binary or string": (spark.range(1).toDF("body"), {"topic": "orders"}),
    }
    for sentence, (frame, options) in wrong.items():
        with pytest.raises(PySparkException) as refused:
            write(frame, database, **options)
        assert sentence in str(refused.value)
    with pytest.raises(PySparkException, match="mode 'overwrite' is not supported"):
        never.write.format("mqdb").mode("overwrite").option("url", database.dsn).option("topic", "orders").save()
    assert not Path(trace).exists()
