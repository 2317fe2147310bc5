"""Services survive every row that SQL can store: they skip unreadable rows, and deliver the rows behind them.

The log's constraints refuse rows that no reader could read. These tests put the remaining rows into every system queue.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta

import psycopg
import pytest
from sqlalchemy import Connection

from mqdb.broker.consumers.pull import PullStatus, pull
from mqdb.broker.log.messages import find_copies, read_copy
from mqdb.broker.schedule import delay, timers
from mqdb.broker.transactions import transactions
from mqdb.broker.transactions.transaction_checks import CheckRules, CheckTurns, check, collect
from mqdb.common.topic import NOT_ALLOWED_SEND
from mqdb.errors import MqdbError
from mqdb.store.engine import driver
from mqdb.store.schedule.delay_queues import list_delays
from mqdb.store.schedule.waiting_timers import list_timers
from mqdb.store.topics.topics import TopicRoute
from tests.fixtures import delay as delays
from tests.fixtures import timers as timer_messages
from tests.fixtures.broker import append, dispatch_all, request, topic
from tests.fixtures.delay import move_clock
from tests.fixtures.fuzz import fuzz_cases, fuzz_random
from tests.fixtures.log import index_all
from tests.fixtures.odd_rows import SYSTEM_TOPICS, insert_rows, random_row
from tests.fixtures.transactions import COMMIT, send_half


@pytest.fixture
def route(broker: Connection) -> TopicRoute:
    return topic(broker, "orders", 2)


def run_services(connection: Connection, rules: CheckRules) -> dict[str, int]:
    """Run every service until nothing is left; returns the number of records that each has skipped as unreadable."""
    dispatch_all(connection)
    index_all(driver(connection))
    unreadable = {"delay": 0, "timer": 0, "half": 0}
    for _ in range(1_000):
        delayed, timed = delay.deliver_due(connection, 100), timers.deliver_due(connection, 100)
        halves = collect(connection, rules, 100)
        assert halves is not None
        checked = check(connection, rules, CheckTurns(), 100)
        unreadable["delay"] += len(delayed.unreadable)
        unreadable["timer"] += len(timed.unreadable)
        unreadable["half"] += len(halves.unreadable)
        dispatch_all(connection)
        done = delayed.messages + len(delayed.unreadable) + sum(delayed.skipped.values()) + timed.messages
        done += timed.collected + len(timed.unreadable) + sum(timed.skipped.values()) + halves.seen + checked.due
        if not done:
            return unreadable
    raise AssertionError("there is always more to do")


def read_everything(connection: Connection, route: TopicRoute) -> None:
    """Check that readers return, or raise an MqdbError."""
    list_delays(connection)
    list_timers(connection, limit=100_000)
    transactions.list_halves(connection)
    for view in ("message", "scheduled", "half_messages", "dlq", "consumer_lag"):
        driver(connection).execute(f"TABLE mqdb.{view}".encode()).fetchall()
    for queue_id in range(2):
        offset, status = 0, PullStatus.FOUND
        while status is PullStatus.FOUND:
            result = pull(connection, [request(route, offset, queue_id)], limit=100)[0][0]
            offset, status = result.next_begin_offset, result.status
            for message in result.messages:
                with suppress(MqdbError):
                    repr(message), message.keys, message.born_time, message.store_time, message.body
                with suppress(MqdbError):
                    assert all(isinstance(text, str) for text in message.properties.values())
    for (unique_id,) in driver(connection).execute("SELECT msg_id FROM mqdb.commit_log").fetchall():
        for copy in find_copies(connection, unique_id):
            with suppress(MqdbError):
                read_copy(connection, "broker-a", copy)


def test_services_pass_by_every_row_that_sql_can_store(broker: Connection, route: TopicRoute) -> None:
    source = fuzz_random()
    connection = driver(broker)
    keys = connection.execute(
        "SELECT queue_key FROM mqdb.queue JOIN mqdb.topic USING (topic_id) WHERE topic = ANY (%s) OR topic = 'orders'",
        [list(SYSTEM_TOPICS)],
    )
    queue_keys = [row[0] for row in keys]
    rules = CheckRules(transaction_timeout=timedelta(seconds=1), check_interval=timedelta(hours=100), check_max=1)

    stored = insert_rows(connection, [random_row(source, queue_keys) for _ in range(fuzz_cases())])
    assert stored
    run_services(broker, rules)
    move_clock(broker, timedelta(hours=3))
    run_services(broker, rules)
    read_everything(broker, route)

    # What stands behind them is delivered.
    delays.delay(broker, 1, "delayed")
    timer_messages.timer(broker, timedelta(seconds=1), "timed")
    half = send_half(broker, route, "half")
    move_clock(broker, timedelta(hours=6))
    run_services(broker, rules)
    assert half.end(broker, COMMIT)
    dispatch_all(broker)
    found = {row[0] for row in connection.execute("SELECT text FROM mqdb.message WHERE topic = 'orders'")}
    assert {"delayed", "timed", "half"} <= found


@pytest.mark.parametrize("system_topic", SYSTEM_TOPICS)
def test_a_row_that_says_no_queue_is_passed_by_and_told_once(
    broker: Connection, route: TopicRoute, system_topic: str
) -> None:
    rules = CheckRules(transaction_timeout=timedelta(0))
    queue_ids = ["abc", "", "1.5", "\u0663", "NaN", "-1", "9" * 30, [1]]
    for queue_id in queue_ids:
        insert_waiting(broker, system_topic, {"REAL_TOPIC": "orders", "REAL_QID": queue_id, "PGROUP": "senders"})

    assert [sum(run_services(broker, rules).values()) for _ in range(2)] == [len(queue_ids), 0]


@pytest.mark.parametrize("system_topic", SYSTEM_TOPICS)
def test_a_row_for_a_topic_of_the_broker_is_not_copied(
    broker: Connection, route: TopicRoute, system_topic: str
) -> None:
    for real_topic in NOT_ALLOWED_SEND:
        insert_waiting(broker, system_topic, {"REAL_TOPIC": real_topic, "REAL_QID": "0", "PGROUP": "senders"})

    passed_by = sum(run_services(broker, CheckRules(transaction_timeout=timedelta(0))).values())

    assert passed_by == len(NOT_ALLOWED_SEND)
    assert driver(broker).execute("SELECT count(*) FROM mqdb.commit_log").fetchone() == (passed_by,)


@pytest.mark.parametrize("missing", ["PGROUP", "REAL_TOPIC", "REAL_QID"])
def test_a_half_message_without_one_of_these_holds_up_no_check(
    broker: Connection, route: TopicRoute, missing: str
) -> None:
    properties = {"REAL_TOPIC": "orders", "REAL_QID": "0", "PGROUP": "senders"}
    del properties[missing]
    insert_waiting(broker, "RMQ_SYS_TRANS_HALF_TOPIC", properties)
    half = send_half(broker, route)

    collected = collect(broker, CheckRules(transaction_timeout=timedelta(0)), 10)

    assert collected is not None
    assert (collected.seen, collected.prepared, len(collected.unreadable)) == (2, 1, 1)
    assert half.end(broker, COMMIT).has_changed


def test_a_half_message_from_the_future_holds_up_no_check(broker: Connection, route: TopicRoute) -> None:
    """A half message from the future holds up no check. The clock was an hour ahead for a moment, and was corrected."""
    move_clock(broker, timedelta(hours=1))
    send_half(broker, route, "from the future")
    move_clock(broker, timedelta(0))
    send_half(broker, route, "from now")
    rules = CheckRules(transaction_timeout=timedelta(seconds=6))
    move_clock(broker, timedelta(seconds=7))

    collected = collect(broker, rules, 10)

    assert collected is not None
    assert (collected.seen, collected.prepared) == (2, 2)
    move_clock(broker, timedelta(seconds=14))
    assert check(broker, rules, CheckTurns(), 10).due == 2


def test_the_log_refuses_what_no_reader_could_read(broker: Connection, route: TopicRoute) -> None:
    append(broker, route, "a")
    usual = {
        "queue_key": str(route.queue_keys[0]),
        "born_time": "now()",
        "tags_code": "0",
        "msg_id": "gen_random_uuid()",
        "born_host": "''",
        "properties": "'{}'",
        "body": "'x'",
    }

    for column, value in (
        ("store_time", "'infinity'"),
        ("store_time", "'4713-01-01 BC'"),
        ("born_time", "'294276-12-31'"),
        ("properties", "'[]'"),
        ("properties", "'5'"),
        ("tags_code", "9223372036854775807"),
    ):
        columns = usual | {column: value}
        with pytest.raises(psycopg.errors.CheckViolation, match="message_"):
            driver(broker).execute(
                f"INSERT INTO mqdb.commit_log ({', '.join(columns)}) VALUES ({', '.join(columns.values())})".encode()
            )


def insert_waiting(connection: Connection, system_topic: str, properties: Mapping[str, object]) -> None:
    """Insert a record that has been due since 2023 into the first queue of a system topic."""
    driver(connection).execute(
        """INSERT INTO mqdb.commit_log (queue_key, born_time, tags_code, msg_id, born_host, properties, body)
           SELECT queue_key, now(), 1700000000000, gen_random_uuid(), 'test', %s, 'odd'
           FROM mqdb.queue JOIN mqdb.topic USING (topic_id) WHERE topic = %s AND queue_id = 0""",
        [json.dumps(properties), system_topic],
    )
    dispatch_all(connection)
