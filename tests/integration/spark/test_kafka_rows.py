"""Rows read from a topic, in mqdb's or Kafka's format, are written to another topic and come back unchanged."""

from collections.abc import Iterator
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy import Connection

from mqdb.pipeline.errors import SinkRowInvalid
from mqdb.pipeline.read import engines
from tests.fixtures.broker import dispatch_all, topic
from tests.fixtures.postgres import Database
from tests.fixtures.spark_sink import Table, batch_writer_for, batches_of, stored, write
from tests.fixtures.spark_source import Row, read, source


@pytest.fixture(autouse=True)
def _no_idle_connection() -> Iterator[None]:
    """Leave no idle connection, because databases are dropped after each test."""
    yield
    engines.close_idle()


HEADERS = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))


def records(count: int) -> Table:
    """Records with keys, values and headers of all kinds, as a connector for database changes writes them."""
    random = Random(1)

    def chosen(*kinds: bytes | None) -> list[bytes | None]:
        return [random.choice([*kinds, random.randbytes(random.randrange(9))]) for _ in range(count)]

    some: list[list[tuple[str, bytes | None]] | None] = [
        None,
        [("b", b"2"), ("a", b"\xff"), ("b", None)],
        [("a", b"1"), ("b", b"2")],
        [('nul\x00 \\ "', b"\x00"), ("", b"")],
    ]
    return {
        "key": pa.array(chosen(None, b"", b"a  b ", b"k", b'{"id": 7}'), pa.binary()),
        "value": pa.array(chosen(None, b"", b"\x00", b'{"op": "u", "after": {"id": 7}}'), pa.binary()),
        "headers": pa.array([random.choice(some) for _ in range(count)], HEADERS),
        "partition": pa.array([random.randrange(4) for _ in range(count)], pa.int32()),
    }


def headers_of(row_format: str) -> dict[str, str]:
    return {"includeHeaders": "true"} if row_format == "kafka" else {}


def read_sorted(
    database: Database, broker: Connection, name: str, row_format: str = "kafka", **options: str
) -> list[Row]:
    dispatch_all(broker)
    place = ("partition", "offset") if row_format == "kafka" else ("queue_id", "queue_offset")
    rows = read(database, subscribe=name, rowFormat=row_format, **headers_of(row_format), **options)
    return sorted(rows, key=lambda row: tuple(row[column] for column in place))


def parts(rows: list[Row]) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in ("partition", "key", "value", "headers")) for row in rows]


def as_read(database: Database, rows: list[Row], row_format: str) -> pa.Table:
    """The rows as the table that Spark builds from them."""
    from pyspark.sql.pandas.types import to_arrow_schema

    schema = source(database, rowFormat=row_format, **headers_of(row_format)).schema()
    return pa.Table.from_pylist(rows, to_arrow_schema(schema, timezone="UTC"))


@pytest.mark.parametrize("row_format", ["kafka", "mqdb"])
def test_a_topic_that_is_read_and_written_is_the_same_topic(
    broker: Connection, database: Database, row_format: str
) -> None:
    topic(broker, queues=4)
    topic(broker, "copy", queues=4)
    given = records(300)
    write(database, given, topic="orders")

    rows = read_sorted(database, broker, "orders", row_format)
    table = as_read(database, rows, row_format)
    write(database, {name: table[name] for name in table.column_names}, topic="copy")

    expected = pa.table(dict(given)).to_pylist()
    expected.sort(key=lambda row: row["partition"])
    assert parts(read_sorted(database, broker, "orders")) == parts(expected)
    assert parts(read_sorted(database, broker, "copy")) == parts(expected)


def test_other_consumers_see_a_tombstone_as_one_byte_and_a_property(broker: Connection, database: Database) -> None:
    route = topic(broker)
    write(database, {"key": ["k"] * 2, "value": pa.array([None, b""], pa.binary())}, topic="orders")

    null, empty = stored(broker, route)
    assert (null.body, null.keys, null.properties["MQDB_KAFKA_VALUE"]) == (b"\x00", ("k",), "null")
    assert (empty.body, empty.properties["MQDB_KAFKA_VALUE"]) == (b"\x00", "empty")
    assert [row["body"] for row in read(database, columns="body")] == [None, b""]
    assert [row["body"] for row in read(database, columns="body", engine="psycopg")] == [None, b""]


def test_a_row_that_gets_a_body_after_it_was_read_is_no_tombstone(broker: Connection, database: Database) -> None:
    topic(broker)
    table = {"body": ["new", "\x00"], "properties": ['{"MQDB_KAFKA_VALUE": "null"}'] * 2}

    write(database, table, topic="orders")

    assert [row["value"] for row in read_sorted(database, broker, "orders")] == [b"new", None]


def test_an_empty_body_is_refused_unless_its_row_was_read(broker: Connection, database: Database) -> None:
    topic(broker)
    for body in ("", None):
        table = {"body": pa.array([body], pa.string()), "properties": ['{"mine": "1"}']}
        with pytest.raises(SinkRowInvalid, match="row 1 of task 0, without a key, column body: the body is empty"):
            batch_writer_for(database, table, topic="orders").write(batches_of(table))


def test_reserved_headers_are_kept_from_kafka_and_dropped_where_it_is_said(
    broker: Connection, database: Database
) -> None:
    topic(broker)
    headers = pa.array([[("TTL", b"5"), ("mine", b"1")]], HEADERS)
    for options in ({}, {"reservedProperties": "drop"}):
        write(database, {"value": ["x"], "headers": headers}, topic="orders", **options)

    kept, dropped = ([header["key"] for header in row["headers"]] for row in read_sorted(database, broker, "orders"))
    assert (kept, dropped) == (["TTL", "mine"], ["mine"])
