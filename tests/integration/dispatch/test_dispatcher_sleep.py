"""The dispatcher sleeps while no message is sent, and no message has to wait until its longest sleep ends."""

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from random import Random

import psycopg
import pytest
import sqlalchemy
from sqlalchemy import Engine

from mqdb.broker.dispatch import DispatchOutcome, dispatch, fall_asleep
from mqdb.embedded import EmbeddedPostgres
from mqdb.service.dispatcher import Dispatcher
from mqdb.service.service import Context
from mqdb.store import migrations
from mqdb.store.engine import create_engine
from tests.fixtures.clocks import ManualClock
from tests.fixtures.fuzz import fuzz_random
from tests.fixtures.log import LANES, Connection, append, begin_with_a_position, create_topic, positions, scalar
from tests.fixtures.postgres import Database, new_database
from tests.fixtures.processes import wait_until
from tests.fixtures.sleeping import ASLEEP, asleep, state
from tests.fixtures.variants import usually

WRITERS = 4
TRANSACTIONS = 25


def backend(database: Database) -> int:
    [(pid,)] = database.rows("SELECT pid FROM pg_stat_activity WHERE application_name = 'mqdb dispatcher'")
    return int(pid)


@pytest.mark.parametrize(
    "isolation", usually("REPEATABLE READ", of=["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
)
def test_a_transaction_that_began_before_the_sleep_wakes_it(sleepy: Database, isolation: str) -> None:
    """A transaction that began before the sleep wakes the dispatcher.

    The transaction's snapshot shows a time at which the dispatcher was awake.
    """
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


def test_it_does_not_sleep_at_the_end_of_a_round_that_somebody_has_begun(
    database: Database, log: Connection, queue: int, engine: Engine
) -> None:
    """The dispatcher does not sleep at the end of a round that another session has begun.

    The other session's round lacks records committed after its start, while the dispatcher was awake.
    """
    append(log, queue, 2)
    with engine.connect() as connection:
        assert dispatch(connection, 1).more
        append(log, queue)

        last = fall_asleep(connection)

    assert last == (DispatchOutcome.DISPATCHED, 1, True)


def test_messages_that_come_fast_keep_it_awake(sleepy: Database) -> None:
    """Messages in quick succession keep the dispatcher awake, so that no sender need notify.

    The dispatcher records this when it starts, whatever was recorded before.
    """
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
        for pause, count in ((100, 1), *[(1, 50)] * 6, (1, 1), (100, 1)):
            append(log, queue, count)
            clock.advance(timedelta(milliseconds=pause))
            assert dispatcher.run_once(connection).messages == count
            states.append(state(sleepy))
    engine.dispose()

    assert (states[0], states[1:5], states[-1]) == (4, [2] * 4, 4)


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


def test_it_sleeps_no_longer_if_another_session_has_said_that_it_is_awake(sleepy: Database) -> None:
    """The dispatcher sleeps no longer if another session has recorded that it is awake.

    An old leader that hung for a while may do so, and then no sender notifies the dispatcher.
    """
    log = sleepy.connect()
    [queue] = create_topic(log, "orders")
    with asleep(sleepy):
        log.execute("BEGIN")
        log.execute("SELECT mqdb.stay_awake()")
        sent = append(log, queue)
        log.execute("COMMIT")

        wait_until(lambda: positions(log, queue) == sent)


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
    """After a server crash the dispatcher counts as awake.

    The dispatcher has lost its connection, so a sender could not wake it. The state is not in the WAL.
    """
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
    """Whether there is no state; also False while the server recovers, or has not noticed yet that it must recover."""
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
        wait_until(lambda: state(sleepy) in ASLEEP)
    assert len(sent) == WRITERS * TRANSACTIONS


# -- the quick way: it neither looks at locks nor dispatches -------------------------------------


def rest_of_a_round(_database: Database, log: Connection, connection: sqlalchemy.Connection) -> None:
    [queue] = create_topic(log, "orders")
    append(log, queue, 2)
    assert dispatch(connection, 1).more


def rest_of_stragglers(database: Database, log: Connection, connection: sqlalchemy.Connection) -> None:
    """Leave records of transactions that had taken positions but were not in progress when the previous round began."""
    [queue] = create_topic(log, "orders")
    writers = [database.connect() for _ in range(2)]
    held = [begin_with_a_position(writer) for writer in writers]
    append(log, queue)
    assert dispatch(connection).messages == 1
    for writer, position in zip(writers, held, strict=True):
        append(writer, queue, log_pos=position)
        writer.execute("COMMIT")
    assert dispatch(connection, 1).more


def rest_of_a_lane(database: Database, log: Connection, connection: sqlalchemy.Connection) -> None:
    """Leave records in a lane. Dispatch itself has found everything that existed when it last looked."""
    large, small = create_topic(log, "orders", 2)
    writer = database.connect()
    writer.execute("BEGIN")
    append(writer, large, 30)
    append(log, small)
    assert dispatch(connection).messages == 1
    writer.execute("COMMIT")
    while len(positions(log, large)) < 8:
        dispatch(connection, 4)
    append(log, small)
    assert dispatch(connection, 4).messages == 2
    assert scalar(log, LANES) == 1


def what_was_in_progress(database: Database, log: Connection, connection: sqlalchemy.Connection) -> None:
    """Leave a transaction that was in progress in the snapshot of the last batch.

    The transaction's xid is older than that of a message in the batch.
    """
    [queue] = create_topic(log, "orders")
    writer = database.connect()
    writer.execute("BEGIN")
    append(writer, queue)
    append(log, queue)
    assert dispatch(connection).messages == 1
    writer.execute("COMMIT")


@pytest.mark.parametrize(
    "leave",
    [rest_of_a_round, rest_of_stragglers, rest_of_a_lane, what_was_in_progress],
    ids=lambda leave: leave.__name__.replace("_", " "),
)
def test_the_quick_way_is_closed_if_the_last_batch_has_left_something(
    database: Database,
    log: Connection,
    engine: Engine,
    leave: Callable[[Database, Connection, sqlalchemy.Connection], None],
) -> None:
    """The fast path is closed if the last batch has left records behind, even if no other session has written since."""
    with engine.connect() as connection:
        dispatch(connection)
        leave(database, log, connection)

        last = fall_asleep(connection, 4)

    assert last is not None
    assert last.messages > 0


def test_the_quick_way_is_open_if_nobody_else_has_written(
    database: Database, log: Connection, queue: int, engine: Engine
) -> None:
    other = database.connect()
    with engine.connect() as connection:

        def is_open() -> bool:
            append(log, queue)
            assert dispatch(connection).messages == 1
            with other.transaction():
                other.execute("LOCK TABLE mqdb.lock_dispatch IN SHARE UPDATE EXCLUSIVE MODE")
                last = fall_asleep(connection)
            assert last is not None
            return last.outcome is not DispatchOutcome.LOCKED

        wait_until(is_open)  # autovacuum may have taken a transaction id


@pytest.mark.parametrize("begins", ["before the last batch", "after it"])
def test_the_quick_way_is_closed_while_somebody_writes(sleepy: Database, begins: str) -> None:
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
