"""The outcome of a message by its producer: its place, that it is not stored, or that this is not known yet."""

from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from mqdb.errors import BrokerUnavailable, ParameterInvalid, SendOutcomeUnknown
from mqdb_client import Message, MessageQueue, Producer, SendResult
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.producers import (
    TwoBrokers,
    dsn_of_two,
    is_blocked,
    pid_of,
    producer_of,
    settled_outcome,
    stall,
    stored_bodies,
)
from tests.fixtures.proxy import Proxy
from tests.fixtures.sends import ON_A, ON_B, stopped
from tests.fixtures.threads import Doing
from tests.fixtures.variants import case

# One of two brokers that takes 0.3 s to connect to would be passed by.
pytestmark = pytest.mark.usefixtures("both_kinds", "patient")

LONG = timedelta(seconds=30)


@pytest.fixture
def producer(to_one: Producer) -> Producer:
    return to_one


@pytest.fixture
def orders(orders_on_both: TwoBrokers) -> TwoBrokers:
    return orders_on_both


@pytest.mark.parametrize("queue", [ON_A, ON_B])
def test_the_outcome_of_a_message_that_is_stored_is_its_result(to_two: Producer, queue: MessageQueue) -> None:
    sent = to_two.send_batch([Message("orders", "x"), Message("orders", "y")], queue=queue)[1]

    found = to_two.outcome(sent.message_id)

    assert found is not None
    assert place_of(found) == place_of(sent)
    assert found.queue_offset == 1


def place_of(result: SendResult) -> tuple[object, ...]:
    return result.status, result.message_id, result.queue, result.log_pos


def test_another_producer_finds_it_as_well(database: Database, producer: Producer) -> None:
    sent = producer.send(Message("orders", "x"))
    with producer_of(database.dsn, group="others") as other:
        found = other.outcome(sent.message_id)

    assert found is not None
    assert place_of(found) == place_of(sent)


def test_the_outcome_of_an_id_that_nobody_has_sent_is_none(to_two: Producer) -> None:
    to_two.send(Message("orders", "x"))

    assert to_two.outcome("0" * 32) is None


def test_the_outcome_of_a_message_whose_topic_is_gone_is_none(database: Database, producer: Producer) -> None:
    sent = producer.send(Message("orders", "x"))
    database.connect().execute("DELETE FROM mqdb.topic WHERE topic = 'orders'")

    assert producer.outcome(sent.message_id) is None


def test_what_is_no_id_is_refused(producer: Producer) -> None:
    texts: list[Any] = ["", "17", "G" * 32, "0" * 33, None]
    for text in texts:
        with case(text), pytest.raises(ParameterInvalid, match="32 hexadecimal digits"):
            producer.outcome(text)


def unknown_error(sending: "Doing[Any]") -> SendOutcomeUnknown:
    error = sending.error()
    assert isinstance(error, SendOutcomeUnknown)
    return error


def test_the_outcome_is_open_as_long_as_the_backend_may_still_store_the_message(database: Database) -> None:
    with producer_of(database.dsn, "1s") as producer:
        producer.send(Message("orders", "first"), timeout=LONG)
        with stopped(pid_of(producer)):
            error = unknown_error(Doing(partial(producer.send, Message("orders", "perhaps"))))
            [message_id] = error.message_ids

            with pytest.raises(BrokerUnavailable):
                producer.outcome(message_id)

        found = settled_outcome(producer, message_id)

    stored = stored_bodies(database)
    assert stored == (["first", "perhaps"] if found else ["first"])


def test_the_outcome_of_a_message_that_never_reached_the_broker_is_none(database: Database, proxy: Proxy) -> None:
    with producer_of(proxy.dsn, "1s") as producer:
        producer.send(Message("orders", "first"), timeout=LONG)
        proxy.freeze()
        error = unknown_error(Doing(partial(producer.send, Message("orders", "never"))))
        proxy.cut()
        proxy.restore()

        assert [settled_outcome(producer, message_id) for message_id in error.message_ids] == [None]
    assert stored_bodies(database) == ["first"]


def test_the_outcome_of_messages_whose_answer_was_lost_is_where_they_are(database: Database, proxy: Proxy) -> None:
    with producer_of(proxy.dsn) as producer:
        # The server has to know the statement already: else it waits for the lock before it has seen the messages.
        producer.send_batch([Message("orders", "first")] * 2)
        pid = pid_of(producer)
        locker = stall(database)
        messages = [Message("orders", "x"), Message("orders", "y")]
        sending = Doing(partial(producer.send_batch, messages, timeout=timedelta(seconds=3)))
        wait_until(lambda: is_blocked(database, pid))
        proxy.freeze()
        locker.rollback()
        error = unknown_error(sending)
        proxy.cut()
        proxy.restore()
        found = [settled_outcome(producer, message_id) for message_id in error.message_ids]

    positions = database.connect().execute("SELECT log_pos FROM mqdb.commit_log ORDER BY log_pos").fetchall()
    assert [result and result.log_pos for result in found] == [position for (position,) in positions[2:]]
    assert [result and result.message_id for result in found] == list(error.message_ids)
    assert stored_bodies(database) == ["first", "first", "x", "y"]


def test_what_another_broker_has_is_found_while_one_is_down(orders: TwoBrokers, proxy: Proxy) -> None:
    with producer_of(dsn_of_two(proxy.dsn, orders.b.dsn)) as producer:
        sent = producer.send(Message("orders", "x"), queue=ON_B)
        proxy.cut()

        found = producer.outcome(sent.message_id)
        with pytest.raises(BrokerUnavailable):  # for that broker may have it
            producer.outcome("0" * 32)

    assert found is not None
    assert found.log_pos == sent.log_pos
