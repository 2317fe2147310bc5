"""Async and oneway sends: what becomes of their futures, in which order, and how many there may be at a time."""

import asyncio
import itertools
import logging
import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from datetime import timedelta
from functools import partial
from queue import SimpleQueue
from uuid import UUID

import pytest

from mqdb.broker.outcome import StoredAt
from mqdb.errors import (
    BrokerUnavailable,
    IllegalState,
    MessageIllegal,
    MqdbError,
    ParameterInvalid,
    QueueNotFound,
    RouteNotFound,
    SendGivenUp,
    SendOutcomeUnknown,
    StorageRefused,
)
from mqdb.settings import load_settings
from mqdb_client import Message, MessageQueue, Producer, SendResult, SendStatus, group_append
from mqdb_client.append_unit import OutcomeUnknown
from mqdb_client.broker_link import BrokerLink
from mqdb_client.producer import settling
from mqdb_client.producer.unknown import settle
from tests.fixtures.log import create_topic
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.producers import (
    attempts_of,
    is_blocked,
    link_of,
    pid_of,
    producer_of,
    refuse_appends,
    settled_outcome,
    stall,
    stored_bodies,
    terminate,
)
from tests.fixtures.proxy import Proxy
from tests.fixtures.threads import Doing

SECONDS = 30.0


@pytest.fixture
def producer(database: Database) -> Iterator[Producer]:
    """A producer that has sent a message already, so that it knows its topic."""
    with producer_of(database.dsn) as producer:
        producer.send(Message("orders", "first"))
        yield producer


def error_of(future: "Future[SendResult]") -> BaseException:
    error = future.exception(SECONDS)
    assert error is not None
    return error


# -- futures ----------------------------------------------------------------------------------


def test_a_future_has_the_result_that_a_sync_send_returns(database: Database, producer: Producer) -> None:
    result = producer.send_async(Message("orders", "x", keys="k")).result(SECONDS)

    row = database.connect().execute(
        "SELECT log_pos, upper(replace(msg_id::text, '-', '')), queue_id FROM mqdb.commit_log "
        "JOIN mqdb.queue USING (queue_key) WHERE keys = 'k'"
    )
    assert row.fetchone() == (result.log_pos, result.message_id, result.queue.queue_id)
    assert result.status is SendStatus.SEND_OK


def test_sends_of_one_thread_to_one_queue_are_stored_in_the_order_of_the_calls(
    database: Database, producer: Producer
) -> None:
    create_topic(database.connect(), "single", 1)

    futures = [producer.send_async(Message("single", str(n))) for n in range(3_000)]
    results = [future.result(SECONDS) for future in futures]

    positions = [result.log_pos for result in results]
    assert positions == sorted(set(positions))
    assert stored_bodies(database)[1:] == [str(n) for n in range(3_000)]
    assert [results[n].queue_offset for n in (0, 1, 1_500, 2_999)] == [0, 1, 1_500, 2_999]


def test_sends_of_many_threads_are_each_stored_once(database: Database, producer: Producer) -> None:
    def work(number: int) -> list[SendResult]:
        futures = [producer.send_async(Message("orders", f"{number}.{n}"), sharding_key="k") for n in range(200)]
        return [future.result(SECONDS) for future in futures]

    threads = [Doing(partial(work, number)) for number in range(8)]

    for results in (thread.result() for thread in threads):
        assert [result.log_pos for result in results] == sorted(result.log_pos for result in results)
    assert Counter(stored_bodies(database)[1:]) == Counter(f"{number}.{n}" for number in range(8) for n in range(200))


def test_what_gathers_behind_a_slow_append_goes_in_one_statement(database: Database, producer: Producer) -> None:
    locker = stall(database)
    futures = [producer.send_async(Message("orders", "x"))]
    wait_until(lambda: is_blocked(database, pid_of(producer)))
    futures += [producer.send_async(Message("orders", "x")) for _ in range(500)]
    locker.rollback()
    wait(futures, SECONDS)

    statements = database.connect().execute("SELECT count(*) FROM mqdb.commit_log GROUP BY xid::text")
    assert sorted(row[0] for row in statements) == [1, 1, 500]


def test_async_and_sync_sends_share_statements(database: Database, producer: Producer) -> None:
    locker = stall(database)
    first = producer.send_async(Message("orders", "x"))
    wait_until(lambda: is_blocked(database, pid_of(producer)))
    second = Doing(lambda: producer.send(Message("orders", "x")))
    wait_until(lambda: len(link_of(producer).appends._waiting) == 1)
    third = producer.send_async(Message("orders", "x"))
    locker.rollback()
    for outcome in (first.result(SECONDS), second.result(), third.result(SECONDS)):
        assert outcome.status is SendStatus.SEND_OK

    statements = database.connect().execute("SELECT count(*) FROM mqdb.commit_log GROUP BY xid::text")
    assert sorted(row[0] for row in statements) == [1, 1, 2]


def test_a_future_cannot_be_cancelled(database: Database, producer: Producer) -> None:
    """The message may be on its way already."""
    locker = stall(database)
    future = producer.send_async(Message("orders", "x"))

    assert not future.cancel()
    locker.rollback()
    future.result(SECONDS)
    assert stored_bodies(database) == ["first", "x"]


def test_asyncio_waits_for_a_wrapped_future(database: Database, producer: Producer) -> None:
    async def send_all() -> list[SendResult]:
        sends = (producer.send_async(Message("orders", str(n)), sharding_key="k") for n in range(100))
        return await asyncio.gather(*map(asyncio.wrap_future, sends))

    results = asyncio.run(send_all())

    assert len({result.log_pos for result in results}) == 100
    assert stored_bodies(database)[1:] == [str(n) for n in range(100)]


def test_asyncio_gets_the_error_of_a_wrapped_future(database: Database, producer: Producer) -> None:
    refuse_appends(database)

    async def send() -> SendResult:
        return await asyncio.wrap_future(producer.send_async(Message("orders", "x")))

    with pytest.raises(StorageRefused):
        asyncio.run(send())


# -- callbacks --------------------------------------------------------------------------------


def test_a_callback_is_called_once_for_each_send(database: Database, producer: Producer) -> None:
    called: list[Future[SendResult]] = []

    futures = [producer.send_async(Message("orders", "x"), callback=called.append) for _ in range(200)]
    producer.shutdown()

    assert Counter(map(id, called)) == Counter(map(id, futures))
    assert all(future.done() for future in futures)


def test_a_callback_of_a_send_that_failed_is_called_once(database: Database, producer: Producer) -> None:
    called: list[Future[SendResult]] = []
    refuse_appends(database)

    future = producer.send_async(Message("orders", "x"), callback=called.append)
    producer.shutdown()

    assert called == [future]
    assert isinstance(future.exception(), StorageRefused)


def test_a_callback_may_send(database: Database, producer: Producer) -> None:
    answered: Future[SendResult] = Future()

    def answer(future: "Future[SendResult]") -> None:
        answered.set_result(producer.send(Message("orders", f"after {future.result().log_pos}")))

    future = producer.send_async(Message("orders", "x"), callback=answer)

    answered.result(SECONDS)
    assert stored_bodies(database) == ["first", "x", f"after {future.result().log_pos}"]


def test_a_callback_may_send_async_where_only_one_message_may_be_under_way(database: Database) -> None:
    done = threading.Event()
    left = iter(range(20))
    with producer_of(database.dsn, back_pressure_for_async_send_num=1) as frugal:

        def go_on(future: "Future[SendResult]") -> None:
            future.result()
            if (n := next(left, None)) is None:
                done.set()
            else:
                frugal.send_async(Message("orders", str(n)), callback=go_on)

        frugal.send_async(Message("orders", "first"), callback=go_on)
        assert done.wait(SECONDS)

    assert stored_bodies(database) == ["first", *map(str, range(20))]


@pytest.mark.parametrize("error", [RuntimeError, SystemExit])
def test_a_callback_that_raises_disturbs_nobody(
    database: Database, producer: Producer, error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_future: "Future[SendResult]") -> None:
        raise error("from the callback")

    locker = stall(database)  # or this thread would call it, where the send has ended by then
    failing = producer.send_async(Message("orders", "x"), callback=fail)
    locker.rollback()

    assert failing.result(SECONDS).status is SendStatus.SEND_OK
    assert producer.send_async(Message("orders", "y")).result(SECONDS).status is SendStatus.SEND_OK
    assert "from the callback" in caplog.text


@pytest.mark.parametrize("error", [RuntimeError, SystemExit])
def test_callbacks_that_raise_for_failed_sends_disturb_nobody(
    database: Database, producer: Producer, error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_future: "Future[SendResult]") -> None:
        raise error("from the callback")

    refuse_appends(database)
    locker = stall(database)
    failing = [producer.send_async(Message("orders", "x"), callback=fail) for _ in range(5)]
    failing.append(producer.send_async(Message("orders", "y")))
    locker.rollback()

    for future in failing:
        assert isinstance(error_of(future), StorageRefused)
    assert "from the callback" in caplog.text


# -- errors -----------------------------------------------------------------------------------


def test_what_is_wrong_with_a_message_is_raised_at_once(producer: Producer) -> None:
    with pytest.raises(MessageIllegal):
        producer.send_async(Message("orders", b""))
    with pytest.raises(ParameterInvalid):
        producer.send_async(Message("orders", "x"), queue=MessageQueue("other", "broker-a", 0))
    with pytest.raises(ParameterInvalid):
        producer.send_async(Message("orders", "x"), timeout=timedelta(0))


def test_what_is_found_later_reaches_the_future(database: Database) -> None:
    settings = load_settings(dsn=database.dsn, auto_create_topic_enable=False)
    create_topic(database.connect(), "orders", 1)
    with Producer("senders", settings=settings) as producer:
        no_topic = producer.send_async(Message("unknown", "x"))
        no_queue = producer.send_async(Message("orders", "x"), queue=MessageQueue("orders", "broker-a", 99))

        assert isinstance(error_of(no_topic), RouteNotFound)
        assert isinstance(error_of(no_queue), QueueNotFound)


def test_an_error_of_a_selector_reaches_the_future_as_it_is(producer: Producer) -> None:
    def fail(*_: object) -> MessageQueue:
        raise KeyError("no queue for you")

    future = producer.send_async(Message("orders", "x"), selector=fail)

    assert isinstance(error_of(future), KeyError)


def test_one_message_that_the_database_refuses_fails_alone(database: Database, producer: Producer) -> None:
    database.connect().execute(
        """CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
           BEGIN RAISE EXCEPTION 'poison' USING ERRCODE = '22P05'; END $$;
           CREATE TRIGGER poison BEFORE INSERT ON mqdb.commit_log FOR EACH ROW WHEN (NEW.body = 'poison')
           EXECUTE FUNCTION refuse()"""
    )
    locker = stall(database)
    futures = {n: producer.send_async(Message("orders", "poison" if n == 50 else str(n))) for n in range(100)}
    locker.rollback()

    assert [n for n, future in futures.items() if future.exception(SECONDS)] == [50]
    assert isinstance(futures[50].exception(), StorageRefused)
    assert len(stored_bodies(database)) == 100


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
    """Also where nothing was under way for a while before, and nobody looked at deadlines."""
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


def test_a_callback_may_not_shut_its_producer_down(database: Database, producer: Producer) -> None:
    refused: SimpleQueue[object] = SimpleQueue()

    def shut_down(_: object) -> None:
        try:
            producer.shutdown()
        except IllegalState as error:
            refused.put(error)

    locker = stall(database)  # or this thread would call it, where the send has ended by then
    producer.send_async(Message("orders", "x"), callback=shut_down)
    locker.rollback()

    assert "call shutdown() in another thread" in str(refused.get(timeout=10))


# -- back-pressure ----------------------------------------------------------------------------


def test_one_more_than_may_be_under_way_waits_and_is_given_up_at_its_timeout(database: Database) -> None:
    with producer_of(database.dsn, "20s", back_pressure_for_async_send_num=2) as producer:
        producer.send(Message("orders", "first"))
        locker = stall(database)
        under_way = [producer.send_async(Message("orders", str(n))) for n in range(2)]

        third = Doing(partial(producer.send_async, Message("orders", "third"), timeout=timedelta(milliseconds=500)))

        error = third.error()
        assert isinstance(error, SendGivenUp)
        assert "back_pressure_for_async_send_num" in error.__notes__[0]
        assert 0.4 < third.seconds < 20
        assert not any(future.done() for future in under_way)
        locker.rollback()
        wait(under_way, SECONDS)
        producer.send_async(Message("orders", "fourth")).result(SECONDS)

    assert stored_bodies(database) == ["first", "0", "1", "fourth"]


def test_one_that_waits_for_room_goes_when_there_is_some(database: Database) -> None:
    with producer_of(database.dsn, "20s", back_pressure_for_async_send_num=2) as producer:
        producer.send(Message("orders", "first"))
        locker = stall(database)
        for n in range(2):
            producer.send_async(Message("orders", str(n)))
        third = Doing(partial(producer.send_async, Message("orders", "2")))
        wait_until(lambda: waits_for_room(third))
        locker.rollback()

        third.result().result(SECONDS)

    assert stored_bodies(database) == ["first", "0", "1", "2"]


def waits_for_room(doing: Doing["Future[SendResult]"]) -> bool:
    """Whether its thread is alive after a moment in which nothing else is to be done."""
    doing._thread.join(0.1)
    return doing._thread.is_alive()


def test_the_bytes_of_bodies_are_bounded_as_well(database: Database) -> None:
    with producer_of(database.dsn, "20s", back_pressure_for_async_send_size=1_000) as producer:
        producer.send(Message("orders", "first"))
        locker = stall(database)
        under_way = [producer.send_async(Message("orders", b"x" * 400)) for _ in range(2)]
        soon = timedelta(milliseconds=300)

        with pytest.raises(SendGivenUp):
            producer.send_async(Message("orders", b"x" * 201), timeout=soon)
        under_way.append(producer.send_async(Message("orders", b"x" * 200)))

        locker.rollback()
        assert len(wait(under_way, SECONDS).done) == 3

    assert [len(body) for body in stored_bodies(database)] == [5, 400, 400, 200]


def test_a_message_larger_than_all_that_may_be_under_way_goes_alone(database: Database) -> None:
    with producer_of(database.dsn, "20s", back_pressure_for_async_send_size=1_000) as producer:
        producer.send(Message("orders", "first"))
        locker = stall(database)
        large = producer.send_async(Message("orders", b"x" * 5_000))

        with pytest.raises(SendGivenUp):
            producer.send_async(Message("orders", "y"), timeout=timedelta(milliseconds=300))
        locker.rollback()

        assert large.result(SECONDS).status is SendStatus.SEND_OK


def test_a_failed_send_leaves_room_for_others(database: Database) -> None:
    refuse_appends(database)
    with producer_of(database.dsn, back_pressure_for_async_send_num=1) as producer:
        for _ in range(3):
            assert isinstance(error_of(producer.send_async(Message("orders", "x"))), StorageRefused)
        for _ in range(3):
            no_queue = MessageQueue("orders", "broker-a", 99)
            assert isinstance(error_of(producer.send_async(Message("orders", "x"), queue=no_queue)), QueueNotFound)


# -- oneway -----------------------------------------------------------------------------------


def test_oneway_sends_are_stored_in_the_order_of_the_calls(database: Database, producer: Producer) -> None:
    for n in range(500):
        producer.send_oneway(Message("orders", str(n)), sharding_key="k")
    producer.shutdown()

    assert stored_bodies(database)[1:] == [str(n) for n in range(500)]


def test_the_log_tells_of_a_oneway_send_that_failed(
    database: Database, producer: Producer, caplog: pytest.LogCaptureFixture
) -> None:
    refuse_appends(database, words="the disk is full")

    producer.send_oneway(Message("orders", "lost"))
    producer.shutdown()

    [record] = [record for record in caplog.records if record.name == "mqdb_client.producer.async_send"]
    assert record.levelno == logging.WARNING
    assert "the disk is full" in vars(record)["reason"]


def test_a_oneway_send_whose_connection_breaks_is_not_tried_again(database: Database, producer: Producer) -> None:
    attempts = attempts_of(producer)
    locker = stall(database)
    pid = pid_of(producer)
    producer.send_oneway(Message("orders", "lost"))
    wait_until(lambda: is_blocked(database, pid))
    terminate(database, pid)
    locker.rollback()
    producer.shutdown()

    assert len(attempts.begun) == 1
    assert stored_bodies(database) == ["first"]


def test_oneway_sends_take_part_in_the_back_pressure(database: Database) -> None:
    with producer_of(database.dsn, "500ms", back_pressure_for_async_send_num=1) as producer:
        producer.send(Message("orders", "first"), timeout=timedelta(seconds=SECONDS))
        locker = stall(database)
        producer.send_async(Message("orders", "x"), timeout=timedelta(seconds=SECONDS))

        with pytest.raises(SendGivenUp):
            producer.send_oneway(Message("orders", "one more"))
        locker.rollback()


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
    monkeypatch.setattr(group_append, "_SHARE_TO_LEAD", 0.8)
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


# -- faults -----------------------------------------------------------------------------------


def test_a_lost_connection_costs_no_message_and_doubles_none(database: Database, producer: Producer) -> None:
    attempts = attempts_of(producer)
    locker = stall(database)
    pid = pid_of(producer)
    futures = [producer.send_async(Message("orders", str(n))) for n in range(300)]
    wait_until(lambda: is_blocked(database, pid))
    terminate(database, pid)
    locker.rollback()

    assert {future.result(SECONDS).status for future in futures} == {SendStatus.SEND_OK}
    assert Counter(stored_bodies(database)) == Counter(["first", *map(str, range(300))])
    assert len(attempts.begun) > 300


def test_a_send_whose_answer_was_lost_is_found_and_not_stored_again(database: Database, proxy: Proxy) -> None:
    with producer_of(proxy.dsn, "20s") as producer:
        producer.send(Message("orders", "first"))
        pid = pid_of(producer)
        locker = stall(database)
        future = producer.send_async(Message("orders", "x"))
        wait_until(lambda: is_blocked(database, pid))
        proxy.freeze()
        locker.rollback()
        wait_until(lambda: stored_bodies(database) == ["first", "x"])
        proxy.cut()
        proxy.restore()

        result = future.result(SECONDS)

    assert database.connect().execute("SELECT max(log_pos) FROM mqdb.commit_log").fetchone() == (result.log_pos,)
    assert stored_bodies(database) == ["first", "x"]


def test_what_a_lost_connection_leaves_open_is_looked_for_together(
    database: Database, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_for: list[int] = []

    def counted(
        link: BrokerLink, unknown: OutcomeUnknown, unique_ids: Sequence[UUID], deadline: float, late: MqdbError
    ) -> dict[UUID, StoredAt]:
        looked_for.append(len(unique_ids))
        return settle(link, unknown, unique_ids, deadline, late)

    def is_stalled_on_another(lost: int) -> bool:
        return pid_of(producer) != lost and is_blocked(database, pid_of(producer))

    monkeypatch.setattr(settling, "settle", counted)
    locker, pid = stall(database), pid_of(producer)
    patient = partial(producer.send_async, timeout=timedelta(seconds=SECONDS))
    futures = [patient(Message("orders", "0"))]
    wait_until(lambda: is_blocked(database, pid))
    futures += [patient(Message("orders", str(number))) for number in range(1, 2_500)]
    for _ in range(2):  # the first one's statement, and then that of those who have gathered
        lost = pid_of(producer)
        terminate(database, lost)
        wait_until(partial(is_stalled_on_another, lost))
    locker.rollback()

    assert len({future.result(SECONDS).log_pos for future in futures}) == 2_500
    assert Counter(stored_bodies(database)[1:]) == Counter(map(str, range(2_500)))
    assert (sum(looked_for) > 1_000, len(looked_for) < 20) == (True, True)


def test_an_open_outcome_reaches_the_future_and_can_be_asked_for(database: Database, proxy: Proxy) -> None:
    with producer_of(proxy.dsn) as producer:
        producer.send(Message("orders", "first"))
        proxy.freeze()
        error = error_of(producer.send_async(Message("orders", "never"), timeout=timedelta(seconds=2)))
        proxy.cut()
        proxy.restore()

        assert isinstance(error, SendOutcomeUnknown)
        assert settled_outcome(producer, error.message_ids[0]) is None
    assert stored_bodies(database) == ["first"]


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


SEED = int(os.environ.get("MQDB_ASYNC_SEED", "0")) or random.randrange(1_000_000)
ROUNDS = 8


def test_whatever_breaks_under_way_each_future_ends_and_what_is_acknowledged_is_stored_once(
    database: Database, proxy: Proxy
) -> None:
    """MQDB_ASYNC_SEED plays the faults of an earlier run again; each run prints its seed."""
    sys.stdout.write(f"seed {SEED}\n")
    chance = random.Random(SEED)
    create_topic(database.connect(), "orders", 4)
    futures: dict[str, Future[SendResult]] = {}
    stop = threading.Event()
    with producer_of(proxy.dsn, "5s", back_pressure_for_async_send_num=300) as producer:

        def work(number: int) -> None:
            for n in itertools.takewhile(lambda _: not stop.is_set(), itertools.count()):
                body = f"{number}.{n}"
                with suppress(SendGivenUp):
                    futures[body] = producer.send_async(Message("orders", body))

        threads = [Doing(partial(work, number)) for number in range(2)]
        for _ in range(ROUNDS):
            target = len(futures) + chance.randrange(50, 500)
            wait_until(lambda target=target: len(futures) > target, SECONDS)  # type: ignore[misc]
            break_something(chance, database, proxy, producer)
        stop.set()
        for thread in threads:
            thread.result()
        assert not wait(futures.values(), SECONDS).not_done

    places = places_of(database)
    outcomes = Counter(checked_outcome(future, body, places) for body, future in futures.items())
    sys.stdout.write(f"{dict(outcomes)}\n")
    assert outcomes["SendResult"] > 400


def places_of(database: Database) -> dict[str, list[int]]:
    """Where each body is stored."""
    places: dict[str, list[int]] = {}
    rows = database.connect().execute("SELECT convert_from(body, 'UTF8'), log_pos FROM mqdb.commit_log")
    for body, log_pos in rows:
        places.setdefault(body, []).append(log_pos)
    return places


def checked_outcome(future: "Future[SendResult]", body: str, places: dict[str, list[int]]) -> str:
    """What the future says of a message, which has to be true."""
    stored, error = places.get(body, []), future.exception()
    if error is None:
        assert stored == [future.result().log_pos]
    elif isinstance(error, SendOutcomeUnknown):
        assert len(stored) <= 1
    else:
        assert isinstance(error, MqdbError)
        assert stored == []
    return type(error or future.result()).__name__


def break_something(chance: random.Random, database: Database, proxy: Proxy, producer: Producer) -> None:
    match chance.choice(["terminate", "cut", "terminate while blocked", "lost answer"]):
        case "terminate":
            terminate(database, pid_of(producer))
        case "cut":
            proxy.cut()
            proxy.restore()
        case "terminate while blocked":
            locker, pid = stall(database), blocked_pid_of(producer, database)
            terminate(database, pid)
            locker.rollback()
        case "lost answer":
            locker, pid = stall(database), blocked_pid_of(producer, database)
            proxy.freeze()
            locker.rollback()
            wait_until(lambda: not is_blocked(database, pid))
            proxy.cut()
            proxy.restore()


def blocked_pid_of(producer: Producer, database: Database) -> int:
    """The backend that is in an append; until then it may be one that is lost, which nobody has noticed yet."""
    wait_until(lambda: is_blocked(database, pid_of(producer)))
    return pid_of(producer)
