"""The dispatcher sleeps while nobody sends, and no message waits for the end of its longest sleep."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from random import Random

import psycopg
import pytest

from mqdb.broker.dispatch import dispatch, fall_asleep
from mqdb.common.clock import ManualClock
from mqdb.embedded import EmbeddedPostgres
from mqdb.service.dispatcher import Dispatcher, DispatcherConfig
from mqdb.service.service import Context
from mqdb.store import migrations
from mqdb.store.engine import create_engine
from tests.fixtures.fuzz import fuzz_random
from tests.fixtures.log import append, create_topic, positions, scalar
from tests.fixtures.postgres import Database, new_database, server_with_owner
from tests.fixtures.processes import wait_until

WRITERS = 4
TRANSACTIONS = 25
#: No test waits so long: whoever relies on the end of a sleep fails.
FOREVER = timedelta(hours=1)


@pytest.fixture(scope="module")
def notifying() -> Iterator[EmbeddedPostgres]:
    """A server without prepared transactions, as PostgreSQL is by default."""
    with server_with_owner(prepared_transactions=0) as server:
        yield server


@pytest.fixture(params=["notified", "with prepared transactions"])
def sleepy(request: pytest.FixtureRequest, notifying: EmbeddedPostgres) -> Iterator[Database]:
    """A database of either kind of server."""
    if request.param != "notified":
        yield request.getfixturevalue("database")
        return
    with new_database(notifying) as database:
        migrations.upgrade(database.dsn)
        yield database


@contextmanager
def asleep(database: Database) -> Iterator[None]:
    """A dispatcher that has fallen asleep at the beginning."""
    engine = create_engine(database.dsn)
    dispatcher = Dispatcher(Context(engine.connect), DispatcherConfig(longest_sleep=FOREVER))
    dispatcher.start()
    try:
        wait_until(lambda: state(database) == 1)
        yield
    finally:
        dispatcher.stop()
        engine.dispose()


def state(database: Database) -> int | None:
    [(value,)] = database.rows("SELECT pg_sequence_last_value('mqdb.dispatcher_state')")
    return None if value is None else int(value)


def backend(database: Database) -> int:
    [(pid,)] = database.rows("SELECT pid FROM pg_stat_activity WHERE application_name = 'mqdb dispatcher'")
    return int(pid)


@pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_a_transaction_that_began_before_the_sleep_wakes_it(sleepy: Database, isolation: str) -> None:
    """Its snapshot shows a time at which the dispatcher was awake."""
    log = sleepy.connect()
    [queue] = create_topic(log, "orders")
    writer = sleepy.connect()
    writer.execute(f"BEGIN ISOLATION LEVEL {isolation}")
    writer.execute("SELECT count(*) FROM mqdb.topic")
    with asleep(sleepy):
        sent = append(writer, queue)
        writer.execute("COMMIT")

        wait_until(lambda: positions(log, queue) == sent)


def test_a_transaction_that_has_written_keeps_it_awake(sleepy: Database) -> None:
    log = sleepy.connect()
    [queue] = create_topic(log, "orders")
    writer = sleepy.connect()
    writer.execute("BEGIN")
    sent = append(writer, queue)
    engine = create_engine(sleepy.dsn)
    with engine.connect() as connection:
        assert not fall_asleep(connection)
        assert state(sleepy) == 2
        writer.execute("ROLLBACK")
        assert fall_asleep(connection)
    engine.dispose()
    assert sent


@pytest.mark.parametrize("begins", ["before the last batch", "after it"])
def test_it_does_not_sleep_in_the_quick_way_while_somebody_writes(sleepy: Database, begins: str) -> None:
    """The quick way asks for no locks if nobody else has written since the last batch."""
    log = sleepy.connect()
    [queue] = create_topic(log, "orders")
    engine = create_engine(sleepy.dsn)
    with engine.connect() as connection:
        dispatch(connection)  # the database may be a copy, and is adopted then
        append(log, queue)
        writer = sleepy.connect()
        writer.execute("BEGIN")
        if begins == "before the last batch":
            append(writer, queue)
            assert dispatch(connection).messages == 1
        else:
            assert dispatch(connection).messages == 1
            append(writer, queue)

        assert fall_asleep(connection) is None
        writer.execute("COMMIT")
        last = fall_asleep(connection)
    engine.dispose()

    assert last is not None
    assert last.messages == 1


def test_messages_that_come_fast_keep_it_awake(sleepy: Database) -> None:
    """Then no sender need notify. It says so when it starts, whatever was said before."""
    clock = ManualClock(datetime(2024, 1, 1, tzinfo=UTC))
    log = sleepy.connect()
    [queue] = create_topic(log, "orders")
    log.execute("SELECT setval('mqdb.dispatcher_state', 1)")
    engine = create_engine(sleepy.dsn)
    dispatcher = Dispatcher(Context(engine.connect, clock=clock))
    with engine.connect() as connection:
        dispatcher.prepare(connection)
        assert state(sleepy) == 2
        states = []
        for pause, count in ((100, 1), (5, 1), *[(1, 50)] * 6, (1, 1), (100, 1)):
            append(log, queue, count)
            clock.advance(timedelta(milliseconds=pause))
            assert dispatcher.run_once(connection).messages == count
            states.append(state(sleepy))
    engine.dispose()

    assert (states[:2], states[-2:]) == ([1, 1], [2, 1])


def test_writes_elsewhere_do_not_keep_it_awake(sleepy: Database) -> None:
    writer = sleepy.connect()
    writer.execute("BEGIN")
    writer.execute("CREATE TABLE public.mine AS SELECT 1")

    with asleep(sleepy):
        writer.execute("ROLLBACK")


def test_messages_of_sql_wake_it(sleepy: Database) -> None:
    log = sleepy.connect()
    [queue] = create_topic(log, "orders")
    with asleep(sleepy):
        log.execute("SELECT mqdb.send('orders', 'text'::text)")

        wait_until(lambda: len(positions(log, queue)) == 1)


def test_a_two_phase_transaction_can_be_prepared_while_it_sleeps(database: Database) -> None:
    log = database.connect()
    [queue] = create_topic(log, "orders")
    with asleep(database):
        log.execute("BEGIN")
        log.execute("SELECT mqdb.send('orders', 'text'::text)")
        log.execute("PREPARE TRANSACTION 'orders'")
        wait_until(lambda: state(database) == 2)  # it waits for the end
        log.execute("COMMIT PREPARED 'orders'")

        wait_until(lambda: len(positions(log, queue)) == 1)


def test_it_hears_of_messages_that_came_while_its_connection_was_lost(sleepy: Database) -> None:
    log = sleepy.connect()
    [queue] = create_topic(log, "orders")
    with asleep(sleepy):
        log.execute("SELECT pg_terminate_backend(%s)", [backend(sleepy)])
        sent = append(log, queue)

        wait_until(lambda: positions(log, queue) == sent)


def test_a_server_that_has_crashed_takes_it_for_awake(notifying: EmbeddedPostgres) -> None:
    """It has lost its connection, and nobody can wake it. The state is not in the WAL."""
    with new_database(notifying) as database:
        migrations.upgrade(database.dsn)
        database.rows("SELECT setval('mqdb.dispatcher_state', 1)")
        os.kill(database.connect().info.backend_pid, signal.SIGKILL)

        wait_until(lambda: has_no_state(database))

        log = database.connect()
        [queue] = create_topic(log, "orders")
        with asleep(database):
            sent = append(log, queue)
            wait_until(lambda: positions(log, queue) == sent)


def has_no_state(database: Database) -> bool:
    """False too while the server recovers, or has not noticed yet that it has to."""
    with suppress(psycopg.OperationalError):
        return state(database) is None
    return False


def test_no_interleaving_of_senders_lets_a_message_wait(sleepy: Database) -> None:
    random = fuzz_random()
    log = sleepy.connect()
    [queue] = create_topic(log, "orders")
    sent: list[int] = []

    def write(chance: Random) -> None:
        writer = sleepy.connect()
        for _ in range(TRANSACTIONS):
            isolation = chance.choice(["READ COMMITTED", "REPEATABLE READ"])
            with_block = chance.random() < 0.6
            if with_block:
                writer.execute(f"BEGIN ISOLATION LEVEL {isolation}")
                writer.execute("SELECT count(*) FROM mqdb.topic")
                time.sleep(chance.choice([0, 0, 0.005, 0.03]))
            written = append(writer, queue, chance.choice([1, 1, 3]))
            if with_block:
                time.sleep(chance.choice([0, 0, 0.005, 0.03]))
                writer.execute(chance.choice(["COMMIT", "COMMIT", "ROLLBACK"]) if len(written) < 3 else "COMMIT")
            sent.append(len(written))
            time.sleep(chance.choice([0, 0.001, 0.003, 0.02, 0.05]))

    with asleep(sleepy):
        threads = [threading.Thread(target=write, args=(Random(random.random()),)) for _ in range(WRITERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        stored = scalar(log, "SELECT count(*) FROM mqdb.commit_log")
        wait_until(lambda: len(positions(log, queue)) == stored)
        wait_until(lambda: state(sleepy) == 1)
    assert len(sent) == WRITERS * TRANSACTIONS
