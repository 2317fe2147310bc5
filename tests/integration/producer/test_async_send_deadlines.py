"""The end of async sends: in time whatever hangs or is lost, and at the latest when their producer ends."""

import threading
import time
from concurrent.futures import wait
from datetime import timedelta

import pytest

from mqdb.errors import BrokerUnavailable, IllegalState, SendGivenUp
from mqdb_client import Message, Producer
from mqdb_client.producer.append import append_plan
from tests.fixtures.async_sends import SECONDS, error_of
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.producers import is_blocked, link_of, pid_of, producer_of, refuse_appends, stall, stored_bodies
from tests.fixtures.proxy import Proxy
from tests.fixtures.threads import Doing

pytestmark = pytest.mark.usefixtures("both_kinds")


@pytest.fixture
def producer(warm_producer: Producer) -> Producer:
    return warm_producer


# -- timeouts ---------------------------------------------------------------------------------


@pytest.mark.usefixtures("cancelled_early")
def test_a_send_is_given_up_at_its_own_timeout(database: Database, producer: Producer) -> None:
    locker = stall(database)
    impatient = producer.send_async(Message("orders", "late"), timeout=timedelta(seconds=4))
    patient = producer.send_async(Message("orders", "in time"), timeout=timedelta(seconds=60))

    assert isinstance(error_of(impatient), SendGivenUp)
    locker.rollback()
    patient.result(SECONDS)

    assert stored_bodies(database) == ["first", "in time"]


@pytest.mark.parametrize("is_asleep", [False, True])
def test_a_send_ends_at_its_timeout_while_the_statement_of_another_hangs(
    database: Database, producer: Producer, is_asleep: bool
) -> None:
    """A send ends at its timeout while another one's statement hangs.

    This also holds if nothing was under way for a while before, so that no thread watched deadlines.
    """
    producer.send_async(Message("orders", "second")).result(SECONDS)
    assert producer._running is not None
    if is_asleep:
        wait_until(lambda: producer._running is not None and producer._running.async_send._is_asleep)
    locker, pid = stall(database), pid_of(producer)
    patient = Doing(lambda: producer.send(Message("orders", "patient"), timeout=timedelta(seconds=SECONDS)))
    wait_until(lambda: is_blocked(database, pid))

    error = error_of(producer.send_async(Message("orders", "late"), timeout=timedelta(seconds=0.3)))

    assert isinstance(error, SendGivenUp)
    assert is_blocked(database, pid)
    locker.rollback()
    patient.result()
    assert stored_bodies(database) == ["first", "second", "patient"]


def test_sends_in_an_outage_end_in_time_and_later_ones_go_through(database: Database, proxy: Proxy) -> None:
    with producer_of(proxy.dsn) as producer:
        producer.send(Message("orders", "before"))
        proxy.cut()
        began = time.monotonic()
        soon = timedelta(seconds=1.5)
        futures = [producer.send_async(Message("orders", "lost"), timeout=soon) for _ in range(100)]
        assert len(wait(futures, SECONDS).done) == 100
        assert time.monotonic() - began < 20
        assert all(isinstance(future.exception(), BrokerUnavailable) for future in futures)
        proxy.restore()
        wait_until(lambda: not link_of(producer).connection.is_lost)
        producer.send_async(Message("orders", "after")).result(SECONDS)

    assert stored_bodies(database) == ["before", "after"]


# -- the end ----------------------------------------------------------------------------------


def test_shutdown_waits_for_what_is_under_way(database: Database) -> None:
    with producer_of(database.dsn, "20s") as producer:
        producer.send(Message("orders", "first"))
        locker = stall(database)
        futures = [producer.send_async(Message("orders", str(n))) for n in range(100)]
        producer.send_oneway(Message("orders", "oneway"))
        ending = Doing(producer.shutdown)
        wait_until(lambda: producer._running is None)
        assert not any(future.done() for future in futures)
        locker.rollback()
        ending.result()

    assert all(future.done() for future in futures)
    assert sorted(stored_bodies(database)) == sorted(["first", *map(str, range(100)), "oneway"])


@pytest.mark.usefixtures("cancelled_early")
def test_shutdown_ends_in_time_and_what_is_left_is_given_up_for_certain(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    # When the first statement is cancelled nobody begins another one, which would leave its end less time.
    monkeypatch.setattr(append_plan, "_SHARE_TO_LEAD", 0.8)
    with producer_of(database.dsn, "4s") as producer:
        producer.send(Message("orders", "first"), timeout=timedelta(seconds=SECONDS))
        locker = stall(database)
        futures = [producer.send_async(Message("orders", str(n))) for n in range(100)]
        began = time.monotonic()
        producer.shutdown()
        seconds = time.monotonic() - began
        locker.rollback()

    assert seconds < 10
    assert {type(future.exception(0)) for future in futures} == {SendGivenUp}
    assert stored_bodies(database) == ["first"]


@pytest.mark.of_threads("send_async raises at once, a task when it runs")
def test_after_shutdown_async_sends_are_refused(producer: Producer) -> None:
    producer.send_async(Message("orders", "x")).result(SECONDS)
    producer.shutdown()

    with pytest.raises(IllegalState):
        producer.send_async(Message("orders", "x"))
    with pytest.raises(IllegalState):
        producer.send_oneway(Message("orders", "x"))


def test_no_thread_is_left_after_shutdown(database: Database) -> None:
    threads = set(threading.enumerate())
    with producer_of(database.dsn) as producer:
        refuse_appends(database)
        error_of(producer.send_async(Message("orders", "x")))
        producer.send_oneway(Message("orders", "x"))

    assert set(threading.enumerate()) == threads
