"""Reads that turn JSON bodies into columns, on a real database, without a JVM."""

import json
from collections.abc import Iterator

import pytest
from sqlalchemy import Connection

from mqdb.common.kafka_record import KafkaProperty, MissingValue
from mqdb.common.message import Message
from mqdb.pipeline.errors import BodyNotDecoded
from mqdb.pipeline.read import engines
from tests.fixtures.broker import topic
from tests.fixtures.postgres import Database
from tests.fixtures.spark_source import Stream, read, send
from tests.fixtures.variants import usually


@pytest.fixture(autouse=True)
def _no_idle_connection() -> Iterator[None]:
    """Leave no idle connection, because databases are dropped after each test."""
    yield
    engines.close_idle()


@pytest.mark.parametrize("engine_name", usually("adbc", of=["adbc", "psycopg"]))
def test_columns_follow_those_that_are_chosen_and_need_no_column_of_the_message(
    broker: Connection, database: Database, engine_name: str
) -> None:
    tombstone = Message("orders", b"\0", properties={KafkaProperty.VALUE.value: MissingValue.NULL.value})
    large = json.dumps({"id": 2, "topic": "x" * 5000}).encode()
    send(broker, topic(broker), '{"id": 1, "topic": "fruit"}', tombstone, Message("orders", large))

    schema = "topic string, id bigint"
    options = {"columns": "queue_offset", "schema": schema, "engine": engine_name}
    kafka = read(database, **(options | {"rowFormat": "kafka", "columns": "offset"}))

    assert read(database, **options) == [
        {"queue_offset": 0, "topic": "fruit", "id": 1},
        {"queue_offset": 1, "topic": None, "id": None},
        {"queue_offset": 2, "topic": "x" * 5000, "id": 2},
    ]
    assert [(row["offset"], row["id"]) for row in kafka] == [(0, 1), (1, None), (2, 2)]


def test_rows_that_are_left_out_are_no_loss(broker: Connection, database: Database) -> None:
    """Rows that are left out do not count as lost, although the task counts the rows that it reads."""
    send(broker, topic(broker), '{"id": 1}', "{", "[]")
    options = {"schema": "id bigint", "columns": "queue_offset", "splitBy": "segment"}

    assert read(database, **options, onBadRow="skip") == [{"queue_offset": 0, "id": 1}]
    with pytest.raises(BodyNotDecoded, match=r"queue 0, offset 1: the body is not JSON: .* \(option onBadRow\)"):
        read(database, **options)


def test_a_stream_of_bad_rows_alone_goes_on(broker: Connection, database: Database) -> None:
    orders = topic(broker)
    send(broker, orders, "{")
    stream = Stream(database, schema="id bigint", onBadRow="skip", startingOffsets="earliest")

    assert stream.trigger() == []
    send(broker, orders, '{"id": 7}')
    assert [row["id"] for row in stream.trigger()] == [7]
    stream.reader.stop()
