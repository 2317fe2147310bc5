"""Send-back and delayed delivery use their indexes and open only the partitions that they need.

The plans are generic, as those of clients and services, and are made at the worst time: while the segments are empty
and the statistics say so.
"""

import re
from collections.abc import Iterator, Mapping

import pytest
from sqlalchemy import Connection

from mqdb.service.delay_deliverer import DelayDeliverer
from mqdb.service.service import Context
from mqdb.store.consumers import send_back
from mqdb.store.engine import create_engine, driver
from mqdb.store.schedule import delay_queues as schedule
from mqdb.store.schedule import delay_steps
from tests.fixtures.postgres import Database

SEGMENTS = 9
NEEDED = 5

STEPS = {
    "level": "{1,2}",
    "queue_key": "{1,2}",
    "seq": "{1,1}",
    "first_offset": "{0,0}",
    "past_offset": "{10,10}",
    "first_segment": NEEDED,
    "last_segment": NEEDED,
}
COPIES = {
    "log_pos": "{-1}",
    "queue_key": "{-1}",
    "level": "{3}",
    "delay_ms": "{NULL}",
    "reconsume_times": "{1}",
    "properties_once": '{"{}"}',
    "properties": '{"{}"}',
}
GROUP = {"group": "g", "retry_topic": "%RETRY%g", "dlq_topic": "%DLQ%g", "topics": "{orders}", "positions": "{1}"}


@pytest.fixture
def connection(database: Database) -> Iterator[Connection]:
    """A connection of the delay deliverer to a broker with many queues and empty segments, all of them analyzed."""
    setting_up = database.connect()
    setting_up.execute("SELECT mqdb.add_segment(1000) FROM generate_series(4, %s)", [SEGMENTS])
    setting_up.execute("ANALYZE")
    engine = create_engine(database.dsn)
    with engine.connect() as connection:
        DelayDeliverer(Context(engine.connect)).prepare(connection)
        yield connection
    engine.dispose()


def plan(connection: Connection, statement: str, values: Mapping[str, object]) -> str:
    """The generic plan of a statement, as used by an execution with these values."""
    names = list(dict.fromkeys(re.findall(r"%\((\w+)\)s", statement)))
    text = re.sub(r"%\((\w+)\)s", lambda found: f"${names.index(found[1]) + 1}", statement).replace("%%", "%")
    session = driver(connection)
    session.execute("DEALLOCATE ALL")
    session.execute(f"PREPARE it AS {text}".encode())
    arguments = ", ".join(f"'{values[name]}'" for name in names)
    return "\n".join(row[0] for row in session.execute(f"EXPLAIN EXECUTE it ({arguments})".encode()))


def bounds(connection: Connection) -> dict[str, object]:
    """The positions of the needed segment."""
    row = (
        driver(connection)
        .execute("SELECT start_pos, end_pos FROM mqdb.segment WHERE segment = %s", [NEEDED])
        .fetchone()
    )
    assert row is not None
    return {"lowest_pos": row[0], "past_pos": row[1]}


def scans(plan: str, table: str) -> list[tuple[str, str]]:
    """Index and condition of each scan of a table or its partitions; fails on any other kind of scan."""
    found = re.findall(rf"(\w[\w ]*?) Scan (?:Backward )?(?:using (\w+) )?on {table}\w*[^\n]*\n([^\n]*)", plan)
    assert {kind for kind, _, _ in found} <= {"Index", "Index Only"}, plan
    return [(index, condition.strip()) for _, index, condition in found]


def partitions(plan: str, parent: str) -> set[int]:
    return {int(number) for number in re.findall(rf" on {parent}_(\d+)", plan)}


def test_a_look_reads_each_level_by_its_offset_and_no_old_segment(connection: Connection) -> None:
    found = plan(connection, schedule.look_text(), {"limit": 1000, "first_segment": NEEDED})

    assert partitions(found, "queue_run") == set(range(NEEDED, SEGMENTS + 1))
    for index, condition in scans(found, "queue_run"):
        assert index.endswith("queue_key_last_offset_idx")
        assert condition.startswith("Index Cond: ((queue_key = queue.queue_key) AND (last_offset >= ")
    assert [condition.startswith("Index Cond: (topic_id = ") for _, condition in scans(found, "queue ")] == [True]
    assert [condition for _, condition in scans(found, "delay_offset")] == [
        "Index Cond: (level = (queue.queue_id + 1))"
    ]


@pytest.mark.parametrize(
    "statement",
    [delay_steps.fitting_text(), delay_steps.take_text(), delay_steps.strays_text()],
    ids=["count what fits", "take", "find strays"],
)
def test_a_step_opens_the_segments_of_its_messages_only(connection: Connection, statement: str) -> None:
    found = plan(connection, statement, STEPS | bounds(connection))

    assert partitions(found, "queue_run") == partitions(found, "commit_log") == {NEEDED}
    [(index, condition)] = scans(found, "queue_run")
    assert index.endswith("queue_key_last_offset_idx")
    assert condition.startswith("Index Cond: ((queue_key = step.queue_key) AND (last_offset >= step.first_offset)")
    assert_by_position(found)


def test_a_step_looks_its_targets_up_by_their_keys(connection: Connection) -> None:
    found = plan(connection, delay_steps.take_text(), STEPS | bounds(connection))

    assert [index for index, _ in scans(found, "topic")] == ["topic_topic_key"]
    assert {index for index, _ in scans(found, "deleted_topic")} == {"deleted_topic_pkey"}
    assert {index for index, _ in scans(found, "subscription_group")} == {"subscription_group_created_pos"}
    [(index, condition)] = scans(found, "queue ")
    assert index == "queue_topic_id_queue_id_key"
    assert condition.startswith("Index Cond: ((topic_id = topic.topic_id) AND (queue_id = ")
    # By what many messages have in common.
    assert re.findall(r"Cache Key: (.*)", found) == ["r.real_topic, r.real_queue_id"]


def test_failed_messages_are_found_by_their_positions(connection: Connection) -> None:
    found = plan(connection, send_back.find_text(), GROUP | bounds(connection))

    assert partitions(found, "commit_log") == {NEEDED}
    assert_by_position(found)
    assert all(condition.startswith("Index Cond: ") for _, condition in scans(found, "queue"))
    assert all(index == "topic_topic_key" for index, _ in scans(found, "topic"))


def test_failed_messages_are_copied_by_their_positions(connection: Connection) -> None:
    found = plan(connection, send_back.copy_text(), COPIES | bounds(connection))

    assert partitions(found, "commit_log") == {NEEDED}
    assert_by_position(found)
    assert scans(found, "queue") == [("queue_pkey", "Index Cond: (queue_key = given.queue_key)")]


def assert_by_position(plan: str) -> None:
    [(index, condition)] = scans(plan, "commit_log_")
    assert re.fullmatch(r"commit_log_\d+_pkey", index)
    assert re.match(r"Index Cond: \(\(log_pos >= \w+\.log_pos\) AND \(log_pos <= \w+\.log_pos\) AND", condition)
