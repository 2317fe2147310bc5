"""Reads of format("mqdb") on a real database, without a JVM: readers are called as Spark calls them."""

import json
from collections.abc import Generator, Iterator
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from sqlalchemy import Connection, text

from mqdb.broker import acl
from mqdb.broker.acl import Rights
from mqdb.broker.topics import topics as admin
from mqdb.common.compression import Compression, compressed
from mqdb.common.message import Message
from mqdb.errors import BrokerUnavailable, MqdbError, StorageRefused, TopicNotFound
from mqdb.pipeline.errors import DataLoss, OffsetOutOfRange, OptionInvalid, ReplicaBehind
from mqdb.pipeline.read import engines
from mqdb.pipeline.source import MqdbDataSource
from mqdb.store.topics.topics import TopicRoute
from tests.fixtures import log as by_hand
from tests.fixtures.broker import append, dispatch_all, topic
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.roles import MakeRole
from tests.fixtures.spark_source import bodies, fill_segments, read, reader, retain_from, rows_of, send, source
from tests.fixtures.variants import usually


@pytest.fixture(autouse=True)
def _no_idle_connection() -> Iterator[None]:
    """Leave no idle connection, because databases are dropped after each test."""
    yield
    engines.close_idle()


ENGINES = ("adbc", "psycopg")
#: For what an engine makes of values and connections. All else is the same code for both, and tried with one of them.
both_engines = pytest.mark.parametrize("engine_name", ENGINES)


@pytest.fixture(params=usually("adbc", of=ENGINES))
def engine_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def orders(broker: Connection) -> TopicRoute:
    return topic(broker, queues=2)


def test_a_role_reads_the_topics_that_it_has_a_right_to(
    broker: Connection, database: Database, orders: TopicRoute, engine_name: str, role: MakeRole
) -> None:
    guest = Database(role("spark"))
    send(broker, orders, *(Message("orders", str(number)) for number in range(5)))
    send(broker, topic(broker, "secret"), Message("secret", "x"))
    acl.grant(broker, "spark", Rights(read=["orders"]))

    assert sorted(row["body"] for row in read(guest, engine=engine_name)) == [b"0", b"1", b"2", b"3", b"4"]
    with pytest.raises(TopicNotFound):
        read(guest, engine=engine_name, subscribe="secret")


# -- batches --------------------------------------------------------------------------------------


@both_engines
def test_a_message_comes_with_all_it_has(
    broker: Connection, database: Database, orders: TopicRoute, engine_name: str
) -> None:
    send(broker, orders, Message("orders", b"\x00body", "TagA", ("k1", "k2"), {"region": "süd"}), queue_id=1)

    [row] = read(database, engine=engine_name)

    stored = broker.execute(text("SELECT * FROM mqdb.message")).one()
    assert row.pop("properties") == json.dumps(stored.properties, ensure_ascii=False, separators=(", ", ": "))
    assert row == {
        "topic": "orders",
        "queue_id": 1,
        "queue_offset": 0,
        "msg_id": stored.msg_id,
        "keys": "k1 k2",
        "tags": "TagA",
        "sys_flag": 0,
        "body": b"\x00body",
        "born_timestamp": stored.born_time,
        "store_timestamp": stored.store_time,
    }


@both_engines
@pytest.mark.parametrize("row_format", ["mqdb", "kafka"])
def test_batches_have_the_types_of_spark_to_the_letter(
    broker: Connection, database: Database, orders: TopicRoute, engine_name: str, row_format: str
) -> None:
    send(broker, orders, Message("orders", "a", None, (), {}))
    whole = source(database, engine=engine_name, rowFormat=row_format)
    one = whole.reader(whole.schema())

    [batch] = [batch for partition in one.partitions() for batch in one.read(partition)]

    assert isinstance(batch, pa.RecordBatch)
    assert to_arrow_schema(whole.schema(), timezone="UTC").equals(batch.schema)


def test_kafka_rows_are_made_of_the_same_messages(broker: Connection, database: Database, orders: TopicRoute) -> None:
    send(broker, orders, Message("orders", "hello", "TagA", ("k1",), {"region": "north"}))

    assert "headers" not in read(database, rowFormat="kafka")[0]
    [row] = read(database, rowFormat="kafka", includeHeaders="true")

    assert [row[name] for name in ("key", "value", "topic", "partition", "offset", "timestampType")] == [
        b"k1",
        b"hello",
        "orders",
        0,
        0,
        1,
    ]
    assert row["headers"] == [{"key": "region", "value": b"north"}]
    [row] = read(database, rowFormat="kafka", includeReservedHeaders="true")
    assert [header["key"] for header in row["headers"]] == ["region", "KEYS", "TAGS", "UNIQ_KEY"]


def test_a_read_gives_only_the_columns_that_are_asked_for(
    broker: Connection, database: Database, orders: TopicRoute
) -> None:
    send(broker, orders, "a")

    assert read(database, columns="body, queue_id") == [{"body": b"a", "queue_id": 0}]


@pytest.mark.parametrize("compression", usually(Compression.ZSTD, of=Compression))
def test_compressed_bodies_are_given_plain(
    broker: Connection, database: Database, orders: TopicRoute, engine_name: str, compression: Compression
) -> None:
    stored, flag = compressed(b"long " * 1000, compression, 1)
    send(broker, orders, "short", "to be replaced")
    broker.execute(
        text("UPDATE mqdb.commit_log SET body = :body, sys_flag = :flag WHERE body = 'to be replaced'"),
        {"body": stored, "flag": flag},
    )

    rows = read(database, engine=engine_name, columns="body")

    assert rows == [{"body": b"short"}, {"body": b"long " * 1000}]


def test_a_batch_is_cut_where_its_plain_bodies_are_too_large(
    broker: Connection, database: Database, orders: TopicRoute, engine_name: str
) -> None:
    plain = [bytes([number]) * size for number, size in enumerate([40_000, 30_000, 90_000, 1, 20_000])]
    send(broker, orders, *(["to be replaced"] * len(plain)))
    for offset, body in enumerate(plain):
        stored, flag = compressed(body, Compression.ZLIB, 0)
        values = {"body": stored, "flag": flag, "offset": offset}
        position = "(SELECT log_pos FROM mqdb.consume_queue WHERE queue_offset = :offset)"
        broker.execute(
            text(f"UPDATE mqdb.commit_log SET body = :body, sys_flag = :flag WHERE log_pos = {position}"), values
        )
    one = reader(database, engine=engine_name, columns="body,queue_offset", batchSizeBytes="64k")

    found = [batch for partition in one.partitions() for batch in one.read(partition)]

    batches = [batch for batch in found if isinstance(batch, pa.RecordBatch)]
    assert [batch.num_rows for batch in batches] == [1, 1, 1, 2]
    assert [row for batch in batches for row in batch.to_pylist()] == [
        {"body": body, "queue_offset": offset} for offset, body in enumerate(plain)
    ]


def test_a_read_of_nothing_gives_nothing(broker: Connection, database: Database, orders: TopicRoute) -> None:
    one = reader(database)

    assert one.partitions() == []
    assert rows_of(one, [InputPartition(None)]) == []  # what Spark makes of no partition at all


def test_what_is_not_dispatched_is_not_there_yet(broker: Connection, database: Database, orders: TopicRoute) -> None:
    send(broker, orders, "a")
    append(broker, orders, "b")

    assert bodies(read(database)) == ["a"]


def test_offsets_bound_each_queue(broker: Connection, database: Database, orders: TopicRoute) -> None:
    send(broker, orders, *"abcdef")
    send(broker, orders, *"uvw", queue_id=1)

    start, end = '{"orders": {"0": 2, "1": -1}}', '{"orders": {"0": 4, "1": -1}}'

    assert bodies(read(database, startingOffsets=start, endingOffsets=end)) == ["c", "d"]
    with pytest.raises(OffsetOutOfRange, match="from 0 to before 6"):
        read(database, startingOffsets='{"orders": {"0": 7, "1": 0}}')


def test_times_bound_each_queue(broker: Connection, database: Database, orders: TopicRoute) -> None:
    send(broker, orders, *"abcd")
    send(broker, orders, "z", queue_id=1)
    broker.execute(
        text("UPDATE mqdb.commit_log SET store_time = '2026-01-01 00:00Z'::timestamptz + log_pos * '1 s'::interval")
    )

    options = {"startingTimestamp": "2026-01-01T00:00:02Z", "endingTimestamp": "2026-01-01T00:00:05Z"}
    late = {"startingTimestamp": str(round(datetime(2026, 1, 2, tzinfo=UTC).timestamp() * 1000))}

    assert bodies(read(database, **options)) == ["b", "c", "d"]
    with pytest.raises(OptionInvalid, match="no message stored at or after"):
        read(database, **late)
    assert read(database, **late, startingOffsetsByTimestampStrategy="latest") == []


def test_tags_are_told_by_their_text_where_codes_are_the_same(
    broker: Connection, database: Database, orders: TopicRoute
) -> None:
    append(broker, orders, "a", tag="Aa")
    append(broker, orders, "b", tag="BB")
    append(broker, orders, "c", tag="TagC")
    append(broker, orders, "d")
    dispatch_all(broker)

    assert bodies(read(database, subExpression="Aa || TagC")) == ["a", "c"]


def test_a_selector_and_keys_choose_messages(broker: Connection, database: Database, orders: TopicRoute) -> None:
    for number, quote in enumerate(["north", "it's 100%", "north"]):
        append(
            broker,
            orders,
            Message("orders", str(number), None, (f"k{number}", "all"), {"region": quote, "a": str(number)}),
        )
    dispatch_all(broker)

    assert bodies(read(database, selector="region = 'it''s 100%' OR a > 1")) == ["1", "2"]
    assert bodies(read(database, keys="k0 k2")) == ["0", "2"]
    assert bodies(read(database, keys="all", selector="region = 'north'", subExpression="*")) == ["0", "2"]
    assert read(database, keys="k'; DROP SCHEMA mqdb CASCADE; --") == []


def test_a_topic_that_is_not_there_is_named(broker: Connection, database: Database, orders: TopicRoute) -> None:
    with pytest.raises(TopicNotFound, match="flights"):
        reader(database, subscribe="orders,flights").partitions()


def test_a_pattern_takes_all_topics_that_match(broker: Connection, database: Database, orders: TopicRoute) -> None:
    send(broker, orders, "a")
    send(broker, topic(broker, "orders-2"), "b")
    send(broker, topic(broker, "flights"), "c")
    whole = MqdbDataSource({"url": database.dsn, "subscribePattern": "orders.*"})
    one = whole.reader(whole.schema())

    assert {row["topic"] for row in rows_of(one, list(one.partitions()))} == {"orders", "orders-2"}


def test_a_database_that_cannot_be_reached_is_an_error_without_its_password(engine_name: str) -> None:
    dead = Database("postgresql://mqdb:geheim@127.0.0.1:1/mqdb")

    with pytest.raises(BrokerUnavailable) as caught:
        reader(dead, engine=engine_name, brokerWaitSeconds="0").partitions()

    assert "geheim" not in str(caught.value)


# -- segments -------------------------------------------------------------------------------------


@pytest.fixture
def segmented(log: by_hand.Connection, database: Database) -> by_hand.Connection:
    fill_segments(log, database)
    return log


SPLITS: dict[str, dict[str, str]] = {
    "auto": {},
    "segment": {"splitBy": "segment"},
    "cut-segments": {"splitBy": "segment", "maxRecordsPerPartition": "3"},
    "queue": {"splitBy": "queue"},
    "small-tasks": {"splitBy": "queue", "recordsPerTask": "4"},
    "many": {"minPartitions": "12"},
}


@pytest.mark.parametrize("split", usually("segment", "queue", of=SPLITS))
def test_every_message_is_read_once_however_the_read_is_cut(
    segmented: by_hand.Connection, database: Database, split: str, engine_name: str
) -> None:
    columns = {"columns": "queue_id,queue_offset,body", "engine": engine_name}

    rows = read(database, **SPLITS[split], **columns)

    stored = segmented.execute("SELECT queue_id, queue_offset, body FROM mqdb.message ORDER BY 1, 2").fetchall()
    assert sorted((row["queue_id"], row["queue_offset"], row["body"]) for row in rows) == stored
    assert len(stored) == 45


def test_minimum_partitions_are_made(segmented: by_hand.Connection, database: Database) -> None:
    assert len(list(reader(database, minPartitions="12").partitions())) >= 12


@pytest.mark.parametrize("split", ["segment", "queue"])
def test_a_segment_that_goes_before_it_is_read_is_a_loss_or_skipped(
    segmented: by_hand.Connection, database: Database, split: str, engine_name: str
) -> None:
    options = {"splitBy": split, "engine": engine_name, "columns": "queue_offset"}
    strict, lenient = reader(database, **options), reader(database, **options, failOnDataLoss="false")
    planned, planned_too = list(strict.partitions()), list(lenient.partitions())
    gone = by_hand.scalar(segmented, "SELECT count(*) FROM mqdb.consume_queue WHERE segment = 1")

    by_hand.drop_partitions(segmented, [1], ["queue_run"])

    with pytest.raises(DataLoss, match="retention has dropped the segment; set failOnDataLoss=false"):
        rows_of(strict, planned)
    assert len(rows_of(lenient, planned_too)) == 45 - gone


def test_retention_that_passes_while_a_task_reads_is_a_loss(
    broker: Connection, database: Database, orders: TopicRoute, engine_name: str
) -> None:
    send(broker, orders, *"abc")
    one = reader(database, engine=engine_name)
    [partition] = one.partitions()
    batches = one.read(partition)
    next(batches)

    retain_from(broker, orders, 2)

    with pytest.raises(DataLoss, match="dropped messages below 2 during the read"):
        list(batches)


def test_a_topic_that_is_deleted_before_it_is_read_is_a_loss(
    broker: Connection, database: Database, orders: TopicRoute
) -> None:
    send(broker, orders, *"abc")
    one = reader(database)
    planned = list(one.partitions())

    admin.delete_topic(broker, "orders")

    with pytest.raises(DataLoss, match="topic was deleted"):
        rows_of(one, planned)


def test_a_record_that_is_missing_is_no_silent_gap(
    broker: Connection, database: Database, orders: TopicRoute, engine_name: str
) -> None:
    send(broker, orders, *"abc")
    broker.execute(text("DELETE FROM mqdb.commit_log WHERE body = 'b'"))

    with pytest.raises(DataLoss, match="3 messages were to be read, but 2 were found"):
        read(database, engine=engine_name)


@both_engines
def test_a_read_that_spark_gives_up_leaves_no_open_transaction(
    broker: Connection, database: Database, orders: TopicRoute, engine_name: str
) -> None:
    send(broker, orders, *"abc")
    one = reader(database, engine=engine_name)
    [partition] = one.partitions()
    batches = one.read(partition)
    next(batches)

    assert isinstance(batches, Generator)
    batches.close()

    open_ones = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'mqdb-spark' AND state <> 'idle'"
    wait_until(lambda: broker.scalar(text(open_ones)) == 0)  # the server ends a session a moment after its client


@both_engines
def test_a_worker_that_waits_for_its_next_task_is_in_no_transaction(
    broker: Connection, database: Database, orders: TopicRoute, engine_name: str
) -> None:
    send(broker, orders, *"abc")

    read(database, engine=engine_name)

    states = "SELECT state FROM pg_stat_activity WHERE application_name = 'mqdb-spark'"
    wait_until(lambda: list(broker.scalars(text(states))) == ["idle"])  # and the session that has planned is gone


@both_engines
def test_tasks_of_a_worker_share_a_connection_and_survive_its_loss(
    broker: Connection, database: Database, orders: TopicRoute, engine_name: str
) -> None:
    send(broker, orders, *"abc")
    mine = "FROM pg_stat_activity WHERE application_name = 'mqdb-spark'"

    def pids() -> list[int]:
        return list(broker.scalars(text(f"SELECT pid {mine}")))

    read(database, engine=engine_name)
    wait_until(lambda: len(pids()) == 1)  # the session that has planned is gone
    first = pids()
    read(database, engine=engine_name)
    wait_until(lambda: pids() == first)

    broker.execute(text(f"SELECT pg_terminate_backend(pid, 5000) {mine}"))

    assert bodies(read(database, engine=engine_name)) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("engine_name", "how", "error"),
    [
        ("adbc", "pg_terminate_backend(pid, 5000)", BrokerUnavailable),
        ("psycopg", "pg_terminate_backend(pid, 5000)", BrokerUnavailable),
        ("adbc", "pg_cancel_backend(pid)", StorageRefused),
    ],
    ids=["adbc-lost", "psycopg-lost", "adbc-cancelled"],
)
def test_what_ends_a_read_in_its_middle_is_an_error_of_mqdb_and_the_next_read_works(
    broker: Connection, database: Database, orders: TopicRoute, engine_name: str, how: str, error: type[MqdbError]
) -> None:
    """An interruption in the middle of a read is reported as an mqdb error, and the next read works.

    The queue has more messages than the connection's buffers hold.
    """
    for _ in range(10):
        append(broker, orders, *["x" * 100_000] * 30)
    dispatch_all(broker)
    one = reader(database, engine=engine_name, batchSizeBytes="64k")
    [partition] = one.partitions()
    batches = one.read(partition)
    next(batches)

    broker.execute(text(f"SELECT {how} FROM pg_stat_activity WHERE application_name = 'mqdb-spark'"))

    with pytest.raises(error) as caught:
        list(batches)
    assert str(caught.value).count("\n") == 0
    assert len(read(database, engine=engine_name, columns="queue_offset")) == 300


def test_a_replica_that_is_behind_is_waited_for_and_then_an_error(
    broker: Connection, database: Database, second_database: Database, orders: TopicRoute, engine_name: str
) -> None:
    """A lagging replica is waited for, and then reported as an error.

    The second database lacks the topic, like a replica that has not replayed it.
    """
    send(broker, orders, *"abc")
    options = {"readUrl": second_database.dsn, "replicaWaitSeconds": "0.2", "engine": engine_name}

    with pytest.raises(ReplicaBehind, match=r"up to offset 3, but ends at 0 after 0\.2 s"):
        read(database, **options)
    assert bodies(read(database, readUrl=database.dsn, engine=engine_name)) == ["a", "b", "c"]
