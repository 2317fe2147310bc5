"""The stage and the ledger of Spark's sink: their rows, the sweep, and the append to the log."""

import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import Connection

from mqdb.broker.log import sink
from mqdb.pipeline.write.sink import Staged
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

# -- what is cleared away -----------------------------------------------------------------------


def test_abort_clears_away_what_the_tasks_have_staged(broker: Connection, database: Database) -> None:
    topic(broker)
    writer = stream_writer_for(database, {"body": ["a"]}, topic="orders")
    writer.abort([stage(writer, {"body": ["a"]}, 0), None], 0)

    assert rows_in(broker, "sink_write", "sink_stage") == [0, 0]


def test_what_is_staged_for_a_day_is_cleared_away_by_whoever_comes(broker: Connection, database: Database) -> None:
    topic(broker)
    batch_writer_for(database, {"body": ["a"]}, topic="orders").write(batches_of({"body": ["old"]}))
    broker.exec_driver_sql("UPDATE mqdb.sink_write SET staged_at = mqdb.now() - interval '25 hours'")
    batch_writer_for(database, {"body": ["a"]}, topic="orders").write(batches_of({"body": ["young", "young"]}))

    write(database, {"body": ["a"]}, topic="orders")

    assert rows_in(broker, "sink_write", "sink_stage") == [1, 2]


def test_what_a_job_has_staged_stays_while_its_tasks_go_on_for_longer_than_a_day(
    broker: Connection, database: Database
) -> None:
    route = topic(broker)
    long = batch_writer_for(database, {"body": ["a"]}, topic="orders", writeId="long")
    first, second = (long.write(batches_of({"body": [body]})) for body in "ab")
    assert isinstance(first, Staged)
    broker.exec_driver_sql(
        "UPDATE mqdb.sink_write SET staged_at = mqdb.now() - interval '25 hours' WHERE write_id = %s",
        (first.write.write_id,),
    )
    write(database, {"body": ["other"]}, topic="orders")

    long.commit([first, second])

    assert bodies(stored(broker, route)) == ["other", "a", "b"]


def test_a_task_is_as_old_as_its_end(broker: Connection, database: Database) -> None:
    topic(broker)

    def rows() -> Iterator[Any]:
        yield from batches_of({"body": ["a"]})
        times.append(broker.exec_driver_sql("SELECT mqdb.now()").scalar_one())

    times: list[datetime] = []
    batch_writer_for(database, {"body": ["a"]}, topic="orders").write(rows())

    assert broker.exec_driver_sql("SELECT staged_at FROM mqdb.sink_write").scalar_one() > times[0]


def test_a_task_opens_no_transaction_before_its_first_row(broker: Connection, database: Database) -> None:
    """A task opens no transaction before its first row.

    A sort or an aggregation may take hours before that; a task without rows does not even connect.
    """
    topic(broker)

    def rows() -> Iterator[Any]:
        found.append(broker.exec_driver_sql(SESSIONS).one()[0])
        yield from batches_of({"body": ["a"]})

    found: list[int] = []
    writer = batch_writer_for(database, {"body": ["a"]}, topic="orders")
    # It has looked the topic up, and PostgreSQL ends a session a moment after its client.
    wait_until(lambda: broker.exec_driver_sql(SESSIONS).one()[0] == 0)
    writer.write(rows())

    assert (found, rows_in(broker, "sink_stage")) == ([0], [1])


def test_the_ledger_keeps_the_last_hundred_batches_of_each_sink(broker: Connection, database: Database) -> None:
    topic(broker)
    broker.exec_driver_sql(
        """INSERT INTO mqdb.sink_batch (sink_id, batch_id, query_id, messages)
           SELECT sink_id, n, %s, 1
           FROM generate_series(0, 299) n, (VALUES ('stream:mine'), ('stream:other')) s (sink_id)""",
        (QUERY_ID,),
    )
    writer = stream_writer_for(database, {"body": ["a"]}, topic="orders", sinkId="mine")
    writer.commit([stage(writer, {"body": ["a"]}, 300)], 300)

    kept = broker.exec_driver_sql("SELECT sink_id, min(batch_id), count(*) FROM mqdb.sink_batch GROUP BY 1 ORDER BY 1")
    assert kept.all() == [("stream:mine", 201, 100), ("stream:other", 0, 300)]


# -- the log ------------------------------------------------------------------------------------


def test_a_batch_larger_than_the_segments_ahead_finds_room(broker: Connection, database: Database) -> None:
    route = topic(broker)
    broker.exec_driver_sql("UPDATE mqdb.broker SET segment_size = 100")
    broker.exec_driver_sql("SELECT mqdb.ensure_segments(6)")
    end = broker.exec_driver_sql("SELECT max(end_pos) FROM mqdb.segment").scalar_one()
    broker.exec_driver_sql("SELECT setval('mqdb.log_pos', %s)", (end - 150,))

    write(database, {"body": [str(number) for number in range(1_000)]}, topic="orders")

    assert bodies(stored(broker, route)) == [str(number) for number in range(1_000)]


def test_the_segments_of_a_large_batch_are_made_one_by_one(broker: Connection, database: Database) -> None:
    """The segments of a large batch are created one by one.

    Dispatch waits for a transaction that creates segments, so no transaction creates forty of them.
    """
    topic(broker)
    broker.exec_driver_sql("UPDATE mqdb.broker SET segment_size = 100")
    before = broker.exec_driver_sql("SELECT count(*) FROM mqdb.segment").scalar_one()

    write(database, {"body": ["a"] * 500}, topic="orders")

    made, transactions = broker.exec_driver_sql(
        "SELECT count(*), count(DISTINCT xmin::text) FROM mqdb.segment WHERE segment > %s", (before,)
    ).one()
    assert made == transactions > 2


def test_the_append_locks_no_queue(broker: Connection, database: Database) -> None:
    topic(broker)
    table = {"body": ["a"]}
    writer = batch_writer_for(database, table, topic="orders")
    staged = writer.write(batches_of(table))
    other = database.connect(autocommit=False)
    other.execute("SELECT FROM mqdb.queue FOR UPDATE")
    other.execute("SELECT FROM mqdb.topic FOR UPDATE")

    assert Doing(lambda: writer.commit([staged])).result() is None
    other.rollback()


def test_a_commit_that_lasts_is_in_nobody_s_way_and_its_messages_come_after_it(
    broker: Connection, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long commit holds up no other session, and its messages come after the commit.

    The positions of the commit are older than those of messages sent during it. Dispatch does not wait for them.
    """
    route = topic(broker)
    append_writes = sink._append_writes
    meanwhile: list[str] = []

    def lasting(*arguments: Any) -> int:
        found = append_writes(*arguments)
        broker.exec_driver_sql("SELECT mqdb.send('orders', 'sent meanwhile'::text)")
        broker.exec_driver_sql("SELECT mqdb.ensure_segments(20)")
        meanwhile.extend(bodies(stored(broker, route)))
        return found

    monkeypatch.setattr(sink, "_append_writes", lasting)
    write(database, {"body": ["a", "b"]}, topic="orders")

    assert meanwhile == ["sent meanwhile"]
    assert bodies(stored(broker, route)) == ["sent meanwhile", "a", "b"]


def test_all_plans_are_by_index_without_a_sort_whatever_the_statistics_say(database: Database) -> None:
    """All plans use indexes without a sort, whatever the statistics say.

    The stage is full of a large job's rows, and PostgreSQL does not know how many writes there are.
    """
    connection = database.connect(autocommit=False)
    connection.execute(
        """INSERT INTO mqdb.sink_stage
               (write_id, born_time, tags_code, msg_id, seq, queue_key, born_host, properties, body)
           SELECT write_id, now(), 0, write_id, seq, 1, '', '{}', ''
           FROM (SELECT gen_random_uuid() AS write_id FROM generate_series(1, 4)) w, generate_series(1, 5000) seq"""
    )
    connection.execute("ANALYZE mqdb.sink_stage")
    connection.execute(statements.SETTINGS)
    write_id = "00000000-0000-0000-0000-000000000000"
    names = {"write_id": write_id, "write_ids": [write_id], "sink_id": "stream:mine", "batch_id": 7}
    values = names | {"first": 1_000, "past": 2_000}
    texts = statements.APPEND, statements.APPEND_WAITING, statements.CLEAR_BATCHES, statements.CLEAR_WRITES
    for text in (*texts, statements.SWEEP, statements.CLEAR_MOVED):
        plan = "\n".join(row[0] for row in connection.execute(f"EXPLAIN {text}", values))
        assert re.search(r"Index Cond: \(+(s\.)?write_id = ", plan.partition("on sink_stage s")[2]), plan
        assert not [node for node in ("Sort", "Seq Scan on sink_stage", "Hash", "Merge") if node in plan], plan
