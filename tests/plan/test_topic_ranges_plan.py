"""Bulk reads use the queue's index for a small range, and otherwise read a segment sequentially.

This also holds for partitions that have grown since the last ANALYZE, or never had one.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import psycopg
import pytest
from sqlalchemy import Connection

from benchmarks.bench import message_sample
from mqdb.broker.topics import topic_ranges as verbs
from mqdb.embedded import EmbeddedPostgres
from mqdb.pipeline.read import planner
from mqdb.pipeline.read.engines import session_uri
from mqdb.pipeline.read.offsets import Queue
from mqdb.pipeline.read.schema import MESSAGE_COLUMNS
from mqdb.pipeline.read.source_options import Splitting
from mqdb.store.engine import create_engine
from mqdb.store.topics.topic_ranges import Choice, OffsetRange, Part
from tests.fixtures.log import create_topic, dispatch_all
from tests.fixtures.postgres import Database, new_database
from tests.fixtures.variants import usually

MESSAGES = 40_000


@dataclass(frozen=True)
class Filled:
    """A database with two queues of one topic."""

    database: Database
    connection: Connection
    keys: list[int]


@pytest.fixture(
    scope="module",
    params=usually("analyzed-when-empty", of=["never-analyzed", "analyzed-when-empty", "analyzed"]),
)
def filled(request: pytest.FixtureRequest, postgres: EmbeddedPostgres, template_database: str) -> Iterator[Filled]:
    """Two queues that fill much of a segment. The tests only read."""
    with new_database(postgres, template_database) as database:
        setting_up = database.connect()
        if request.param == "analyzed-when-empty":
            setting_up.execute("ANALYZE")
        keys = create_topic(setting_up, "orders", 2)
        message_sample.fill(setting_up, keys, MESSAGES)
        dispatch_all(setting_up, 50_000)
        if request.param == "analyzed":
            setting_up.execute("ANALYZE")
        engine = create_engine(database.dsn)
        with engine.connect() as connection:
            yield Filled(database, connection, keys)
        engine.dispose()


def plan_of(connection: Connection, database: Database, part: Part, *, is_slice: bool) -> str:
    """The plan of a part, in a session like that of a worker."""
    statement = verbs.statements(connection, [part], tuple(MESSAGE_COLUMNS), Choice()).reads[0]
    with psycopg.connect(session_uri(database.dsn)) as session:
        if is_slice:
            session.execute("SET enable_nestloop = off")
        rows = session.execute(b"EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) " + statement.encode())
        return "\n".join(row[0] for row in rows)


def parts(connection: Connection, ranges: list[OffsetRange], by: str) -> list[Part]:
    names = {each.queue_key: Queue("orders", number) for number, each in enumerate(ranges)}
    return [part for task in planner.tasks(verbs.layout(connection, ranges), names, Splitting(by=by)) for part in task]


def test_a_small_range_looks_up_its_own_messages_only(filled: Filled) -> None:
    connection, keys = filled.connection, filled.keys
    (part,) = parts(connection, [OffsetRange(keys[0], 1000, 1010)], "auto")

    plan = plan_of(connection, filled.database, part, is_slice=False)

    assert re.search(r"Index Scan using queue_run_1_queue_key_last_offset_idx .*rows=1\b", plan), plan
    assert re.search(r"Index Scan using commit_log_1_pkey ", plan), plan
    assert "Seq Scan" not in plan
    assert "Append" not in plan


def test_a_slice_reads_its_segment_once(filled: Filled) -> None:
    connection, keys = filled.connection, filled.keys
    (part,) = parts(connection, [OffsetRange(key, 0, MESSAGES // 2) for key in keys], "auto")

    plan = plan_of(connection, filled.database, part, is_slice=True)

    assert not part.is_ordered
    assert "Nested Loop" not in plan, plan
    assert "Sort" not in plan, plan
    assert "Batches: 1 " in plan or "Merge Join" in plan, plan


def test_spans_are_found_by_the_ends_of_the_index(filled: Filled) -> None:
    connection, keys = filled.connection, filled.keys

    found = verbs.layout(connection, [OffsetRange(keys[0], 5, 900), OffsetRange(keys[1], 0, 10)])

    assert [tuple(span) for span in found.spans] == [(1, keys[0], 5, 900), (1, keys[1], 0, 10)]
