"""Hot statements use their indexes with many segments, whatever the statistics say.

The statements of dispatch are taken from the function itself, with parameters instead of its variables. The statements
are planned as the function plans them: generic, under its own settings.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

from mqdb.embedded import EmbeddedPostgres
from mqdb.store.engine import text_of
from mqdb.store.log import message_index
from mqdb.store.migrations import sql_text
from tests.fixtures.log import (
    Connection,
    append,
    create_topic,
    dispatch,
    index_keys,
    scalar,
    small_segments,
)
from tests.fixtures.postgres import KNOW_ITSELF, Database, new_database

SEGMENTS = 30
RECORDS = 400
DISPATCH_RECORDS = "mqdb.dispatch_records(mqdb.batch,integer[],boolean,integer)"


@dataclass(frozen=True)
class Scan:
    """One node of a plan that reads a partition of the log or the consume queue."""

    node: str
    table: str
    index: str  # of the partitioned table
    condition: str
    loops: int


class Function:
    """A statement of a stored function, prepared on a connection as the function would."""

    def __init__(self, connection: Connection, signature: str, first_words: str) -> None:
        self.connection = connection
        source = scalar(connection, "SELECT prosrc FROM pg_proc WHERE oid = %s::regprocedure", [signature])
        body = re.sub(r"--.*", "", source)
        statement = body[body.index(first_words) : body.index(";", body.index(first_words))]
        types = dict(
            connection.execute(
                """SELECT 'batch.' || attname, format_type(atttypid, atttypmod) FROM pg_attribute
                   WHERE attrelid = 'mqdb.batch'::regclass AND attnum > 0"""
            ).fetchall()
        )
        types |= {"max_rows": "integer", "most_looked_at": "bigint", "lane_keys": "integer[]", "in_lane": "boolean"}
        types |= {"last_segment": "integer"}
        self.parameters = [name for name in types if re.search(rf"\b{name}\b", statement)]
        for number, name in enumerate(self.parameters, start=1):
            statement = re.sub(rf"\b{name}\b", f"${number}", statement)
        # Where plpgsql puts the result; INSERT INTO stands within its line.
        statement = re.sub(r"\n\s+INTO [\w, ]+\n", "\n", statement)
        settings = scalar(connection, "SELECT proconfig FROM pg_proc WHERE oid = %s::regprocedure", [signature])
        for setting in settings:
            name, _, value = setting.partition("=")
            connection.execute(f"SET {name} = {value}")
        connection.execute("DEALLOCATE ALL")
        connection.execute(
            f"PREPARE hot ({', '.join(types[name] for name in self.parameters)}) AS {statement}", prepare=False
        )

    def place(self, name: str) -> str:
        """The plan's name for a variable of the function."""
        return f"${self.parameters.index(name) + 1}"

    def scans(self, service: str, max_rows: int = 50_000) -> list[Scan]:
        """The scans of the next batch of a service; the batch is run and rolled back."""
        self.connection.execute("BEGIN")
        row = self.connection.execute(
            "SELECT to_jsonb(b) FROM mqdb.begin_batch(%s) b", [service], prepare=False
        ).fetchone()
        assert row is not None
        batch = {f"batch.{name}": value for name, value in row[0].items()}
        batch |= {"max_rows": max_rows, "most_looked_at": 20 * max_rows, "lane_keys": [], "in_lane": False}
        batch |= {"last_segment": batch["batch.last_segment"]}
        assert batch["batch.outcome"] == "BATCH"
        values = ", ".join(literal(batch[name]) for name in self.parameters)
        plan = scalar(
            self.connection,
            f"EXPLAIN (ANALYZE, VERBOSE, TIMING OFF, FORMAT JSON) EXECUTE hot ({values})",
        )
        self.connection.execute("ROLLBACK")
        return partition_scans(self.connection, plan[0]["Plan"], "commit_log|queue_run")


def partition_scans(connection: Connection, plan: dict[str, Any], tables: str) -> list[Scan]:
    """The nodes of a plan that read a partition of one of the tables."""
    parents = dict(
        connection.execute(
            """SELECT child.relname, parent.relname FROM pg_inherits
               JOIN pg_class child ON child.oid = inhrelid JOIN pg_class parent ON parent.oid = inhparent"""
        ).fetchall()
    )
    return [
        Scan(
            node["Node Type"],
            node["Relation Name"],
            parents.get(node.get("Index Name", ""), node.get("Index Name", "")),
            node.get("Index Cond", ""),
            node["Actual Loops"],
        )
        for node in nodes(plan)
        if re.fullmatch(rf"({tables})(_\d+)?", node.get("Relation Name", "")) and "Scan" in node["Node Type"]
    ]


def literal(value: object) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, list):
        return (
            "'{"
            + ",".join(
                f'"({",".join(map(str, each.values()))})"' if isinstance(each, dict) else str(each) for each in value
            )
            + "}'"
        )
    return f"'{value}'"


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", []):
        yield from nodes(child)


@pytest.fixture(scope="module")
def filled(request: pytest.FixtureRequest, postgres: EmbeddedPostgres, template_database: str) -> Iterator[Database]:
    """A broker with many segments in one of STATES, shared by all tests of that state, which roll their changes back.

    The first segment has records of a transaction that was in progress while the other segments were filled.
    """
    with new_database(postgres, template_database) as database:
        log, writer = database.connect(), database.connect()
        log.execute(KNOW_ITSELF)
        small_segments(log, RECORDS, ahead=SEGMENTS)
        create_topic(log, "orders", 3)
        writer.execute("BEGIN")
        append(writer, queue_keys(log)[0], 5)
        request.param(log, writer)
        yield database


def queue_keys(log: Connection) -> list[int]:
    rows = log.execute("SELECT queue_key FROM mqdb.queue JOIN mqdb.topic USING (topic_id) WHERE topic = 'orders'")
    return [row[0] for row in rows]


def with_hardly_any_records(log: Connection, writer: Connection) -> None:
    """Partitions that were never analyzed, with a round after a late commit still to come."""
    append(log, queue_keys(log)[1], 5)
    dispatch(log)
    index_keys(log)
    writer.execute("COMMIT")
    append(log, queue_keys(log)[2], 5)


def with_hardly_any_records_but_statistics(log: Connection, writer: Connection) -> None:
    """Analyzed partitions with hardly any records, so that all indexes look alike to the planner."""
    with_hardly_any_records(log, writer)
    log.execute("ANALYZE")


def with_many_records(log: Connection, writer: Connection) -> None:
    """Most segments are filled by one transaction; half of its records are dispatched, and everything is analyzed."""
    log.execute("BEGIN")
    for number in range(SEGMENTS - 2):
        append(log, queue_keys(log)[number % 3], RECORDS)
    log.execute("COMMIT")
    for _ in range(SEGMENTS // 2):
        dispatch(log)
        index_keys(log)
    while dispatch(log, RECORDS).more and index_keys(log, RECORDS).more:
        pass
    log.execute("ANALYZE")
    writer.execute("COMMIT")
    append(log, queue_keys(log)[2], 50)


def with_a_backlog(log: Connection, writer: Connection) -> None:
    """The same segments, but hardly any of their records are dispatched."""
    append(log, queue_keys(log)[1], 5)
    dispatch(log)
    index_keys(log)
    log.execute("BEGIN")
    for number in range(SEGMENTS - 2):
        append(log, queue_keys(log)[number % 3], RECORDS)
    log.execute("COMMIT")
    log.execute("ANALYZE")
    writer.execute("COMMIT")


STATES = [with_hardly_any_records, with_hardly_any_records_but_statistics, with_many_records, with_a_backlog]


def in_states(*states: Callable[[Connection, Connection], None]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("filled", states, ids=lambda state: state.__name__, indirect=True)


@in_states(*STATES)
@pytest.mark.parametrize("signature", [DISPATCH_RECORDS, "mqdb.index_keys(integer)"])
def test_stragglers_are_found_by_xid_and_the_walk_goes_by_position(filled: Database, signature: str) -> None:
    statement = Function(filled.connect(), signature, "WITH straggler")

    # The key index takes the batches that dispatch has taken.
    scans = [scan for scan in statement.scans("dispatch") if scan.table.startswith("commit_log")]

    stragglers = [scan for scan in scans if "xid" in scan.condition]
    walk = [scan for scan in scans if "xid" not in scan.condition]
    assert {(scan.node, scan.index) for scan in stragglers} == {("Index Scan", "commit_log_xid")}
    assert {(scan.node, scan.index) for scan in walk} == {("Index Scan", "commit_log_pkey")}
    for scan in stragglers:
        assert f"log_pos <= {statement.place('batch.done_pos')}" in scan.condition
    for scan in walk:
        assert f"log_pos > {statement.place('batch.done_pos')}" in scan.condition
        assert f"log_pos <= {statement.place('batch.until_pos')}" in scan.condition
    # A batch ends with its segment, so the walk reads one partition, or two when it begins at an end.
    assert 1 <= len({scan.table for scan in walk if scan.loops}) <= 2


@in_states(*STATES)
def test_the_last_offset_is_read_once_for_each_queue_from_the_end_of_an_index(filled: Database) -> None:
    statement = Function(filled.connect(), DISPATCH_RECORDS, "WITH straggler")

    scans = [scan for scan in statement.scans("dispatch") if scan.table.startswith("queue_run")]

    assert scans
    assert {scan.index for scan in scans} == {"queue_run_offset"}
    assert {scan.node for scan in scans} <= {"Index Scan", "Index Only Scan"}
    assert sum(scan.loops for scan in scans) <= len(queue_keys(statement.connection))
    assert all("queue_key" in scan.condition for scan in scans)


@in_states(with_many_records)
def test_the_last_offsets_of_a_finished_segment_are_read_from_the_end_of_an_index(filled: Database) -> None:
    statement = Function(filled.connect(), "mqdb.leave_segment(integer)", "UPDATE mqdb.queue")

    scans = [scan for scan in statement.scans("dispatch") if scan.table.startswith("queue_run")]

    assert {scan.index for scan in scans} == {"queue_run_offset"}
    assert len({scan.table for scan in scans}) == 1


# -- the look-up of unique ids ------------------------------------------------------------------


def scans_of_look_up(connection: Connection, after_pos: int) -> list[Scan]:
    """The scans of a look-up of some ids, planned as in an mqdb session."""
    statement = sql_text("log/find_records").split("FOR found IN")[1].split("    LOOP")[0]
    for number, name in enumerate(["unique_ids", "after_pos"], start=1):
        statement = statement.replace(f"find_records.{name}", f"${number}")
    for setting in message_index.PLANNER_SETTINGS:
        connection.execute(f"SET {setting} = off")
    connection.execute("SET plan_cache_mode = force_generic_plan")
    connection.execute(f"PREPARE look_up (uuid[], bigint) AS {statement}", prepare=False)
    ids = [row[0] for row in connection.execute("SELECT msg_id FROM mqdb.commit_log ORDER BY random() LIMIT 100")]
    values = f"{literal(ids)}, {after_pos}"
    plan = scalar(connection, f"EXPLAIN (ANALYZE, VERBOSE, TIMING OFF, FORMAT JSON) EXECUTE look_up ({values})")
    return partition_scans(connection, plan[0]["Plan"], "commit_log|message_index|id_span")


@pytest.mark.parametrize("after_pos", [0, RECORDS], ids=["anywhere", "above a position"])
@in_states(*STATES)
def test_unique_ids_are_looked_up_in_the_index_and_what_it_lacks_by_xid_and_position(
    filled: Database, after_pos: int
) -> None:
    scans = scans_of_look_up(filled.connect(), after_pos)

    index = [scan for scan in scans if scan.table.startswith("message_index")]
    spans = [scan for scan in scans if scan.table == "id_span"]
    records = [scan for scan in scans if "log_pos >= " in scan.condition]
    stragglers = [scan for scan in scans if "xid" in scan.condition]
    walk = [scan for scan in scans if scan not in [*index, *spans, *records, *stragglers]]
    assert {(scan.node, scan.index) for scan in index} == {("Index Scan", "message_index_key")}
    assert {(scan.node, scan.index) for scan in spans} == {("Index Scan", "id_span_made_ms")}
    assert {(scan.node, scan.index) for scan in records + walk} == {("Index Scan", "commit_log_pkey")}
    assert {(scan.node, scan.index) for scan in stragglers} == {("Index Scan", "commit_log_xid")}
    assert all("log_pos > " in scan.condition for scan in stragglers + walk)
    assert all("log_pos <= " in scan.condition for scan in stragglers)
    # Once, and not for each id. (A straggler's partition once for those that are younger, once for each that was late.)
    assert {scan.loops for scan in walk} <= {0, 1}


@in_states(*STATES)
def test_keys_are_looked_up_in_the_index(filled: Database) -> None:
    connection = filled.connect()
    for setting in message_index.PLANNER_SETTINGS:
        connection.execute(f"SET {setting} = off")
    statement = message_index.with_key()
    values = statement.compile(dialect=PGDialect_psycopg()).params | {"key": "17", "topic_id": 1}  # type: ignore[no-untyped-call]

    explain = f"EXPLAIN (ANALYZE, VERBOSE, TIMING OFF, FORMAT JSON) {text_of(statement)}"
    plan = scalar(connection, explain, values)
    scans = partition_scans(connection, plan[0]["Plan"], "commit_log|message_index")

    assert {(scan.node, scan.index) for scan in scans} == {
        ("Index Scan", "message_index_key"),
        ("Index Scan", "commit_log_pkey"),
    }


@in_states(with_a_backlog)
def test_above_a_position_only_the_newest_segments_are_looked_at(filled: Database) -> None:
    connection = filled.connect()
    last = scalar(connection, "SELECT last_value FROM mqdb.log_pos")

    scans = scans_of_look_up(connection, last - 1)

    newest = scalar(connection, "SELECT max(segment) FROM mqdb.segment WHERE start_pos <= %s", [last])
    looked_at = {int(scan.table.rpartition("_")[2]) for scan in scans if scan.loops and scan.table != "id_span"}
    assert looked_at
    assert min(looked_at) >= newest
