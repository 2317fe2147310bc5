"""A role with only the right to connect can read nothing, stop nothing, and hold up no other role."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import Engine

from mqdb.broker.clients import client_requests, membership
from mqdb.broker.dispatch import is_attended
from mqdb.broker.schedule import delay, timers
from mqdb.broker.transactions.transaction_checks import CheckRules, collect
from mqdb.common import wake_limit
from mqdb.common.group import ConsumeFromWhere
from mqdb.server import Server
from mqdb.settings import load_settings
from mqdb.store import locks, migrations
from mqdb.store.clients import clients
from mqdb.store.clients.clients import ARRIVALS_CHANNEL, CHANNEL
from mqdb_client import Message, Producer, PushConsumer
from mqdb_client.consumer.queues import pull_service, share
from mqdb_client.dispatch_watch import DispatchWatch
from tests.fixtures.consumers import Inbox
from tests.fixtures.fault_hostile import FORGED
from tests.fixtures.log import Connection, append, dispatch, index_keys, scalar
from tests.fixtures.postgres import Database, with_parts
from tests.fixtures.processes import wait_until

STRANGER = "a stranger"
PASSWORD = "of/its own"


@pytest.fixture
def stranger(database: Database) -> Iterator[Connection]:
    """A session of a role that may only connect."""
    superuser = database.connect_as_superuser()
    create = sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}")
    superuser.execute(create.format(sql.Identifier(STRANGER), sql.Literal(PASSWORD)))
    with psycopg.connect(with_parts(database.dsn, user=STRANGER, password=PASSWORD), autocommit=True) as session:
        yield session
    superuser.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(STRANGER)))


def take_every_advisory_lock(stranger: Connection, observer: Connection) -> None:
    """Take all locks that the role can see in pg_locks, and those that earlier versions took."""
    for number in range(10):
        stranger.execute("SELECT pg_try_advisory_lock(%s, %s)", [locks.LOCK_CLASS, number])
    for name in ("dispatch", "index", "redrive"):
        stranger.execute("SELECT pg_try_advisory_lock(%s, hashtext(%s))", [locks.LOCK_CLASS, name])
    assert scalar(observer, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") >= 13


def test_no_batch_of_a_service_waits_for_a_stranger(
    log: Connection, stranger: Connection, engine: Engine, queue: int
) -> None:
    take_every_advisory_lock(stranger, log)
    append(log, queue)

    assert dispatch(log).messages == 1
    assert index_keys(log).messages == 1
    with engine.connect() as connection:
        assert delay.deliver_due(connection).messages == 0
        assert locks.take_durably(connection, "delay")
        assert timers.deliver_due(connection).messages == 0
        assert collect(connection, CheckRules(), 10) is not None
        assert locks.take_archive(connection)
    log.execute("SELECT mqdb.dlq_redrive('{1}')")
    log.execute("SELECT mqdb.recall(NULL, repeat('0', 32))")


def test_a_stranger_keeps_nobody_from_leading_or_migrating(
    database: Database, log: Connection, stranger: Connection, engine: Engine
) -> None:
    take_every_advisory_lock(stranger, log)
    migrations.upgrade(database.dsn)
    settings = load_settings(dsn=database.dsn)

    with Server(settings) as server, Producer("senders", settings=settings) as producer:
        wait_until(lambda: server.is_leader)
        with engine.connect() as connection:
            assert is_attended(connection)
        assert producer.send(Message("orders", "x")).queue_offset == 0


def test_a_stranger_can_lock_and_read_no_table_and_call_no_function(
    database: Database, log: Connection, stranger: Connection
) -> None:
    tables = log.execute("SELECT format('mqdb.%I', relname) FROM pg_class WHERE relnamespace = 'mqdb'::regnamespace")
    for (name,) in tables.fetchall():
        for statement in (f"LOCK TABLE {name} IN ACCESS SHARE MODE", f"TABLE {name}", f"DELETE FROM {name}"):
            with pytest.raises(psycopg.Error) as refused, stranger.transaction():
                stranger.execute(statement.encode())
            assert isinstance(refused.value, psycopg.errors.InsufficientPrivilege | psycopg.errors.WrongObjectType)
    for statement in ("SELECT mqdb.dispatch(1)", "SELECT mqdb.send('orders', 'x')", "SELECT mqdb.try_lock('dispatch')"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            stranger.execute(statement)


def test_a_lock_of_a_stranger_keeps_no_dead_client_alive(
    log: Connection, database: Database, stranger: Connection, engine: Engine
) -> None:
    key = 2**40 + 1
    stranger.execute("SELECT pg_advisory_lock(%s)", [key])
    log.execute("INSERT INTO mqdb.presence (client_id, lock_key) VALUES ('gone', %s)", [key])
    log.execute(
        "INSERT INTO mqdb.client (client_id, kind, group_name, language, version) "
        "VALUES ('gone', 'CONSUMER', 'readers', 'PYTHON', '1')"
    )
    with engine.connect() as connection:
        assert not clients.live_principals(connection, "gone")

        member = database.connect()
        stranger.execute("SELECT pg_advisory_unlock_all()")
        member.execute("SELECT pg_advisory_lock(%s)", [key])
        assert clients.live_principals(connection, "gone")


def presence_locks(session: Connection) -> dict[tuple[int, int], int]:
    """The presence locks, which any role can see, and the backends that hold them."""
    rows = session.execute(
        """SELECT classid::bigint, objid::bigint, pid FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1
           AND granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"""
    )
    return {(high, low): pid for high, low, pid in rows.fetchall()}


def test_a_stranger_who_waits_for_a_presence_lock_keeps_nobody_from_coming_back(
    database: Database, log: Connection, stranger: Connection, engine: Engine, queue: int
) -> None:
    inbox = Inbox()
    consumer = PushConsumer("readers", database.dsn, consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    consumer.subscribe("orders")
    consumer.register_listener(inbox)
    with ThreadPoolExecutor() as pool, consumer, engine.connect() as connection:
        [((high, low), pid)] = presence_locks(stranger).items()
        waiting = pool.submit(stranger.execute, "SELECT pg_advisory_lock((%s::bigint << 32) | %s)", [high, low])
        wait_until(lambda: scalar(log, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"))
        [client_id] = clients.members_of(connection, "readers")

        log.execute("SELECT pg_terminate_backend(%s)", [pid])

        waiting.result(30)
        assert presence_locks(log)[high, low] == stranger.info.backend_pid
        wait_until(lambda: clients.live_principals(connection, client_id))
        wait_until(lambda: clients.members_of(connection, "readers") == [client_id])
        assert membership.reap(connection) == []
        append(log, queue)
        inbox.wait_for(1)


def test_what_a_stranger_notifies_changes_nothing(
    database: Database, log: Connection, stranger: Connection, queue: int
) -> None:
    """A consumer keeps working, whatever notifications its LISTEN connection receives."""
    inbox = Inbox()
    consumer = PushConsumer("readers", database.dsn, consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    consumer.subscribe("orders")
    consumer.register_listener(inbox)
    with consumer:
        for payload in FORGED * 3:
            for channel in (CHANNEL, ARRIVALS_CHANNEL):
                stranger.execute("SELECT pg_notify(%s, %s)", [channel, payload])
        append(log, queue)
        inbox.wait_for(1)


class Flood:
    """Notifications of the role, sent one after another until the end of the block."""

    def __init__(self, stranger: Connection, *payloads: str) -> None:
        self._stranger = stranger
        self._payloads = payloads
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.sent = 0

    def _run(self) -> None:
        while not self._stopping.is_set():
            for payload in self._payloads:
                channel = ARRIVALS_CHANNEL if payload.startswith("a:") else CHANNEL
                self._stranger.execute("SELECT pg_notify(%s, %s)", [channel, payload])
                self.sent += 1

    def __enter__(self) -> "Flood":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts the queries that notifications make a consumer run."""
    counts: Counter[str] = Counter()

    def count(module: ModuleType, name: str) -> None:
        function = getattr(module, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            counts[name] += 1
            return function(*args, **kwargs)

        monkeypatch.setattr(module, name, counted)

    count(pull_service, "pull")
    count(membership, "heartbeat")
    count(client_requests, "open_requests")
    count(share, "members_of")
    return counts


def test_a_flood_of_notifications_wakes_at_a_bounded_rate_and_holds_up_nothing(
    database: Database, log: Connection, stranger: Connection, engine: Engine, queue: int, work: Counter[str]
) -> None:
    inbox = Inbox()
    consumer = PushConsumer("readers", database.dsn, consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    consumer.subscribe("orders")
    consumer.register_listener(inbox)
    with consumer, engine.connect() as connection:
        [client_id] = clients.members_of(connection, "readers")
        work.clear()
        began = time.monotonic()
        with Flood(stranger, "a:*", "m:readers", f"c:{client_id}") as flood:
            wait_until(lambda: flood.sent > 5_000)
            append(log, queue)
            inbox.wait_for(1)
        seconds = time.monotonic() - began

    work["pull"] //= 2  # one for the topic and one for its retries
    # Polls, heartbeats and the like, too.
    limit = wake_limit.BURST + (wake_limit.PER_SECOND + 10) * (seconds + 1)
    assert flood.sent > 5 * limit
    assert set(work) == {"pull", "heartbeat", "open_requests", "members_of"}
    assert max(work.values()) < limit, (work, limit)


def test_forged_arrivals_keep_nobody_from_dispatching(log: Connection, engine: Engine, queue: int) -> None:
    """Forged arrivals do not keep consumers from dispatching while no broker process is alive.

    The test moves the clock.
    """
    now = 0.0
    watch = DispatchWatch(lambda: False, engine.connect, "broker-a", clock=lambda: now)
    append(log, queue)

    for _ in range(60):
        now += 0.1
        watch.arrival_heard()
        watch.tend()

    assert scalar(log, "SELECT count(*) FROM mqdb.consume_queue") == 1
