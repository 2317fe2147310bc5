"""Exactly-once commits and their folding use their indexes, however many groups and dead rows there are."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Connection, select

from mqdb.embedded import EmbeddedPostgres
from mqdb.store.consumers import offset_commits, poll_commits
from mqdb.store.consumers.consumer_offsets import OwnedQueue, effective_offset
from mqdb.store.engine import create_engine, driver, text_of
from mqdb.store.migrations import sql_text
from mqdb.store.tables import consumer_offset
from tests.fixtures.postgres import Database, new_database
from tests.fixtures.variants import usually

FILL = """
INSERT INTO mqdb.subscription_group (group_name) SELECT 'group-' || n FROM generate_series(1, 300) n;
INSERT INTO mqdb.topic (topic, read_queue_nums, write_queue_nums, perm) VALUES ('orders', 64, 64, 6);
INSERT INTO mqdb.queue (topic_id, queue_id)
    SELECT topic_id, n FROM mqdb.topic, generate_series(0, 63) n WHERE topic = 'orders';
INSERT INTO mqdb.consumer_offset (group_id, queue_key, next_offset)
    SELECT group_id, queue_key, 0 FROM mqdb.subscription_group, mqdb.queue;
INSERT INTO mqdb.offset_commit (group_id, queue_key, from_offset, next_offset, segment, epoch)
    SELECT group_id, queue_key, n, n + 1, 0, 1 FROM mqdb.consumer_offset, generate_series(1, 10) n WHERE group_id < 100;
"""


@pytest.fixture(
    scope="module",
    params=usually(
        "empty and analyzed",
        "full and never analyzed",
        of=["empty and analyzed", "full and analyzed", "full and never analyzed"],
    ),
)
def filled(request: pytest.FixtureRequest, postgres: EmbeddedPostgres, template_database: str) -> Iterator[Database]:
    """A broker whose statistics may be completely wrong. The tests only look at plans."""
    state: str = request.param
    with new_database(postgres, template_database) as database:
        setting_up = database.connect()
        setting_up.execute("ALTER TABLE mqdb.offset_commit SET (autovacuum_enabled = off)")
        setting_up.execute("ALTER TABLE mqdb.consumer_offset SET (autovacuum_enabled = off)")
        if state.startswith("full"):
            setting_up.execute(FILL)
        if state.endswith(" analyzed") and "never" not in state:
            setting_up.execute("ANALYZE")
        yield database


@pytest.fixture
def connection(filled: Database) -> Iterator[Connection]:
    """A connection like that of a client."""
    engine = create_engine(filled.dsn, indexes_only=True)
    with engine.connect() as connection:
        yield connection
    engine.dispose()


def plan(connection: Connection, statement: str) -> str:
    """The generic plan of a statement."""
    names = list(dict.fromkeys(re.findall(r"%\((\w+)\)s", statement)))
    text = re.sub(r"%\((\w+)\)s", lambda found: f"${names.index(found[1]) + 1}", statement)
    session = driver(connection)
    session.execute(f"PREPARE hot AS {text}".encode())
    values = f"({', '.join(['NULL'] * len(names))})" if names else ""
    rows = session.execute(f"EXPLAIN EXECUTE hot {values}".encode())
    return "\n".join(row[0] for row in rows)


def text_of_call(call: Any, *arguments: Any, **options: Any) -> str:
    """The text of the only statement that a function of the store executes."""
    found: list[str] = []

    class Recorder:
        def execute(self, statement: Any) -> list[Any]:
            found.append(text_of(statement))
            return []

        scalars = execute

    call(Recorder(), *arguments, **options)
    [statement] = found
    return statement


OWNED = [OwnedQueue(1, 1, 0, 0), OwnedQueue(2, 1, 0, 0)]


@pytest.mark.parametrize("is_marked", [False, True])
def test_a_commit_finds_its_owner_by_keys(connection: Connection, is_marked: bool) -> None:
    """A commit finds its owner by keys.

    This also holds on listeners' connections, which are not clients': the commit makes the planner as careful there.
    """
    text = offset_commits._append_text(is_marked=is_marked)

    found = plan(connection, text)

    assert "Seq Scan" not in found
    assert re.search(r"Index Scan using consumer_offset_pkey", found)
    assert re.search(r"Index Scan using subscription_group_group_name_key", found)
    assert "set_config('enable_seqscan', 'off', true)" in offset_commits._INDEXES_ONLY


def test_rows_are_locked_by_their_keys(connection: Connection) -> None:
    found = plan(connection, text_of_call(offset_commits.lock, "g", OWNED))

    assert "Seq Scan" not in found
    assert "consumer_offset_pkey" in found


def test_offsets_are_folded_by_their_keys(connection: Connection) -> None:
    found = plan(connection, text_of_call(offset_commits.fold, "g", OWNED, {1: 10, 2: 20}))

    assert "Seq Scan" not in found
    assert re.search(r"Index Scan using consumer_offset_pkey", found)


def test_commits_are_taken_from_the_stored_offset_on(connection: Connection) -> None:
    """Commits are read from the stored offset on.

    A scan from the lowest offset would be long: a held snapshot keeps all folded commits in the index.
    """
    text = sql_text("consumers/take_offset_commits")
    statement = text[text.index("WITH gone") : text.index(";", text.index("WITH gone"))]
    for name, type_ in (("id", "integer"), ("take_offset_commits.queue_keys", "integer[]"), ("floors", "bigint[]")):
        statement = re.sub(rf"(?<![.\w]){re.escape(name)}\b", f"%({name.split('.')[-1]})s::{type_}", statement)

    found = plan(connection, statement)

    assert "Seq Scan" not in found
    condition = r"group_id = .*queue_key = own\.queue_key\) AND \(from_offset >= own\.floor"
    assert re.search(rf"using offset_commit_pkey.*\n *Index Cond: .*{condition}", found), found
    assert re.search(r"Tid Scan on offset_commit", found)


def test_the_effective_offset_is_read_from_the_end_of_the_index(connection: Connection) -> None:
    statement = text_of(select(effective_offset()).select_from(consumer_offset))

    found = plan(connection, statement)

    assert re.search(r"Limit.*\n *-> +Index Scan Backward using offset_commit_pkey", found), found
    assert re.search(r"Index Cond: .*from_offset >= consumer_offset\.next_offset", found)


def test_a_commit_by_polls_finds_its_owners_by_keys(connection: Connection) -> None:
    session = driver(connection)
    statement = poll_commits.append_statement()
    session.execute(f"PREPARE hot AS {statement.text}".encode())
    values = ", ".join(["NULL"] * len(statement.oids))
    found = "\n".join(row[0] for row in session.execute(f"EXPLAIN EXECUTE hot ({values})".encode()))

    assert "Seq Scan" not in found
    assert re.search(r"Index Scan using consumer_offset_pkey", found)
