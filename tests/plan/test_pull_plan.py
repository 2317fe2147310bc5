"""Pull and append keep to their indexes also when they were planned while the segments were empty, and known to be.

A plan lives as long as its connection, and a segment fills under it. With ANALYZE, a nightly job say, the planner
knows that a partition is empty; it would read it from end to end then, once for each record of a pull.
"""

import re
from collections.abc import Iterator

import pytest
from sqlalchemy import Connection

from mqdb.store import commit_log, consume_queue
from mqdb.store.engine import create_engine
from tests.fixtures.postgres import Database

PULL = {
    "queue_keys": "{1,2}",
    "offsets": "{0,0}",
    "limit": 32,
    "scan_limit": 32,
    "max_bytes": 4_194_304,
    "newest_segment": 0,
    "first_segment": 0,
    "last_segment": 2**31 - 1,
    "lowest_pos": 0,
    "past_pos": 2**63 - 1,
}


@pytest.fixture
def analyzed(database: Database) -> Iterator[Connection]:
    """A connection of a client to a broker with empty segments, all of them analyzed."""
    setting_up = database.connect()
    setting_up.execute("SELECT mqdb.add_segment(1000) FROM generate_series(1, 4)")
    setting_up.execute("ANALYZE")
    engine = create_engine(database.dsn, indexes_only=True)
    with engine.connect() as connection:
        yield connection
    engine.dispose()


@pytest.mark.parametrize(
    ("statement", "values"),
    [(consume_queue.PULL, PULL), (consume_queue.PULL_TAGS, PULL | {"tag_codes": "{7}"})],
    ids=["pull", "pull with tags"],
)
def test_no_partition_is_read_from_end_to_end(analyzed: Connection, statement: str, values: dict[str, object]) -> None:
    plan = "\n".join(row[0] for row in analyzed.exec_driver_sql("EXPLAIN " + statement, values))

    assert re.findall(r"(?:Seq|Bitmap Heap) Scan on (?:commit_log|consume_queue)\w*", plan) == []
    assert re.search(r"Index Scan using consume_queue_\d+_queue_key_queue_offset_idx", plan)
    assert re.search(r"Index Scan using commit_log_\d+_pkey", plan)


def test_an_append_looks_its_queue_up_by_the_key(analyzed: Connection) -> None:
    values = dict.fromkeys(commit_log.Record._fields) | {"queue_key": 1}

    plan = "\n".join(row[0] for row in analyzed.exec_driver_sql("EXPLAIN " + commit_log.APPEND_ONE, values))

    assert re.search(r"Index (Only )?Scan using queue_pkey", plan)
