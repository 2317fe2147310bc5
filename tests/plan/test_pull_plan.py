"""Pull and append use their indexes even if they were planned while the statistics said that the segments were empty.

A plan lives as long as its connection, while a segment fills. After an ANALYZE, for example by a nightly job, the
planner knows that a partition is empty, and would read it sequentially, once for each record of a pull.
"""

import re
from collections.abc import Iterator, Mapping

import pytest
from psycopg import sql
from sqlalchemy import Connection

from benchmarks.bench import message_sample
from mqdb.selector import compile_selector
from mqdb.selector.subscription import MessageFilter
from mqdb.selector.tags import parse_tag_expression
from mqdb.store.dispatch import consume_queue
from mqdb.store.dispatch.unread import unread_statement
from mqdb.store.engine import create_engine, driver
from mqdb.store.log import commit_log
from tests.fixtures.log import create_topic, dispatch_all
from tests.fixtures.postgres import Database

PULL = {
    "queue_keys": "{1,2}",
    "offsets": "{0,0}",
    "histories": "{NULL,NULL}",
    "limit": 32,
    "scan_limit": 32,
    "max_bytes": 4_194_304,
    "newest_segment": 0,
    "first_segment": 0,
    "last_segment": 2**31 - 1,
    "lowest_pos": 0,
    "past_pos": 2**63 - 1,
    "tag_codes": "{}",
}

RARE = parse_tag_expression("TagRare")
FREQUENT = parse_tag_expression("TagA")
SEVERAL = parse_tag_expression("TagA || TagRare")
RED = compile_selector("a > 5 AND color = 'red'")

#: Along a queue of 2,000 messages: half of them have TagA, 2 have TagRare, a tenth are red with an a of 9.
TAGS = [*["TagA", "TagB"] * 499, "TagA", "TagRare"]
PROPERTIES = [{"a": str(n), "color": "red"} for n in (9, 1, 2, 3, 4)] + [{"a": "9", "color": "blue"}] * 5
MESSAGES = 2_000


@pytest.fixture
def analyzed(database: Database) -> Iterator[Connection]:
    """A client's connection to a broker with empty segments, all of them analyzed."""
    setting_up = database.connect()
    setting_up.execute("SELECT mqdb.add_segment(1000) FROM generate_series(1, 4)")
    setting_up.execute("ANALYZE")
    engine = create_engine(database.dsn, indexes_only=True)
    with engine.connect() as connection:
        yield connection
    engine.dispose()


def prepare(connection: Connection, message_filter: MessageFilter | None) -> None:
    """Plan a pull against the present statistics."""
    session = driver(connection)
    session.execute("DEALLOCATE ALL")
    session.execute(b"PREPARE pull AS " + consume_queue.statement_of(message_filter).text, prepare=False)
    execute(connection, message_filter, PULL, "EXPLAIN")


def execute(
    connection: Connection, message_filter: MessageFilter | None, values: Mapping[str, object], explain: str
) -> str:
    """The EXPLAIN output of the planned pull, executed with these values."""
    statement = consume_queue.statement_of(message_filter)
    given = {**statement.literals, **values}
    arguments = sql.SQL(", ").join(sql.Literal(given[name]) for name in statement.names)
    call = sql.SQL("{} EXECUTE pull ({})").format(sql.SQL(explain), arguments)
    return "\n".join(row[0] for row in driver(connection).execute(call, prepare=False))


@pytest.mark.parametrize("wanted", [None, RARE, SEVERAL, RED], ids=["all", "tag", "tags", "selector"])
def test_no_partition_is_read_from_end_to_end(analyzed: Connection, wanted: MessageFilter | None) -> None:
    prepare(analyzed, wanted)

    plan = execute(analyzed, wanted, PULL, "EXPLAIN")

    assert re.findall(r"(?:Seq|Bitmap Heap) Scan on (?:commit_log|consume_queue)\w*", plan) == []
    assert re.search(r"Index Scan using queue_run_\d+_queue_key_last_offset_idx", plan)
    assert re.search(r"Index Scan using commit_log_\d+_pkey", plan)


def test_the_ends_of_many_queues_are_found_by_their_index(analyzed: Connection) -> None:
    session, statement = driver(analyzed), unread_statement()
    session.execute("DEALLOCATE ALL")
    session.execute(b"PREPARE unread AS " + statement.text, prepare=False)
    values: Mapping[str, object] = {**statement.literals, **PULL}
    arguments = sql.SQL(", ").join(sql.Literal(values[name]) for name in statement.names)
    rows = session.execute(sql.SQL("EXPLAIN EXECUTE unread ({})").format(arguments), prepare=False)
    plan = "\n".join(line for (line,) in rows)

    assert re.findall(r"(?:Seq|Bitmap Heap) Scan on queue_run\w*", plan) == []
    assert re.search(r"Index (?:Only )?Scan Backward using queue_run_\d+_queue_key_last_offset_idx", plan)


class Work:
    """The reads of a pull according to its plan: rows that nodes returned or removed, summed over all loops."""

    def __init__(self, plan: str) -> None:
        self.plan = plan
        forward = [part for part in plan.split("->") if re.match(r"\s+Index Scan using queue_run_", part)]
        self.runs = sum(_rows(part) + _removed(part) for part in forward)
        self.entries = sum(_rows(part) for part in plan.split("->") if re.match(r"\s+ProjectSet ", part))
        records = [part for part in plan.split("->") if re.match(r"\s+Index Scan using commit_log_", part)]
        self.records = sum(_rows(part) for part in records)


def _rows(node: str) -> int:
    found = re.search(r"actual rows=([\d.]+) loops=(\d+)", node)
    return round(float(found[1]) * int(found[2])) if found else 0


def _removed(node: str) -> int:
    found = re.search(r"Rows Removed by Filter: (\d+)", node)
    return int(found[1]) if found else 0


@pytest.fixture
def filled(database: Database, analyzed: Connection, request: pytest.FixtureRequest) -> tuple[Connection, int]:
    """The analyzed database with a queue of messages that arrived after the pull with the wanted filter was planned."""
    prepare(analyzed, request.getfixturevalue("wanted"))
    setting_up = database.connect()
    dispatch_all(setting_up)
    [queue_key] = create_topic(setting_up, "orders")
    message_sample.fill(setting_up, [queue_key], MESSAGES, tags=TAGS, properties=PROPERTIES)
    dispatch_all(setting_up, 10_000)
    return analyzed, queue_key


def work(filled: tuple[Connection, int], wanted: MessageFilter, scan_limit: int) -> Work:
    connection, queue_key = filled
    values: dict[str, object] = PULL | {
        "queue_keys": f"{{{queue_key}}}",
        "offsets": "{0}",
        "histories": "{NULL}",
        "scan_limit": scan_limit,
    }
    codes = getattr(wanted, "codes", ())
    values["tag_codes"] = "{" + ",".join(map(str, codes)) + "}"
    return Work(execute(connection, wanted, values, "EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF)"))


@pytest.mark.parametrize("wanted", [RARE], ids=["tag"])
def test_a_rare_tag_is_searched_without_a_look_at_the_log(
    filled: tuple[Connection, int], wanted: MessageFilter
) -> None:
    """A search for a rare tag does not scan the log.

    All runs are compared, up to the scan limit, and only the two matching records are read.
    """
    done = work(filled, wanted, scan_limit=65_536)

    assert (done.runs, done.records) == (MESSAGES // 100, 2), done.plan
    assert done.entries <= 2 * 100, done.plan


@pytest.mark.parametrize("wanted", [FREQUENT, SEVERAL], ids=["tag", "tags"])
def test_a_frequent_tag_ends_the_search_where_there_are_enough(
    filled: tuple[Connection, int], wanted: MessageFilter
) -> None:
    done = work(filled, wanted, scan_limit=65_536)

    assert done.records == 32, done.plan
    assert done.entries <= 200, done.plan


@pytest.mark.parametrize("wanted", [RED], ids=["selector"])
def test_a_selector_ends_the_search_where_there_are_enough(
    filled: tuple[Connection, int], wanted: MessageFilter
) -> None:
    done = work(filled, wanted, scan_limit=800)

    assert done.entries <= done.records + 100, done.plan
    assert done.records <= 311, done.plan


@pytest.mark.parametrize("wanted", [compile_selector("color = 'green'")], ids=["selector"])
def test_a_selector_looks_at_no_more_records_than_its_limit(
    filled: tuple[Connection, int], wanted: MessageFilter
) -> None:
    done = work(filled, wanted, scan_limit=800)

    assert (done.entries, done.records) == (800, 800), done.plan


def test_an_append_looks_its_queue_up_by_the_key(analyzed: Connection) -> None:
    session = driver(analyzed)
    session.execute(f"PREPARE append AS {commit_log.append_one(places=True).text}".encode())

    nothing = ", ".join(["NULL"] * len(commit_log.append_one(places=True).formats))
    plan = "\n".join(row[0] for row in session.execute(f"EXPLAIN EXECUTE append ({nothing})".encode()))

    assert re.search(r"Index (Only )?Scan using live_queue_pkey", plan)
