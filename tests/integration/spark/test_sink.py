"""Spark's sink appends each batch once, whatever fails and is repeated, and does not hold up other sessions."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection

from mqdb.broker.log import sink
from mqdb.errors import BrokerUnavailable
from mqdb.pipeline.errors import OptionInvalid, SinkBatchesMissing, SinkBatchMismatch
from mqdb.store.log import sink as statements
from tests.fixtures.broker import bodies, topic
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.spark_sink import (
    QUERY_ID,
    SESSIONS,
    batch_writer_for,
    batches_of,
    rows_in,
    stage,
    stored,
    stream_writer_for,
    write,
)
from tests.fixtures.threads import Doing
from tests.fixtures.variants import case

IS_THERE = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = %s)"


# -- once, whatever fails -----------------------------------------------------------------------


def test_a_task_that_fails_stages_nothing(broker: Connection, database: Database) -> None:
    topic(broker)
    writer = batch_writer_for(database, {"body": ["a"]}, topic="orders")

    def failing() -> Iterator[Any]:
        yield from batches_of({"body": ["a", "b", "c"]})
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        writer.write(failing())

    assert rows_in(broker, "sink_write", "sink_stage") == [0, 0]


def test_what_a_failed_attempt_has_staged_is_never_appended(broker: Connection, database: Database) -> None:
    route = topic(broker)
    table = {"body": ["a", "b"]}
    writer = batch_writer_for(database, table, topic="orders")
    writer.write(batches_of(table))  # its answer was lost

    writer.commit([writer.write(batches_of(table))])

    assert bodies(stored(broker, route)) == ["a", "b"]
    assert rows_in(broker, "sink_write", "sink_stage") == [0, 0]


def test_a_batch_that_is_run_again_is_not_appended_again(broker: Connection, database: Database) -> None:
    """A batch that is run again is not appended again.

    The driver has died after PostgreSQL's commit and before Spark's.
    """
    route = topic(broker)
    table = {"body": ["a", "b"]}
    for _ in range(2):
        writer = stream_writer_for(database, table, topic="orders")
        writer.commit([stage(writer, table, 0), None], 0)

    assert bodies(stored(broker, route)) == ["a", "b"]
    assert rows_in(broker, "sink_batch", "sink_stage") == [1, 0]


def test_a_driver_that_dies_before_the_commit_leaves_nothing_that_counts(
    broker: Connection, database: Database
) -> None:
    route = topic(broker)
    table = {"body": ["a", "b"]}
    stage(stream_writer_for(database, table, topic="orders"), table, 0)

    restarted = stream_writer_for(database, table, topic="orders")
    restarted.commit([stage(restarted, table, 0)], 0)

    assert bodies(stored(broker, route)) == ["a", "b"]
    assert rows_in(broker, "sink_stage") == [0]


def test_the_next_batch_is_appended(broker: Connection, database: Database) -> None:
    route = topic(broker)
    writer = stream_writer_for(database, {"body": ["a"]}, topic="orders")
    for batch_id, body in enumerate("abc"):
        writer.commit([stage(writer, {"body": [body]}, batch_id)], batch_id)

    assert bodies(stored(broker, route)) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("left", "missing"),
    [((0, 1, 2), "batches 3 to 4"), ((0,), "batches 1 to 4"), ((), "batches 0 to 4")],
    ids=["newest-lost", "many-lost", "all-lost"],
)
def test_batches_that_the_database_has_lost_stop_the_query_or_are_said_in_the_log(
    broker: Connection,
    database: Database,
    left: tuple[int, ...],
    missing: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Batches that the database has lost stop the query, or are logged.

    The checkpoint is at batch 5, and the restored backup has some of the earlier batches.
    """
    route = topic(broker)
    table = {"body": ["5"]}
    writer = stream_writer_for(database, table, topic="orders")
    for batch_id in left:
        writer.commit([stage(writer, {"body": [str(batch_id)]}, batch_id)], batch_id)

    with pytest.raises(SinkBatchesMissing, match=f"{missing} of sink 'stream:{QUERY_ID}' are not in the database"):
        writer.commit([stage(writer, table, 5)], 5)
    assert bodies(stored(broker, route)) == [str(batch_id) for batch_id in left]

    lenient = stream_writer_for(database, table, topic="orders", failOnDataLoss="false")
    lenient.commit([stage(lenient, table, 5)], 5)

    assert f"a query continues at batch 5: {missing} of sink" in caplog.text
    writer.commit([stage(writer, {"body": ["6"]}, 6)], 6)
    assert bodies(stored(broker, route)) == [*(str(batch_id) for batch_id in left), "5", "6"]


def test_two_queries_write_the_same_batch_number_each_for_itself(broker: Connection, database: Database) -> None:
    route = topic(broker)
    writer = stream_writer_for(database, {"body": ["a"]}, topic="orders")
    staged = stage(writer, {"body": ["a"]}, 0, "one")
    writer.commit([stage(writer, {"body": ["b"]}, 0, "two")], 0)
    writer.commit([staged], 0)

    assert bodies(stored(broker, route)) == ["b", "a"]


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read"])
def test_two_drivers_that_commit_a_batch_at_once_append_it_once(
    broker: Connection, database: Database, isolation: str
) -> None:
    """Two drivers that commit a batch at the same time append it once.

    The second waits for the first at the ledger, and finds the batch there, whatever the default isolation level.
    """
    route = topic(broker)
    database.set_default("default_transaction_isolation", isolation)
    table = {"body": ["a", "b"]}
    writer = batch_writer_for(database, table, topic="orders", writeId="nightly")
    staged = writer.write(batches_of(table))
    first = database.connect(autocommit=False)
    first.execute("INSERT INTO mqdb.sink_batch (sink_id, batch_id, messages) VALUES ('batch:nightly', 0, 2)")

    second = Doing(lambda: writer.commit([staged]))
    wait_until(lambda: broker.exec_driver_sql(SESSIONS).one()[1] == 1)
    first.commit()

    assert second.result() is None
    assert stored(broker, route) == []


def test_a_driver_that_is_cut_off_in_its_commit_does_not_keep_the_next_one_waiting(
    broker: Connection, database: Database
) -> None:
    """A driver that is cut off during its commit does not keep the next one waiting.

    PostgreSQL would notice a lost machine only after two hours.
    """
    route = topic(broker)
    table = {"body": ["a"]}
    writer = batch_writer_for(database, table, topic="orders", writeId="nightly")
    cut_off = database.connect(autocommit=False)
    cut_off.execute("INSERT INTO mqdb.sink_batch (sink_id, batch_id, messages) VALUES ('batch:nightly', 0, 1)")
    assert "'20s'" in statements.SETTINGS
    cut_off.execute(statements.SETTINGS.replace("'20s'", "'100ms'"))

    writer.commit([writer.write(batches_of(table))])

    assert bodies(stored(broker, route)) == ["a"]


def test_a_driver_that_was_stopped_in_its_commit_asks_again(
    broker: Connection, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    route = topic(broker)
    table = {"body": ["a"]}
    writer = batch_writer_for(database, table, topic="orders", writeId="nightly")
    staged = writer.write(batches_of(table))
    append_writes = sink._append_writes
    pids: list[int] = []

    def stopped(connection: sink.Connection, *arguments: Any) -> int:
        pids.append(connection.info.backend_pid)
        if len(pids) == 1:
            connection.execute("SET idle_in_transaction_session_timeout = '1ms'")
            wait_until(lambda: not broker.exec_driver_sql(IS_THERE, (pids[0],)).scalar_one())
        return append_writes(connection, *arguments)

    monkeypatch.setattr(sink, "_append_writes", stopped)
    writer.commit([staged])

    assert bodies(stored(broker, route)) == ["a"]
    assert len(set(pids)) == 2


def test_a_job_with_a_write_id_that_is_run_again_writes_nothing(broker: Connection, database: Database) -> None:
    route = topic(broker)
    for _ in range(2):
        write(database, {"body": ["a", "b"]}, {"body": ["c"]}, topic="orders", writeId="nightly")

    assert bodies(stored(broker, route)) == ["a", "b", "c"]


def test_a_job_without_a_write_id_writes_each_time_and_leaves_no_trace(broker: Connection, database: Database) -> None:
    route = topic(broker)
    for _ in range(2):
        write(database, {"body": ["a"]}, topic="orders")

    assert bodies(stored(broker, route)) == ["a", "a"]
    assert rows_in(broker, "sink_batch") == [0]


def test_a_write_id_and_a_sink_id_of_one_text_are_two(broker: Connection, database: Database) -> None:
    route = topic(broker)
    write(database, {"body": ["a"]}, topic="orders", writeId="x")
    writer = stream_writer_for(database, {"body": ["b"]}, topic="orders", sinkId="x")
    writer.commit([stage(writer, {"body": ["b"]}, 0)], 0)

    assert bodies(stored(broker, route)) == ["a", "b"]


def test_a_sink_id_that_another_query_has_used_is_refused_and_loses_nothing(
    broker: Connection, database: Database
) -> None:
    """A sink id used by another query is refused, and nothing is lost.

    A new checkpoint counts from 0 again, so its batches would be mistaken for existing ones.
    """
    topic(broker)
    writer = stream_writer_for(database, {"body": ["a"]}, topic="orders", sinkId="mine")
    writer.commit([stage(writer, {"body": ["a"]}, 0, "one")], 0)

    with pytest.raises(OptionInvalid, match="sinkId = 'mine': another query has written batch 0 to it"):
        writer.commit([stage(writer, {"body": ["b"]}, 0, "two")], 0)


def test_a_second_query_on_a_sink_id_is_refused_whatever_its_batch_and_clears_nothing_away(
    broker: Connection, database: Database
) -> None:
    """A second query on a sink id is refused, whatever its batch, and clears nothing away.

    Otherwise the first query would write batches again that the second one pushed out of the ledger.
    """
    route = topic(broker)
    writer = stream_writer_for(database, {"body": ["a"]}, topic="orders", sinkId="mine")
    writer.commit([stage(writer, {"body": ["a"]}, 0, "one")], 0)
    staged = stage(writer, {"body": ["b"]}, 1, "one")

    for batch_id in (1, 5, 500):
        with case(batch_id), pytest.raises(OptionInvalid, match="another query has written batch 0 to it"):
            writer.commit([stage(writer, {"body": ["c"]}, batch_id, "two")], batch_id)

    writer.commit([staged], 1)
    assert bodies(stored(broker, route)) == ["a", "b"]


def test_a_checkpoint_that_was_set_back_is_refused(broker: Connection, database: Database) -> None:
    """A checkpoint that was set back is refused.

    The query's batches are divided differently from those in the log, and skipping them by number would lose rows.
    """
    route = topic(broker)
    broker.exec_driver_sql(
        """INSERT INTO mqdb.sink_batch (sink_id, batch_id, query_id, messages)
           SELECT 'stream:' || %(query)s, n, %(query)s, 1 FROM generate_series(201, 300) n""",
        {"query": QUERY_ID},
    )
    writer = stream_writer_for(database, {"body": ["a"]}, topic="orders")

    for batch_id in (3, 250, 299):
        said = f"checkpointLocation: it is at batch {batch_id}, but batch 300 of the"
        with case(batch_id), pytest.raises(OptionInvalid, match=said):
            writer.commit([stage(writer, {"body": ["a"]}, batch_id)], batch_id)

    assert stored(broker, route) == []


def test_a_write_id_of_a_job_with_another_number_of_messages_is_refused(broker: Connection, database: Database) -> None:
    """A write id of a job with a different message count is refused.

    Otherwise reusing the name for tonight's job would lose all its rows.
    """
    route = topic(broker)
    write(database, {"body": ["a", "b"]}, topic="orders", writeId="nightly")

    sentence = "writeId = 'nightly': has written 2 messages, but this job has 3; give this job its own writeId"
    with pytest.raises(OptionInvalid, match=sentence):
        write(database, {"body": ["c", "d", "e"]}, topic="orders", writeId="nightly")

    assert bodies(stored(broker, route)) == ["a", "b"]
    assert rows_in(broker, "sink_write", "sink_stage") == [0, 0]


def test_a_batch_whose_stage_a_crash_has_emptied_is_refused_as_a_whole(broker: Connection, database: Database) -> None:
    route = topic(broker)
    writer = stream_writer_for(database, {"body": ["a"]}, topic="orders")
    before = stage(writer, {"body": ["a", "b", "c"]}, 0)
    broker.exec_driver_sql("TRUNCATE mqdb.sink_write, mqdb.sink_stage")  # as the recovery of unlogged tables does
    after = stage(writer, {"body": ["d"]}, 0)

    with pytest.raises(SinkBatchMismatch) as refused:
        writer.commit([before, after], 0)

    assert (refused.value.expected, refused.value.found) == (4, 1)
    assert stored(broker, route) == []
    writer.commit([stage(writer, {"body": ["a", "b", "c", "d"]}, 0)], 0)
    assert bodies(stored(broker, route)) == ["a", "b", "c", "d"]


def test_a_commit_outlives_the_end_of_its_connection(
    broker: Connection, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit survives the end of its connection.

    The sink tries again, and the ledger shows whether the first attempt succeeded.
    """
    route = topic(broker)
    table = {"body": ["a"]}
    writer = batch_writer_for(database, table, topic="orders", writeId="once")
    staged = writer.write(batches_of(table))
    append_batch = sink.append_batch
    tries: list[object] = []

    def cut_off(connection: sink.Connection, *arguments: Any, **options: Any) -> sink.AppendResult:
        result = append_batch(connection, *arguments, **options)
        tries.append(result.outcome)
        if len(tries) == 1:
            database.connect().execute("SELECT pg_terminate_backend(%s)", (connection.info.backend_pid,))
            connection.execute("SELECT 1")
        return result

    monkeypatch.setattr(sink, "append_batch", cut_off)
    writer.commit([staged])

    assert tries == [sink.AppendOutcome.APPENDED, sink.AppendOutcome.REPEATED]
    assert bodies(stored(broker, route)) == ["a"]


def test_a_commit_gives_up_a_database_that_stays_away(
    broker: Connection, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic(broker)
    writer = batch_writer_for(database, {"body": ["a"]}, topic="orders", brokerWaitSeconds="0")

    def away(*_: object, **__: object) -> object:
        raise psycopg.OperationalError("connection refused")

    monkeypatch.setattr(sink, "append_batch", away)
    with pytest.raises(BrokerUnavailable):
        writer.commit([])
