"""A topic loaded into a PostgreSQL table: rows by key, deletes, restarts, and messages that cannot become rows."""

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import Connection, text

from mqdb.common.message import Message
from mqdb.pipeline.errors import OptionInvalid, TableUnusable
from mqdb.pipeline.jobs import target_table
from mqdb.pipeline.jobs.table_loading import LoadResult, TableLoad, count_to_table, plan_table, to_table
from mqdb.store.topics.topics import TopicRoute
from tests.fixtures.broker import append, dispatch_all, topic
from tests.fixtures.command_line import Place
from tests.fixtures.fault_spark import kill_family
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.spark_page import blocks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLE = """
CREATE TABLE public.customer (
    id bigint PRIMARY KEY, name text NOT NULL, balance numeric(20, 2), born timestamptz, details jsonb,
    "odd ""name" boolean, twice numeric GENERATED ALWAYS AS (balance * 2) STORED)"""


@pytest.fixture
def customers(broker: Connection) -> TopicRoute:
    """A topic with two queues, and an empty table."""
    broker.execute(text("DROP TABLE IF EXISTS public.customer, public.mqdb_spark_batch, public.letter"))
    broker.exec_driver_sql(TABLE)
    return topic(broker, "customers", queues=2)


def change(id_: int, name: str, **more: object) -> Message:
    return Message("customers", json.dumps({"id": id_, "name": name, **more}), keys=(str(id_),))


def tombstone(key: str) -> Message:
    """A message as the sink writes it for a null value."""
    return Message("customers", b"\0", keys=(key,), properties={"MQDB_KAFKA_VALUE": "null"})


def send(broker: Connection, route: TopicRoute, *messages: Message, queue_id: int = 0) -> None:
    append(broker, route, *messages, queue_id=queue_id)
    dispatch_all(broker)


def rows(database: Database, columns: str = "id, name") -> list[tuple[object, ...]]:
    return database.rows(f"SELECT {columns} FROM public.customer ORDER BY id")


def load_of(database: Database, **options: object) -> TableLoad:
    return TableLoad(database.dsn, "customers", "public.customer", **options)  # type: ignore[arg-type]


def test_the_newest_message_of_a_key_is_its_row(
    spark: "SparkSession", broker: Connection, customers: TopicRoute, database: Database, tmp_path: Path
) -> None:
    whole = {"balance": 12.30, "born": "2026-07-14T09:30:00+02:00", "details": {"a": [1, "x"]}, 'odd "name': True}
    send(broker, customers, change(1, "Ann"), change(3, "Cid"), change(1, "Anna", **whole), tombstone("3"))
    send(broker, customers, change(2, "Bob"), tombstone("4"), queue_id=1)
    load, checkpoint = load_of(database), str(tmp_path)
    seen: list[tuple[int, int, str]] = []

    assert count_to_table(spark, load, checkpoint) == 6
    result = to_table(spark, load, checkpoint, on_progress=lambda *progress: seen.append(progress))

    assert result == LoadResult(6, 0)
    assert seen[-1] == (6, 6, "batch 0")
    assert rows(database) == [(1, "Anna"), (2, "Bob")]
    assert rows(database, """balance::text, born = '2026-07-14 07:30Z', details->'a'->>1, "odd ""name", twice::text""")[
        0
    ] == ("12.30", True, "x", True, "24.60")

    send(broker, customers, change(1, "Ann"), Message("customers", '{"name": "Dora"}', keys=("4",)))
    send(broker, customers, Message("customers", '{"name": "b"}', keys=('{"id":2}',)), queue_id=1)
    assert count_to_table(spark, load, checkpoint) == 3
    assert to_table(spark, load, checkpoint) == LoadResult(3, 0)
    assert rows(database) == [(1, "Ann"), (2, "b"), (4, "Dora")]
    assert (count_to_table(spark, load, checkpoint), to_table(spark, load, checkpoint)) == (0, LoadResult(0, 0))
    assert database.rows("SELECT to_regclass('public.mqdb_spark_stage') IS NULL, batch_id FROM mqdb_spark_batch") == [
        (True, 1)
    ]


@pytest.mark.long
def test_messages_are_appended_once_although_a_batch_comes_again(
    spark: "SparkSession", broker: Connection, database: Database, customers: TopicRoute, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    broker.exec_driver_sql(
        "CREATE TABLE public.letter (queue_offset bigint, body text, tags text, store_timestamp timestamptz)"
    )
    send(broker, customers, Message("customers", "a", "x"), Message("customers", "b"))
    load = TableLoad(database.dsn, "customers", "public.letter", messages=True, append=True)
    commit = target_table.commit_batch

    def die_behind_it(*arguments: object) -> None:
        commit(*arguments)  # type: ignore[arg-type]
        raise ConnectionError("the driver died")

    monkeypatch.setattr(target_table, "commit_batch", die_behind_it)
    with pytest.raises(Exception, match="the driver died"):
        to_table(spark, load, str(tmp_path))
    monkeypatch.undo()
    send(broker, customers, Message("customers", "c"))
    to_table(spark, load, str(tmp_path))

    assert database.rows("SELECT queue_offset, body, tags FROM public.letter ORDER BY 1") == [
        (0, "a", "x"),
        (1, "b", None),
        (2, "c", None),
    ]
    statement = "SELECT store_time FROM mqdb.message WHERE topic = 'customers' ORDER BY queue_offset"
    assert database.rows("SELECT store_timestamp FROM public.letter ORDER BY 1") == database.rows(statement)


@pytest.mark.long
def test_a_message_that_is_no_row_ends_the_job_or_is_left_out(
    spark: "SparkSession", broker: Connection, database: Database, customers: TopicRoute, tmp_path: Path
) -> None:
    send(broker, customers, change(1, "Ann"), Message("customers", "no JSON"), Message("customers", '{"name": "x"}'))

    with pytest.raises(Exception, match="at offset 1 of topic 'customers', queue 0, cannot become a row: its body is"):
        to_table(spark, load_of(database), str(tmp_path))
    assert rows(database) == []

    assert to_table(spark, load_of(database, skip_bad=True), str(tmp_path)) == LoadResult(3, 2)
    assert rows(database) == [(1, "Ann")]


@pytest.mark.long
def test_a_table_that_went_back_is_noticed(
    spark: "SparkSession", broker: Connection, database: Database, customers: TopicRoute, tmp_path: Path
) -> None:
    for number in range(2):
        send(broker, customers, change(number, "Ann"))
        to_table(spark, load_of(database), str(tmp_path))
    broker.exec_driver_sql("DELETE FROM public.mqdb_spark_batch")
    send(broker, customers, change(3, "Cid"))

    with pytest.raises(
        Exception, match=r"TableBatchesMissing: batch 2 comes next for table 'public.customer', which has no batch"
    ):
        to_table(spark, load_of(database), str(tmp_path))


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("spark")
def test_a_command_that_is_killed_goes_on_where_it_was(
    broker: Connection, customers: TopicRoute, database: Database, tmp_path: Path
) -> None:
    broker.exec_driver_sql("CREATE TABLE public.letter (queue_offset bigint, body text)")
    send(broker, customers, *(Message("customers", f"{number:03}") for number in range(200)))
    command = ("spark", "to-table", "customers", "public.letter", "--messages", "--append", "--batch", "10")
    place = Place(tmp_path / "home", database.dsn)

    def loaded() -> int:
        return int(database.rows("SELECT count(*) FROM public.letter")[0][0])

    for least in (20, 60):
        application = [*command, "--checkpoint", str(tmp_path / "checkpoint")]
        with place.running(*application) as running:
            wait_until(lambda least=least: loaded() >= least, 120)  # type: ignore[misc]
            kill_family(running.process)
        assert loaded() < 200
    place.done(*command, "--checkpoint", str(tmp_path / "checkpoint"))

    rows_found = database.rows("SELECT queue_offset, body FROM public.letter ORDER BY 1")
    assert rows_found == [(number, f"{number:03}") for number in range(200)]


@pytest.mark.usefixtures("customers")
def test_a_table_that_cannot_take_the_topic_is_refused(broker: Connection, database: Database) -> None:
    broker.exec_driver_sql("CREATE TABLE public.letter (body text)")
    for table, options, reason in (
        ("nowhere", {}, "it does not exist"),
        ("public.letter", {}, "it has no primary key; name the columns of a key, or append"),
        ("public.letter", {"key": ["id"]}, "column 'id' does not exist, or cannot be written"),
        ("public.customer", {"columns": ["name"]}, "the columns to write lack column 'id' of the key"),
        ("public.customer", {"columns": ["id", "twice"]}, "column 'twice' does not exist, or cannot be written"),
        ("public.customer", {"messages": True}, "a message has no column 'id'; name the columns to write"),
    ):
        with pytest.raises(TableUnusable, match=reason):
            plan_table(TableLoad(database.dsn, "customers", table, **options))


@pytest.mark.usefixtures("customers")
def test_a_dsn_may_name_its_broker_but_not_two(database: Database) -> None:
    named = f"broker-b={database.dsn}"

    assert plan_table(TableLoad(named, "customers", "customer")).key == ("id",)
    with pytest.raises(OptionInvalid, match="names several databases"):
        plan_table(TableLoad(database.dsn, "customers", "customer", target=f"broker-a={database.dsn};{named}"))


@pytest.mark.long
def test_command_and_program_of_the_page_load_a_table(
    spark: "SparkSession", broker: Connection, customers: TopicRoute, database: Database, tmp_path: Path
) -> None:
    heading, checkpoint = "### A topic as a table", str(tmp_path / "checkpoint")
    [[command], [program]] = (
        [block.replace("/data/checkpoints/customer", checkpoint) for block in blocks(heading, language)]
        for language in ("sh", "python")
    )
    _, *arguments = shlex.split(command)
    place = Place(tmp_path / "home", database.dsn)
    send(broker, customers, change(1, "Ann"))

    planned = json.loads(place.done(*arguments, "--json", "--dry-run"))
    loaded = json.loads(place.done(*arguments, "--json"))

    assert (planned["messages"], planned["key"], rows(database)) == (1, "id", [(1, "Ann")])
    assert (loaded["messages"], loaded["skipped"]) == (1, 0)
    send(broker, customers, change(2, "Bob"))
    exec(program, {"spark": spark, "dsn": database.dsn, "warehouse": database.dsn})
    assert rows(database) == [(1, "Ann"), (2, "Bob")]
    wrong = place.call("spark", "to-table", "customers", "nowhere", "--checkpoint", checkpoint)
    assert (wrong.code, wrong.errors) == (1, "mqdb: table 'nowhere' cannot be written: it does not exist\n")
