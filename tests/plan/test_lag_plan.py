"""The lag of all groups takes one look at the end of each queue, one entry for each queue with a lag, and few records.

The tests count the executions of plan nodes, with three groups that all have messages to read, in many segments.
"""

import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, Final

import pytest
from sqlalchemy import Connection, event, text

from mqdb.broker.consumers.offsets import commit_offsets, take_queues
from mqdb.broker.schedule.delay import deliver_due
from mqdb.common.group import FROM_FIRST_OFFSET
from mqdb.common.topic import retry_topic
from mqdb.embedded import EmbeddedPostgres
from mqdb.store.consumers import groups
from mqdb.store.dispatch import checkpoints, queues
from mqdb.store.engine import create_engine, driver
from mqdb.store.segments import segments
from mqdb.store.topics.topics import find_topic
from mqdb.store.transactions import open_halves
from tests.fixtures import log as by_hand
from tests.fixtures.broker import dispatch_all, topic
from tests.fixtures.delay import delay, move_clock
from tests.fixtures.postgres import KNOW_ITSELF, Database, new_database
from tests.fixtures.timers import deliver_all, timer
from tests.fixtures.transactions import send_half

GROUPS: Final = ("a", "b", "c")
QUEUES: Final = 50

#: The segment that all groups have reached.
REACHED: Final = 10

Node = dict[str, Any]


@pytest.fixture(scope="module")
def original(postgres: EmbeddedPostgres, template_database: str) -> Iterator[Database]:
    """Queues of one topic with 30 messages, of which each group has consumed 25."""
    with new_database(postgres, template_database) as database:
        log, engine = database.connect(), create_engine(database.dsn)
        log.execute(KNOW_ITSELF)
        by_hand.small_segments(log, 100, ahead=20)
        keys = by_hand.create_topic(log, "orders", QUEUES)
        for key in keys * 3:
            by_hand.append(log, key, 10)
            by_hand.dispatch(log)
        with engine.connect() as broker:
            for group in GROUPS:
                groups.save(broker, group, {})
                owned = take_queues(broker, group, "m", keys, FROM_FIRST_OFFSET)
                commit_offsets(broker, group, [queue._replace(next_offset=25, segment=REACHED) for queue in owned])
        log.execute("ANALYZE")
        # Nobody may be connected to what is copied.
        engine.dispose()
        log.close()
        yield database


@pytest.fixture
def lagging(postgres: EmbeddedPostgres, original: Database) -> Iterator[Connection]:
    """A connection to a copy of the database for one test."""
    with new_database(postgres, original.name) as copy:
        engine = create_engine(copy.dsn)
        with engine.connect() as connection:
            connection.exec_driver_sql(KNOW_ITSELF)
            # Partitions of one page each, which a planner would rather read from end to end.
            connection.execute(text("SET enable_seqscan = off"))
            connection.execute(text("SET enable_bitmapscan = off"))
            yield connection
        engine.dispose()


def plan(connection: Connection, what: str) -> list[Node]:
    """The executed nodes of a query's plan."""
    explained = f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) {what}"
    ((report,),) = driver(connection).execute(explained.encode()).fetchall()
    return [node for node in nodes(report[0]["Plan"]) if node["Actual Loops"]]


def nodes(plan: Node) -> Iterator[Node]:
    yield plan
    for below in plan.get("Plans", ()):
        yield from nodes(below)


def plan_of_call(connection: Connection, call: Callable[[], object]) -> list[Node]:
    """The executed nodes of the plan of the only statement that a function of the store runs."""
    executed: list[tuple[str, Any]] = []

    def note(_connection: object, _cursor: object, statement: str, parameters: Any, *_: object) -> None:
        executed.append((statement, parameters))

    event.listen(connection, "before_cursor_execute", note)
    call()
    event.remove(connection, "before_cursor_execute", note)
    [(statement, parameters)] = executed
    explained = f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) {statement}"
    ((report,),) = driver(connection).execute(explained.encode(), parameters).fetchall()
    return [node for node in nodes(report[0]["Plan"]) if node["Actual Loops"]]


def scans(plan: list[Node], parent: str) -> list[Node]:
    """The scans of partitions, which must use an index."""
    found = [node for node in plan if node.get("Relation Name", "").startswith(f"{parent}_")]
    assert {node["Node Type"] for node in found} <= {"Index Scan", "Index Only Scan"}
    return found


def below(node: Node) -> list[Node]:
    """All nodes under a node."""
    return [each for child in node.get("Plans", []) for each in (child, *below(child))]


def is_end(scan: Node) -> bool:
    """Whether a scan of entries looks for the end of a queue."""
    return str(scan["Scan Direction"]) == "Backward"


@pytest.mark.parametrize(
    "what",
    [
        "SELECT group_name, sum(lag) FROM mqdb.consumer_lag GROUP BY 1",
        "SELECT group_name, topic, queue_id, lag, lag_seconds, oldest_pos FROM mqdb.consumer_lag",
    ],
)
def test_the_end_of_a_queue_is_looked_for_once_for_all_groups(lagging: Connection, what: str) -> None:
    found = plan(lagging, what)

    ends = [scan for scan in scans(found, "queue_run") if is_end(scan)]
    newest = lagging.scalar(text("SELECT max(segment) FROM mqdb.checkpoint"))
    assert {scan["Actual Loops"] for scan in ends} == {lagging.scalar(text("SELECT count(*) FROM mqdb.queue"))}
    assert min(int(scan["Relation Name"].rpartition("_")[2]) for scan in ends) == newest
    assert [node["Actual Loops"] for node in found if node.get("CTE Name") == "ends"] == [1]


def test_a_lag_costs_an_entry_and_a_record_in_no_segment_before_the_one_that_is_reached(lagging: Connection) -> None:
    found = plan(lagging, "SELECT lag, lag_seconds, oldest_pos FROM mqdb.consumer_lag")

    entries = [scan for scan in scans(found, "queue_run") if not is_end(scan)]
    looks = [node for node in found if "Append" in node["Node Type"] and any(each in entries for each in below(node))]
    assert sum(node["Actual Loops"] for node in looks) == len(GROUPS) * QUEUES
    assert min(int(scan["Relation Name"].rpartition("_")[2]) for scan in entries) >= REACHED
    assert sum(scan["Actual Loops"] for scan in scans(found, "commit_log")) == len(GROUPS) * QUEUES


def test_the_age_for_a_group_and_a_topic_costs_one_record(lagging: Connection) -> None:
    found = plan_of_call(lagging, lambda: groups.lags(lagging))

    assert sum(scan["Actual Loops"] for scan in scans(found, "commit_log")) == len(GROUPS)


@pytest.mark.parametrize(
    "look",
    [lambda connection, _: groups.consumed_at(connection, "b"), queues.stats],
    ids=["consumed", "stored"],
)
def test_a_time_for_each_queue_costs_a_record_for_each(
    lagging: Connection, look: Callable[[Connection, int], object]
) -> None:
    orders = find_topic(lagging, "orders")
    assert orders is not None
    found = plan_of_call(lagging, lambda: look(lagging, orders.topic_id))

    assert sum(scan["Actual Rows"] * scan["Actual Loops"] for scan in scans(found, "commit_log")) == QUEUES


def test_the_ends_of_all_topics_cost_one_look_for_each_queue(lagging: Connection) -> None:
    found = plan_of_call(lagging, lambda: queues.ends_of_topics(lagging))

    ends = scans(found, "queue_run")
    assert {scan["Actual Loops"] for scan in ends} == {lagging.scalar(text("SELECT count(*) FROM mqdb.queue"))}
    assert all(is_end(scan) for scan in ends)


@pytest.mark.parametrize(
    "look",
    [lambda connection: checkpoints.oldest_unreached_seconds(connection, "dispatch"), segments.oldest_seconds],
    ids=["dispatch", "oldest"],
)
def test_an_age_costs_one_record(lagging: Connection, look: Callable[[Connection], object]) -> None:
    found = plan_of_call(lagging, lambda: look(lagging))

    assert sum(scan["Actual Rows"] for scan in scans(found, "commit_log")) <= 1


def test_the_ages_of_the_latest_batches_cost_a_record_for_each(lagging: Connection) -> None:
    found = plan_of_call(lagging, lambda: checkpoints.latest_ages(lagging, "dispatch", most=5))

    steps = [node for node in found if node.get("Relation Name") == "checkpoint"]
    assert {node.get("Index Name") for node in steps} == {"checkpoint_pkey"}
    assert sum(node["Actual Rows"] for node in steps) <= 6
    assert {scan.get("Index Name", "").startswith("commit_log") for scan in scans(found, "commit_log")} <= {True}
    assert sum(scan["Actual Rows"] * scan["Actual Loops"] for scan in scans(found, "commit_log")) <= 5


def test_open_half_messages_cost_nothing_for_those_that_have_ended(lagging: Connection) -> None:
    found = plan_of_call(lagging, lambda: open_halves.count(lagging))

    indexes = {node.get("Index Name") for node in found if node.get("Relation Name") == "half_message"}
    assert indexes == {"half_message_check_at", "half_message_discarded"}


def test_who_asks_for_messages_only_does_not_pay_for_seconds_and_retries(lagging: Connection) -> None:
    found = plan(lagging, "SELECT group_name, sum(lag) FROM mqdb.consumer_lag GROUP BY group_name")

    assert scans(found, "commit_log") == []
    assert all(is_end(scan) for scan in scans(found, "queue_run"))


def test_a_group_and_a_queue_are_looked_up_by_their_keys(lagging: Connection) -> None:
    found = plan(lagging, "SELECT lag, oldest_pos FROM mqdb.consumer_lag WHERE group_name = 'b'")
    ends = plan_of_call(lagging, lambda: queues.ends(lagging, [1]))

    [offsets] = [node for node in found if node.get("Relation Name") == "consumer_offset"]
    assert (offsets["Index Name"], offsets["Actual Rows"]) == ("consumer_offset_pkey", QUEUES)
    assert {scan["Actual Loops"] for scan in scans(ends, "queue_run")} == {1}


def test_retries_cost_what_waits_in_delay_levels_and_retries_among_timers_and_no_more(lagging: Connection) -> None:
    delay(lagging, 1, *"1234567")
    move_clock(lagging, timedelta(seconds=2))
    deliver_due(lagging)
    delay(lagging, 3, *"123")
    delay(lagging, 4, *"1234", topic=retry_topic("a"))
    timer(lagging, timedelta(hours=1), *map(str, range(100)))
    timer(lagging, timedelta(hours=1), *"12", topic=retry_topic("a"))
    deliver_all(lagging)

    found = plan(lagging, "SELECT waiting FROM mqdb.consumer_lag")

    assert sum(scan["Actual Loops"] for scan in scans(found, "commit_log")) == 3 + 4
    slots = [node for node in found if re.fullmatch(r"timer_\d+", node.get("Relation Name", ""))]
    assert sum(scan["Actual Rows"] * scan["Actual Loops"] for scan in slots) == 2


@pytest.fixture(scope="module")
def delivered(postgres: EmbeddedPostgres, template_database: str) -> Iterator[Connection]:
    """Thousands of delayed and half messages that have been delivered, and some that wait.

    The tests only look at plans.
    """
    with new_database(postgres, template_database) as database:
        engine = create_engine(database.dsn)
        with engine.connect() as broker:
            broker.exec_driver_sql(KNOW_ITSELF)
            route = topic(broker)
            groups.save(broker, "readers", {})
            delay(broker, 1, *map(str, range(5_000)))
            move_clock(broker, timedelta(seconds=2))
            deliver_due(broker)
            broker.execute(text("INSERT INTO mqdb.half_step (seq, next_offset, messages) VALUES (1, 5000, 5000)"))
            broker.execute(
                text("""INSERT INTO mqdb.commit_log (queue_key, born_time, tags_code, msg_id, born_host, properties,
                                                body)
                        SELECT queue_key, mqdb.now(), 0, gen_random_uuid(), 'test', '{}', 'half'
                        FROM generate_series(1, 5000), mqdb.queue JOIN mqdb.topic USING (topic_id)
                        WHERE topic = 'RMQ_SYS_TRANS_HALF_TOPIC'""")
            )
            dispatch_all(broker)
            delay(broker, 3, *"abc")
            send_half(broker, route)
            take_queues(broker, "readers", "m", route.queue_keys)
            broker.execute(text("ANALYZE"))
            yield broker
        engine.dispose()


@pytest.mark.parametrize(
    ("what", "waiting"),
    [
        ("SELECT sum(waiting) FROM mqdb.consumer_lag", 3),
        ("SELECT count(*) FROM mqdb.scheduled", 3),
        ("SELECT count(*) FROM mqdb.half_messages WHERE state = 'PREPARED'", 1),
    ],
)
def test_what_was_delivered_is_not_read_for_what_waits(delivered: Connection, what: str, waiting: int) -> None:
    """Queries for waiting messages do not read delivered ones.

    This also holds if PostgreSQL may plan freely: its statistics say that a third of all delivered messages wait.
    """
    found = plan(delivered, what)

    records = scans(found, "commit_log")
    assert sum(scan["Actual Loops"] for scan in records) == waiting
    # So few runs as there are of it may well be read one after the other.
    runs = [node for node in found if node.get("Relation Name", "").startswith("queue_run_")]
    assert all(scan.get("Scan Direction") == "Backward" or scan["Actual Rows"] <= waiting for scan in runs)
