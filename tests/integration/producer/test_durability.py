"""The waits of a send, and its status when the standby does not answer. The standby is a real one."""

import gc
import math
import time
import weakref
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TypeVar
from uuid import UUID

import pytest
from sqlalchemy import Connection, Engine, text

from mqdb.broker.log import send
from mqdb.common.durability import Durability
from mqdb.common.message import Message, SendStatus
from mqdb.common.unique_id import UniqueIdGenerator, parse_unique_id
from mqdb.errors import BrokerUnavailable, ParameterInvalid
from mqdb.settings import load_settings
from mqdb.store.engine import create_engine, driver
from mqdb.store.log.commit_log import LogPlace
from mqdb_client import Producer
from mqdb_client.new_connection import prepared
from mqdb_client.producer.append import durability
from mqdb_client.producer.append.durability import COMMIT_WAIT, CommitWait, apply, refuse_shared, status_of
from mqdb_client.producer.append.held_connection import HeldConnection
from mqdb_client.producer.sends.send_result import SendResult
from tests.fixtures.log import create_topic
from tests.fixtures.postgres import Database, superuser_dsn
from tests.fixtures.processes import wait_until
from tests.fixtures.standby import Standby
from tests.fixtures.threads import Doing

T = TypeVar("T")

ALL = list(Durability)

# Of a send that waits for the standby in vain; with `cancelled_early` 3 s of it are left to ask for the reason.
SECONDS = 4.0
# Of one that does not.
PLENTY = 30.0

_ids = UniqueIdGenerator()


class Sender:
    """Appends on a held connection like a producer."""

    def __init__(self, database: Database, chosen: Durability) -> None:
        self._database = database
        self._engine = create_engine(database.dsn)
        # Not to wait for a standby that the test has stopped.
        connection = database.connect(options="-c synchronous_commit=local")
        [self._queue_key] = create_topic(connection, f"topic-{_ids.next()}", 1)
        self.held = HeldConnection(prepared(self._engine.connect, partial(apply, durability=chosen)))
        self.held.open()
        self.held.wait_connected(time.monotonic() + 10)

    def send(self, seconds: float = PLENTY) -> SendStatus:
        """Send one message, which is then stored; returns its status."""
        unique_id = _ids.next()
        record = send.record(Message("orders", "x"), self._queue_key, unique_id, datetime.now(UTC), "test")

        def work(connection: Connection) -> tuple[list[LogPlace], SendStatus]:
            if COMMIT_WAIT not in connection.info:
                return send.append(connection, [record]), SendStatus.SEND_OK
            return committed(connection, lambda connection: send.append(connection, [record]))

        places, status = self.held.run(work, time.monotonic() + seconds)
        assert is_stored(self._database, unique_id), "acknowledged, and not stored"
        assert len(places) == 1
        return status

    def sending(self) -> Doing[SendStatus]:
        """Start a send; returns once the commit waits for the standby."""
        pid = self.ask("SELECT pg_backend_pid()")
        doing = Doing(self.send)
        wait_until(lambda: waits_for_standby(self._database, pid))
        return doing

    def ask(self, question: str) -> object:
        return self.held.run(lambda connection: connection.scalar(text(question)), time.monotonic() + 10)

    def close(self) -> None:
        self.held.close()
        self._engine.dispose()


@pytest.fixture
def sender(replicated: Database) -> Iterator[Callable[[Durability], Sender]]:
    """Makes senders for the server with a standby."""
    senders: list[Sender] = []

    def make(chosen: Durability) -> Sender:
        senders.append(Sender(replicated, chosen))
        return senders[-1]

    yield make
    for each in senders:
        each.close()


@pytest.fixture
def primary(replicated: Database) -> Iterator[Engine]:
    engine = create_engine(replicated.dsn)
    yield engine
    engine.dispose()


def is_stored(database: Database, unique_id: UUID) -> bool:
    return database.rows("SELECT FROM mqdb.commit_log WHERE msg_id = %s", unique_id) != []


def stored_positions(database: Database) -> list[int]:
    return [row[0] for row in database.connect().execute("SELECT log_pos FROM mqdb.commit_log ORDER BY log_pos")]


def waits_for_standby(database: Database, pid: object) -> bool:
    return database.rows("SELECT wait_event FROM pg_stat_activity WHERE pid = %s", pid) == [("SyncRep",)]


# -- while the standby answers ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("chosen", "level"),
    [(Durability.ASYNC_FLUSH, "off"), (Durability.SYNC_FLUSH, "local"), (Durability.SYNC_MASTER, "on")],
)
def test_a_durability_is_a_setting_of_the_connection(
    sender: Callable[[Durability], Sender], chosen: Durability, level: str
) -> None:
    assert sender(chosen).ask("SHOW synchronous_commit") == level


def test_a_connection_that_comes_back_has_the_same_durability(
    sender: Callable[[Durability], Sender], replicated: Database
) -> None:
    async_flush = sender(Durability.ASYNC_FLUSH)
    pid = async_flush.ask("SELECT pg_backend_pid()")

    replicated.connect().execute("SELECT pg_terminate_backend(%s, 5000)", [pid])

    assert async_flush.ask("SHOW synchronous_commit") == "off"
    assert async_flush.ask("SELECT pg_backend_pid()") != pid


def test_a_server_set_to_remote_apply_keeps_it(replicated: Database, sender: Callable[[Durability], Sender]) -> None:
    connection = replicated.connect()
    connection.execute("ALTER DATABASE mqdb SET synchronous_commit = remote_apply")
    try:
        assert sender(Durability.SYNC_MASTER).ask("SHOW synchronous_commit") == "remote_apply"
    finally:
        connection.execute("ALTER DATABASE mqdb RESET synchronous_commit")


@pytest.mark.parametrize("chosen", ALL)
def test_each_durability_is_ok_while_the_standby_answers(
    sender: Callable[[Durability], Sender], chosen: Durability
) -> None:
    assert sender(chosen).send() is SendStatus.SEND_OK


def test_what_sync_master_has_acknowledged_the_standby_has_too(
    standby: Standby, sender: Callable[[Durability], Sender]
) -> None:
    sync_master = sender(Durability.SYNC_MASTER)
    stored = "SELECT max(log_pos) FROM mqdb.commit_log"

    with standby.paused():
        waiting = sync_master.sending()
    assert waiting.result() is SendStatus.SEND_OK

    newest = sync_master.ask(stored)
    with standby.connect() as connection:
        wait_until(lambda: connection.execute(stored.encode()).fetchone() == (newest,))


# -- a standby that is there and does not answer ----------------------------------------------


@pytest.mark.parametrize("chosen", [Durability.ASYNC_FLUSH, Durability.SYNC_FLUSH])
def test_a_send_that_waits_for_no_standby_does_not_notice_that_it_is_paused(
    standby: Standby, sender: Callable[[Durability], Sender], chosen: Durability
) -> None:
    patient = sender(chosen)

    with standby.paused():
        assert patient.send() is SendStatus.SEND_OK


@pytest.mark.usefixtures("cancelled_early")
def test_a_paused_standby_makes_the_status_flush_slave_timeout(
    standby: Standby, sender: Callable[[Durability], Sender]
) -> None:
    sync_master = sender(Durability.SYNC_MASTER)

    with standby.paused():
        assert sync_master.send(SECONDS) is SendStatus.FLUSH_SLAVE_TIMEOUT
        assert sync_master.send(SECONDS) is SendStatus.FLUSH_SLAVE_TIMEOUT
    assert sync_master.send() is SendStatus.SEND_OK


def test_a_wait_that_somebody_else_cancels_concerns_one_statement(
    standby: Standby, replicated: Database, sender: Callable[[Durability], Sender]
) -> None:
    sync_master = sender(Durability.SYNC_MASTER)
    pid = sync_master.ask("SELECT pg_backend_pid()")

    with standby.paused():
        waiting = sync_master.sending()
        replicated.connect().execute("SELECT pg_cancel_backend(%s)", [pid])
        assert waiting.result() is SendStatus.FLUSH_SLAVE_TIMEOUT

    assert sync_master.send() is SendStatus.SEND_OK
    assert sync_master.ask("SELECT pg_backend_pid()") == pid


@pytest.mark.usefixtures("cancelled_early")
def test_the_warning_comes_through_where_the_server_is_told_to_send_errors_only(
    standby: Standby, replicated: Database, sender: Callable[[Durability], Sender]
) -> None:
    connection = replicated.connect()
    connection.execute("ALTER DATABASE mqdb SET client_min_messages = error")
    try:
        sync_master = sender(Durability.SYNC_MASTER)
    finally:
        connection.execute("ALTER DATABASE mqdb RESET client_min_messages")

    with standby.paused():
        assert sync_master.send(SECONDS) is SendStatus.FLUSH_SLAVE_TIMEOUT


def committed(connection: Connection, work: Callable[[Connection], T]) -> tuple[T, SendStatus]:
    """The result of `work`, which appends, and the status of the appended records."""
    wait = connection.info[COMMIT_WAIT]
    wait.begin(connection)
    return work(connection), wait.status(connection)


def test_another_warning_says_nothing_about_the_standby(primary: Engine) -> None:
    warning = text("DO $$ BEGIN RAISE WARNING 'canceling wait for synchronous replication due to user request'; END $$")
    with primary.connect() as connection:
        apply(connection, Durability.SYNC_MASTER)

        _, status = committed(connection, lambda connection: connection.execute(warning))

    assert status is SendStatus.SEND_OK


def test_a_backend_ended_while_it_waits_has_stored_the_message(
    standby: Standby, replicated: Database, sender: Callable[[Durability], Sender]
) -> None:
    sync_master = sender(Durability.SYNC_MASTER)
    pid = sync_master.ask("SELECT pg_backend_pid()")
    before = stored_positions(replicated)

    with standby.paused():
        waiting = sync_master.sending()
        assert stored_positions(replicated) == before, "seen before its commit is over"
        replicated.connect().execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
        error = waiting.error()

    assert isinstance(error, BrokerUnavailable)
    assert len(stored_positions(replicated)) == len(before) + 1


# -- no standby -------------------------------------------------------------------------------


@pytest.mark.usefixtures("cancelled_early")
def test_a_standby_that_goes_away_makes_the_status_slave_not_available(
    standby: Standby, sender: Callable[[Durability], Sender]
) -> None:
    sync_master = sender(Durability.SYNC_MASTER)

    with standby.stopped():
        assert sync_master.send(SECONDS) is SendStatus.SLAVE_NOT_AVAILABLE


def test_without_a_standby_sync_master_does_not_wait(standby: Standby, sender: Callable[[Durability], Sender]) -> None:
    with standby.stopped():
        sync_master = sender(Durability.SYNC_MASTER)
        begin = time.monotonic()

        assert sync_master.send() is SendStatus.SLAVE_NOT_AVAILABLE
        assert time.monotonic() - begin < 0.9 * PLENTY, "waited until it was cancelled"


def test_a_server_that_names_no_standby_has_none(standby: Standby, sender: Callable[[Durability], Sender]) -> None:
    with standby.dismissed():
        assert sender(Durability.SYNC_MASTER).send() is SendStatus.SLAVE_NOT_AVAILABLE


def test_a_standby_that_comes_back_is_waited_for_again(
    standby: Standby, sender: Callable[[Durability], Sender]
) -> None:
    with standby.stopped():
        sync_master = sender(Durability.SYNC_MASTER)
        assert sync_master.send() is SendStatus.SLAVE_NOT_AVAILABLE

    wait_until(lambda: sync_master.send() is SendStatus.SEND_OK)


def test_sync_master_notices_that_the_server_names_no_standby_any_more(
    standby: Standby, sender: Callable[[Durability], Sender], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durability, "STANDBY_BELIEVED_SECONDS", -math.inf)
    sync_master = sender(Durability.SYNC_MASTER)
    assert sync_master.send() is SendStatus.SEND_OK

    with standby.dismissed():
        wait_until(lambda: sync_master.send() is SendStatus.SLAVE_NOT_AVAILABLE)


def test_a_send_whose_standby_is_dismissed_while_it_waits_has_no_second_copy(
    standby: Standby, sender: Callable[[Durability], Sender]
) -> None:
    """A send whose standby is dismissed while it waits has no second copy.

    Patroni dismisses a lost synchronous standby, and PostgreSQL then lets the commit proceed without a warning.
    """
    sync_master = sender(Durability.SYNC_MASTER)
    assert sync_master.send() is SendStatus.SEND_OK

    with standby.paused():
        waiting = sync_master.sending()
        standby.name("")
        dismissed, later = waiting.result(), sync_master.send()
    standby.make_synchronous()

    assert (dismissed, later) == (SendStatus.SLAVE_NOT_AVAILABLE, SendStatus.SLAVE_NOT_AVAILABLE)


def test_the_standbys_are_not_looked_up_for_each_send(sender: Callable[[Durability], Sender]) -> None:
    sync_master = sender(Durability.SYNC_MASTER)
    sync_master.ask("SELECT set_config('synchronous_commit', 'off', false)")

    sync_master.send()

    assert sync_master.ask("SHOW synchronous_commit") == "off", "the question would have set it to on"


# -- who asks, and when -----------------------------------------------------------------------


def test_a_user_without_monitoring_rights_learns_that_a_standby_is_there(standby: Standby) -> None:
    engine = create_engine(superuser_dsn(standby.primary, "mqdb"))
    with engine.connect() as connection:
        connection.execute(text("CREATE ROLE layman"))
        connection.execute(text("SET ROLE layman"))
        try:
            while_it_runs = status_of(connection)
            with standby.stopped():
                while_it_does_not = status_of(connection)
            with standby.dismissed():
                while_it_does_not_count = status_of(connection)
        finally:
            connection.execute(text("RESET ROLE"))
            connection.execute(text("DROP ROLE layman"))
    engine.dispose()

    assert while_it_runs is SendStatus.FLUSH_SLAVE_TIMEOUT
    assert while_it_does_not is SendStatus.SLAVE_NOT_AVAILABLE
    assert while_it_does_not_count is SendStatus.SLAVE_NOT_AVAILABLE


def test_a_connection_lost_before_the_reason_is_known_does_not_lose_the_result(
    standby: Standby, replicated: Database, primary: Engine
) -> None:
    with primary.connect() as connection:
        apply(connection, Durability.SYNC_MASTER)
        pid = driver(connection).info.backend_pid

        def work(connection: Connection) -> str:
            connection.execute(text("SELECT pg_logical_emit_message(true, 'test', 'to be replicated')"))
            replicated.connect().execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
            return "done"

        with standby.stopped():
            doing = Doing(lambda: committed(connection, work))
            wait_until(lambda: waits_for_standby(replicated, pid))
            replicated.connect().execute("SELECT pg_cancel_backend(%s)", [pid])
            result = doing.result()
        connection.invalidate()

    assert result == ("done", SendStatus.FLUSH_SLAVE_TIMEOUT)


def test_a_lost_connection_is_forgotten(replicated: Database, sender: Callable[[Durability], Sender]) -> None:
    sync_master = sender(Durability.SYNC_MASTER)
    waits = weakref.WeakSet[CommitWait]()
    sync_master.held.run(lambda connection: waits.update(commit_waits(connection)), time.monotonic() + 10)
    assert len(waits) == 1
    pid = sync_master.ask("SELECT pg_backend_pid()")

    replicated.connect().execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
    assert sync_master.ask("SELECT pg_backend_pid()") != pid

    gc.collect()
    assert len(waits) == 0


def commit_waits(connection: Connection) -> list[CommitWait]:
    return [value for value in connection.info.values() if isinstance(value, CommitWait)]


# -- behind a transaction pooler --------------------------------------------------------------


def test_sync_flush_leaves_the_sessions_of_a_pooler_as_they_are(database: Database) -> None:
    create_topic(database.connect(), "orders")
    settings = load_settings(dsn=database.dsn, pool_dsn=database.dsn)
    with Producer("senders", settings=settings) as producer:
        producer.send(Message("orders", "x"))
        assert producer._running is not None
        [link] = producer._running.links.values()
        setting = text("SELECT current_setting('synchronous_commit')")
        found = link.connection.run(lambda connection: connection.scalar(setting), time.monotonic() + PLENTY)

    assert found == "on"


@pytest.mark.parametrize("chosen", [Durability.ASYNC_FLUSH, Durability.SYNC_MASTER])
def test_another_durability_is_refused_behind_a_pooler(chosen: Durability) -> None:
    with pytest.raises(ParameterInvalid, match="pool_dsn") as refusal:
        refuse_shared(chosen)

    assert (refusal.value.name, refusal.value.value) == ("durability", chosen.value)


# -- by way of a producer ---------------------------------------------------------------------


def producer_of(database: Database, chosen: Durability) -> Producer:
    settings = load_settings(dsn=database.dsn, send_message_timeout=f"{PLENTY}s")
    return Producer("senders", settings=settings, durability=chosen)


def is_result_stored(database: Database, result: SendResult) -> bool:
    return is_stored(database, parse_unique_id(result.message_id))


@pytest.mark.usefixtures("cancelled_early")
@pytest.mark.parametrize(
    ("chosen", "seconds", "status"),
    [
        (Durability.ASYNC_FLUSH, PLENTY, SendStatus.SEND_OK),
        (Durability.SYNC_FLUSH, PLENTY, SendStatus.SEND_OK),
        (Durability.SYNC_MASTER, SECONDS, SendStatus.FLUSH_SLAVE_TIMEOUT),
    ],
)
def test_a_producer_says_what_a_paused_standby_means_for_its_durability(
    standby: Standby, replicated: Database, chosen: Durability, seconds: float, status: SendStatus
) -> None:
    with producer_of(replicated, chosen) as producer:
        assert producer.send(Message("orders", "first")).status is SendStatus.SEND_OK

        with standby.paused():
            result = producer.send(Message("orders", "x"), timeout=timedelta(seconds=seconds))

    assert result.status is status
    assert is_result_stored(replicated, result)


@pytest.mark.usefixtures("cancelled_early")
def test_a_producer_says_that_there_is_no_standby(standby: Standby, replicated: Database) -> None:
    with producer_of(replicated, Durability.SYNC_MASTER) as producer:
        producer.send(Message("orders", "first"))

        with standby.stopped():
            messages = [Message("orders", "x"), Message("orders", "y")]
            results = producer.send_batch(messages, timeout=timedelta(seconds=SECONDS))

    assert [result.status for result in results] == [SendStatus.SLAVE_NOT_AVAILABLE] * 2
    assert all(is_result_stored(replicated, result) for result in results)


@pytest.mark.parametrize(
    ("chosen", "level"),
    [(Durability.ASYNC_FLUSH, "off"), (Durability.SYNC_FLUSH, "local"), (Durability.SYNC_MASTER, "local")],
)
def test_a_producer_commits_with_its_durability(database: Database, chosen: Durability, level: str) -> None:
    connection = database.connect()
    connection.execute("CREATE TABLE public.witness (level text)")
    connection.execute(
        "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$"
        "BEGIN INSERT INTO public.witness VALUES (current_setting('synchronous_commit')); RETURN NULL; END $$"
    )
    connection.execute("CREATE TRIGGER note AFTER INSERT ON mqdb.commit_log EXECUTE FUNCTION note()")

    with producer_of(database, chosen) as producer:
        producer.send(Message("orders", "x"))

    assert connection.execute("SELECT level FROM witness").fetchall() == [(level,)]


# -- what must not wait for a standby -----------------------------------------------------------


def test_clients_come_and_go_while_the_standby_hangs(standby: Standby, replicated: Database) -> None:
    with Producer("elders", replicated.dsn) as elder:
        elder.send(Message("orders", "so that the topic is known"))

    def come_and_go() -> None:
        with Producer("senders", replicated.dsn) as producer:
            producer.send(Message("orders", "x"))

    with standby.paused():
        Doing(come_and_go).result()
