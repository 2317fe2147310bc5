"""Refusals by a broker's database, and producers that route around a broker in trouble.

Each error has RocketMQ's code, a batch is stored completely or not at all, and later sends recover by themselves.
"""

import re
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import Any

import psycopg
import pytest
from psycopg import sql

from mqdb.errors import (
    AuthenticationFailed,
    BrokerUnavailable,
    MqdbError,
    ResponseCode,
    SendGivenUp,
    SendOutcomeUnknown,
    ServerIsStandby,
    StorageRefused,
)
from mqdb.settings import load_settings
from mqdb_client import Message, MessageQueue, Producer, SendResult
from tests.fixtures.log import create_topic
from tests.fixtures.postgres import OWNER, Database, password_of, with_parts
from tests.fixtures.processes import wait_until
from tests.fixtures.producers import (
    TwoBrokers,
    attempts_of,
    dsn_of_two,
    is_blocked,
    link_of,
    mend,
    pid_of,
    producer_of,
    refuse_appends,
    stall,
    stored_bodies,
    terminate,
)
from tests.fixtures.proxy import Proxy
from tests.fixtures.threads import Doing
from tests.fixtures.variants import usually

pytestmark = pytest.mark.usefixtures("both_kinds")

ON_A = MessageQueue("orders", "broker-a", 2)
THREE = [Message("orders", body) for body in ("one", "two", "three")]

#: Well below the timeout of a producer here, and more than a busy machine needs.
AT_ONCE = 8.0

#: Timeouts of two sends in a row that wait in vain: by the end of the first one it is known why.
LONG_AND_SHORT = (2, 0.5)


def as_superuser(database: Database, statement: str, **names: str) -> None:
    options = "-c default_transaction_read_only=off"
    with psycopg.connect(database.superuser_dsn, autocommit=True, options=options) as connection:
        composed = sql.SQL(statement).format(**{name: sql.Identifier(text) for name, text in names.items()})
        connection.execute(composed)


def recovers(send: Callable[[], object]) -> None:
    """Wait until a send succeeds."""
    wait_until(lambda: not isinstance(Doing(send).outcome(), MqdbError))


# -- what a database refuses ------------------------------------------------------------------


def allow_connections(database: Database, limit: int) -> None:
    as_superuser(database, f"ALTER DATABASE {{name}} CONNECTION LIMIT {limit}", name=database.name)


@contextmanager
def too_many_connections(database: Database, producer: Producer) -> Iterator[None]:
    """No connection is left for the producer, which has lost its own."""
    pid = pid_of(producer)
    # For users who are no superusers; those that are there stay.
    allow_connections(database, 1)
    database.connect_as_superuser().execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
    yield
    allow_connections(database, -1)


@contextmanager
def full_disk(database: Database, _producer: Producer) -> Iterator[None]:
    refuse_appends(database, words="could not extend file: No space left on device")
    yield
    mend(database)


@contextmanager
def full_disk_at_the_last_row(database: Database, _producer: Producer) -> Iterator[None]:
    """The disk fills up in the middle of a batch."""
    database.connect().execute(
        """CREATE FUNCTION fault() RETURNS trigger LANGUAGE plpgsql AS $$
           BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = '53100'; END $$;
           CREATE TRIGGER fault BEFORE INSERT ON mqdb.commit_log FOR EACH ROW WHEN (NEW.body = 'three')
           EXECUTE FUNCTION fault()"""
    )
    yield
    mend(database)


@contextmanager
def dropped_partition(database: Database, _producer: Producer) -> Iterator[None]:
    """A table was dropped by hand, and comes back from a backup, for example."""
    connection = database.connect()
    row = connection.execute("SELECT tableoid::regclass::text FROM mqdb.commit_log LIMIT 1").fetchone()
    bounds = "SELECT pg_get_expr(relpartbound, oid) FROM pg_class WHERE oid = %s::regclass"
    assert row is not None
    bound = connection.execute(bounds, row).fetchone()
    assert bound is not None
    connection.execute(f"ALTER TABLE mqdb.commit_log DETACH PARTITION {row[0]}".encode())
    yield
    connection.execute(f"ALTER TABLE mqdb.commit_log ATTACH PARTITION {row[0]} {bound[0]}".encode())


@contextmanager
def read_only(database: Database, producer: Producer) -> Iterator[None]:
    """The database is read-only, as after a failover that has left the client with the standby."""
    setting = "ALTER DATABASE {name} SET default_transaction_read_only = on"
    as_superuser(database, setting, name=database.name)
    terminate(database, pid_of(producer))
    yield
    as_superuser(database, "ALTER DATABASE {name} RESET default_transaction_read_only", name=database.name)
    terminate(database, pid_of(producer))


@pytest.mark.parametrize("work", usually("send_batch", of=["send", "send_batch", "send_async"]))
@pytest.mark.parametrize(
    ("fault", "error", "code", "words"),
    [
        (full_disk, StorageRefused, 14, "SQLSTATE 53100.*No space left"),
        (full_disk_at_the_last_row, StorageRefused, 14, "SQLSTATE 53100"),
        (dropped_partition, StorageRefused, 14, "SQLSTATE 23514"),
        (read_only, ServerIsStandby, 10001, "read-only"),
        (too_many_connections, BrokerUnavailable, 10001, "too many connections"),
    ],
)
def test_what_the_database_refuses_is_an_error_with_its_code_stores_nothing_and_passes(
    database: Database, fault: Any, error: type[MqdbError], code: int, words: str, work: str
) -> None:
    # The others are refused at once, these hope for a connection until their time is over.
    timeout = timedelta(seconds=2) if fault in (too_many_connections, read_only) else None
    with producer_of(database.dsn) as producer:
        producer.send(Message("orders", "before"))
        send = {
            "send": lambda: producer.send(Message("orders", "three"), timeout=timeout),
            "send_batch": lambda: producer.send_batch(THREE, timeout=timeout),
            "send_async": lambda: producer.send_async(Message("orders", "three"), timeout=timeout).result(30),
        }[work]

        with fault(database, producer):
            sending: Doing[Any] = Doing(send)
            raised = sending.error()

        assert (type(raised), raised.code) == (error, code)
        assert re.search(words, str(raised))
        assert sending.seconds < AT_ONCE
        recovers(partial(producer.send, Message("orders", "after")))

    assert set(stored_bodies(database)) == {"before", "after"}


@pytest.fixture
def login(database: Database) -> Iterator[str]:
    """The DSN of a separate user for the test, whose password may change."""
    as_superuser(database, "CREATE ROLE {name} LOGIN PASSWORD 'right' IN ROLE {owner}", name="sender", owner=OWNER)
    yield with_parts(database.dsn, user="sender", password="right")
    as_superuser(database, "DROP ROLE {name}", name="sender")


def test_a_password_that_is_changed_is_refused_in_time_and_accepted_when_it_is_right_again(
    database: Database, login: str
) -> None:
    with producer_of(login) as producer:
        producer.send(Message("orders", "before"))
        as_superuser(database, "ALTER ROLE {name} PASSWORD 'other'", name="sender")
        database.connect_as_superuser().execute("SELECT pg_terminate_backend(%s, 5000)", [pid_of(producer)])

        for seconds in LONG_AND_SHORT:
            sending = Doing(partial(producer.send_batch, THREE, timeout=timedelta(seconds=seconds)))
            error = sending.error()
            assert isinstance(error, AuthenticationFailed)
            assert error.code == ResponseCode.USER_NOT_EXIST
            assert sending.seconds < AT_ONCE
            assert "right" not in str(error)
        as_superuser(database, "ALTER ROLE {name} PASSWORD 'right'", name="sender")

        recovers(partial(producer.send, Message("orders", "after")))

    assert stored_bodies(database) == ["before", "after"]


def error_packet(severity: str, sqlstate: str, words: str) -> bytes:
    """An ErrorResponse as sent by a server. See "Message Formats" in PostgreSQL's documentation."""
    fields = f"S{severity}\0V{severity}\0C{sqlstate}\0M{words}\0\0".encode()
    return b"E" + struct.pack("!i", len(fields) + 4) + fields


class Pooler(Proxy):
    """A proxy to the server that may run out of connections, and reports this like PgBouncer."""

    is_exhausted = False

    def _accept(self) -> None:
        if not self.is_exhausted:
            return super()._accept()
        with suppress(OSError):
            client, _ = self._listening.accept()
            with client:
                client.recv(65536)
                client.sendall(error_packet("FATAL", "08P01", "no more connections allowed (max_client_conn)"))
        return None


def test_an_exhausted_pooler_is_an_error_in_time_and_sends_recover_when_it_has_room(database: Database) -> None:
    with Pooler(database.dsn) as pooler:
        settings = load_settings(dsn=database.dsn, pool_dsn=pooler.dsn, send_message_timeout="30s")
        with Producer("senders", settings=settings) as producer:
            producer.send(Message("orders", "before"))
            pooler.cut()
            pooler.is_exhausted = True
            pooler.restore()

            for seconds in LONG_AND_SHORT:
                sending = Doing(partial(producer.send_batch, THREE, timeout=timedelta(seconds=seconds)))
                error = sending.error()
                assert isinstance(error, BrokerUnavailable)
                assert error.code == ResponseCode.CONNECT_BROKER_FAILED
                assert "max_client_conn" in str(error)
                assert sending.seconds < AT_ONCE
            pooler.is_exhausted = False

            recovers(partial(producer.send, Message("orders", "after")))

    assert stored_bodies(database) == ["before", "after"]


@pytest.mark.parametrize("is_async", [False, True])
def test_behind_a_pooler_the_outcome_of_a_message_that_is_not_stored_stays_open(
    database: Database, caplog: pytest.LogCaptureFixture, is_async: bool
) -> None:
    """Behind a pooler the outcome of a message that is not stored stays unknown.

    The producer does not know the backend's pid, so it cannot find out that this backend has ended.
    """
    settings = load_settings(dsn=database.dsn, pool_dsn=database.dsn, send_message_timeout="30s")
    with Producer("senders", settings=settings) as producer:
        producer.send(Message("orders", "before"))
        locker = stall(database)
        message = Message("orders", "perhaps")
        sending = Doing(lambda: producer.send_async(message).result() if is_async else producer.send(message))
        wait_until(lambda: len(blocked_pids(database)) == 1)
        terminate(database, *blocked_pids(database))
        error = sending.error()
        locker.rollback()
        assert isinstance(error, SendOutcomeUnknown)
        [message_id] = error.message_ids

        with pytest.raises(SendOutcomeUnknown, match="not stored so far, and may be yet"):
            producer.outcome(message_id)

    assert stored_bodies(database) == ["before"]
    assert "unforeseen" not in caplog.text


def blocked_pids(database: Database) -> list[int]:
    return [pid for (pid,) in database.connect().execute("SELECT pid FROM pg_locks WHERE NOT granted")]


# -- past a broker that is in trouble ----------------------------------------------------------


@pytest.fixture
def orders(two_brokers: TwoBrokers) -> TwoBrokers:
    """Two brokers that both have the topic `orders` with 4 queues."""
    for broker in (two_brokers.a, two_brokers.b):
        create_topic(broker.connect(), "orders", 4)
    return two_brokers


def all_bodies(brokers: TwoBrokers) -> Counter[str]:
    return Counter(stored_bodies(brokers.a) + stored_bodies(brokers.b))


def sent_at_once(producer: Producer, count: int, topic: str = "orders") -> set[str]:
    """The brokers of `count` sent messages, none of which may take long."""
    began = time.monotonic()
    brokers = {producer.send(Message(topic, "x")).queue.broker_name for _ in range(count)}
    assert time.monotonic() - began < AT_ONCE
    return brokers


def test_all_brokers_down_at_the_start_are_all_named(two_brokers: TwoBrokers, proxy: Proxy, proxy_b: Proxy) -> None:
    proxy.cut()
    proxy_b.cut()

    with pytest.raises(BrokerUnavailable, match=r"broker-a \(127\.0\.0\.1.*broker-b \(127\.0\.0\.1") as raised:
        producer_of(dsn_of_two(proxy.dsn, proxy_b.dsn)).start()

    assert raised.value.code == ResponseCode.CONNECT_BROKER_FAILED
    assert password_of(proxy.dsn) not in str(raised.value)


@pytest.mark.usefixtures("patient")
def test_a_broker_with_too_many_connections_at_the_start_joins_in_later(orders: TwoBrokers) -> None:
    allow_connections(orders.a, 0)
    with producer_of(orders.dsn) as producer:
        assert sent_at_once(producer, 8) == {"broker-b"}

        allow_connections(orders.a, -1)
        wait_until(lambda: sent_at_once(producer, 8) == {"broker-a", "broker-b"})


@pytest.mark.usefixtures("patient")
def test_the_first_send_to_a_topic_goes_past_a_broker_that_does_not_tell_its_queues(orders: TwoBrokers) -> None:
    with producer_of(orders.dsn) as producer:
        # For the connection on which the first send will ask.
        as_superuser(orders.a, "ALTER DATABASE {name} SET statement_timeout = 1000", name=orders.a.name)
        locker = orders.a.connect(autocommit=False)
        locker.execute("LOCK TABLE mqdb.topic")

        assert sent_at_once(producer, 8) == {"broker-b"}
        locker.rollback()
        wait_until(lambda: sent_at_once(producer, 8) == {"broker-a", "broker-b"})


@pytest.mark.usefixtures("patient")
def test_a_topic_that_only_a_silent_broker_may_have_is_no_topic_that_is_missing(
    two_brokers: TwoBrokers, proxy: Proxy
) -> None:
    create_topic(two_brokers.a.connect(), "orders", 4)
    proxy.cut()
    dsn = dsn_of_two(proxy.dsn, two_brokers.b.dsn)
    settings = load_settings(dsn=dsn, auto_create_topic_enable=False, send_message_timeout="30s")
    with Producer("senders", settings=settings) as producer:
        with pytest.raises(BrokerUnavailable):
            producer.send(Message("orders", "x"))
        proxy.restore()

        recovers(partial(producer.send, Message("orders", "y")))


@pytest.mark.usefixtures("patient")
def test_a_queue_of_a_broker_that_was_never_there_is_no_queue_that_is_missing(orders: TwoBrokers, proxy: Proxy) -> None:
    proxy.cut()
    with producer_of(dsn_of_two(proxy.dsn, orders.b.dsn)) as producer, pytest.raises(BrokerUnavailable):
        producer.send(Message("orders", "x"), queue=ON_A)


@pytest.mark.usefixtures("patient")
def test_a_broker_that_cannot_be_asked_again_keeps_its_queues(orders: TwoBrokers, proxy: Proxy) -> None:
    """A broker that cannot be asked again keeps its queues.

    Otherwise sharding keys would map to other queues until the broker comes back.
    """
    with producer_of(dsn_of_two(proxy.dsn, orders.b.dsn)) as producer:
        queues = producer.fetch_publish_queues("orders")
        proxy.cut()
        wait_until(lambda: link_of(producer).connection.is_lost or not sent_at_once(producer, 2))
        link_of(producer).instance.routes.clear()

        assert producer.fetch_publish_queues("orders") == queues
        proxy.restore()
        recovers(partial(producer.send, Message("orders", "x"), queue=ON_A))
        assert producer.fetch_publish_queues("orders") == queues


@pytest.mark.usefixtures("patient")
def test_a_broker_that_is_known_to_be_down_is_not_tried_as_long_as_there_is_another(
    orders: TwoBrokers, proxy: Proxy
) -> None:
    with producer_of(dsn_of_two(proxy.dsn, orders.b.dsn), "20s") as producer:
        sent_at_once(producer, 8)
        proxy.cut()
        wait_until(lambda: link_of(producer).connection.is_lost or not sent_at_once(producer, 2))
        before = len(stored_bodies(orders.b))
        attempts = attempts_of(producer)

        for number in range(16):
            producer.send_oneway(Message("orders", f"oneway {number}"))  # it has one try
        results = [producer.send(Message("orders", "x")) for _ in range(16)]

        assert {result.queue.broker_name for result in results} == {"broker-b"}
        # Each of its queues gets as many: it is not the one behind those of broker-a that gets them all.
        assert set(Counter(result.queue for result in results).values()) <= {3, 4, 5}
        wait_until(lambda: len(stored_bodies(orders.b)) == before + 32)
        assert set(attempts.brokers) == {"broker-b"}
        proxy.restore()
        recovers(partial(producer.send, Message("orders", "x"), queue=ON_A))
        assert sent_at_once(producer, 16) == {"broker-a", "broker-b"}


@pytest.mark.usefixtures("patient")
def test_one_who_waits_for_a_broker_keeps_nobody_from_turning_to_the_other(orders: TwoBrokers, proxy: Proxy) -> None:
    with producer_of(dsn_of_two(proxy.dsn, orders.b.dsn), "20s") as producer:
        sent_at_once(producer, 8)
        proxy.cut()
        # A queue was chosen, so there is no other broker for this one.
        patient = Doing(partial(producer.send, Message("orders", "patient"), queue=ON_A))
        wait_until(lambda: link_of(producer).connection.is_lost and link_of(producer).appends._plan.is_busy)

        assert sent_at_once(producer, 16) == {"broker-b"}
        proxy.restore()
        assert patient.result().queue == ON_A


@pytest.mark.usefixtures("patient")
def test_an_open_outcome_keeps_nobody_from_asking_for_another_topic(orders: TwoBrokers, proxy: Proxy) -> None:
    with producer_of(dsn_of_two(proxy.dsn, orders.b.dsn), "20s") as producer:
        sent_at_once(producer, 8)
        lost = [lost_send(orders, proxy, producer)]
        create_topic(orders.b.connect(), "parcels", 4)

        assert sent_at_once(producer, 8, "parcels") == {"broker-b"}
        proxy.restore()
        assert {doing.result().queue.broker_name for doing in lost} == {"broker-a"}

    assert all_bodies(orders)["lost"] == 1


def lost_send(brokers: TwoBrokers, way_to_a: Proxy, producer: Producer) -> Doing[SendResult]:
    """A send to broker-a, which stores the message but cannot report this."""
    pid = pid_of(producer)
    locker = stall(brokers.a)
    doing = Doing(partial(producer.send, Message("orders", "lost"), queue=ON_A))
    wait_until(lambda: is_blocked(brokers.a, pid))
    way_to_a.cut()
    locker.rollback()
    wait_until(lambda: "lost" in stored_bodies(brokers.a))
    return doing


@pytest.mark.usefixtures("patient")
@pytest.mark.of_threads("a send to a chosen queue is tried once, as send, not as send_async")
def test_async_sends_with_an_open_outcome_keep_nobody_from_turning_to_the_other(
    orders: TwoBrokers, proxy: Proxy
) -> None:
    with producer_of(dsn_of_two(proxy.dsn, orders.b.dsn), "20s") as producer:
        sent_at_once(producer, 8)
        pid = pid_of(producer)
        locker = stall(orders.a)
        lost = [producer.send_async(Message("orders", "first"), queue=ON_A)]
        wait_until(lambda: is_blocked(orders.a, pid))
        lost += [producer.send_async(Message("orders", f"lost {n}"), queue=ON_A) for n in range(40)]
        terminate(orders.a, pid)  # they go together in the next statement
        wait_until(lambda: pid_of(producer) != pid and is_blocked(orders.a, pid_of(producer)))
        proxy.cut()

        began = time.monotonic()
        futures = [producer.send_async(Message("orders", f"free {n}")) for n in range(40)]
        assert {future.result(10).queue.broker_name for future in futures} == {"broker-b"}
        assert time.monotonic() - began < AT_ONCE
        locker.rollback()
        proxy.restore()
        assert {future.result(20).queue.broker_name for future in lost} == {"broker-a"}

    assert set(all_bodies(orders).values()) == {1, 8}


def test_a_broker_that_says_nothing_at_the_start_costs_the_first_sends_a_moment(
    orders: TwoBrokers, proxy: Proxy
) -> None:
    proxy.freeze()
    with producer_of(dsn_of_two(proxy.dsn, orders.b.dsn)) as producer:
        # The way to the other one is there, so that they wait for the silent one only.
        link_of(producer, "broker-b").ask(lambda _: None, time.monotonic() + 30, SendGivenUp("orders", 30))
        began = time.monotonic()
        sendings = [Doing(partial(producer.send, Message("orders", "x"))) for _ in range(16)]

        assert {doing.result().queue.broker_name for doing in sendings} == {"broker-b"}
        # To connect to a host that says nothing ends after 5 s.
        assert time.monotonic() - began < 4
        proxy.cut()


class PanickingProxy(Proxy):
    """A proxy to a server that stores a message, then cannot flush its log and exits with that as its last message."""

    #: Replaces the answer to a statement that has this in it, once.
    poison = b""
    _victim: socket.socket | None = None

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        if source is self._victim:
            source.recv(65536)
            target.sendall(error_packet("PANIC", "53100", "could not write to log file: No space left on device"))
            self._victim = None
            return self._drop([pair for pair in self._pairs if source in pair])
        if self.poison and self.poison in source.recv(65536, socket.MSG_PEEK):
            self.poison, self._victim = b"", target
        return super()._pass(source, target)


@pytest.mark.usefixtures("patient")
def test_a_server_that_panics_has_perhaps_stored_the_message_and_no_other_gets_it(orders: TwoBrokers) -> None:
    """A server that panics may have stored the message, so no other broker gets it.

    A PANIC may follow the commit, and has the SQLSTATE of a full disk, after which another broker is tried.
    """
    with PanickingProxy(orders.a.dsn) as proxy, producer_of(dsn_of_two(proxy.dsn, orders.b.dsn)) as producer:
        sent_at_once(producer, 8)
        proxy.poison = b"precious"
        bodies = [f"precious {number}" for number in range(8)]
        results = [producer.send(Message("orders", body)) for body in bodies]

        assert proxy.poison == b""
    assert {result.queue.broker_name for result in results} == {"broker-a", "broker-b"}
    assert all_bodies(orders) == Counter(bodies + ["x"] * 8)
