"""Archive and replay as Spark jobs handle every message once, in the order of its queue."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from sqlalchemy import Connection, Engine, text

from mqdb.broker import archive
from mqdb.broker.topics import topics as admin
from mqdb.common.compression import Compression, compressed
from mqdb.common.message import Message
from mqdb.errors import TopicNotFound
from mqdb.pipeline.errors import ArchiveBusy, ArchiveMismatch, JobFailed
from mqdb.pipeline.jobs import archive_files, archiving
from mqdb.pipeline.jobs.job import failures_told
from mqdb.pipeline.jobs.replaying import Origin, ReplayResult, count_replay, replay
from mqdb.store.segments import segments
from mqdb.store.segments.archived_segments import begin_run, find_archived, unfinished_runs
from tests.fixtures.archive import seal_full
from tests.fixtures.broker import append, dispatch_all, topic
from tests.fixtures.command_line import Place
from tests.fixtures.log import small_segments
from tests.fixtures.postgres import Database

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SIZE = 10


@pytest.fixture(autouse=True)
def log(broker: Connection, database: Database) -> None:
    """Orders in two queues and payments in one, in two sealed segments; the last order is in an open segment."""
    small_segments(database.connect(), SIZE, ahead=6)
    orders, payments = topic(broker, "orders", queues=2), topic(broker, "0012")
    append(broker, orders, *(Message("orders", f"a{n}", "TagA", f"K{n} L", {"n": str(n)}) for n in range(7)))
    append(broker, orders, *"bcde", queue_id=1)
    append(broker, payments, "p")
    append(broker, orders, *(f"a{n}" for n in range(7, 16)))
    assert seal_full(broker) == [1, 2]


def run_archive(spark: "SparkSession", database: Database, path: Path) -> list[int]:
    """Archive all sealed segments; returns them."""
    return [segment.segment for segment in archiving.archive(spark, database.dsn, path).archived]


def rows_of(path: Path) -> list[tuple[str, int, int, str]]:
    """The rows in the files of a folder, read without Spark."""
    found = []
    for file in path.rglob("*.parquet"):
        (name,) = (part.removeprefix("topic=") for part in file.parts if part.startswith("topic="))
        rows = pq.ParquetFile(file).read(["queue_id", "queue_offset", "body"]).to_pylist()
        found += [(name, row["queue_id"], row["queue_offset"], row["body"].decode()) for row in rows]
    return sorted(found)


def replayed(connection: Connection, name: str) -> dict[int, list[tuple[str, str]]]:
    """Body and origin of a topic's messages, in order, by queue."""
    dispatch_all(connection)
    statement = """SELECT queue_id, text, properties->>'REPLAY_OF' FROM mqdb.message
                   WHERE topic = :topic ORDER BY queue_id, queue_offset"""
    queues: dict[int, list[tuple[str, str]]] = {}
    for queue_id, body, origin in connection.execute(text(statement), {"topic": name}):
        queues.setdefault(queue_id, []).append((body, origin))
    return queues


# -- archive --------------------------------------------------------------------------------------


def test_segments_are_archived_once_and_recorded(
    spark: "SparkSession", database: Database, broker: Connection, tmp_path: Path
) -> None:
    seen: list[tuple[int, int, str]] = []

    result = archiving.archive(
        spark, database.dsn, tmp_path, on_progress=lambda done, total, note: seen.append((done, total, note))
    )

    assert [(each.segment, each.messages) for each in result.archived] == [(1, SIZE), (2, SIZE)]
    assert (result.dropped, result.removed) == ((), ())
    assert seen == [(0, 20, "segment 1"), (10, 20, "segment 2"), (20, 20, "")]
    assert find_archived(broker, "orders") == list(result.archived)
    first = result.archived[0]
    assert first.path is not None
    assert first.path.startswith(f"file:{tmp_path}/broker=broker-a/segment=1/run=")
    assert first.bytes == sum(file.stat().st_size for file in Path(first.path[5:]).rglob("*.parquet")) > 0
    expected = [("orders", 0, n, f"a{n}") for n in range(7)] + [("orders", 1, n, body) for n, body in enumerate("bcd")]
    assert rows_of(Path(first.path[5:])) == expected
    assert run_archive(spark, database, tmp_path) == []


@pytest.mark.long
def test_files_are_by_topic_and_hour_and_hold_bodies_plain(
    spark: "SparkSession", database: Database, broker: Connection, tmp_path: Path
) -> None:
    body, flag = compressed(b"x" * 9_000, Compression.ZSTD, 0)
    broker.execute(
        text("UPDATE mqdb.commit_log SET body = :body, sys_flag = :flag WHERE log_pos = 1"),
        {"body": body, "flag": flag},
    )

    run_archive(spark, database, tmp_path)

    names = {
        part for file in tmp_path.rglob("*.parquet") for part in file.parts if part.startswith(("topic=", "hour="))
    }
    hour = str(
        broker.scalar(text("SELECT to_char(min(store_time) AT TIME ZONE 'UTC', 'YYYY-MM-DD-HH24') FROM mqdb.message"))
    )
    assert {"topic=orders", "topic=0012", f"hour={hour}"} <= names
    paths = [each.path for each in find_archived(broker, "orders") if each.path is not None]
    messages = archive_files.read(spark, *paths)
    row = messages.where("topic = 'orders' AND queue_id = 0 AND queue_offset = 0").first()
    assert row is not None
    assert (bytes(row.body), row.sys_flag, row.tags, row["keys"]) == (b"x" * 9_000, 0, "TagA", "K0 L")
    assert json.loads(row.properties)["n"] == "0"
    assert messages.where("topic = '0012'").count() == 1


def test_what_a_run_has_left_unfinished_is_removed(
    spark: "SparkSession", database: Database, broker: Connection, tmp_path: Path
) -> None:
    begun, foreign = tmp_path / "begun", tmp_path / "broker=broker-a" / "segment=1" / "run=of-somebody-else"
    for folder in (begun, foreign):
        folder.mkdir(parents=True)
        (folder / "part.parquet").write_bytes(b"half")
    begin_run(broker, 1, f"file:{begun}")
    begin_run(broker, 2, f"file:{tmp_path}/never-written")

    result = archiving.archive(spark, database.dsn, tmp_path, limit=1)

    assert result.removed == (f"file:{begun}", f"file:{tmp_path}/never-written")
    assert not begun.exists()
    assert foreign.exists()
    assert unfinished_runs(broker) == []
    assert [each.segment for each in result.archived] == [1]


@pytest.mark.long
def test_files_that_do_not_agree_do_not_count(
    spark: "SparkSession", database: Database, broker: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = archive_files.write
    monkeypatch.setattr(archive_files, "write", lambda messages, path: write(messages.where("queue_offset != 3"), path))

    with pytest.raises(ArchiveMismatch):
        run_archive(spark, database, tmp_path)

    monkeypatch.undo()
    assert find_archived(broker, "orders") == []
    assert len(unfinished_runs(broker)) == 1
    assert run_archive(spark, database, tmp_path) == [1, 2]
    assert unfinished_runs(broker) == []


@pytest.mark.long
def test_a_segment_that_is_dropped_meanwhile_is_left_out(
    spark: "SparkSession", database: Database, broker: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = begin_run

    def begin_late(connection: Connection, segment: int, path: str) -> None:
        begin(connection, segment, path)
        if segment == 1:
            segments.drain(broker, 1)

    monkeypatch.setattr(archiving, "begin_run", begin_late)

    result = archiving.archive(spark, database.dsn, tmp_path)

    assert (result.dropped, [each.segment for each in result.archived]) == ((1,), [2])


def test_two_processes_do_not_archive_one_broker(
    spark: "SparkSession", database: Database, engine: Engine, tmp_path: Path
) -> None:
    with engine.connect() as other, archive.sole_archiver(other) as is_sole:
        assert is_sole

        with pytest.raises(ArchiveBusy):
            run_archive(spark, database, tmp_path)


# -- replay ---------------------------------------------------------------------------------------

ALL_A = [(f"a{n}", f"orders:0:{n}") for n in range(16)]
ALL_B = [(body, f"orders:1:{n}") for n, body in enumerate("bcde")]


def test_a_topic_is_replayed_once_and_in_order(spark: "SparkSession", database: Database, broker: Connection) -> None:
    topic(broker, "again", queues=2)

    results = [replay(spark, database.dsn, Origin("orders"), "again", write_id="r1") for _ in range(2)]

    assert results == [ReplayResult(20), ReplayResult(20, is_repeated=True)]
    assert replayed(broker, "again") == {0: ALL_A, 1: ALL_B}
    first = broker.execute(
        text("SELECT tags, keys, properties FROM mqdb.message WHERE topic = 'again' AND text = 'a0'")
    )
    tags, keys, properties = first.one()
    assert (tags, keys, properties["n"], properties["TAGS"]) == ("TagA", "K0 L", "0", "TagA")


@pytest.mark.long
def test_the_archive_is_replayed_also_when_the_messages_are_gone(
    spark: "SparkSession", database: Database, broker: Connection, tmp_path: Path
) -> None:
    partly = archiving.archive(spark, database.dsn, tmp_path, topics=["orders"], limit=1).archived
    assert [(each.segment, each.topics) for each in partly] == [(1, ("orders",))]
    assert run_archive(spark, database, tmp_path) == [1, 2]
    admin.delete_topic(broker, "orders")
    topic(broker, "again", queues=1)
    offsets = {0: (5, 9), 1: (1, 4)}

    assert count_replay(spark, database.dsn, Origin("orders", offsets=offsets, is_archived=True)) == 7
    result = replay(spark, database.dsn, Origin("orders", offsets=offsets, is_archived=True), "again", write_id="r2")

    assert result == ReplayResult(7)
    (copies,) = replayed(broker, "again").values()
    assert [copy for copy in copies if copy in ALL_A] == ALL_A[5:9]
    assert [copy for copy in copies if copy in ALL_B] == ALL_B[1:4]


@pytest.mark.long
def test_times_choose_messages_of_both(
    spark: "SparkSession", database: Database, broker: Connection, tmp_path: Path
) -> None:
    run_archive(spark, database, tmp_path)
    statement = "SELECT store_time FROM mqdb.message WHERE topic = 'orders' AND queue_id = 0 AND queue_offset = 7"
    since = broker.execute(text(statement)).scalar_one()

    counts = [
        count_replay(spark, database.dsn, Origin("orders", since=since, is_archived=is_archived))
        for is_archived in (False, True)
    ]

    # The last one stands in a segment that is not full.
    assert counts == [9, 8]


def test_a_replay_to_nowhere_is_refused_before_it_begins(spark: "SparkSession", database: Database) -> None:
    with pytest.raises(TopicNotFound):
        replay(spark, database.dsn, Origin("orders"), "nowhere", write_id="r3")


def test_what_spark_says_becomes_a_sentence(spark: "SparkSession", database: Database, broker: Connection) -> None:
    topic(broker, "again")

    with pytest.raises(JobFailed, match=r"^topic 'order' does not exist;"), failures_told():
        replay(spark, database.dsn, Origin("order"), "again", write_id="r4")


# -- the command line -----------------------------------------------------------------------------


@pytest.fixture
def place(spark: "SparkSession", database: Database, tmp_path: Path) -> Place:
    """The broker, for commands that use an existing Spark session."""
    return Place(tmp_path / "home", database.dsn)


def test_the_command_archives(place: Place, spark: "SparkSession", tmp_path: Path) -> None:
    files = str(tmp_path / "archive")
    planned = place.done("spark", "archive", files, "--dry-run", "--json").splitlines()

    archived = place.done("spark", "archive", files)
    nothing = place.done("spark", "archive", files)

    assert [json.loads(line)["messages"] for line in planned] == [SIZE, SIZE]
    assert "20 messages in " in archived
    assert nothing == "All full segments are archived.\n"
    assert spark.range(1).count() == 1


def test_the_command_replays_no_topic_that_is_not_there(place: Place, broker: Connection) -> None:
    topic(broker, "again", queues=2)

    wrong = place.call("spark", "replay", "order", "again", "--write-id", "c2")

    assert (wrong.code, wrong.errors.count("\n")) == (1, 1)
    assert wrong.errors.startswith("mqdb: topic 'order' does not exist;")


@pytest.mark.long
def test_the_command_replays_an_archive_once(
    place: Place, spark: "SparkSession", broker: Connection, tmp_path: Path
) -> None:
    topic(broker, "again", queues=2)
    place.done("spark", "archive", str(tmp_path / "archive"))

    replay_twice = ("spark", "replay", "orders", "again", "--write-id", "c1", "--archive", "--json")
    outcomes = [json.loads(place.done(*replay_twice)) for _ in range(2)]

    assert [(each["messages"], each["outcome"]) for each in outcomes] == [(19, "sent"), (19, "done before")]
    assert spark.range(1).count() == 1
