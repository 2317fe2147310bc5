"""Half messages are ended, checked and resolved by their indexes, and only the needed segments are opened.

The plans are generic, as those of clients and services. Plans that read the log are made at the worst time: while the
segments are empty and the statistics say so. Nearly all half messages have ended, as usual.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from apscheduler.schedulers.background import BackgroundScheduler
from psycopg import sql
from sqlalchemy import Connection, Engine, event

from mqdb.broker.transactions.transactions import list_halves
from mqdb.common.transaction import HalfEvent, HalfState
from mqdb.embedded import EmbeddedPostgres
from mqdb.service.service import Context
from mqdb.service.transaction_checker import TransactionChecker
from mqdb.store.engine import create_engine, driver
from mqdb.store.transactions import half_checks, half_messages
from tests.fixtures.postgres import Database, new_database

SEGMENTS = 9
NEEDED = 5

HALVES = """
INSERT INTO mqdb.half_message (log_pos, msg_id, producer_group, topic, state, stored_at, check_at, ended_at)
SELECT n, gen_random_uuid(), 'g', 'orders', CASE WHEN is_open THEN 'PREPARED' ELSE 'ROLLED_BACK' END, mqdb.now(),
       CASE WHEN is_open THEN mqdb.now() END, CASE WHEN NOT is_open THEN mqdb.now() END
FROM generate_series(1, 20000) n, LATERAL (SELECT n % 2000 = 0) AS half (is_open)
"""


@pytest.fixture(scope="module", params=["never analyzed", "analyzed"])
def original(request: pytest.FixtureRequest, postgres: EmbeddedPostgres, template_database: str) -> Iterator[Database]:
    """A broker with empty segments and many half messages."""
    with new_database(postgres, template_database) as database:
        setting_up = database.connect()
        setting_up.execute("ALTER TABLE mqdb.half_message SET (autovacuum_enabled = off)")
        setting_up.execute("SELECT mqdb.add_segment(1000) FROM generate_series(4, %s)", [SEGMENTS])
        setting_up.execute(HALVES)
        if request.param == "analyzed":
            setting_up.execute("ANALYZE")
        # Nobody may be connected to what is copied.
        setting_up.close()
        yield database


@pytest.fixture
def filled(postgres: EmbeddedPostgres, original: Database) -> Iterator[Database]:
    """A copy of the database for one test."""
    with new_database(postgres, original.name) as copy:
        yield copy


@pytest.fixture
def filled_engine(filled: Database) -> Iterator[Engine]:
    """An engine like that of a service."""
    engine = create_engine(filled.dsn)
    yield engine
    engine.dispose()


@pytest.fixture
def client(filled: Database) -> Iterator[Connection]:
    """A connection like that of a client, which plans with indexes only."""
    engine = create_engine(filled.dsn, indexes_only=True)
    with engine.connect() as connection:
        yield connection
    engine.dispose()


@pytest.fixture
def checker(filled_engine: Engine, scheduler: BackgroundScheduler) -> Iterator[Connection]:
    """A connection of the transaction checker."""
    with filled_engine.connect() as connection:
        TransactionChecker(Context(filled_engine.connect), scheduler).prepare(connection)
        yield connection


def plan(connection: Connection, statement: str, values: Mapping[str, object]) -> str:
    """The generic plan of a statement, as used by an execution with these values."""
    names = list(dict.fromkeys(re.findall(r"%\((\w+)\)s", statement)))
    text = re.sub(r"%\((\w+)\)s", lambda found: f"${names.index(found[1]) + 1}", statement).replace("%%", "%")
    session = driver(connection)
    session.execute("DEALLOCATE ALL")
    session.execute(f"PREPARE it AS {text}".encode())
    arguments = sql.SQL(", ").join(sql.Literal(values[name]) for name in names)
    explained = sql.SQL("EXPLAIN EXECUTE it ({})" if names else "EXPLAIN EXECUTE it").format(arguments)
    return "\n".join(row[0] for row in session.execute(explained))


def plans(connection: Connection, call: Callable[[], object]) -> str:
    """The generic plans of the half-message statements that a function of the store executes."""
    executed: list[tuple[str, Any]] = []

    def note(_connection: object, _cursor: object, statement: str, parameters: Any, *_: object) -> None:
        executed.append((statement, parameters))

    event.listen(connection, "before_cursor_execute", note)
    try:
        call()
    finally:
        event.remove(connection, "before_cursor_execute", note)
    return "\n".join(plan(connection, *each) for each in executed if "half_message" in each[0])


def indexes(plan: str, table: str) -> set[str]:
    """The indexes by which a table is read; fails on any other kind of scan."""
    found = re.findall(rf"(\w[\w ]*?) Scan (?:Backward )?(?:using (\w+) )?on {table}\b", plan)
    assert {kind for kind, _ in found} <= {"Index", "Index Only"}, plan
    return {index for _, index in found}


def assert_by_position(plan: str) -> None:
    """Only the segment of the position is opened, and it is read by its primary key."""
    assert set(re.findall(r" on commit_log_(\d+)", plan)) == {str(NEEDED)}
    [(index, condition)] = re.findall(r"Scan using (\w+) on commit_log_\d+ [^\n]*\n *([^\n]*)", plan)
    assert index == f"commit_log_{NEEDED}_pkey"
    assert re.match(r"Index Cond: \(\(log_pos >= \w+\.log_pos\) AND \(log_pos <= \w+\.log_pos\) AND", condition)


def position(connection: Connection) -> dict[str, object]:
    """The positions of the needed segment."""
    statement = "SELECT start_pos FROM mqdb.segment WHERE segment = %s"
    [(start_pos,)] = driver(connection).execute(statement, [NEEDED]).fetchall()
    return {"positions": f"{{{start_pos}}}", "lowest_pos": start_pos, "past_pos": start_pos + 1}


def test_an_end_finds_its_record_by_the_position_and_its_queue_by_the_name(client: Connection) -> None:
    values = {"group": "g", "unique_id": "00000000-0000-0000-0000-000000000000", "may_be_immune": "true"}

    for what in (HalfEvent.COMMIT, HalfEvent.ROLLBACK, HalfEvent.GIVE_UP):
        found = plan(client, half_messages.end_text(what), values | position(client))

        assert_by_position(found)
        assert "Conflict Arbiter Indexes: half_message_pkey" in found, what
        assert indexes(found, "half_message") == set(), what
        assert indexes(found, "topic") == {"topic_topic_key"}, what
        assert indexes(found, "queue") == {"queue_topic_id_queue_id_key"}, what


@pytest.mark.parametrize("statement", [half_messages.find_text(), half_checks.checks_text()], ids=["find", "checks"])
def test_half_messages_and_their_records_are_found_by_their_positions(client: Connection, statement: str) -> None:
    found = plan(client, statement, position(client))

    assert_by_position(found)
    assert indexes(found, "half_message") == {"half_message_pkey"}


#: What is called, and the indexes that will do.
OF_THE_CHECKER: dict[str, tuple[Callable[[Connection], object], str]] = {
    "take due": (lambda connection: half_checks.take_due(connection, 1_000, timedelta(seconds=6)), "check_at"),
    "dead producers": (half_checks.take_from_the_dead, "check_client pkey"),
    "from ahead": (lambda connection: half_checks.take_from_ahead(connection, timedelta(seconds=1)), "check_at pkey"),
    "a client's": (
        lambda connection: half_checks.open_checks(connection, "broker-a", "client", "g", 100),
        "check_client",
    ),
    "ask": (lambda connection: half_checks.ask(connection, [(2_000, "client")], timedelta(seconds=1)), "pkey"),
    "postpone": (lambda connection: half_checks.postpone(connection, [2_000], timedelta(seconds=1)), "pkey"),
    "forget": (lambda connection: half_checks.forget_question(connection, 2_000, "client"), "pkey check_client"),
    "close lost": (lambda connection: half_messages.close_lost(connection, [2_000]), "pkey"),
    "resume": (lambda connection: half_messages.resume(connection, 2_000), "pkey"),
    "prune": (lambda connection: half_messages.prune(connection, 1_000), "pkey"),
}


def test_a_round_of_the_checker_reads_no_half_message_that_has_ended(checker: Connection) -> None:
    for name, (call, allowed) in OF_THE_CHECKER.items():
        found = indexes(plans(checker, partial(call, checker)), "half_message")

        assert found, name
        assert found <= {f"half_message_{index}" for index in allowed.split()}, name


def test_whether_there_is_work_is_read_from_indexes(checker: Connection) -> None:
    found = plan(checker, half_checks.has_work_text(), {})

    assert indexes(found, "half_message") == {"half_message_check_at", "half_message_pkey"}
    assert " Seq Scan " not in found


@pytest.mark.parametrize("original", ["analyzed"], indirect=True)
def test_how_far_the_log_is_needed_is_read_from_those_without_an_end(filled_engine: Engine) -> None:
    """The oldest position that is still needed is read from half messages without an end.

    Retention runs this query in a session without planner settings.
    """
    with filled_engine.connect() as connection:
        found = plans(connection, lambda: half_messages.first_prepared(connection))

    assert indexes(found, "half_message") == {"half_message_check_at"}


def test_what_is_new_is_read_by_its_offset(checker: Connection) -> None:
    executed: list[tuple[str, Any]] = []
    event.listen(
        checker,
        "before_cursor_execute",
        lambda _connection, _cursor, statement, parameters, *_: executed.append((statement, parameters)),
    )

    half_checks.entries(checker, 17, 1_000)

    found = plan(checker, *executed[0])
    scans = re.findall(r"Scan using (\w+) on queue_run_\d+ [^\n]*\n *([^\n]*)", found)
    assert len(scans) == found.count(" on queue_run_")
    assert all(index.endswith("queue_key_last_offset_idx") for index, _ in scans)
    assert all(re.search(r"AND \(last_offset >= ", condition) for _, condition in scans)


def test_those_without_an_end_are_listed_without_a_look_at_the_others(client: Connection) -> None:
    found = plans(client, lambda: list_halves(client, [HalfState.PREPARED, HalfState.DISCARDED], limit=100))

    # h_1 is asked whether a young one has a row.
    assert indexes(found, "half_message h(?:_2)?") == {"half_message_check_at", "half_message_discarded"}
