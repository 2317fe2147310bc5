"""Later sends use their indexes: the append of waiting records, the placing of each record, and recurring sends."""

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import Connection, event, text

from mqdb.broker.log.send import record, statement_for
from mqdb.common.delivery_schedule import DelayLevel, DeliverAfter, Half, Wait
from mqdb.common.message import Message
from mqdb.common.unique_id import UniqueIdGenerator
from mqdb.embedded import EmbeddedPostgres
from mqdb.store.engine import create_engine, driver
from mqdb.store.log.commit_log import append_waiting
from mqdb.store.schedule import cron as crons
from tests.fixtures.log import scalar
from tests.fixtures.postgres import Database, new_database

FILL = """
INSERT INTO mqdb.topic (topic, read_queue_nums, write_queue_nums, perm)
    SELECT 'topic-' || n, 4, 4, 6 FROM generate_series(1, 3000) n;
INSERT INTO mqdb.queue (topic_id, queue_id)
    SELECT topic_id, n FROM mqdb.topic, generate_series(0, 3) n WHERE topic LIKE 'topic-%';
INSERT INTO mqdb.cron (name, cron, topic, body, next_at)
    SELECT 'cron-' || n, '@daily', 'topic-1', 'x', mqdb.now() + interval '1 day' FROM generate_series(1, 3000) n;
"""

#: In this transaction; the one row of `broker` is read as it comes.
READ_FROM_END_TO_END = """
SELECT relname, seq_scan FROM pg_stat_xact_user_tables
WHERE schemaname = 'mqdb' AND seq_scan > 0 AND relname <> 'broker'
"""


@pytest.fixture(scope="module", params=["never analyzed", "analyzed"])
def original(request: pytest.FixtureRequest, postgres: EmbeddedPostgres, template_database: str) -> Iterator[Database]:
    """A broker with many topics and crons."""
    with new_database(postgres, template_database) as database:
        setting_up = database.connect()
        setting_up.execute(FILL)
        if request.param == "analyzed":
            setting_up.execute("ANALYZE")
        # Nobody may be connected to what is copied.
        setting_up.close()
        yield database


@pytest.fixture
def connection(postgres: EmbeddedPostgres, original: Database) -> Iterator[Connection]:
    """A client's connection to a copy of the database for one test."""
    with new_database(postgres, original.name) as copy:
        engine = create_engine(copy.dsn, indexes_only=True)
        with engine.connect() as connection:
            yield connection
        engine.dispose()


def scans(connection: Connection, statement: str, parameters: int) -> dict[str, set[str]]:
    """The indexes by which the generic plan reads each table, or the table's name if it is read sequentially."""
    session = driver(connection)
    session.execute("DEALLOCATE ALL")
    session.execute(f"PREPARE hot AS {statement}".encode())
    values = f"({', '.join(['NULL'] * parameters)})" if parameters else ""
    plan = scalar(session, f"EXPLAIN (FORMAT JSON) EXECUTE hot {values}")
    found: dict[str, set[str]] = {}
    for node in nodes(plan[0]["Plan"]):
        if (table := node.get("Relation Name")) and node["Node Type"] != "ModifyTable":
            found.setdefault(table, set()).add(node.get("Index Name", table))
    return found


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", []):
        yield from nodes(child)


def numbered(statement: str) -> tuple[str, int]:
    """The statement with $1, $2, ... for the parameters, and their number."""
    names = list(dict.fromkeys(re.findall(r"%\((\w+)\)s", statement)))
    with_numbers = re.sub(r"%\((\w+)\)s", lambda found: f"${names.index(found[1]) + 1}", statement)
    return with_numbers.replace("%%", "%"), len(names)


def test_an_append_of_records_that_wait_reads_no_table_from_end_to_end(connection: Connection) -> None:
    statement = append_waiting()
    found = scans(connection, statement.text, len(statement.formats))

    assert all(name != table for table, names in found.items() for name in names), found


@pytest.mark.parametrize("wait", [DelayLevel(3), DeliverAfter(3_600_000), Half()], ids=str)
def test_the_place_of_a_record_is_found_by_keys(connection: Connection, wait: Wait) -> None:
    """A record's place is found by keys.

    The server's own read counters show this, including the statements of mqdb.place.
    """
    [queue_key] = connection.scalars(text("SELECT max(queue_key) FROM mqdb.queue"))
    message = Message("topic-3000", "x")
    waiting = record(message, queue_key, UniqueIdGenerator().next(), datetime.now(UTC), "here")._replace(wait=wait)
    session = driver(connection)

    with session.transaction():
        statement, values = statement_for([waiting] * 100, places=False)
        statement.run(session, values)
        counts = session.execute(READ_FROM_END_TO_END).fetchall()

    assert counts == []


CRONS: dict[str, Callable[[Connection], object]] = {
    "send": lambda connection: crons.send(connection, "cron-1", [{"MQDB_CRON_NAME": "cron-1"}]),
    "move": lambda connection: crons.move(connection, "cron-1", datetime(2100, 1, 1, tzinfo=UTC), None, 0, 0),
    "pause": lambda connection: crons.pause(connection, "cron-1"),
    "find": lambda connection: crons.find(connection, "cron-1"),
}


@pytest.mark.parametrize("call", CRONS.values(), ids=CRONS)
def test_a_firing_finds_its_cron_by_the_name(connection: Connection, call: Callable[[Connection], object]) -> None:
    executed: list[str] = []
    event.listen(
        connection,
        "before_cursor_execute",
        lambda _connection, _cursor, statement, *_: executed.append(statement),
    )

    call(connection)

    [statement] = executed
    assert scans(connection, *numbered(statement))["cron"] == {"cron_pkey"}
