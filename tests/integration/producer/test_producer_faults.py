"""The producer during faults: a typed error in time, and sends that recover by themselves."""

import _thread
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path

import psycopg
import pytest

from mqdb.errors import (
    AuthenticationFailed,
    BrokerMisnamed,
    BrokerUnavailable,
    DispatchTimeout,
    MqdbError,
    SchemaMissing,
    SchemaTooNew,
    SendGivenUp,
    SendOutcomeUnknown,
    SettingInvalid,
)
from mqdb.settings import load_settings
from mqdb_client import Message, Producer, SendResult
from tests.fixtures.leaders import pretend_to_lead
from tests.fixtures.postgres import Database, password_of, with_parts
from tests.fixtures.processes import wait_until
from tests.fixtures.producers import is_blocked, link_of, pid_of, producer_of, stall, stored_bodies, terminate
from tests.fixtures.proxy import Proxy
from tests.fixtures.threads import Doing

pytestmark = pytest.mark.usefixtures("both_kinds")

#: Well below the timeout of a producer here, and well above that of a send that is to be over.
IN_TIME = 6.0


@pytest.fixture
def producer(database: Database) -> Iterator[Producer]:
    """A producer that has already sent a message, so that the route of its topic is loaded."""
    with producer_of(database.dsn) as producer:
        producer.send(Message("orders", "first"))
        yield producer


# -- where to connect -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "error"),
    [
        ({"port": 1}, BrokerUnavailable),
        ({"host": "no-such-host.invalid"}, BrokerUnavailable),
        ({"password": "wrong"}, AuthenticationFailed),
        ({"database": "no_such_database"}, MqdbError),
    ],
)
def test_a_dsn_that_leads_nowhere_is_an_error_without_a_password(
    database: Database, parts: dict[str, object], error: type[MqdbError]
) -> None:
    dsn = with_parts(database.dsn, **parts)

    with pytest.raises(error) as raised:
        producer_of(dsn).start()

    assert password_of(dsn) not in str(raised.value)


@pytest.mark.parametrize("dsn", ["orders", "mysql://root@localhost/orders"])
def test_a_dsn_that_is_none_is_refused(dsn: str) -> None:
    with pytest.raises(SettingInvalid):
        Producer("senders", dsn)


def test_another_broker_than_the_dsn_names_is_refused(database: Database) -> None:
    with pytest.raises(BrokerMisnamed, match="'broker-a', not 'broker-z'"):
        producer_of(f"broker-z={database.dsn}").start()


def test_without_a_dsn_and_an_embedded_server_the_error_names_both_ways_out(tmp_path: Path) -> None:
    with pytest.raises(BrokerUnavailable, match=r"mqdb serve.*MQDB_DSN"):
        Producer("senders", settings=load_settings(home=tmp_path)).start()


def test_a_database_without_the_schema_is_refused(empty_database: Database) -> None:
    with pytest.raises(SchemaMissing, match="mqdb migrate"):
        producer_of(empty_database.dsn).start()


def test_a_database_with_a_newer_schema_is_refused_and_can_be_tried_again(database: Database) -> None:
    connection = database.connect()
    before = connection.execute("SELECT version_num FROM mqdb.alembic_version").fetchone()
    connection.execute("UPDATE mqdb.alembic_version SET version_num = '9999'")
    producer = producer_of(database.dsn)

    with pytest.raises(SchemaTooNew, match="pip install"):
        producer.start()
    connection.execute("UPDATE mqdb.alembic_version SET version_num = %s", before)
    with producer:
        producer.send(Message("orders", "x"))


@pytest.mark.of_threads("the loop of the test is a thread itself")
def test_a_failed_start_leaves_no_thread_and_no_connection(database: Database) -> None:
    threads = set(threading.enumerate())

    with pytest.raises(BrokerMisnamed):
        producer_of(f"broker-z={database.dsn}").start()

    assert set(threading.enumerate()) == threads
    wait_until(lambda: connections(database) == 0)


def connections(database: Database) -> int:
    statement = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name ^@ 'mqdb '"
    )
    with psycopg.connect(database.dsn) as connection:
        row = connection.execute(statement).fetchone()
    assert row is not None
    return int(row[0])


# -- a lost connection ------------------------------------------------------------------------


def test_a_connection_lost_between_two_sends_is_not_noticed(database: Database, producer: Producer) -> None:
    for number in range(3):
        terminate(database, pid_of(producer))
        producer.send(Message("orders", str(number)))

    assert stored_bodies(database) == ["first", "0", "1", "2"]


def test_a_connection_lost_during_a_send_is_replaced_and_the_message_stored_once(
    database: Database, producer: Producer
) -> None:
    locker, pid = stall(database), pid_of(producer)
    sending = Doing(lambda: producer.send(Message("orders", "second")))
    wait_until(lambda: is_blocked(database, pid))

    terminate(database, pid)
    wait_until(lambda: pid_of(producer) != pid and is_blocked(database, pid_of(producer)))
    locker.rollback()

    assert isinstance(sending.outcome(), SendResult)
    assert stored_bodies(database) == ["first", "second"]


def test_with_a_chosen_queue_a_connection_lost_during_a_send_is_an_error_that_knows_the_outcome(
    database: Database, producer: Producer
) -> None:
    locker, pid = stall(database), pid_of(producer)
    sending = Doing(lambda: producer.send(Message("orders", "second"), sharding_key="k"))
    wait_until(lambda: is_blocked(database, pid))

    terminate(database, pid)
    error = sending.outcome()
    locker.rollback()

    assert isinstance(error, BrokerUnavailable)
    assert "nothing was stored" in str(error)
    producer.send(Message("orders", "third"))
    assert stored_bodies(database) == ["first", "third"]


def test_connections_killed_under_load_lose_no_acknowledged_message(database: Database) -> None:
    acknowledged: list[str] = []
    errors: list[MqdbError] = []
    stop = threading.Event()
    with producer_of(database.dsn) as producer:
        producer.send(Message("orders", "first"))

        def work(number: int) -> None:
            for n in range(1_000_000):
                if stop.is_set():
                    return
                try:
                    producer.send(Message("orders", f"{number}.{n}"))
                    acknowledged.append(f"{number}.{n}")
                except BrokerUnavailable as error:
                    errors.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(5):
            count = len(acknowledged)
            wait_until(lambda count=count: len(acknowledged) > count + 20)  # type: ignore[misc]
            terminate(database, pid_of(producer))
        stop.set()
        for thread in threads:
            thread.join()

    bodies = stored_bodies(database)
    assert set(acknowledged) <= set(bodies)
    assert len(set(bodies)) == len(bodies)
    assert len(bodies) - 1 - len(acknowledged) <= len(errors)


def test_a_send_in_an_outage_ends_in_time_and_later_ones_recover(database: Database, proxy: Proxy) -> None:
    with producer_of(proxy.dsn) as producer:
        producer.send(Message("orders", "before"))
        proxy.cut()
        second = timedelta(seconds=1)
        sendings = [Doing(lambda: producer.send(Message("orders", "lost"), timeout=second)) for _ in range(3)]
        for sending in sendings:
            assert isinstance(sending.outcome(), BrokerUnavailable)
            assert sending.seconds < IN_TIME
        proxy.restore()

        producer.send(Message("orders", "after"))

    assert stored_bodies(database) == ["before", "after"]


def test_a_send_survives_an_outage_that_is_shorter_than_its_timeout(database: Database, proxy: Proxy) -> None:
    with producer_of(proxy.dsn, timeout="20s") as producer:
        producer.send(Message("orders", "before"))
        proxy.cut()
        sending = Doing(lambda: producer.send(Message("orders", "during")))
        wait_until(lambda: link_of(producer).connection.why_lost is not None)
        proxy.restore()

        assert isinstance(sending.outcome(), SendResult)

    assert stored_bodies(database) == ["before", "during"]


# -- a server that does not answer ------------------------------------------------------------


@pytest.mark.usefixtures("cancelled_early")
def test_a_send_is_given_up_at_its_timeout_and_stores_nothing(database: Database, producer: Producer) -> None:
    locker = stall(database)

    sending = Doing(partial(producer.send, Message("orders", "late"), timeout=timedelta(seconds=4)))

    assert isinstance(sending.outcome(), SendGivenUp)
    assert 0.9 < sending.seconds < IN_TIME
    locker.rollback()
    producer.send(Message("orders", "second"))
    assert stored_bodies(database) == ["first", "second"]


def test_the_outcome_is_open_when_the_server_does_not_say_that_it_has_stopped(
    database: Database, producer: Producer
) -> None:
    pid = pid_of(producer)
    os.kill(pid, signal.SIGSTOP)
    try:
        sending = Doing(partial(producer.send, Message("orders", "perhaps"), timeout=timedelta(seconds=1)))
        error = sending.outcome()
        # On a connection of its own, and beside the hung one.
        producer.send(Message("orders", "second"))
    finally:
        os.kill(pid, signal.SIGCONT)

    assert isinstance(error, SendOutcomeUnknown)
    assert "may or may not be stored in broker-a" in str(error)
    assert 0.9 < sending.seconds < IN_TIME
    assert {"first", "second"} <= set(stored_bodies(database))


def test_a_silent_network_is_an_open_outcome_as_well(database: Database, proxy: Proxy) -> None:
    with producer_of(proxy.dsn) as producer:
        producer.send(Message("orders", "first"))
        proxy.freeze()
        sending = Doing(partial(producer.send, Message("orders", "perhaps"), timeout=timedelta(seconds=1)))
        assert isinstance(sending.outcome(), SendOutcomeUnknown)
        assert sending.seconds < IN_TIME
        proxy.cut()
        proxy.restore()

        producer.send(Message("orders", "second"))


def test_a_statement_timeout_of_the_database_ends_no_send(database: Database) -> None:
    connection = database.connect()
    with producer_of(database.dsn) as producer:
        producer.send(Message("orders", "first"))
        locker = stall(database)
        connection.execute(
            "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET statement_timeout = 300', current_database()); END $$"
        )
        terminate(database, pid_of(producer))  # the next connection would have it

        sending = Doing(partial(producer.send, Message("orders", "second")))
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        waits = f"{waiting} AND now() - query_start > interval '1 s'"
        wait_until(lambda: connection.execute(waits.encode()).fetchone() == (1,))
        locker.rollback()
        sending.result()

    assert stored_bodies(database) == ["first", "second"]


def test_a_queue_offset_that_does_not_come_in_time_is_an_error(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Somebody dispatches, it seems.
    leader = database.connect()
    pretend_to_lead(leader)
    with producer_of(database.dsn, timeout="300ms") as producer:
        result = producer.send(Message("orders", "x"), timeout=timedelta(seconds=30))

        with pytest.raises(DispatchTimeout, match=r"0\.3 s"):
            _ = result.queue_offset
        leader.execute("DELETE FROM mqdb.leader")
        monkeypatch.setattr(producer, "_timeout_seconds", 30.0)
        assert result.queue_offset == 0


@pytest.mark.of_threads("a task is cancelled instead")
def test_ctrl_c_in_a_sending_thread_strands_nobody(database: Database, producer: Producer) -> None:
    locker, pid = stall(database), pid_of(producer)
    appends = link_of(producer).appends
    late: list[Doing[SendResult]] = []

    def interrupt() -> None:
        wait_until(lambda: is_blocked(database, pid))
        late.extend(Doing(partial(producer.send, Message("orders", f"late {n}"))) for n in range(3))
        wait_until(lambda: len(appends._plan.waiting) == 3)
        _thread.interrupt_main()

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        producer.send(Message("orders", "interrupted"))
    interrupter.join()
    locker.rollback()

    assert all(isinstance(sending.outcome(), SendResult) for sending in late)
    producer.send(Message("orders", "second"))
    assert sorted(stored_bodies(database)) == ["first", "late 0", "late 1", "late 2", "second"]


# -- fork -------------------------------------------------------------------------------------

FORK = """
import os, sys, warnings
warnings.simplefilter("ignore")  # that threads and forks do not mix is the point
from mqdb.errors import IllegalState
from mqdb_client import Message, Producer

with Producer("parent", sys.argv[1]) as producer:
    producer.send(Message("orders", "parent before"))
    child = os.fork()
    if child == 0:
        try:
            producer.send(Message("orders", "never"))
        except IllegalState as error:
            assert "after the fork" in str(error), error
            producer.shutdown()
            with Producer("parent", sys.argv[1]) as own:
                own.send(Message("orders", "child"))
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    producer.send(Message("orders", "parent after"))
"""


def test_a_forked_child_refuses_and_leaves_its_parent_alone(database: Database) -> None:
    done = subprocess.run([sys.executable, "-c", FORK, database.dsn], capture_output=True, text=True, timeout=60)

    assert done.returncode == 0, done.stderr
    assert stored_bodies(database) == ["parent before", "child", "parent after"]
