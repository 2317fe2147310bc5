"""format("mqdb") while PostgreSQL is down: plans, tasks, stages and commits wait, and no row is lost or duplicated."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import TypeVar

import pytest

from mqdb.errors import AuthenticationFailed, DatabaseMissing
from mqdb.pipeline.errors import SinkBatchMismatch
from mqdb.pipeline.read import engines
from mqdb.store.engine import connected
from mqdb.store.topics.topics import find_topic
from tests.fixtures import broker as on_broker
from tests.fixtures.history import QUEUES, Past
from tests.fixtures.postgres import Database, with_parts
from tests.fixtures.processes import wait_until
from tests.fixtures.spark_sink import rows_in, stage, stored, stream_writer_for
from tests.fixtures.spark_source import Stream, bodies, read, rows_of
from tests.fixtures.threads import Doing
from tests.fixtures.variants import usually

_Result = TypeVar("_Result")


@pytest.fixture(autouse=True)
def _no_idle_connection() -> Iterator[None]:
    yield
    engines.close_idle()


def through_outage(past: Past, caplog: pytest.LogCaptureFixture, work: Callable[[], _Result]) -> _Result:
    """The result of work that begins while the server is down; the server starts once the work waits for it."""
    caplog.clear()
    with past.stopped():
        doing = Doing(work)
        wait_until(lambda: "waiting for the broker to" in caplog.text)
    return doing.result()


@pytest.mark.parametrize("engine_name", usually("adbc", of=["adbc", "psycopg"]))
def test_a_stream_plans_and_reads_through_outages(
    past: Past, caplog: pytest.LogCaptureFixture, engine_name: str
) -> None:
    database = Database(past.dsn)
    stream = Stream(database, startingOffsets="earliest", engine=engine_name)
    past.store("first")
    assert bodies(stream.trigger()) == ["first"]
    past.store("second", "third")

    end = through_outage(past, caplog, stream.end)
    partitions = through_outage(past, caplog, lambda: list(stream.reader.partitions(stream.offset, end)))
    rows = through_outage(past, caplog, lambda: rows_of(stream.reader, partitions))

    stream.reader.stop()
    assert bodies(rows) == ["second", "third"]


def test_a_sink_stages_and_commits_through_outages_and_appends_once(
    past: Past, caplog: pytest.LogCaptureFixture
) -> None:
    table = {"body": [str(number) for number in range(QUEUES)]}
    writer = stream_writer_for(Database(past.dsn), table, topic="orders")

    staged = through_outage(past, caplog, lambda: stage(writer, table, 0))
    through_outage(past, caplog, lambda: writer.commit([staged], 0))

    with connected(past.dsn, "test") as connection:
        route = find_topic(connection, "orders")
        assert route is not None
        found = [body for queue_id in range(QUEUES) for body in on_broker.bodies(stored(connection, route, queue_id))]
        assert sorted(found) == table["body"]
        assert rows_in(connection, "sink_batch", "sink_stage") == [1, 0]


@pytest.mark.parametrize("is_logged", [True, False])
def test_a_batch_outlives_a_crash_between_stage_and_commit_if_the_stage_is_logged(past: Past, is_logged: bool) -> None:
    table = {"body": [str(number) for number in range(QUEUES)]}
    writer = stream_writer_for(Database(past.dsn), table, topic="orders")
    if is_logged:
        past.log_stage()
    staged = stage(writer, table, 0)
    past.end_at_once()
    past.restart()

    with nullcontext() if is_logged else pytest.raises(SinkBatchMismatch):
        writer.commit([staged], 0)

    with connected(past.dsn, "test") as connection:
        assert rows_in(connection, "sink_batch", "sink_stage", "commit_log") == (
            [1, 0, QUEUES] if is_logged else [0, 0, 0]
        )


@pytest.mark.parametrize("engine_name", usually("adbc", of=["adbc", "psycopg"]))
def test_nobody_waits_for_a_right_password_or_a_database(
    past: Past, caplog: pytest.LogCaptureFixture, engine_name: str
) -> None:
    past.store("first")
    for option in ("url", "readUrl"):
        with pytest.raises(AuthenticationFailed):
            read(Database(past.dsn), engine=engine_name, **{option: with_parts(past.dsn, password="wrong")})
        with pytest.raises(DatabaseMissing):
            read(Database(past.dsn), engine=engine_name, **{option: with_parts(past.dsn, dbname="gone")})

    assert "waiting for the broker" not in caplog.text
