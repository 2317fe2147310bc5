"""The SQL section of docs/spark.md: every statement runs as printed, apart from the address."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from sqlalchemy import Connection

from mqdb.common.message import Message
from mqdb.pipeline.read.schema import KAFKA_COLUMNS, MESSAGE_COLUMNS
from mqdb.store.topics.topics import find_topic
from tests.fixtures.broker import append, dispatch_all, topic
from tests.fixtures.postgres import Database
from tests.fixtures.spark_page import blocks

URL: Final = "postgresql://user@host:5432/database"

#: As a program of its own: one process has one catalog.
WITH_HIVE: Final = """
import json, sys
from mqdb.pipeline import session
statements, folder = json.loads(sys.argv[1]), sys.argv[2]
metastore = f"jdbc:derby:;databaseName={folder}/metastore;create=true"
spark = session(config={
    "spark.sql.catalogImplementation": "hive",
    "spark.sql.warehouse.dir": f"{folder}/warehouse",
    "spark.hadoop.javax.jdo.option.ConnectionURL": metastore,
})
assert spark.conf.get("spark.sql.catalogImplementation") == "hive"
print(json.dumps([[list(row) for row in spark.sql(each).collect()] for each in statements]))
"""


def statements(database: Database) -> list[str]:
    text = "".join(blocks("## SQL", "sql"))
    assert URL in text
    return [each.strip() for each in text.replace(URL, database.dsn).split(";") if each.strip()]


@pytest.fixture(autouse=True)
def orders(broker: Connection) -> None:
    """A topic with two paid messages, and one that is not paid."""
    append(
        broker, topic(broker), Message("orders", "a", "paid"), Message("orders", "b", "paid"), Message("orders", "c")
    )
    topic(broker, "paid")
    dispatch_all(broker)


def answers_of(rows: list[list[tuple[object, ...]]]) -> list[list[tuple[object, ...]]]:
    """The sorted rows of all statements that return rows."""
    return [sorted(each, key=str) for each in rows if each]


EXPECTED: Final = [[(0, 2)], [("paid", 2), (None, 1)], [(3,)]]


def paid(database: Database, broker: Connection) -> list[str]:
    dispatch_all(broker)
    return [body for (body,) in database.rows("SELECT text FROM mqdb.message WHERE topic = 'paid' ORDER BY text")]


def test_each_statement_works(spark: SparkSession, broker: Connection, database: Database, tmp_path: Path) -> None:
    try:
        rows = [[tuple(row) for row in spark.sql(each).collect()] for each in statements(database)]
        assert answers_of(rows) == EXPECTED
        assert paid(database, broker) == ["a", "a row without a key", "b"]

        [stream] = blocks("## SQL", "python")
        names: dict[str, object] = {"spark": spark, "dsn": database.dsn}
        once = stream.replace("/data/checkpoints/paid", str(tmp_path)).replace(
            '.toTable("outbox")', '.trigger(availableNow=True).toTable("outbox").awaitTermination()'
        )
        exec(once, names)
        assert paid(database, broker) == ["a", "a", "a row without a key", "b", "b", "c"]

        append_one_more(broker)
        seen = [spark.sql(f"SELECT count(*) FROM {view}").collect()[0][0] for view in ("orders", "orders_now")]
        assert seen == [4, 3]
    finally:
        forget(spark)


def append_one_more(broker: Connection) -> None:
    route = find_topic(broker, "orders")
    assert route is not None
    append(broker, route, "d")
    dispatch_all(broker)


def forget(spark: SparkSession) -> None:
    """Remove the tables, because the session is used by other tests."""
    for statement in ("VIEW orders_now", "VIEW orders", "TABLE messages", "TABLE tags_and_bodies", "TABLE outbox"):
        spark.sql(f"DROP {statement.replace(' ', ' IF EXISTS ')}")


@pytest.mark.long
@pytest.mark.timeout(300)
def test_each_statement_works_with_hive(broker: Connection, database: Database, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITH_HIVE, json.dumps(statements(database)), str(tmp_path)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        cwd=tmp_path, capture_output=True, text=True, timeout=280,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr[-3000:]
    assert answers_of([[tuple(row) for row in each] for each in json.loads(done.stdout.splitlines()[-1])]) == EXPECTED
    assert paid(database, broker) == ["a", "a row without a key", "b"]


def test_a_table_without_columns_has_those_of_its_row_format(spark: SparkSession) -> None:
    try:
        spark.sql("CREATE TABLE messages USING mqdb COMMENT 'all of them'")
        spark.sql("CREATE TABLE outbox USING mqdb OPTIONS (rowFormat 'kafka', includeHeaders 'true')")

        found = [{each.name: each.dataType.simpleString() for each in spark.table(name).schema.fields}
                 for name in ("messages", "outbox")]  # fmt: skip
        assert found == [MESSAGE_COLUMNS, KAFKA_COLUMNS]
    finally:
        forget(spark)


def test_a_table_refuses_options_that_spark_would_forget(spark: SparkSession, database: Database) -> None:
    with pytest.raises(
        PySparkException, match="option url: Spark does not store the options of a table; give them in each"
    ):
        spark.sql(f"CREATE TABLE messages USING mqdb OPTIONS (url '{database.dsn}', subscribe 'orders')")
