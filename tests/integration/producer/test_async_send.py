"""Async and oneway sends: the results of their futures and callbacks, their order, and their errors."""

import asyncio
import logging
import threading
from collections import Counter
from concurrent.futures import Future, wait
from datetime import timedelta
from functools import partial
from queue import SimpleQueue

import pytest

from mqdb.errors import IllegalState, MessageIllegal, ParameterInvalid, QueueNotFound, RouteNotFound, StorageRefused
from mqdb.settings import load_settings
from mqdb_client import Message, MessageQueue, Producer, SendResult, SendStatus
from tests.fixtures.async_sends import SECONDS, error_of
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
    stall,
    stored_bodies,
    terminate,
)
from tests.fixtures.threads import Doing


@pytest.fixture
def producer(warm_producer: Producer) -> Producer:
    return warm_producer


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
    wait_until(lambda: len(link_of(producer).appends._plan.waiting) == 1)
    third = producer.send_async(Message("orders", "x"))
    locker.rollback()
    for outcome in (first.result(SECONDS), second.result(), third.result(SECONDS)):
        assert outcome.status is SendStatus.SEND_OK

    statements = database.connect().execute("SELECT count(*) FROM mqdb.commit_log GROUP BY xid::text")
    assert sorted(row[0] for row in statements) == [1, 1, 2]


def test_a_future_cannot_be_cancelled(database: Database, producer: Producer) -> None:
    """A future cannot be cancelled, because its message may already be under way."""
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

    [record] = [record for record in caplog.records if record.name == "mqdb_client.producer.sends.async_send"]
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
