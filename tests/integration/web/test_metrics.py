"""The metrics of a broker in /metrics, compared with the broker's rows."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import timedelta

import pytest
from apscheduler.schedulers.background import BackgroundScheduler
from prometheus_client import CollectorRegistry, generate_latest
from sqlalchemy import Connection, text

from mqdb.broker.clients import membership
from mqdb.broker.consumers.offsets import commit_offsets, take_queues
from mqdb.broker.topics.route import find_or_create_retry_topic
from mqdb.broker.transactions.transaction_checks import CheckRules, collect
from mqdb.common.group import FROM_FIRST_OFFSET
from mqdb.server import Server
from mqdb.service.service import Context
from mqdb.service.transaction_checker import TransactionChecker, TransactionCheckerConfig
from mqdb.settings import load_settings
from mqdb.store.clients.clients import ClientKind, Registration
from mqdb.store.consumers import groups
from mqdb.web.broker_sample import take
from mqdb.web.collector import BrokerCollector
from mqdb.web.health import Health
from mqdb.web.histories import Histories
from mqdb.web.loop_rounds import Rounds
from mqdb.web.sampler import Sampler
from mqdb_client import Message
from mqdb_client.metrics import MetricsHook
from tests.fixtures import crons, timers
from tests.fixtures.broker import append, dispatch_all, topic
from tests.fixtures.consumers import Inbox, Member
from tests.fixtures.dead_letters import bury
from tests.fixtures.delay import delay
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.producers import producer_of
from tests.fixtures.transactions import COMMIT, ROLLBACK, send_half
from tests.fixtures.web import ANY_PORT, scrape, series, wait_for_sample


@pytest.fixture
def traffic(broker: Connection) -> None:
    """Data for every metric. The member `m` stays as long as the connection."""
    orders = topic(broker, "orders", queues=2)
    append(broker, orders, "a", "b", "c")
    append(broker, orders, "d", "e", queue_id=1)
    membership.announce(broker, "m")
    membership.register(broker, Registration("m", ClientKind.CONSUMER, "billing", "7", language="RUST"))
    dispatch_all(broker)
    owned = take_queues(broker, "billing", "m", orders.queue_keys[:1], FROM_FIRST_OFFSET)
    commit_offsets(broker, "billing", [owned[0]._replace(next_offset=1)])
    membership.register(broker, Registration("m", ClientKind.CONSUMER, "audit", "7", language="RUST"))
    take_queues(broker, "audit", "m", orders.queue_keys, FROM_FIRST_OFFSET)
    find_or_create_retry_topic(broker, "billing")
    bury(broker, "dead")
    bury(broker, "dead too")
    delay(broker, 18, "later", "later still")
    timers.timer(broker, timedelta(hours=1), "in an hour")
    send_half(broker, orders)
    broker.execute(text("SET mqdb.clock_offset = '1 min'"))
    collect(broker, CheckRules(), 10)
    broker.execute(text("RESET mqdb.clock_offset"))
    crons.add(broker)
    broker.execute(text("UPDATE mqdb.cron SET is_paused = true"))
    dispatch_all(broker)


@pytest.fixture
def served(database: Database) -> Iterator[Server]:
    """A leading broker process with HTTP."""
    with Server(load_settings(dsn=database.dsn, http=ANY_PORT)) as server:
        wait_until(lambda: server.is_leader)
        yield server


@pytest.mark.usefixtures("traffic")
def test_metrics_are_what_the_broker_holds(served: Server) -> None:
    # The first sample may be taken before the dispatcher has completed a round.
    wait_until(lambda: scrape(served).get("mqdb_dispatch_seconds_count{IDLE}"))
    found = wait_for_sample(served)

    expected = {
        "mqdb_up": 1,
        "mqdb_leader": 1,
        "mqdb_messages_in_total{normal,orders}": 5,
        "mqdb_messages_in_total{retry,%RETRY%billing}": 0,
        "mqdb_messages_in_total{dlq,%DLQ%billing}": 2,
        "mqdb_messages_in_total{system,SCHEDULE_TOPIC_XXXX}": 2,
        "mqdb_dlq_messages_total{billing}": 2,
        "mqdb_consumer_committed_offset{billing,orders}": 1,
        "mqdb_consumer_lag_messages{billing,orders}": 2 + 2,
        "mqdb_consumer_lag_messages{audit,orders}": 5,
        "mqdb_consumer_waiting_messages{billing,orders}": 0,
        "mqdb_consumer_in_flight_messages{billing,orders}": 0,
        "mqdb_consumer_members{billing}": 1,
        "mqdb_consumer_members{audit}": 1,
        "mqdb_consumer_unowned_queues{billing}": 1,
        "mqdb_consumer_unowned_queues{audit}": 0,
        "mqdb_clients{CONSUMER,RUST,7}": 2,
        "mqdb_dispatch_behind_messages": 0,
        "mqdb_dispatch_behind_seconds": 0,
        "mqdb_scheduled_messages{level}": 2,
        "mqdb_scheduled_messages{timer}": 1,
        "mqdb_scheduled_late_seconds{level}": 0,
        "mqdb_scheduled_late_seconds{timer}": 0,
        "mqdb_half_messages{PREPARED}": 1,
        "mqdb_half_messages{DISCARDED}": 0,
        "mqdb_half_messages_given_up_total": 0,
        "mqdb_cron_paused": 1,
        "mqdb_cron_late_seconds": 0,
        "mqdb_service_failures_total{dispatcher}": 0,
    }
    assert {name: found.get(name) for name in expected} == expected
    assert found["mqdb_consumer_lag_seconds{billing,orders}"] >= 0
    assert found["mqdb_oldest_message_seconds"] > 0
    assert found["mqdb_storage_bytes{log}"] > 0
    assert found["mqdb_segment_room_messages"] > 0
    assert found["mqdb_leader_epoch"] == 1
    assert found["mqdb_dispatch_seconds_bucket{+Inf,IDLE}"] == found["mqdb_dispatch_seconds_count{IDLE}"] > 0
    assert found["mqdb_dispatch_seconds_sum{IDLE}"] > 0
    assert not any(name.startswith("mqdb_queue_") for name in found)
    assert found["process_resident_memory_bytes"] > 0


def rendered(
    connection: Connection, most_series: int = 10_000, rounds: Rounds | None = None, per_queue: Sequence[str] = ()
) -> dict[str, float]:
    """The metrics of a leader after it has taken a sample."""
    rounds = rounds or Rounds()
    sampler = Sampler(Context(connect=lambda: connection))
    sampler.latest = take(connection, "all", per_queue=per_queue)
    health = Health(rounds, lambda: True)
    registry = CollectorRegistry()
    collector = BrokerCollector(
        "b",
        "c",
        health=health,
        rounds=rounds,
        sampler=sampler,
        histories=Histories(),
        is_leader=lambda: True,
        most_series=most_series,
    )
    registry.register(collector)
    return series(generate_latest(registry).decode())


def test_half_messages_count_from_when_the_checker_asks_about_them(broker: Connection) -> None:
    send_half(broker, topic(broker))
    assert rendered(broker)["mqdb_half_messages{PREPARED}"] == 0
    broker.execute(text("SET mqdb.clock_offset = '1 h'"))
    collect(broker, CheckRules(), 10)

    found = rendered(broker)

    assert found["mqdb_half_messages{PREPARED}"] == 1
    assert round(found["mqdb_half_oldest_seconds"], -3) == 4_000


def test_half_messages_are_counted_once_by_what_had_become_of_them(broker: Connection) -> None:
    rounds, orders = Rounds(), topic(broker)
    context = rounds.watch(TransactionChecker.name, Context(connect=lambda: broker))
    rules = CheckRules(check_max=1)
    checker = TransactionChecker(context, BackgroundScheduler(), TransactionCheckerConfig(rules))
    for ends, number in ((COMMIT, 3), (ROLLBACK, 2), (None, 1)):
        for _ in range(number):
            half = send_half(broker, orders)
            if ends is not None:
                half.end(broker, ends)
    # A half message of a role that does not own the broker: the row is made with the record.
    of_a_role = send_half(broker, orders)
    broker.execute(
        text(
            """INSERT INTO mqdb.half_message (log_pos, msg_id, producer_group, topic, stored_at, check_at, principal)
               VALUES (:log_pos, :id, 'senders', 'orders', mqdb.now(), mqdb.now(), 'a role')"""
        ),
        {"log_pos": of_a_role.log_pos, "id": of_a_role.unique_id},
    )
    for ahead in ("1 min", "1 h", "73 h"):
        broker.execute(text(f"SET mqdb.clock_offset = '{ahead}'"))
        context.on_round(checker.run_once(broker))

    found = rendered(broker, rounds=rounds)

    expected = {"{COMMITTED}": 3, "{ROLLED_BACK}": 2, "{PREPARED}": 2}
    assert {f"mqdb_half_messages_met_total{state}": count for state, count in expected.items()}.items() <= found.items()
    assert found["mqdb_half_messages_given_up_total"] == 2


def test_timers_wait_until_they_are_delivered(broker: Connection) -> None:
    topic(broker)
    timers.timer(broker, timedelta(hours=1), "a", "b")
    timers.deliver_all(broker)
    timers.timer(broker, timedelta(hours=3), "is not collected")
    counts = [rendered(broker)["mqdb_scheduled_messages{timer}"]]
    broker.execute(text("SET mqdb.clock_offset = '2 h'"))
    timers.deliver_all(broker)
    counts.append(rendered(broker)["mqdb_scheduled_messages{timer}"])

    assert counts == [3, 1]


def test_queues_are_told_of_the_topics_that_are_named(broker: Connection) -> None:
    orders, other = topic(broker, "orders", queues=2), topic(broker, "other")
    groups.save(broker, "readers", {})
    append(broker, orders, "a", "b", "c")
    append(broker, orders, "d", queue_id=1)
    dispatch_all(broker)
    owned = take_queues(broker, "readers", "m", orders.queue_keys + other.queue_keys, FROM_FIRST_OFFSET)
    commit_offsets(broker, "readers", [owned[0]._replace(next_offset=1)])

    found = rendered(broker, per_queue=["orders", "is-not-there"])
    bounded = rendered(broker, most_series=2, per_queue=["orders", "other"])

    assert {name: value for name, value in found.items() if name.startswith("mqdb_queue_")} == {
        "mqdb_queue_messages_in_total{0,orders}": 3,
        "mqdb_queue_messages_in_total{1,orders}": 1,
        "mqdb_queue_committed_offset{readers,0,orders}": 1,
        "mqdb_queue_committed_offset{readers,1,orders}": 0,
        "mqdb_queue_lag_messages{readers,0,orders}": 2,
        "mqdb_queue_lag_messages{readers,1,orders}": 1,
    }
    assert {name: value for name, value in bounded.items() if name.startswith("mqdb_queue_lag")} == {
        "mqdb_queue_lag_messages{readers,0,orders}": 2,
        "mqdb_queue_lag_messages{_other,_other,_other}": 1,
    }


def test_what_is_not_dispatched_and_what_is_late_is_told_in_seconds(broker: Connection) -> None:
    orders = topic(broker)
    delay(broker, 1, "late")
    crons.add(broker, "* * * * *")
    append(broker, orders, "a", "b")
    broker.execute(text("SET mqdb.clock_offset = '1 h'"))

    found = rendered(broker)

    assert found["mqdb_dispatch_behind_messages"] == 2
    assert found["mqdb_index_behind_messages"] >= 3
    late = ("mqdb_dispatch_behind_seconds", "mqdb_scheduled_late_seconds{level}", "mqdb_cron_late_seconds")
    assert [round(found[name], -3) for name in late] == [4_000] * 3


def test_series_are_bounded_and_the_rest_is_one_of_them(broker: Connection) -> None:
    groups.save(broker, "readers", {})
    for number, name in enumerate(("one", "two", "three", "four"), start=1):
        route = topic(broker, name)
        append(broker, route, *"x" * number)
        dispatch_all(broker)
        take_queues(broker, "readers", "m", route.queue_keys, FROM_FIRST_OFFSET)

    found = rendered(broker, most_series=3)

    lags = {name: value for name, value in found.items() if name.startswith("mqdb_consumer_lag_messages")}
    assert lags == {
        "mqdb_consumer_lag_messages{readers,four}": 4,
        "mqdb_consumer_lag_messages{readers,three}": 3,
        "mqdb_consumer_lag_messages{_other,_other}": 1 + 2,
    }
    taken = {name: value for name, value in found.items() if name.startswith("mqdb_messages_in_total")}
    assert taken == {
        "mqdb_messages_in_total{normal,four}": 4,
        "mqdb_messages_in_total{normal,three}": 3,
        "mqdb_messages_in_total{_other,_other}": 1 + 2,
    }


@pytest.mark.usefixtures("traffic")
def test_a_process_that_does_not_lead_says_nothing_of_the_database(served: Server, database: Database) -> None:
    wait_for_sample(served)
    with Server(load_settings(dsn=database.dsn, http=ANY_PORT)) as follower:
        wait_until(lambda: scrape(follower).get("mqdb_up"))
        names = {name.partition("{")[0] for name in scrape(follower)}
        assert scrape(follower)["mqdb_leader"] == 0
        told = {"mqdb_up", "mqdb_leader", "mqdb_build_info", "mqdb_server_is_standby", "mqdb_history_changes_total"}
        assert {name for name in names if name.startswith("mqdb_")} == told

        served.stop()
        wait_for_sample(follower)


def test_a_hook_measures_producers_and_consumers(member: Member, database: Database) -> None:
    registry = CollectorRegistry()
    hook, inbox = MetricsHook(registry), Inbox()
    member(inbox).register_consume_message_hook(hook)
    with producer_of(database.dsn) as producer:
        producer.register_send_message_hook(hook)
        for _ in range(3):
            producer.send(Message("orders", b"x"))

    counts = {
        "mqdb_client_sent_messages_total{SEND_OK,orders}": 3,
        "mqdb_client_consumed_messages_total{readers,SUCCESS,orders}": 3,
        "mqdb_client_delivery_seconds_count{readers,orders}": 3,
    }
    wait_until(lambda: counts.items() <= series(generate_latest(registry).decode()).items())


def test_without_http_there_is_no_thread_and_no_import_of_its_libraries(database: Database) -> None:
    statements = f"""
import sys, threading, time
from mqdb.server import Server
from mqdb.settings import load_settings
with Server(load_settings(dsn={database.dsn!r})) as server:
    while not server.is_leader: time.sleep(0.01)
    print(*(name for name in ("starlette", "uvicorn", "prometheus_client") if name in sys.modules))
    print(*(each.name for each in threading.enumerate() if each.name in ("mqdb-web", "mqdb-sampler")))
"""
    clean = {name: value for name, value in os.environ.items() if name != "MQDB_HTTP"}
    environment = clean | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-c", statements]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)

    assert (done.stdout, done.returncode) == ("\n\n", 0), done.stderr
