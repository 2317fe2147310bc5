"""Retries of a send: the timeout of the call, the number of attempts, and the effect of errors and lost connections."""

import re
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from mqdb.errors import BrokerUnavailable, ParameterInvalid, SendGivenUp
from mqdb_client import Message, Producer, SendStatus
from tests.fixtures.log import create_topic
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.producers import (
    TwoBrokers,
    attempts_of,
    break_connections,
    is_blocked,
    link_of,
    pid_of,
    producer_of,
    refuse_appends,
    stall,
    stored_bodies,
)
from tests.fixtures.proxy import Proxy
from tests.fixtures.sends import stopped
from tests.fixtures.threads import Doing
from tests.fixtures.variants import case

# One of two brokers that takes 0.3 s to connect to would be passed by.
pytestmark = pytest.mark.usefixtures("patient")


@pytest.fixture
def producer(to_one: Producer) -> Producer:
    return to_one


@pytest.fixture
def orders(orders_on_both: TwoBrokers) -> TwoBrokers:
    return orders_on_both


# -- timeouts ---------------------------------------------------------------------------------


@pytest.mark.usefixtures("cancelled_early")
def test_a_timeout_of_the_call_wins_over_the_setting(database: Database) -> None:
    create_topic(database.connect(), "orders", 4)
    with producer_of(database.dsn, "100s") as producer:
        producer.send(Message("orders", "first"))
        locker = stall(database)
        soon = timedelta(seconds=2)
        sends: list[Callable[[], object]] = [
            partial(producer.send, Message("orders", "late"), timeout=soon),
            partial(producer.send_batch, [Message("orders", "late")] * 2, timeout=soon),
        ]

        for send in sends:
            sending = Doing(send)
            assert isinstance(sending.error(), SendGivenUp)
            assert 0.4 < sending.seconds < 20
        locker.rollback()
        producer.send(Message("orders", "second"))

    assert stored_bodies(database) == ["first", "second"]


def test_a_timeout_that_is_none_is_refused(producer: Producer) -> None:
    timeouts: list[Any] = [timedelta(0), timedelta(seconds=-1), 3000]
    for timeout in timeouts:
        with case(timeout), pytest.raises(ParameterInvalid, match="more than 0"):
            producer.send(Message("orders", "x"), timeout=timeout)
        with case(timeout), pytest.raises(ParameterInvalid, match="more than 0"):
            producer.send_batch([Message("orders", "x")], timeout=timeout)


# -- retries ----------------------------------------------------------------------------------


def test_the_error_of_a_send_that_was_tried_again_tells_where_it_went(orders: TwoBrokers, to_two: Producer) -> None:
    for broker in (orders.a, orders.b):
        refuse_appends(broker)

    error = Doing(partial(to_two.send, Message("orders", "x"))).error()

    [note] = error.__notes__
    story, brokers = note.split(", to ")
    assert re.fullmatch(r"sent 3 times in \d+\.\d\d s", story)
    assert sorted(set(brokers.split(", "))) == ["broker-a", "broker-b"]


def test_the_error_of_a_send_that_was_tried_once_has_no_story(database: Database, producer: Producer) -> None:
    refuse_appends(database)

    error = Doing(partial(producer.send, Message("orders", "x"), sharding_key="k")).error()

    assert not hasattr(error, "__notes__")


def test_a_send_whose_connection_breaks_is_tried_again_on_the_same_broker(orders: TwoBrokers, to_two: Producer) -> None:
    """A send whose connection breaks is retried on the same broker.

    Another broker cannot know whether the message is stored.
    """
    attempts = attempts_of(to_two)
    for broker in (orders.a, orders.b):
        break_connections(broker)

    error = Doing(partial(to_two.send, Message("orders", "x"))).error()

    assert isinstance(error, BrokerUnavailable)
    assert "nothing was stored" in str(error)
    assert len(attempts.begun) == 3
    assert len(set(attempts.brokers)) == 1


def test_a_send_whose_connection_breaks_is_stored_once_though_the_next_one_breaks_too(
    database: Database, proxy: Proxy
) -> None:
    with producer_of(proxy.dsn, "20s") as producer:
        producer.send(Message("orders", "first"))
        pid, locker = pid_of(producer), stall(database)
        questions = link_of(producer)._questions
        first_way = questions._link
        sending = Doing(partial(producer.send, Message("orders", "second")))
        wait_until(lambda: is_blocked(database, pid))
        with stopped(pid):
            # Given a send that asks whether its backend has ended, over and over
            proxy.cut()
            proxy.restore()
            wait_until(lambda: questions._link not in (None, first_way))
            # when this connection breaks while it waits for an answer
            proxy.freeze()
            wait_until(lambda: questions._current is not None)
            proxy.cut()
            proxy.restore()
        locker.rollback()

        # then it asks again on another one.
        assert sending.result().status is SendStatus.SEND_OK
    assert stored_bodies(database) == ["first", "second"]
