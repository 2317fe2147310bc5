"""New timers are read by their offsets and positions, and only the needed partitions are opened.

The plans are generic, as those of the service, and are made at the worst time: while the segments are empty and the
statistics say so. test_timer_plan.py judges reads of the table of waiting timers.
"""

from collections.abc import Iterator

import pytest
from sqlalchemy import Connection

from mqdb.service.service import Context
from mqdb.service.timer_deliverer import TimerDeliverer
from mqdb.store.engine import create_engine
from mqdb.store.schedule import timer_looks, timers
from tests.fixtures.postgres import Database
from tests.plan.test_delay_plan import NEEDED, SEGMENTS, assert_by_position, bounds, partitions, plan, scans

ENTRIES = {
    "queue_key": 1,
    "first_offset": 0,
    "past_offset": 10,
    "first_segment": NEEDED,
    "last_segment": NEEDED,
    "now_ms": 1,
    "delivered_ms": 0,
}


@pytest.fixture
def connection(database: Database) -> Iterator[Connection]:
    """A connection of the timer deliverer to a broker with empty segments, all of them analyzed."""
    setting_up = database.connect()
    setting_up.execute("SELECT mqdb.add_segment(1000) FROM generate_series(4, %s)", [SEGMENTS])
    setting_up.execute("ANALYZE")
    engine = create_engine(database.dsn)
    with engine.connect() as connection:
        TimerDeliverer(Context(engine.connect)).prepare(connection)
        yield connection
    engine.dispose()


def test_a_look_reads_the_queue_by_its_offset_and_no_old_segment(connection: Connection) -> None:
    found = plan(connection, timer_looks.look_text(), {"limit": 1000, "first_segment": NEEDED})

    assert partitions(found, "queue_run") == set(range(NEEDED, SEGMENTS + 1))
    for index, condition in scans(found, "queue_run"):
        assert index.endswith("queue_key_last_offset_idx")
        assert condition.startswith("Index Cond: ((queue_key = ")
        assert "AND (last_offset >= " in condition
    assert [index for index, _ in scans(found, "timer_step")] == ["timer_step_pkey"]


@pytest.mark.parametrize(
    "statement",
    [timers.collect_text(), timers.deliver_entries_text(), timers.undelivered_entries_text()],
    ids=["collect", "deliver", "undelivered"],
)
def test_a_step_opens_the_segments_of_its_entries_only(connection: Connection, statement: str) -> None:
    found = plan(connection, statement, ENTRIES | bounds(connection))

    assert partitions(found, "queue_run") == partitions(found, "commit_log") == {NEEDED}
    [(index, condition)] = scans(found, "queue_run")
    assert index.endswith("queue_key_last_offset_idx")
    assert "AND (last_offset >= " in condition
    assert_by_position(found)
    assert {index for index, _ in scans(found, "timer_recall")} == {"timer_recall_pkey"}


def test_the_count_of_what_fits_opens_the_segments_of_its_entries_only(connection: Connection) -> None:
    found = plan(connection, timers.fitting_text(), ENTRIES | bounds(connection))

    assert partitions(found, "queue_run") == partitions(found, "commit_log") == {NEEDED}
    assert_by_position(found)


def test_a_step_looks_its_targets_up_by_their_keys(connection: Connection) -> None:
    found = plan(connection, timers.deliver_entries_text(), ENTRIES | bounds(connection))

    assert [index for index, _ in scans(found, "topic")] == ["topic_topic_key"]
    assert [index for index, _ in scans(found, "queue ")] == ["queue_topic_id_queue_id_key"]
