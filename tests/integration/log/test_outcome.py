"""The outcome of a send whose connection was lost is settled before the look-up, which finds the message anywhere."""

import os
import random
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from uuid import UUID

import psycopg
import pytest
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import OperationalError

from mqdb.broker.log import send
from mqdb.broker.log.outcome import Backend, StoredAt, TopicQueue, backend_of, end_backend, find_sent, queue_of
from mqdb.broker.topics import topics as admin
from mqdb.common.message import Message
from mqdb.common.unique_id import UniqueIdGenerator
from mqdb.embedded import EmbeddedPostgres
from mqdb.errors import BrokerUnavailable, StorageRefused
from mqdb.store.engine import create_engine, driver
from mqdb.store.log.commit_log import Record
from mqdb.store.server_choice import ServerRole
from mqdb.store.topics.topics import TopicRoute
from tests.fixtures import log
from tests.fixtures.broker import append_records, dispatch_all, topic
from tests.fixtures.clusters import home_with_cluster
from tests.fixtures.fuzz import fuzz_cases
from tests.fixtures.interleaving import Interleaving, Sessions, Violation
from tests.fixtures.postgres import Database, superuser_dsn
from tests.fixtures.processes import wait_until
from tests.fixtures.threads import Doing
from tests.fixtures.variants import usually

pytestmark = pytest.mark.usefixtures("both_kinds")

_ids = UniqueIdGenerator()


def records(route: TopicRoute, count: int = 1, queue_id: int = 0) -> list[Record]:
    message = Message(route.config.name, "x", keys=["k"])
    key = route.queue_keys[queue_id]
    return [send.record(message, key, unique_id, datetime.now(UTC), "test") for unique_id in _ids.take(count)]


def ids_of(records: list[Record]) -> list[UUID]:
    return [record.msg_id for record in records]


def places(records: list[Record], positions: list[int]) -> dict[UUID, StoredAt]:
    return {
        record.msg_id: StoredAt(log_pos, record.queue_key) for record, log_pos in zip(records, positions, strict=True)
    }


def leave(_broker: Connection) -> None:
    """Leave the record neither dispatched nor indexed."""


def index_all(broker: Connection) -> None:
    log.index_all(driver(broker))


def index_some(broker: Connection) -> None:
    """Run a part of an index round, which is not over."""
    log.dispatch_all(driver(broker))
    assert log.index_keys(driver(broker), 2).more


@pytest.fixture
def writer(database: Database) -> psycopg.Connection[object]:
    """Another session."""
    return database.connect()


# -- what is found ------------------------------------------------------------------------------


@pytest.mark.parametrize("work", [leave, dispatch_all, index_all, index_some])
def test_what_is_stored_is_found_however_far_dispatch_and_index_are(
    broker: Connection, work: Callable[[Connection], object]
) -> None:
    sent = records(topic(broker), 5)
    positions = append_records(broker, sent)
    work(broker)

    assert find_sent(broker, ids_of(sent)) == places(sent, positions)


@pytest.mark.parametrize("work", [leave, dispatch_all, index_all, index_some])
def test_what_was_sent_after_a_known_position_is_found_with_it(
    broker: Connection, work: Callable[[Connection], object]
) -> None:
    route = topic(broker)
    [known] = append_records(broker, records(route))
    sent = records(route, 4)
    positions = append_records(broker, sent)
    work(broker)

    assert find_sent(broker, ids_of(sent), after_pos=known) == places(sent, positions)


def test_ids_that_nobody_sent_are_left_out(broker: Connection) -> None:
    route = topic(broker)
    indexed, dispatched, fresh, unknown = (records(route, 2) for _ in range(4))
    expected = places(indexed, append_records(broker, indexed))
    index_all(broker)
    expected |= places(dispatched, append_records(broker, dispatched))
    dispatch_all(broker)
    expected |= places(fresh, append_records(broker, fresh))

    assert find_sent(broker, ids_of(unknown + fresh + dispatched + indexed)) == expected


def append(writer: "psycopg.Connection[object]", sent: list[Record]) -> list[int]:
    """Append records in the writer's transaction."""
    statement, values = send.statement_for(sent, places=False)
    return [log_pos for log_pos, _ in statement.run(writer, values)]


def test_nothing_is_asked_for_no_ids(broker: Connection) -> None:
    assert find_sent(broker, []) == {}


def test_what_was_rolled_back_is_not_found(broker: Connection, writer: psycopg.Connection[object]) -> None:
    sent = records(topic(broker), 2)
    writer.execute("BEGIN")
    append(writer, sent)
    writer.execute("ROLLBACK")

    assert find_sent(broker, ids_of(sent)) == {}


def test_a_late_committer_is_found_when_it_has_committed(
    broker: Connection, writer: psycopg.Connection[object]
) -> None:
    """A late committer is found once it has committed.

    The index has passed its position in several rounds, and saw it in progress in each.
    """
    route = topic(broker)
    [known] = append_records(broker, records(route))
    late = records(route, 2)
    writer.execute("BEGIN")
    positions = append(writer, late)
    for _ in range(3):
        append_records(broker, records(route, 3))
        index_all(broker)
    assert find_sent(broker, ids_of(late)) == {}

    writer.execute("COMMIT")

    assert find_sent(broker, ids_of(late), after_pos=known) == places(late, positions)
    index_all(broker)
    assert find_sent(broker, ids_of(late), after_pos=known) == places(late, positions)


def test_a_record_below_the_index_of_a_transaction_younger_than_it_is_found(
    broker: Connection, writer: psycopg.Connection[object]
) -> None:
    route = topic(broker)
    held = log.begin_with_a_position(writer)
    append_records(broker, records(route, 3))
    index_all(broker)
    log.append(writer, route.queue_keys[0], log_pos=held)
    writer.execute("COMMIT")
    unique_id = broker.scalar(text("SELECT msg_id FROM mqdb.commit_log WHERE log_pos = :held"), {"held": held})

    assert find_sent(broker, [unique_id]) == {unique_id: StoredAt(held, route.queue_keys[0])}


def test_of_several_copies_the_first_is_the_send(broker: Connection) -> None:
    route, retry = topic(broker), topic(broker, "%RETRY%group")
    [sent] = records(route)
    [position] = append_records(broker, [sent])
    index_all(broker)
    copy = sent._replace(queue_key=retry.queue_keys[0])
    append_records(broker, [copy])
    index_all(broker)
    append_records(broker, [copy])

    assert find_sent(broker, [sent.msg_id]) == places([sent], [position])


def test_what_a_restored_database_holds_is_found_before_and_after_its_adoption(
    broker: Connection, writer: psycopg.Connection[object]
) -> None:
    route = topic(broker)
    indexed, late, fresh = (records(route, 2) for _ in range(3))
    expected = places(indexed, append_records(broker, indexed))
    writer.execute("BEGIN")
    expected |= places(late, append(writer, late))
    append_records(broker, records(route))
    index_all(broker)
    writer.execute("COMMIT")
    expected |= places(fresh, append_records(broker, fresh))
    broker.execute(text("UPDATE mqdb.broker SET system_identifier = 0"))

    assert find_sent(broker, list(expected)) == expected
    assert log.dispatch(writer).outcome == "ADOPTED"  # a session that has not asked who it is talking to
    assert find_sent(broker, list(expected)) == expected


class Asked(Interleaving):
    """An interleaving of dispatch in which each message is looked up after each step that changes its outcome."""

    engine: Engine

    def _observe(self) -> None:
        super()._observe()
        self._ask()

    def _index(self) -> None:
        log.index_keys(self.sessions.indexer, self.random.randint(1, 40))  # with spans, too
        self._tell("index")
        self._ask()

    def _keep(self) -> None:
        super()._keep()
        self._ask()

    def _drop(self) -> None:
        """Do nothing: a dropped segment may leave a record without an index, which need not be found."""

    def _ask(self) -> None:
        stored = self.sessions.observer.execute(
            "SELECT msg_id, log_pos, queue_key FROM mqdb.commit_log WHERE queue_key = ANY(%s)", [self.queue_keys]
        ).fetchall()
        after_pos = self.random.choice([0, *(row[1] for row in stored)])
        with self.engine.connect() as connection:
            found = find_sent(connection, [row[0] for row in stored], after_pos)
        expected = {row[0]: StoredAt(*row[1:]) for row in stored if row[1] > after_pos}
        if found != expected:
            raise Violation(f"above {after_pos} there is {expected}, and found was {found}")


SEEDS = int(os.environ.get("MQDB_OUTCOME_SEEDS", min(fuzz_cases() // 4, 100)))


@pytest.mark.timeout(60 + SEEDS)
def test_every_committed_message_is_found_at_any_time(database: Database, engine: Engine) -> None:
    """Every committed message is found at any time.

    MQDB_OUTCOME_SEEDS is the number of seeds to play; a failing seed is printed with all its steps.
    """
    with engine.connect() as retention:
        sessions = Sessions(database, retention)
        for seed in range(SEEDS):
            interleaving = Asked(sessions, seed)
            interleaving.engine = engine
            try:
                interleaving.play()
            except Exception as error:
                error.add_note(f"seed {seed}:\n" + "\n".join(interleaving.history))
                sessions.reset()
                raise


def test_a_queue_is_named_by_its_key(broker: Connection) -> None:
    route = topic(broker, "orders", 3)

    assert queue_of(broker, StoredAt(1, route.queue_keys[2])) == TopicQueue("orders", 2)


def test_a_queue_of_a_deleted_topic_has_no_name(broker: Connection) -> None:
    route = topic(broker)
    admin.delete_topic(broker, "orders")

    assert queue_of(broker, StoredAt(1, route.queue_keys[0])) is None


# -- the end of a backend -----------------------------------------------------------------------


@pytest.fixture
def victim(engine: Engine) -> Iterator[Connection]:
    """The connection that will be lost."""
    with engine.connect() as connection:
        yield connection
        connection.invalidate()


def waits_for(broker: Connection, backend: Backend, event: str) -> bool:
    row = broker.execute(
        text("SELECT wait_event_type, wait_event FROM pg_stat_activity WHERE pid = :pid"), {"pid": backend.pid}
    ).one_or_none()
    return row is not None and event in row


def is_there(broker: Connection, backend: Backend) -> bool:
    return broker.execute(text("SELECT FROM pg_stat_activity WHERE pid = :pid"), {"pid": backend.pid}).rowcount > 0


@contextmanager
def as_role(database: Database, role: str) -> Iterator[Connection]:
    """A superuser session that has given up its rights for those of a role."""
    engine = create_engine(database.superuser_dsn)
    with engine.connect() as connection:
        connection.execute(text(f"SET ROLE {role}"))
        yield connection
        connection.invalidate()
    engine.dispose()


def test_what_a_backend_appends_lies_above_what_it_was_told(broker: Connection, victim: Connection) -> None:
    route = topic(broker)
    [before] = append_records(broker, records(route))

    backend = backend_of(victim)

    [after] = append_records(victim, records(route))
    assert before <= backend.after_pos < after


def test_an_append_that_waits_for_a_lock_stores_nothing_once_its_backend_is_gone(
    broker: Connection, victim: Connection, writer: psycopg.Connection[object]
) -> None:
    sent = records(topic(broker), 3)
    backend = backend_of(victim)
    writer.execute("BEGIN")
    writer.execute("LOCK TABLE mqdb.commit_log IN SHARE MODE")
    sending = Doing(lambda: append_records(victim, sent))
    wait_until(lambda: waits_for(broker, backend, "Lock"))

    wait_until(lambda: end_backend(broker, backend))

    assert find_sent(broker, ids_of(sent)) == {}
    writer.execute("COMMIT")
    assert isinstance(sending.error(), BrokerUnavailable)
    assert find_sent(broker, ids_of(sent)) == {}
    assert broker.scalar(text("SELECT count(*) FROM mqdb.commit_log")) == 0


def test_an_idle_backend_is_ended(broker: Connection, victim: Connection) -> None:
    """An idle backend is terminated, because it may have an unread statement in its socket."""
    backend = backend_of(victim)

    wait_until(lambda: end_backend(broker, backend))

    assert not is_there(broker, backend)


def test_a_backend_is_not_called_gone_before_it_is(broker: Connection, victim: Connection) -> None:
    backend = backend_of(victim)
    os.kill(backend.pid, signal.SIGSTOP)
    try:
        assert not end_backend(broker, backend)
        assert not end_backend(broker, backend)
    finally:
        os.kill(backend.pid, signal.SIGCONT)
    wait_until(lambda: end_backend(broker, backend))


def test_a_backend_that_has_ended_is_gone(broker: Connection, victim: Connection) -> None:
    backend = backend_of(victim)
    victim.invalidate()
    wait_until(lambda: not is_there(broker, backend))

    assert end_backend(broker, backend)


def test_another_backend_with_the_same_number_is_left_alone(broker: Connection, victim: Connection) -> None:
    backend = backend_of(victim)
    assert backend.started_at is not None
    earlier = backend._replace(started_at=backend.started_at - timedelta(microseconds=1))

    assert end_backend(broker, earlier)

    assert backend_of(victim) == backend


@pytest.mark.parametrize(
    "role", ["pg_read_all_stats", "pg_signal_backend"], ids=["sees it, may not end it", "may end it, does not see it"]
)
def test_a_role_that_cannot_know_is_refused(
    database: Database, broker: Connection, victim: Connection, role: str
) -> None:
    backend = backend_of(victim)
    with as_role(database, role) as stranger:
        with pytest.raises(StorageRefused) as refused:
            end_backend(stranger, backend)

        assert refused.value.sqlstate == "42501"
        assert backend_of(victim) == backend
        victim.invalidate()
        wait_until(lambda: not is_there(broker, backend))
        assert end_backend(stranger, backend)


def test_a_session_that_cannot_see_itself_is_not_mistaken_for_gone(database: Database, broker: Connection) -> None:
    broker.execute(text("GRANT USAGE ON SCHEMA mqdb TO pg_signal_backend"))
    broker.execute(text("GRANT SELECT ON SEQUENCE mqdb.log_pos TO pg_signal_backend"))
    with as_role(database, "pg_signal_backend") as hidden:
        backend = backend_of(hidden)

        assert backend.started_at is None
        with pytest.raises(StorageRefused):
            end_backend(broker, backend)
        hidden.invalidate()
        wait_until(lambda: not is_there(broker, backend))
        assert end_backend(broker, backend)


# -- a server of its own ------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[EmbeddedPostgres]:
    """A separate server for the test, with the schema."""
    with home_with_cluster() as home, EmbeddedPostgres(home, durable=False) as server:
        yield server


@pytest.fixture
def own(server: EmbeddedPostgres) -> Iterator[Engine]:
    """An engine on the separate server."""
    engine = create_engine(server.dsn, server=ServerRole.ANY)
    yield engine
    engine.dispose()


def as_superuser(server: EmbeddedPostgres, *statements: str) -> None:
    with psycopg.connect(superuser_dsn(server, "mqdb"), autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def lost_connection(engine: Engine, record: Record) -> tuple[Backend, Doing[list[int]]]:
    """The backend that appends a record, and the append; its connection is discarded at the end."""
    connection = engine.connect()
    backend = backend_of(connection)

    def append() -> list[int]:
        try:
            return append_records(connection, [record])
        finally:
            connection.invalidate()
            connection.close()

    return backend, Doing(append)


def append_that_waits_for_a_standby(broker: Connection, engine: Engine) -> tuple[Record, Backend, Doing[list[int]]]:
    """An append that waits for a standby.

    The checkpointer enables the wait a moment after the reload, so the first appends may not have to wait.
    """
    for sent in records(topic(broker), 100):
        backend, append = lost_connection(engine, sent)
        if has_to_wait(broker, backend):
            return sent, backend, append
    raise AssertionError("none has to wait")


def has_to_wait(broker: Connection, backend: Backend) -> bool:
    wait_until(lambda: waits_for(broker, backend, "SyncRep") or not is_there(broker, backend))
    return is_there(broker, backend)


def test_a_commit_that_nobody_sees_yet_is_found_once_its_backend_is_gone(server: EmbeddedPostgres, own: Engine) -> None:
    """A commit that is not visible yet is found once its backend is gone.

    The append has committed, and waits for a standby that never comes. An early look-up does not find the commit.
    """
    as_superuser(server, "ALTER SYSTEM SET synchronous_standby_names = 'nobody'", "SELECT pg_reload_conf()")
    with own.connect() as broker:
        broker.execute(text("SET synchronous_commit = local"))
        sent, backend, append = append_that_waits_for_a_standby(broker, own)
        assert find_sent(broker, [sent.msg_id]) == {}

        wait_until(lambda: end_backend(broker, backend))

        assert list(find_sent(broker, [sent.msg_id])) == [sent.msg_id]
        assert isinstance(append.error(), BrokerUnavailable)


def test_after_a_crash_of_the_server_every_backend_is_gone(server: EmbeddedPostgres, own: Engine) -> None:
    with own.connect() as broker, closing(psycopg.connect(server.dsn)) as locker:
        [stored], [lost] = records(topic(broker)), records(topic(broker, "others"))
        positions = append_records(broker, [stored])
        locker.execute("LOCK TABLE mqdb.commit_log IN SHARE MODE")
        backend, append = lost_connection(own, lost)
        wait_until(lambda: waits_for(broker, backend, "Lock"))
        os.kill(backend.pid, signal.SIGKILL)
        assert isinstance(append.error(), BrokerUnavailable)
        wait_until(lambda: is_broken(locker))
        broker.invalidate()

    wait_until(lambda: connects(own))
    with own.connect() as broker:
        assert end_backend(broker, backend)
        assert find_sent(broker, [stored.msg_id, lost.msg_id]) == places([stored], positions)


def is_broken(connection: psycopg.Connection[object]) -> bool:
    try:
        connection.execute("SELECT")
    except psycopg.OperationalError:
        return True
    return False


def connects(engine: Engine) -> bool:
    try:
        with engine.connect() as connection:
            return connection.scalar(text("SELECT true")) is True
    except OperationalError:
        return False


def test_a_standby_does_not_know_until_it_is_promoted(server: EmbeddedPostgres, own: Engine) -> None:
    """A standby reports no outcome until it is promoted.

    The test has no primary: it only matters that the standby could still receive the commit.
    """
    with own.connect() as broker:
        backend = backend_of(broker)
        broker.invalidate()
    as_superuser(
        server,
        "DO $$ BEGIN EXECUTE format("
        "'COPY (SELECT) TO %L', current_setting('data_directory') || '/standby.signal'); END $$",
    )
    server.restart()
    own.dispose()

    with own.connect() as broker:
        with pytest.raises(StorageRefused) as refused:
            end_backend(broker, backend)

        assert refused.value.sqlstate == "25006"
        as_superuser(server, "SELECT pg_promote()")
        assert end_backend(broker, backend)


# -- the whole of it ----------------------------------------------------------------------------


class LostSends:
    """Sends that lose their connection at a random moment, and the outcome reported for each."""

    def __init__(self, engine: Engine, route: TopicRoute, seed: int) -> None:
        self._engine = engine
        self._route = route
        self._random = random.Random(seed)
        self._killer = engine.connect()
        #: What end_backend and find_sent said, of all ids.
        self.said: dict[UUID, StoredAt | None] = {}

    def lose_one(self) -> None:
        """Append some records, lose the connection, find out the outcome, and perhaps let the index catch up."""
        sent = records(self._route, self._random.choice([1, 1, 10, 300]))
        with self._engine.connect() as victim:
            backend = backend_of(victim)
            answered = threading.Event()
            append = Doing(partial(self._append, victim, sent, answered))
            answered.wait(self._random.choice([0, 0.001, 0.004]) * self._random.random())
            self._random.choice([cut, leave])(victim)
            wait_until(lambda: end_backend(self._killer, backend))
            found = find_sent(self._killer, ids_of(sent), self._random.choice([0, backend.after_pos]))
            answer = append.outcome()
            victim.invalidate()
        assert len(found) in (0, len(sent)), "one INSERT is stored as a whole or not at all"
        if isinstance(answer, list):
            assert found == places(sent, answer)
        self.said |= {unique_id: found.get(unique_id) for unique_id in ids_of(sent)}
        if self._random.random() < 0.3:
            log.index_keys(driver(self._killer), self._random.choice([1, 100, 10_000]))

    def _append(self, victim: Connection, sent: list[Record], answered: threading.Event) -> list[int]:
        try:
            return append_records(victim, sent)
        finally:
            answered.set()

    def stored(self) -> dict[UUID, StoredAt]:
        """The places of all messages in the log."""
        rows = self._killer.execute(text("SELECT msg_id, log_pos, queue_key FROM mqdb.commit_log"))
        return {row.msg_id: StoredAt(row.log_pos, row.queue_key) for row in rows}

    def close(self) -> None:
        self._killer.close()


def cut(victim: Connection) -> None:
    """Close the socket below the driver, as a network failure would."""
    with suppress(OSError), socket.socket(fileno=os.dup(driver(victim).fileno())) as below:
        below.shutdown(socket.SHUT_RDWR)


LOST_SENDS = int(os.environ.get("MQDB_OUTCOME_LOST_SENDS", min(fuzz_cases() // 2, 60)))


@pytest.mark.timeout(60 + LOST_SENDS)
@pytest.mark.parametrize("seed", usually(1, of=[1, 2, 3]))
def test_what_is_said_of_a_lost_send_stays_true(engine: Engine, broker: Connection, seed: int) -> None:
    """The reported outcome of a lost send stays true.

    MQDB_OUTCOME_LOST_SENDS is the number of sends; the moments of the losses are random for each seed.
    """
    with closing(LostSends(engine, topic(broker), seed)) as lost_sends:
        for _ in range(LOST_SENDS):
            lost_sends.lose_one()

        assert {key: place for key, place in lost_sends.said.items() if place is not None} == lost_sends.stored()
