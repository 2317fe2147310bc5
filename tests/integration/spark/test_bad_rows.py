"""Bad rows in a Spark write.

One bad row ends the query with a sentence that names it, unless the option says otherwise.
"""

import json
import logging
import pickle
from collections.abc import Iterator

import pyarrow as pa
import pytest
from sqlalchemy import Connection

from mqdb.broker.topics import topics as admin
from mqdb.errors import TopicNotAllowed, TopicNotFound
from mqdb.pipeline.errors import SinkRowInvalid
from mqdb.pipeline.read import engines
from tests.fixtures.broker import bodies, dispatch_all, topic
from tests.fixtures.postgres import Database
from tests.fixtures.spark_sink import Table, batch_writer_for, batches_of, rows_in, stored, write
from tests.fixtures.spark_source import read

MIB = 2**20


@pytest.fixture(autouse=True)
def _no_idle_connection() -> Iterator[None]:
    """Leave no idle connection, because databases are dropped after each test."""
    yield
    engines.close_idle()


#: Bad rows of all kinds between good ones, by the columns at fault.
ROWS: list[dict[str, object]] = [
    {"key": b"0"},
    {"body": "", "at": "body"},
    {"body": None, "at": "body"},
    {"key": b"3"},
    {"body": "x" * (4 * MIB + 1), "at": "body"},
    {"properties": "[1]", "at": "properties"},
    {"properties": '{"x": 1}', "at": "properties"},
    {"properties": '{"": "1"}', "at": "properties"},
    {"properties": "{", "at": "properties"},
    {"topic": "nowhere", "at": "topic"},
    {"topic": "nowhere", "at": "topic"},
    {"topic": None, "at": "topic"},
    {"topic": "no blanks", "at": "topic"},
    {"tags": "a\x00", "at": "tags"},
    {"properties": '{"TAGS": "x"}', "at": "properties"},
    {"queue_id": 9, "at": "queue_id"},
    {"born_timestamp": 2**60, "at": "born_timestamp"},
    {"key": b"\xff\x00"},
    {"key": b"k" * 40_000, "at": "properties or key or tags"},
]


def table_of(rows: list[dict[str, object]]) -> Table:
    usual = {"body": "good", "topic": "orders"}
    types = {
        "body": pa.string(),
        "topic": pa.string(),
        "key": pa.binary(),
        "properties": pa.string(),
        "tags": pa.string(),
        "queue_id": pa.int32(),
        "born_timestamp": pa.int64(),
    }
    return {name: pa.array([row.get(name, usual.get(name)) for row in rows], type_) for name, type_ in types.items()}


def test_the_error_names_task_row_key_and_column(broker: Connection, database: Database) -> None:
    topic(broker)
    for row in (each for each in ROWS if "at" in each):
        table = table_of([{}, {}, {}, {}, {"key": b"k-5"} | row, {}, row])
        writer = batch_writer_for(database, table)
        with pytest.raises(SinkRowInvalid) as refused:
            writer.write(batches_of(table))
        key = "b'k{190}'|'k.*k'" if len(str(row.get("key"))) > 9 else "'k-5'"
        assert refused.match(f"^row 5 of task 0, key {key}, column {row['at']}: ")
        assert str(pickle.loads(pickle.dumps(refused.value))) == str(refused.value)
    assert rows_in(broker, "sink_write", "sink_stage") == [0, 0]


def test_bad_rows_are_left_out_and_counted(
    broker: Connection, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    route = topic(broker)
    with caplog.at_level(logging.WARNING):
        write(database, table_of(ROWS), onBadRow="skip")

    bad = sum("at" in row for row in ROWS)
    assert bodies(stored(broker, route)) == ["good"] * (len(ROWS) - bad)
    assert f"batch 0 has {bad} bad rows, which were left out" in caplog.messages
    assert "found a bad row: row 2 of task 0, without a key, column body: the body is empty; send at least 1 byte" in (
        caplog.messages
    )


def test_bad_rows_go_to_their_topic_with_the_reason(broker: Connection, database: Database) -> None:
    route = topic(broker)
    topic(broker, "bad-rows")
    write(database, table_of(ROWS), onBadRow="topic:bad-rows")

    wanted = [(str(number), row) for number, row in enumerate(ROWS, start=1) if "at" in row]
    assert len(stored(broker, route)) == len(ROWS) - len(wanted)
    dispatch_all(broker)
    found = sorted(read(database, subscribe="bad-rows"), key=lambda row: int(row["queue_offset"]))
    told = [json.loads(row["properties"]) for row in found]
    assert [(each["MQDB_BAD_ROW_NUMBER"], each["MQDB_BAD_ROW_COLUMN"]) for each in told] == [
        (number, row["at"]) for number, row in wanted
    ]
    assert [row["body"] for row in found[:2]] == [b"", None]
    assert (len(found[2]["body"]), told[2]["MQDB_BAD_ROW_LEFT_OUT"]) == (4 * MIB, '["body"]')
    assert (found[3]["body"], json.loads(told[3]["MQDB_BAD_ROW_COLUMNS"])["properties"]) == (b"good", "[1]")
    assert "not an object" in told[3]["MQDB_BAD_ROW_REASON"]
    assert (found[-1]["keys"], told[-1]["MQDB_BAD_ROW_LEFT_OUT"]) == (None, '["key"]')


def test_many_bad_rows_among_good_ones_are_found_and_the_others_keep_their_order(
    broker: Connection, database: Database
) -> None:
    route = topic(broker)
    table = {"body": ["" if number % 3 == 0 else str(number) for number in range(2_000)]}
    writer = batch_writer_for(database, table, topic="orders", onBadRow="skip")

    writer.commit([writer.write(batches_of(table, rows=500))])

    assert bodies(stored(broker, route)) == [str(number) for number in range(2_000) if number % 3]


def test_a_topic_that_no_row_names_is_not_the_fault_of_rows(broker: Connection, database: Database) -> None:
    topic(broker)
    table = {"body": ["a"]}
    writer = batch_writer_for(database, table, topic="orders", onBadRow="skip")
    admin.delete_topic(broker, "orders")

    with pytest.raises(TopicNotFound):
        writer.write(batches_of(table))


def test_a_topic_for_bad_rows_that_cannot_be_written_is_refused_before_any_task(
    broker: Connection, database: Database
) -> None:
    topic(broker)
    with pytest.raises(TopicNotFound, match="nowhere"):
        batch_writer_for(database, {"body": ["a"]}, topic="orders", onBadRow="topic:nowhere")
    with pytest.raises(TopicNotAllowed):
        batch_writer_for(database, {"body": ["a"]}, topic="orders", onBadRow="topic:SCHEDULE_TOPIC_XXXX")


def test_text_that_is_not_utf8_is_a_bad_row(broker: Connection, database: Database) -> None:
    route, bad_route = topic(broker), topic(broker, "bad-rows")
    broken = pa.array([b"ok", b"\xff"], pa.binary()).view(pa.string())

    write(database, {"body": broken, "tags": ["a", "b"]}, topic="orders", onBadRow="topic:bad-rows")

    [message] = stored(broker, bad_route)
    assert (bodies(stored(broker, route)), message.body) == (["ok"], b"\xff")
    assert message.properties["MQDB_BAD_ROW_REASON"].startswith("holds text that is not UTF-8")
