"""Back-pressure: how many async and oneway sends may be under way, and what happens to one more."""

from concurrent.futures import Future, wait
from datetime import timedelta
from functools import partial

import pytest

from mqdb.errors import QueueNotFound, SendGivenUp, StorageRefused
from mqdb_client import Message, MessageQueue, SendResult, SendStatus
from tests.fixtures.async_sends import SECONDS, error_of
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.producers import producer_of, refuse_appends, stall, stored_bodies
from tests.fixtures.threads import Doing


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
    """Whether a send's thread is still alive after a moment in which it has nothing else to do."""
    doing._thread.join(0.1)
    return doing._thread.is_alive()


def test_the_bytes_of_bodies_are_bounded_as_well(database: Database) -> None:
    with producer_of(database.dsn, "20s", back_pressure_for_async_send_size_bytes=1_000) as producer:
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
    with producer_of(database.dsn, "20s", back_pressure_for_async_send_size_bytes=1_000) as producer:
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


def test_oneway_sends_take_part_in_the_back_pressure(database: Database) -> None:
    with producer_of(database.dsn, "500ms", back_pressure_for_async_send_num=1) as producer:
        producer.send(Message("orders", "first"), timeout=timedelta(seconds=SECONDS))
        locker = stall(database)
        producer.send_async(Message("orders", "x"), timeout=timedelta(seconds=SECONDS))

        with pytest.raises(SendGivenUp):
            producer.send_oneway(Message("orders", "one more"))
        locker.rollback()
