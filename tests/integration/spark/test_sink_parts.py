"""Batches that Spark's sink stores in parts: exactly once and in order, even if a process dies between two parts."""

import random
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

import psycopg
import pytest
from sqlalchemy import Connection

from mqdb.broker.log import sink
from mqdb.errors import MqdbError
from mqdb.pipeline.errors import OptionInvalid, SinkBatchMismatch
from mqdb.store.log import sink as statements
from tests.fixtures.broker import bodies, topic
from tests.fixtures.postgres import Database
from tests.fixtures.principals import Principal
from tests.fixtures.processes import wait_until
from tests.fixtures.spark_sink import (
    QUERY_ID,
    SESSIONS,
    Table,
    batch_writer_for,
    pickled,
    rows_in,
    stage,
    stored,
    stream_writer_for,
)
from tests.fixtures.threads import Doing
from tests.fixtures.variants import usually

PARTS = {"topic": "orders", "maxRowsPerCommit": "3"}
BATCH = sink.SinkBatch(f"stream:{QUERY_ID}", 0, QUERY_ID)

CLEAN = [1, 0, 0, 0]
TABLES = "sink_batch", "sink_part", "sink_write", "sink_stage"


@pytest.fixture(autouse=True)
def _durable(broker: Connection) -> None:
    broker.exec_driver_sql("ALTER TABLE mqdb.sink_write SET LOGGED")
    broker.exec_driver_sql("ALTER TABLE mqdb.sink_stage SET LOGGED")


@pytest.fixture
def session(database: Database) -> Iterator[sink.Connection]:
    """A driver's session."""
    with database.connect() as connection:
        yield connection


def texts(task: int, count: int) -> Table:
    return {"body": [f"{task} {number:02}" for number in range(count)]}


@pytest.mark.parametrize("sessions", [1, 3])
def test_a_batch_in_parts_keeps_the_order_of_each_task(broker: Connection, database: Database, sessions: int) -> None:
    route = topic(broker)
    writer = stream_writer_for(database, texts(0, 1), **PARTS, commitSessions=str(sessions))
    staged = [stage(writer, texts(task, count), 0) for task, count in enumerate((10, 0, 3, 7))]

    writer.commit([*staged, None], 0)
    writer.commit([*staged], 0)

    found = bodies(stored(broker, route))
    assert sorted(found) == [text for task, count in enumerate((10, 0, 3, 7)) for text in texts(task, count)["body"]]
    assert sorted(found, key=lambda text: text[0]) == sorted(found)
    assert rows_in(broker, *TABLES) == CLEAN


def test_a_small_batch_goes_as_a_whole(broker: Connection, database: Database) -> None:
    """A small batch is stored as a whole; the transaction that appends it also clears the stage."""
    topic(broker)
    writer = stream_writer_for(database, texts(0, 1), **PARTS)
    staged = stage(writer, texts(0, 3), 0)

    with psycopg.connect(database.dsn, autocommit=True) as connection:
        result = sink.append_batch(connection, staged.batch, [staged.write], part_messages=3)

    assert (result.outcome, rows_in(broker, *TABLES)) == (sink.AppendOutcome.APPENDED, CLEAN)


@pytest.mark.parametrize("option", ["maxRowsPerCommit", None])
def test_a_batch_that_is_run_again_goes_on_with_what_was_staged_first(
    broker: Connection, database: Database, session: sink.Connection, option: str | None
) -> None:
    """A batch that is run again continues with the rows staged first.

    The second run may give each task other rows, in another order, and the option may be gone.
    """
    route = topic(broker)
    died = stream_writer_for(database, texts(0, 1), **PARTS)
    staged = [stage(died, texts(task, 5), 0) for task in range(2)]
    begun = sink.append_batch(session, BATCH, [each.write for each in staged], part_messages=3)
    assert (begun.outcome, begun.messages) == (sink.AppendOutcome.OPEN, 10)
    assert sink.move_part(session, BATCH, 3) == 3
    assert bodies(stored(broker, route)) == texts(0, 3)["body"]
    died.abort([*staged], 0)  # Spark does, when a commit has failed

    options = {name: text for name, text in PARTS.items() if name in ("topic", option)}
    again = stream_writer_for(database, texts(0, 1), **options)
    again.commit([stage(again, {"body": sorted((*texts(0, 5)["body"], *texts(1, 5)["body"]), reverse=True)}, 0)], 0)

    assert bodies(stored(broker, route)) == [*texts(0, 5)["body"], *texts(1, 5)["body"]]
    assert rows_in(broker, *TABLES) == CLEAN


def test_a_driver_waits_for_another_one_that_moves_a_part(
    broker: Connection, database: Database, session: sink.Connection
) -> None:
    """A driver waits for another one that is moving a part.

    Otherwise it would lose track of the part, and of the rows that the other one has left.
    """
    route = topic(broker)
    writer = stream_writer_for(database, texts(0, 1), **PARTS)
    staged = stage(writer, texts(0, 5), 0)
    sink.append_batch(session, BATCH, [staged.write], part_messages=3)
    with session.transaction():
        assert session.execute(statements.TAKE_PART, BATCH._asdict()).fetchone() is not None
        committing = Doing(lambda: writer.commit([staged], 0))
        wait_until(lambda: broker.exec_driver_sql(SESSIONS).one()[1] == 1)

    assert committing.result() is None
    assert bodies(stored(broker, route)) == texts(0, 5)["body"]
    assert rows_in(broker, *TABLES) == CLEAN


def test_parts_that_are_not_in_the_stage_end_the_query(broker: Connection, database: Database) -> None:
    topic(broker)
    writer = stream_writer_for(database, texts(0, 1), **PARTS)
    staged = stage(writer, texts(0, 5), 0)
    broker.exec_driver_sql("TRUNCATE mqdb.sink_stage")

    with pytest.raises(SinkBatchMismatch):
        writer.commit([staged], 0)


def test_the_stage_of_a_batch_that_is_there_in_part_is_never_swept(
    broker: Connection, database: Database, session: sink.Connection
) -> None:
    topic(broker)
    writer = stream_writer_for(database, texts(0, 1), **PARTS)
    staged = stage(writer, texts(0, 5), 0)
    sink.append_batch(session, BATCH, [staged.write], part_messages=3)
    broker.exec_driver_sql("UPDATE mqdb.sink_write SET staged_at = mqdb.now() - interval '25 hours'")

    sink.sweep(session)

    assert rows_in(broker, *TABLES) == [1, 1, 1, 5]


def test_parts_need_the_owner_and_a_stage_that_outlives_a_crash(
    broker: Connection, database: Database, principal: Principal
) -> None:
    guest = Database(principal("etl", send=["orders"]))
    with pytest.raises(OptionInvalid, match=r"maxRowsPerCommit.*needs the owner of the broker"):
        stream_writer_for(guest, texts(0, 1), **PARTS)
    broker.exec_driver_sql("ALTER TABLE mqdb.sink_stage SET UNLOGGED")
    with pytest.raises(OptionInvalid, match=r"ALTER TABLE mqdb\.sink_stage SET LOGGED"):
        batch_writer_for(database, texts(0, 1), **PARTS)


@pytest.mark.parametrize("run", usually(0, of=range(20)))
def test_a_batch_is_there_once_whoever_dies_in_its_commits(broker: Connection, database: Database, run: int) -> None:
    """A batch is stored once, whichever driver dies during its commits.

    Drivers follow one another, each with its own division of the rows. Sometimes all sessions of a driver die.
    """
    seed = random.randrange(1_000_000)
    chance = random.Random(seed)
    route = topic(broker)
    broker.exec_driver_sql("UPDATE mqdb.broker SET segment_size = 40")
    rows = [f"{number:03}" for number in range(120)]
    attempts = kills = 0
    is_done = False
    while not is_done:
        attempts += 1
        options = {"maxRowsPerCommit": str(chance.choice([1, 3, 10])), "commitSessions": str(chance.choice([1, 2, 4]))}
        table = {"body": rows}
        writer = stream_writer_for(database, table, topic="orders", brokerWaitSeconds="0", **options)
        tasks = chance.randint(1, 5)
        mine = chance.sample(rows, len(rows))
        split = [[f"{attempts} {task} {text}" for text in sorted(mine[task::tasks])] for task in range(tasks)]
        staged = [stage(writer, {"body": part}, 0) for part in split]
        committing = Doing(partial(pickled(writer).commit, [*staged], 0))
        if attempts < 6:
            wait_until_moved(broker, chance.randrange(len(rows)), committing)
            kills += broker.exec_driver_sql(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
                " WHERE application_name = 'mqdb spark sink' AND datname = current_database()"
            ).scalar_one()
        is_done = not isinstance(committing.outcome(), MqdbError)
        with suppress(MqdbError):
            if not is_done and chance.random() < 0.5:
                writer.abort([*staged], 0)
    sys.stdout.write(f"seed {seed}: {attempts} attempts, {kills} sessions were killed\n")

    found = [text.split() for text in bodies(stored(broker, route))]
    assert sorted(text for _, _, text in found) == rows
    assert len({attempt for attempt, _, _ in found}) == 1
    for number in {task for _, task, _ in found}:
        of_task = [text for _, task, text in found if task == number]
        assert of_task == sorted(of_task)
    assert rows_in(broker, "sink_batch", "sink_part", "sink_stage") == [1, 0, 0]


def wait_until_moved(broker: Connection, messages: int, committing: Doing[None]) -> None:
    """Wait until this many messages of the open batch are in the log, or the commit has ended."""
    wait_until(lambda: moved(broker) >= messages or not committing.is_running)


def moved(broker: Connection) -> int:
    """The number of messages of open batches that are in the log."""
    count: int = broker.exec_driver_sql("SELECT coalesce(sum(moved), 0) FROM mqdb.sink_part").scalar_one()
    return count
