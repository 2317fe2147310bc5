"""The client instance: the rows of a process in the broker, and the broker's notifications to the process."""

import logging
import re
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine

import mqdb
from mqdb.broker.clients import membership
from mqdb.broker.dispatch import is_attended
from mqdb.common.dsn import BrokerDsn
from mqdb.errors import BrokerMisnamed, BrokerUnavailable, IllegalState
from mqdb.selector.subscription import SubscriptionData
from mqdb.server import Server
from mqdb.settings import load_settings
from mqdb.store.clients.clients import ClientKind, Registration
from mqdb.store.engine import create_engine, driver
from mqdb_client import broker_connections, dispatch_watch, outage
from mqdb_client.instance import ClientInstance
from tests.fixtures.leaders import pretend_to_lead
from tests.fixtures.log import append, create_topic, scalar
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.proxy import Proxy

# Who holds an advisory lock in this database.
HELD = """
    SELECT application_name FROM pg_locks JOIN pg_stat_activity USING (pid)
    WHERE locktype = 'advisory' AND datname = current_database()
"""


def consumer_of(instance: ClientInstance, group: str = "readers") -> Registration:
    return Registration(
        instance.client_id,
        ClientKind.CONSUMER,
        group,
        mqdb.__version__,
        subscriptions=[SubscriptionData("orders", "TAG", "*")],
    )


def producer_of(instance: ClientInstance, group: str = "senders") -> Registration:
    return Registration(instance.client_id, ClientKind.PRODUCER, group, mqdb.__version__)


@pytest.fixture
def instance(database: Database) -> Iterator[ClientInstance]:
    """A separate client instance for the test, with a short heartbeat interval."""
    instance = ClientInstance(BrokerDsn("broker-a", database.dsn), heartbeat_interval=timedelta(milliseconds=50))
    instance.open()
    yield instance
    instance.close()


def one(database: Database, statement: str, *values: object) -> Any:
    found = database.rows(statement, *values)
    return found[0][0] if found else None


def clients(database: Database) -> list[tuple[str, str]]:
    return database.rows("SELECT kind, group_name FROM mqdb.client ORDER BY 1, 2")


def reap(database: Database) -> list[str]:
    engine = create_engine(database.dsn)
    with engine.connect() as connection:
        groups = membership.reap(connection)
    engine.dispose()
    return groups


def lose(database: Database, instance: ClientInstance) -> None:
    """Terminate the backend of the LISTEN connection; returns when it is gone."""
    connection = database.connect()
    listener = f"mqdb {instance.client_id} listener"
    statement = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = left(%s, 63)"
    pids = connection.execute(
        "SELECT pid FROM pg_stat_activity WHERE application_name = left(%s, 63)", [listener]
    ).fetchall()
    assert len(pids) == 1
    connection.execute(statement, [listener])
    wait_until(lambda: connection.execute("SELECT 1 FROM pg_stat_activity WHERE pid = %s", pids[0]).fetchone() is None)


# -- who it is --------------------------------------------------------------------------------


def test_the_client_id_has_the_shape_of_rocketmq(instance: ClientInstance) -> None:
    address, _, name = instance.client_id.partition("@")
    pid, _, nanoseconds = name.partition("#")

    assert address.count(".") == 3
    assert pid.isdigit()
    assert nanoseconds.isdigit()
    assert (instance.broker_name, instance.cluster_name) == ("broker-a", "DefaultCluster")


def test_a_process_has_one_instance_for_a_broker(database: Database) -> None:
    [broker] = load_settings(dsn=database.dsn).brokers
    [broker_by_name] = load_settings(dsn=f"broker-a={database.dsn}").brokers
    first, second = ClientInstance.acquire(broker), ClientInstance.acquire(broker)
    named = ClientInstance.acquire(broker_by_name)

    first.release()
    second.register(producer_of(second))
    assert clients(database) == [("PRODUCER", "senders")]
    second.release()
    named.release()

    assert first is second is named
    assert clients(database) == []
    with pytest.raises(IllegalState, match="closed"):
        first.connect()
    third = ClientInstance.acquire(broker)
    third.release()
    assert third is not first


def test_instances_acquired_at_once_are_one(database: Database) -> None:
    broker = BrokerDsn("broker-a", database.dsn)
    acquired: list[ClientInstance] = []
    threads = [threading.Thread(target=lambda: acquired.append(ClientInstance.acquire(broker))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(acquired) == 8
    assert len(set(acquired)) == 1
    for instance in acquired:
        instance.release()


def test_a_connection_that_comes_back_after_the_close_is_closed(database: Database) -> None:
    """A connection that is returned after the close is closed.

    A thread that `close` does not wait for, such as one that answers a request, may still hold one.
    """
    instance = ClientInstance(BrokerDsn("broker-a", database.dsn))
    instance.open()

    with instance.connect() as connection:
        below = driver(connection)
        instance.close()

    assert below.closed


def test_a_server_that_is_killed_under_the_first_statements_is_an_outage(
    instance: ClientInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Found by a fault run: the server was killed after a new connection had asked it who it is.
    with instance.connect():
        monkeypatch.setattr(broker_connections, "COMMIT_LOCALLY", "SELECT pg_terminate_backend(pg_backend_pid())")

        with pytest.raises(BrokerUnavailable) as caught:
            instance.connect()

    assert isinstance(caught.value.__cause__, psycopg.errors.AdminShutdown)


def test_a_pooler_in_front_of_another_broker_is_refused(database: Database, postgres: Any) -> None:
    database.connect().execute("UPDATE mqdb.broker SET broker_name = 'broker-b'")

    with pytest.raises(BrokerMisnamed):
        ClientInstance.acquire(BrokerDsn("broker-a", database.dsn), pool_dsn=database.dsn)


def test_with_a_pooler_all_but_the_listening_goes_through_it(database: Database, proxy: Proxy) -> None:
    instance = ClientInstance.acquire(BrokerDsn("broker-a", database.dsn), pool_dsn=proxy.dsn)
    instance.register(consumer_of(instance))
    heard = Heard()
    instance.on_arrival(heard)
    wait_until(lambda: heard.values == [None])
    proxy.cut()

    database.connect().execute("NOTIFY mqdb_arrivals, 'a:1'")

    wait_until(lambda: frozenset({1}) in heard.values)
    proxy.restore()
    instance.release()


# -- groups -----------------------------------------------------------------------------------


def test_a_client_is_registered_with_its_group_and_subscriptions(database: Database, instance: ClientInstance) -> None:
    instance.register(consumer_of(instance))
    instance.register(producer_of(instance, "readers"))

    assert clients(database) == [("CONSUMER", "readers"), ("PRODUCER", "readers")]
    assert one(database, "SELECT client_id FROM mqdb.client LIMIT 1") == instance.client_id
    assert one(database, "SELECT topic || ' ' || expression FROM mqdb.subscription") == "orders *"


@pytest.mark.parametrize("registration", [consumer_of, producer_of])
def test_the_same_group_twice_is_refused(instance: ClientInstance, registration: Any) -> None:
    instance.register(registration(instance))

    with pytest.raises(IllegalState, match="created before"):
        instance.register(registration(instance))


def test_to_leave_as_a_producer_is_not_to_leave_as_a_consumer(database: Database, instance: ClientInstance) -> None:
    instance.register(consumer_of(instance, "both"))
    instance.register(producer_of(instance, "both"))

    instance.unregister("both", ClientKind.PRODUCER)
    instance.unregister("both", ClientKind.PRODUCER)

    assert clients(database) == [("CONSUMER", "both")]


def test_the_heart_beats(database: Database, instance: ClientInstance) -> None:
    instance.register(producer_of(instance))
    registered = one(database, "SELECT heartbeat_at FROM mqdb.client")

    wait_until(lambda: one(database, "SELECT heartbeat_at FROM mqdb.client") > registered)


def test_presence_is_a_lock_that_ends_with_the_client(database: Database, instance: ClientInstance) -> None:
    instance.register(producer_of(instance))
    assert reap(database) == []
    assert clients(database) == [("PRODUCER", "senders")]

    instance.close()

    wait_until(lambda: one(database, HELD) is None)


def test_a_client_that_the_broker_has_given_up_registers_again(database: Database, instance: ClientInstance) -> None:
    instance.register(producer_of(instance))
    instance.register(consumer_of(instance))
    database.connect().execute("DELETE FROM mqdb.client")

    wait_until(lambda: len(clients(database)) == 2)


def test_a_consumer_learns_from_its_group_that_it_was_given_up(database: Database) -> None:
    instance = ClientInstance(BrokerDsn("broker-a", database.dsn))  # whose heart beats far too slowly for this
    instance.open()
    instance.register(consumer_of(instance))
    connection = database.connect()
    connection.execute("DELETE FROM mqdb.client")
    connection.execute("NOTIFY mqdb, 'm:readers'")

    wait_until(lambda: len(clients(database)) == 1)
    instance.close()


# -- what it hears ----------------------------------------------------------------------------


class Heard:
    """Records the arguments of its calls."""

    def __init__(self) -> None:
        self.values: list[Any] = []

    def __call__(self, value: object) -> None:
        self.values.append(value)


def test_arrivals_and_group_changes_reach_those_who_asked(database: Database, instance: ClientInstance) -> None:
    arrivals, changes, cancelled = Heard(), Heard(), Heard()
    instance.on_arrival(arrivals)
    instance.on_group_change(changes)
    wait_until(lambda: arrivals.values == [None])
    instance.on_arrival(cancelled).cancel()
    connection = database.connect()

    with connection.transaction():
        for channel, payload in (
            ("mqdb_arrivals", "a:3,5"),
            ("mqdb_arrivals", "a:5,8"),
            ("mqdb", "m:readers"),
            ("mqdb", "x:of a later version"),
        ):
            connection.execute("SELECT pg_notify(%s, %s)", [channel, payload])
    wait_until(lambda: len(arrivals.values) > 1 and changes.values)
    connection.execute("NOTIFY mqdb_arrivals, 'a:*'")
    wait_until(lambda: arrivals.values[-1] is None)

    assert frozenset().union(*arrivals.values[1:-1]) == {3, 5, 8}
    assert changes.values == ["readers"]
    assert cancelled.values == []


def test_only_who_wants_arrivals_listens_to_them(database: Database, instance: ClientInstance) -> None:
    """Only clients that want arrivals listen to them: a producer would be woken hundreds of times a second."""
    name = f"mqdb {instance.client_id} listener"[:63]
    listening = f"SELECT query FROM pg_stat_activity WHERE application_name = '{name}'"
    assert one(database, listening) == "LISTEN mqdb"
    heard = Heard()

    handle = instance.on_arrival(heard)
    wait_until(lambda: heard.values == [None])
    assert one(database, listening) == "LISTEN mqdb_arrivals"

    handle.cancel()
    database.connect().execute("NOTIFY mqdb_arrivals, 'a:1'")
    wait_until(lambda: one(database, listening) == "UNLISTEN mqdb_arrivals")
    assert heard.values == [None]


def test_a_callback_that_fails_does_not_keep_others_from_theirs(
    database: Database, instance: ClientInstance, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: object) -> None:
        raise ZeroDivisionError

    listening, heard = Heard(), Heard()
    instance.on_arrival(listening)
    wait_until(lambda: listening.values == [None])
    instance.on_arrival(fail)
    instance.on_arrival(heard)

    for count in (1, 2):
        database.connect().execute("NOTIFY mqdb_arrivals, 'a:1'")
        wait_until(lambda count=count: heard.values.count(frozenset({1})) == count)  # type: ignore[misc]

    assert "callback for arrivals failed" in caplog.text


# -- a lost connection ------------------------------------------------------------------------


def test_after_a_lost_connection_everything_is_as_before(
    database: Database, instance: ClientInstance, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mqdb_client")
    arrivals, changes = Heard(), Heard()
    instance.on_arrival(arrivals)
    instance.on_group_change(changes)
    instance.register(consumer_of(instance))
    instance.register(producer_of(instance))
    wait_until(lambda: "readers" in changes.values and None in arrivals.values)
    arrivals.values.clear()

    lose(database, instance)
    reap(database)  # may find it gone, or back already
    wait_until(lambda: None in arrivals.values and None in changes.values)
    # The session that was ended may have kept the lock until after the next one asked for it, which asks again later.
    wait_until(lambda: one(database, HELD) == f"mqdb {instance.client_id} listener"[:63])
    wait_until(lambda: len(clients(database)) == 2)
    database.connect().execute("NOTIFY mqdb_arrivals, 'a:7'")
    wait_until(lambda: frozenset({7}) in arrivals.values)

    assert reap(database) == []
    assert len(clients(database)) == 2
    # The thread that has got an answer tells it after the arrival.
    wait_until(lambda: "connected to the broker again" in caplog.text)
    told = [record.msg for record in caplog.records if record.name == "mqdb_client.outage"]
    assert told == [outage.BEGINS, outage.OVER]


def test_after_a_lost_connection_no_older_one_is_used_again(database: Database, instance: ClientInstance) -> None:
    heard = Heard()
    instance.on_arrival(heard)
    with instance.connect() as connection:
        before = driver(connection).info.backend_pid
    with instance.connect() as connection:
        assert driver(connection).info.backend_pid == before

    wait_until(lambda: heard.values == [None])
    lose(database, instance)
    wait_until(lambda: heard.values == [None, None])

    with instance.connect() as connection:
        assert driver(connection).info.backend_pid != before


def test_a_long_outage_is_told_once(database: Database, proxy: Proxy, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "mqdb_client")
    instance = ClientInstance(BrokerDsn("broker-a", proxy.dsn))
    instance.open()
    instance.register(consumer_of(instance))
    heard = Heard()
    instance.on_arrival(heard)
    wait_until(lambda: heard.values == [None])

    proxy.cut()
    wait_until(lambda: caplog.text.count("no connection to the broker yet") > 2)
    proxy.restore()
    wait_until(lambda: heard.values == [None, None])
    wait_until(lambda: "connected to the broker again" in caplog.text)
    instance.close()

    told = [record.msg for record in caplog.records if record.levelno >= logging.INFO]
    assert told == [outage.BEGINS, outage.OVER]


def test_a_presence_lock_that_the_lost_connection_still_holds_is_taken_later(
    database: Database, instance: ClientInstance
) -> None:
    instance.register(producer_of(instance))
    engine = create_engine(database.dsn)
    with engine.connect() as ghost:
        ghost.exec_driver_sql("SELECT 1")
        heard = Heard()
        instance.on_arrival(heard)
        wait_until(lambda: heard.values == [None])
        lose(database, instance)
        held = False
        while not held:  # faster than the client, which waits a little before it comes back
            try:
                membership.announce(ghost, instance.client_id)
                held = True
            except IllegalState:
                lose(database, instance)
        wait_until(lambda: len(heard.values) > 1)
        assert clients(database) == [("PRODUCER", "senders")]
        ghost.invalidate()
    engine.dispose()

    wait_until(lambda: one(database, HELD) == f"mqdb {instance.client_id} listener"[:63])
    reap(database)
    assert clients(database) == [("PRODUCER", "senders")]


# -- dispatch ---------------------------------------------------------------------------------


def test_where_nobody_dispatches_a_process_with_consumers_does(
    database: Database, instance: ClientInstance, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch_watch, "ALONE_SECONDS", 1.0)
    connection = database.connect()
    [key] = create_topic(connection, "orders", 1)
    heard = Heard()
    instance.on_arrival(heard)
    instance.register(producer_of(instance))
    append(connection, key, 3)
    assert one(database, "SELECT count(*) FROM mqdb.consume_queue") == 0

    instance.register(consumer_of(instance))

    for count in (3, 5):
        wait_until(lambda count=count: one(database, "SELECT count(*) FROM mqdb.consume_queue") == count)  # type: ignore[misc]
        append(connection, key, 2)
    wait_until(lambda: frozenset({key}) in heard.values)

    def told() -> int:
        return len([line for line in caplog.messages if line.startswith("no `mqdb serve` is alive")])

    wait_until(told)
    assert told() == 1


def test_where_a_leader_lives_nobody_else_dispatches(database: Database, instance: ClientInstance) -> None:
    connection = database.connect()
    [key] = create_topic(connection, "orders", 1)
    leader = database.connect()
    pretend_to_lead(leader)
    instance.register(consumer_of(instance))
    append(connection, key, 1)
    # It has asked at least twice by now.
    begin = scalar(connection, "SELECT clock_timestamp()")
    wait_until(lambda: scalar(connection, "SELECT clock_timestamp()") - begin > timedelta(seconds=0.6))
    assert one(database, "SELECT count(*) FROM mqdb.consume_queue") == 0

    leader.close()

    wait_until(lambda: one(database, "SELECT count(*) FROM mqdb.consume_queue") == 1)


def test_a_group_that_is_switched_off_does_not_take_the_others_of_its_process_along(
    database: Database, instance: ClientInstance
) -> None:
    """A group with consumption disabled does not affect other groups of its process.

    After a lost connection all groups are registered again.
    """
    for group in ("off", "on"):
        instance.register(consumer_of(instance, group))
    connection = database.connect()
    connection.execute("UPDATE mqdb.subscription_group SET consume_enable = false WHERE group_name = 'off'")
    connection.execute("DELETE FROM mqdb.client")

    lose(database, instance)

    wait_until(lambda: clients(database) == [("CONSUMER", "off"), ("CONSUMER", "on")])


def test_what_the_broker_refuses_is_told_and_tried_again(
    database: Database, instance: ClientInstance, caplog: pytest.LogCaptureFixture
) -> None:
    """A registration that a broker refuses is logged and retried.

    A broker that was down at the start may have other subscriptions for the group.
    """
    refused, accepted = consumer_of(instance, "off"), consumer_of(instance, "on")
    for registration in (refused, accepted):
        instance.register(registration)
    connection = database.connect()
    connection.execute("UPDATE mqdb.subscription_group SET consume_enable = false WHERE group_name = 'off'")
    # In this order: a heart beat between the two would find out that the client is gone, and that it was accepted.
    instance._registrations._accepted.clear()
    connection.execute("DELETE FROM mqdb.client")

    wait_until(lambda: clients(database) == [("CONSUMER", "on")])
    wait_until(lambda: re.search("broker broker-a refused client .* in group off; will retry", caplog.text))
    connection.execute("UPDATE mqdb.subscription_group SET consume_enable = true")
    wait_until(lambda: clients(database) == [("CONSUMER", "off"), ("CONSUMER", "on")])


def test_a_leader_that_is_followed_in_time_is_not_taken_for_the_last_one(
    database: Database, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    """A leader that is followed in time does not count as the last one.

    While leadership passes on, no process leads for a moment, or for seconds after a hang.
    """
    now = 0.0

    def ask_attended() -> bool:
        with engine.connect() as connection:
            return is_attended(connection)

    watch = dispatch_watch.DispatchWatch(ask_attended, engine.connect, "broker-a", clock=lambda: now)
    told = "no `mqdb serve` is alive"

    for now in (1.0, 2.0, 10.9):  # noqa: B007 - the clock
        watch.tend()
    assert told not in caplog.text
    with Server(load_settings(dsn=database.dsn)) as server:
        wait_until(lambda: server.is_leader)
        now = 11.5
        watch.tend()
    assert told not in caplog.text

    for now in (12.0, 13.0, 22.5, 23.0):  # noqa: B007 - the clock
        watch.tend()
    assert caplog.text.count(told) == 1
