"""A broker is silent, or its connections hang: no client waits for them for ever."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, text

from mqdb.errors import BrokerUnavailable, MqdbError
from mqdb.settings import load_settings
from mqdb.store.engine import target_of, translated
from mqdb.store.silence import in_time
from mqdb_client import LitePullConsumer, Message, Producer, PushConsumer, leaving
from mqdb_client.producer.queues import publish_routes
from tests.fixtures.log import create_topic
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.producers import (
    TwoBrokers,
    dsn_of_two,
    link_of,
    pid_of,
    producer_of,
    terminate,
    wait_connected,
)
from tests.fixtures.proxy import Proxy, StrandingProxy
from tests.fixtures.threads import Doing
from tests.fixtures.variants import usually

BLOCKED = """
    SELECT pid FROM pg_stat_activity
    WHERE datname = current_database() AND wait_event_type = 'Lock' AND application_name LIKE 'mqdb %%'
"""


# -- connections that stand still -------------------------------------------------------------


@pytest.fixture
def stranding(database: Database) -> Iterator[StrandingProxy]:
    """A stranding proxy to the test's database, which has the topic `orders`."""
    create_topic(database.connect(), "orders", 4)
    with StrandingProxy(database.dsn) as proxy:
        yield proxy


def test_a_producer_whose_connections_stand_still_goes_on_with_new_ones(stranding: StrandingProxy) -> None:
    with producer_of(stranding.dsn, timeout="2s") as producer:
        producer.send(Message("orders", "before"))
        with link_of(producer).instance.connect():
            pass  # one more lies idle in the pool
        stranding.strand()

        def is_sent() -> bool:
            with suppress(MqdbError):
                producer.send(Message("orders", "after"))
                return True
            return False

        wait_until(is_sent)


def test_after_a_lost_connection_none_is_used_that_is_as_old(database: Database) -> None:
    with producer_of(database.dsn) as producer:
        producer.send(Message("orders", "before"))
        with link_of(producer).instance.connect() as connection:
            idle = connection.scalar(text("SELECT pg_backend_pid()"))
        terminate(database, pid_of(producer))

        producer.send(Message("orders", "after"))

        assert pid_of(producer) != idle


def test_a_new_connection_that_keeps_silent_is_given_up(engine: Engine) -> None:
    with engine.connect() as connection:
        with pytest.raises(BrokerUnavailable), translated(target_of(engine)), in_time(connection, 0.1):
            connection.scalar(text("SELECT pg_sleep(100)"))
        connection.invalidate()


def test_a_new_connection_that_answers_in_time_stays(engine: Engine) -> None:
    with engine.connect() as connection:
        with in_time(connection):
            connection.scalar(text("SELECT 1"))

        assert connection.scalar(text("SELECT 2")) == 2


# -- shutdown ---------------------------------------------------------------------------------


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes a shutdown give up soon."""
    monkeypatch.setattr(leaving, "LEAVE_SECONDS", 0.2)


def locked(database: Database, table: str) -> psycopg.Connection[Any]:
    locker = database.connect(autocommit=False)
    locker.execute(f"LOCK TABLE mqdb.{table}".encode())
    return locker


def beat(producer: Producer) -> None:
    """Make the producer send a heartbeat now, and ask for its routes again."""
    instance = link_of(producer).instance
    instance._heartbeat.in_seconds(0)
    instance._notifications.wake()


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("table", ["topic", "client"])
def test_a_shutdown_does_not_wait_for_somebody_s_lock(database: Database, table: str) -> None:
    producer = producer_of(database.dsn)
    producer.start()
    producer.send(Message("orders", "x"))
    locker = locked(database, table)
    beat(producer)
    wait_until(lambda: database.rows(BLOCKED))

    ending = Doing(producer.shutdown)

    ending.result()
    if table == "topic":  # where the broker answers, the group is left
        assert database.rows("SELECT group_name FROM mqdb.client") == []
    locker.rollback()
    wait_until(lambda: not database.rows("SELECT group_name FROM mqdb.client"))


def producer_that_beats(dsn: str) -> Callable[[], None]:
    """The shutdown of a producer that is about to send a heartbeat."""
    producer = producer_of(dsn)
    producer.start()
    producer.send(Message("orders", "x"))

    def shutdown() -> None:
        beat(producer)
        producer.shutdown()

    return shutdown


def producer_that_sends(dsn: str) -> Callable[[], None]:
    """The shutdown of a producer whose last send fails."""
    producer = producer_of(dsn, timeout="1s")
    producer.start()
    producer.send(Message("orders", "x"))

    def shutdown() -> None:
        with pytest.raises(MqdbError):
            producer.send(Message("orders", "y"))
        producer.shutdown()

    return shutdown


def push_consumer(dsn: str) -> Callable[[], None]:
    """The shutdown of a push consumer that owns queues."""
    consumer = PushConsumer("readers", dsn=dsn)
    consumer.subscribe("orders")
    consumer.register_listener(lambda _: None)
    consumer.start()
    wait_until(lambda: len(consumer.assignment) == 4)
    return consumer.shutdown


def lite_pull_consumer(dsn: str) -> Callable[[], None]:
    """The shutdown of a lite pull consumer that owns queues."""
    consumer = LitePullConsumer("readers", dsn=dsn)
    consumer.subscribe("orders")
    consumer.start()
    wait_until(lambda: len(consumer.assignment) == 4)
    return consumer.shutdown


CLIENTS = [producer_that_beats, producer_that_sends, push_consumer, lite_pull_consumer]


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("client", usually(producer_that_sends, push_consumer, of=CLIENTS))
def test_a_shutdown_does_not_wait_for_a_broker_that_keeps_silent(
    database: Database, proxy: Proxy, client: Callable[[str], Callable[[], None]]
) -> None:
    create_topic(database.connect(), "orders", 4)
    shutdown = client(f"{proxy.dsn}&connect_timeout=1000")  # longer than anybody would wait here
    proxy.freeze()

    Doing(shutdown).result()

    proxy.restore()
    wait_until(lambda: not database.rows("SELECT group_name FROM mqdb.client"))


# -- one of two brokers -----------------------------------------------------------------------


@pytest.fixture
def to_both(two_brokers: TwoBrokers, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[Producer]:
    """A producer that has already contacted both brokers; `proxy` is its way to `broker-a`."""
    monkeypatch.setattr(publish_routes, "_SHARE_OF_ONE", 0.02)
    create_topic(two_brokers.b.connect(), "orders", 4)
    with producer_of(dsn_of_two(proxy.dsn, two_brokers.b.dsn)) as producer:
        wait_connected(producer)
        yield producer
        proxy.restore()


@pytest.mark.parametrize("topic", usually("new", of=["orders", "new"]))
def test_a_silent_broker_does_not_keep_a_send_from_the_other_one(proxy: Proxy, to_both: Producer, topic: str) -> None:
    proxy.freeze()

    assert to_both.send(Message(topic, "x")).queue.broker_name == "broker-b"


def test_a_slow_broker_that_alone_has_the_topic_gets_all_the_time(
    two_brokers: TwoBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish_routes, "_SHARE_OF_ONE", 0.0)
    create_topic(two_brokers.a.connect(), "orders", 4)
    settings = load_settings(dsn=two_brokers.dsn, send_message_timeout="60s", auto_create_topic_enable=False)
    with Producer("senders", settings=settings) as producer:
        wait_connected(producer)
        locker = locked(two_brokers.a, "topic")
        sending = Doing(partial(producer.send, Message("orders", "x")))
        pids: set[int] = set()

        def has_asked_again() -> bool:
            pids.update(pid for (pid,) in two_brokers.a.rows(BLOCKED))
            return len(pids) > 1

        wait_until(has_asked_again)
        locker.rollback()

        assert sending.result().queue.broker_name == "broker-a"
