"""Spark's sink accepts and refuses the same rows as `mqdb.send` and the clients."""

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from sqlalchemy import Connection

from mqdb.broker.topics import topics as admin
from mqdb.common.topic import Perm, TopicConfig
from mqdb.errors import (
    BodyEmpty,
    BodyTooLarge,
    MessageIllegal,
    MqdbError,
    PropertyInvalid,
    PropertyReserved,
    QueueNotFound,
    ScheduleInvalid,
    SchemaMissing,
    TopicNotAllowed,
    TopicNotFound,
    TopicNotWritable,
)
from mqdb.pipeline.errors import ColumnInvalid, SinkRowInvalid
from tests.fixtures.broker import bodies, topic
from tests.fixtures.postgres import Database
from tests.fixtures.spark_sink import Table, batch_writer_for, batches_of, stored, stream_writer_for, write
from tests.fixtures.variants import case

# -- what is stored -----------------------------------------------------------------------------


def test_a_row_becomes_what_the_send_of_the_same_message_stores(broker: Connection, database: Database) -> None:
    topic(broker)
    row = {
        "body": ["the body"],
        "tags": ["TagA"],
        "keys": [" one  two "],
        "properties": ['{"origin": "JFK", "quoted": "a \\"b\\" \\u00e9"}'],
    }
    write(database, row, topic="orders")
    broker.exec_driver_sql(
        """SELECT mqdb.send('orders', 'the body'::text, 'TagA', ' one  two ',
                            '{"origin": "JFK", "quoted": "a \\"b\\" \\u00e9"}')"""
    )

    ours, sent = broker.exec_driver_sql(
        """SELECT queue_key, tags_code, sys_flag, flag, reconsume_times, tags, keys, properties - 'UNIQ_KEY', body,
                  properties ->> 'UNIQ_KEY' = mqdb.unique_id_text(msg_id), xid IS NOT NULL,
                  store_time - born_time BETWEEN interval '-1 s' AND interval '10 s'
           FROM mqdb.commit_log ORDER BY log_pos"""
    ).all()
    assert ours == sent


def test_a_row_without_anything_but_a_body_is_a_message(broker: Connection, database: Database) -> None:
    route = topic(broker)
    nothing = {name: pa.array([None], pa.string()) for name in ("keys", "tags", "properties", "sharding_key")}
    numbers = {name: pa.array([None], pa.int32()) for name in ("queue_id", "delay_level")}
    times = {name: pa.array([None], pa.timestamp("us", "UTC")) for name in ("born_timestamp", "deliver_at")}

    write(database, {"value": [b"\x00\xff"]} | nothing | numbers | times, topic="orders")

    [message] = stored(broker, route)
    assert (message.body, message.tag, message.keys) == (b"\x00\xff", None, ())
    assert message.properties == {"UNIQ_KEY": message.message_id}


def test_properties_come_as_a_map_too_and_keys_as_bytes(broker: Connection, database: Database) -> None:
    route = topic(broker)
    map_type = pa.map_(pa.string(), pa.string())
    table = {"value": ["a", "b"], "key": [b"k\xc3\xa9", None], "properties": pa.array([[("x", "1")], None], map_type)}

    write(database, table, topic="orders")

    first, second = stored(broker, route)
    assert (first.keys, first.properties["x"], second.keys) == (("ké",), "1", ())


def test_times_are_taken_as_timestamp_and_as_milliseconds(broker: Connection, database: Database) -> None:
    route = topic(broker)
    born = datetime(2013, 1, 1, 5, 15, 0, 123456, tzinfo=UTC)
    berlin = pa.array([born], pa.timestamp("us", "Europe/Berlin"))

    write(database, {"body": ["a"], "born_timestamp": berlin}, topic="orders")
    write(database, {"body": ["b"], "born_timestamp": [int(born.timestamp() * 1000)]}, topic="orders")

    assert [message.born_time for message in stored(broker, route)] == [born, born.replace(microsecond=123000)]


def test_the_option_topic_wins_over_the_column(broker: Connection, database: Database) -> None:
    orders, invoices = topic(broker), topic(broker, "invoices")
    table = {"body": ["a", "b"], "topic": ["invoices", "orders"]}

    write(database, table)
    write(database, table, topic="orders")

    assert (bodies(stored(broker, orders)), bodies(stored(broker, invoices))) == (["b", "a", "b"], ["a"])


def test_a_sharding_key_chooses_the_queue_that_mqdb_send_chooses(broker: Connection, database: Database) -> None:
    topic(broker, queues=7)
    keys = ["", "UA", "polygenelubricants", "key-😀", *(f"N{number}" for number in range(50))]
    write(database, {"body": [f"b{key}" for key in keys], "sharding_key": keys}, topic="orders")
    for key in keys:
        broker.exec_driver_sql("SELECT mqdb.send('orders', %s::text, sharding_key => %s)", (f"b{key}", key))

    wrong = broker.exec_driver_sql(
        "SELECT body FROM mqdb.commit_log GROUP BY body HAVING count(*) <> 2 OR count(DISTINCT queue_key) <> 1"
    ).all()
    assert wrong == []


def test_rows_without_a_key_take_turns_and_a_queue_id_is_obeyed(broker: Connection, database: Database) -> None:
    route = topic(broker, queues=3)
    write(database, {"body": [f"{number}" for number in range(30)]}, topic="orders")
    write(database, {"body": ["here"], "queue_id": pa.array([2], pa.int32()), "sharding_key": ["any"]}, topic="orders")

    queues = [bodies(stored(broker, route, queue_id)) for queue_id in range(3)]
    assert [len(queue) for queue in queues] == [10, 10, 11]
    assert queues[2][-1] == "here"


def test_rows_of_a_task_keep_their_order_and_tasks_follow_each_other(broker: Connection, database: Database) -> None:
    route = topic(broker, queues=4)
    tasks = [
        {"body": [f"{key}:{number}" for number in range(40) for key in "abc"], "sharding_key": ["a", "b", "c"] * 40},
        {
            "body": [f"{key}:{number}" for number in range(40, 60) for key in "abc"],
            "sharding_key": ["a", "b", "c"] * 20,
        },
    ]
    writer = batch_writer_for(database, tasks[0], topic="orders")
    late_first = [writer.write(batches_of(task)) for task in reversed(tasks)]

    writer.commit(list(reversed(late_first)))

    by_key: dict[str, list[int]] = {}
    for queue_id in range(4):
        for body in bodies(stored(broker, route, queue_id)):
            key, _, number = body.partition(":")
            by_key.setdefault(key, []).append(int(number))
    assert by_key == {key: list(range(60)) for key in "abc"}


def test_a_level_and_a_time_of_delivery_wait_where_a_send_would_wait(broker: Connection, database: Database) -> None:
    topic(broker)
    soon = datetime.now(UTC) + timedelta(hours=1)
    levels = pa.array([3, 99, 0, None, None, None], pa.int32())
    times = pa.array([None, None, None, soon, datetime(2000, 1, 1, tzinfo=UTC), None], pa.timestamp("us", "UTC"))
    write(database, {"body": list("abcdef"), "delay_level": levels, "deliver_at": times}, topic="orders")
    sends = ["delay_level => 3", "delay_level => 99", "delay_level => 0", f"deliver_at => '{soon.isoformat()}'"]
    for body, option in zip("abcdef", [*sends, "deliver_at => '2000-01-01 00:00:00Z'", "tag => NULL"], strict=True):
        broker.exec_driver_sql(f"SELECT mqdb.send('orders', '{body}'::text, {option})")

    rows = broker.exec_driver_sql(
        """SELECT convert_from(body, 'UTF8'), queue_key, properties - 'UNIQ_KEY',
                  CASE WHEN properties ? 'DELAY' THEN tags_code - floor(extract(epoch FROM store_time) * 1000)
                       ELSE tags_code END BETWEEN 0 AND 9999999999999
           FROM mqdb.commit_log ORDER BY log_pos"""
    ).all()
    assert rows[:6] == rows[6:]


# -- what is refused ----------------------------------------------------------------------------


#: Rows, the error of each, and what it says.
REFUSED: list[tuple[Table, type[MqdbError], str]] = [
    ({"body": [""]}, BodyEmpty, "empty"),
    ({"body": pa.array([None], pa.string())}, BodyEmpty, "empty"),
    ({"body": [b"x" * 4_194_305]}, BodyTooLarge, "4,194,304"),
    ({"body": ["a"], "properties": ['{"TAGS": "x"}']}, PropertyReserved, "'TAGS' is reserved"),
    ({"body": ["a"], "properties": ['{"x": 1}']}, PropertyInvalid, "the value is int, not text"),
    ({"body": ["a"], "properties": ["[1]"]}, PropertyInvalid, "they are a JSON list, not an object"),
    ({"body": ["a"], "properties": ["{"]}, PropertyInvalid, "they are not JSON"),
    ({"body": ["a"], "tags": ["\x01"]}, PropertyInvalid, "U\\+0001"),
    ({"body": ["a"], "tags": ["a\x00"]}, PropertyInvalid, "U\\+0000"),
    ({"body": ["a"], "keys": ["k\x00"]}, PropertyInvalid, "U\\+0000"),
    ({"body": ["a"], "properties": ['{"x": "a\\u0000"}']}, PropertyInvalid, "U\\+0000"),
    ({"body": ["a"], "properties": ['{"x": "\\ud800"}']}, PropertyInvalid, "U\\+D800"),
    (
        {"body": ["a"], "keys": [b"\xff\x01"]},
        ColumnInvalid,
        "column keys: contains b'.*', which is not UTF-8: invalid start byte",
    ),
    (
        {"body": ["a"], "born_timestamp": [1_700_000_000_000_000]},
        ColumnInvalid,
        "column born_timestamp: 1,700,.* beyond the years 1 to 9999; a bigint is in milliseconds",
    ),
    ({"body": ["a"], "deliver_at": [1_700_000_000_000_000]}, ScheduleInvalid, "is too far"),
    ({"body": ["a"], "queue_id": pa.array([2], pa.int32())}, QueueNotFound, "has queues 0 to 1, not 2"),
    ({"body": ["a"], "queue_id": pa.array([-1], pa.int32())}, QueueNotFound, "not -1"),
    (
        {"body": ["a"], "delay_level": pa.array([1], pa.int32()), "deliver_at": [1]},
        ScheduleInvalid,
        "delay_level already determines the delivery time",
    ),
]


def test_a_row_that_no_broker_would_store_fails_its_task(broker: Connection, database: Database) -> None:
    topic(broker, queues=2)
    for row, error, sentence in REFUSED:
        writer = batch_writer_for(database, row, topic="orders")
        with case(row), pytest.raises(SinkRowInvalid, match=sentence) as refused:
            writer.write(batches_of(row))
        assert isinstance(refused.value.__cause__, error)


def test_reserved_properties_of_rows_that_were_read_can_be_dropped(broker: Connection, database: Database) -> None:
    route = topic(broker)
    table = {"body": ["a"], "properties": ['{"UNIQ_KEY": "0", "TAGS": "Old", "mine": "1"}'], "tags": ["New"]}

    write(database, table, topic="orders", reservedProperties="drop")

    [message] = stored(broker, route)
    assert message.properties == {"mine": "1", "TAGS": "New", "UNIQ_KEY": message.message_id}


def test_a_missing_topic_is_refused_before_any_task_where_the_option_names_it(
    broker: Connection, database: Database
) -> None:
    admin.create_topic(broker, TopicConfig("closed", 1, 1, Perm.READ))
    for make in (batch_writer_for, stream_writer_for):
        with pytest.raises(TopicNotFound):
            make(database, {"body": ["a"]}, topic="nowhere")
        with pytest.raises(TopicNotWritable):
            make(database, {"body": ["a"]}, topic="closed")


@pytest.mark.parametrize(
    ("name", "error"),
    [("nowhere", TopicNotFound), ("SCHEDULE_TOPIC_XXXX", TopicNotAllowed), (None, ColumnInvalid)],
)
def test_a_column_that_names_a_wrong_topic_fails_its_task(
    broker: Connection, database: Database, name: str | None, error: type[MqdbError]
) -> None:
    table = {"body": ["a"], "topic": pa.array([name], pa.string())}
    writer = batch_writer_for(database, table)
    with pytest.raises(SinkRowInvalid, match="column topic") as refused:
        writer.write(batches_of(table))
    assert isinstance(refused.value.__cause__, error)


def test_a_topic_that_is_deleted_before_the_commit_is_named_and_nothing_is_appended(
    broker: Connection, database: Database
) -> None:
    route = topic(broker)
    topic(broker, "invoices")
    table = {"body": ["a", "b"], "topic": ["orders", "invoices"]}
    writer = batch_writer_for(database, table)
    staged = writer.write(batches_of(table))
    admin.delete_topic(broker, "invoices")

    with pytest.raises(TopicNotFound, match="invoices"):
        writer.commit([staged])

    assert stored(broker, route) == []


def test_a_time_of_delivery_beyond_the_broker_s_limit_fails_the_commit(broker: Connection, database: Database) -> None:
    topic(broker)
    broker.exec_driver_sql("UPDATE mqdb.broker SET timer_max_delay_ms = 1000")
    table = {"body": ["a"], "deliver_at": [int((datetime.now(UTC) + timedelta(hours=1)).timestamp() * 1000)]}
    writer = batch_writer_for(database, table, topic="orders")
    with pytest.raises(MessageIllegal, match="the limit of the broker is 1000 ms"):
        writer.commit([writer.write(batches_of(table))])


def test_a_database_without_a_schema_is_named(empty_database: Database) -> None:
    with pytest.raises(SchemaMissing):
        batch_writer_for(empty_database, {"body": ["a"]}, topic="orders")
