"""Queues that the caller of a send chooses by name, by key or with a selector, and the refused arguments."""

from collections.abc import Sequence
from typing import Any, cast

import pytest

from mqdb.errors import NameInvalid, ParameterInvalid
from mqdb_client import Message, MessageQueue, Producer
from mqdb_client.producer.queues.queue_selector import select_by_hash, select_random
from tests.fixtures.postgres import Database
from tests.fixtures.producers import TwoBrokers, producer_of, stored_bodies
from tests.fixtures.sends import ON_A, ON_B, queues_of, sent_to
from tests.fixtures.variants import case

# One of two brokers that takes 0.3 s to connect to would be passed by.
pytestmark = pytest.mark.usefixtures("patient")


@pytest.fixture
def producer(to_one: Producer) -> Producer:
    return to_one


@pytest.fixture
def orders(orders_on_both: TwoBrokers) -> TwoBrokers:
    return orders_on_both


# -- chosen queues ----------------------------------------------------------------------------


@pytest.mark.parametrize("queue", [ON_A, ON_B])
def test_a_message_goes_to_the_queue_that_the_caller_names(
    orders: TwoBrokers, to_two: Producer, queue: MessageQueue
) -> None:
    result = to_two.send(Message("orders", "x"), queue=queue)
    batch = to_two.send_batch([Message("orders", "x")] * 2, queue=queue)
    later = to_two.send_async(Message("orders", "x"), queue=queue).result(10)
    to_two.send_oneway(Message("orders", "x"), queue=queue)

    assert {each.queue for each in (result, *batch, later)} == {queue}
    assert later.queue_offset == 3
    to_two.shutdown()
    broker = orders.a if queue is ON_A else orders.b
    rows = broker.connect().execute("SELECT queue_id FROM mqdb.commit_log JOIN mqdb.queue USING (queue_key)")
    assert rows.fetchall() == [(2,)] * 5


def test_a_queue_that_is_read_only_takes_what_is_sent_to_it_by_name(database: Database, producer: Producer) -> None:
    """A read-only queue accepts a message sent to it by name.

    RocketMQ accepts it, too: a queue id below the larger of the two counts is enough.
    """
    database.connect().execute("UPDATE mqdb.topic SET write_queue_nums = 2 WHERE topic = 'orders'")

    assert set(sent_to(producer, 8)) == set(queues_of("broker-a", queue_nums=2))
    assert producer.send(Message("orders", "x"), queue=MessageQueue("orders", "broker-a", 3)).queue.queue_id == 3


def test_a_queue_of_a_broker_that_is_not_of_the_cluster_is_refused(to_two: Producer) -> None:
    with pytest.raises(ParameterInvalid, match="but broker-a"):
        to_two.send(Message("orders", "x"), queue=MessageQueue("orders", "broker-c", 0))


def test_a_queue_of_another_topic_is_refused(producer: Producer) -> None:
    with pytest.raises(ParameterInvalid, match="topic 'other'"):
        producer.send(Message("other", "x"), queue=ON_A)


@pytest.mark.parametrize(
    "target",
    [
        {"sharding_key": "k", "queue": ON_A},
        {"sharding_key": "k", "selector": select_random},
        {"queue": ON_A, "selector": select_random},
    ],
    ids=" and ".join,
)
def test_only_one_may_choose_the_queue(producer: Producer, target: dict[str, Any]) -> None:
    for send in (producer.send, producer.send_async, producer.send_oneway):
        with pytest.raises(ParameterInvalid, match="already"):
            send(Message("orders", "x"), **target)


def test_a_selector_gets_the_write_queues_of_all_brokers_the_message_and_the_argument(to_two: Producer) -> None:
    message, argument = Message("orders", "x"), object()
    asked: list[tuple[object, ...]] = []

    def select(queues: Sequence[MessageQueue], *rest: object) -> MessageQueue:
        asked.append((tuple(queues), *rest))
        return queues[-1]

    result = to_two.send(message, selector=select, selector_argument=argument)

    assert result.queue == MessageQueue("orders", "broker-b", 3)
    assert asked == [(queues_of("broker-a", "broker-b"), message, argument)]


def test_a_selector_by_hash_chooses_what_a_sharding_key_chooses(to_two: Producer) -> None:
    for key in map(str, range(20)):
        [by_selector] = sent_to(to_two, 1, selector=select_by_hash, selector_argument=key)
        assert sent_to(to_two, 2, sharding_key=key) == [by_selector] * 2


def test_sharding_keys_spread_over_the_queues_of_all_brokers(to_two: Producer) -> None:
    queues = {key: set(sent_to(to_two, 2, sharding_key=key)) for key in map(str, range(50))}

    assert all(len(of_key) == 1 for of_key in queues.values())
    assert set.union(*queues.values()) == set(queues_of("broker-a", "broker-b"))


def test_a_random_selector_spreads_over_the_queues_of_all_brokers(to_two: Producer) -> None:
    assert set(sent_to(to_two, 400, selector=select_random)) == set(queues_of("broker-a", "broker-b"))


def test_a_selector_that_returns_none_of_the_queues_is_refused(producer: Producer) -> None:
    choices = [None, 2, MessageQueue("orders", "broker-a", 99), MessageQueue("x", "broker-a", 0)]
    for choice in choices:
        with case(choice), pytest.raises(ParameterInvalid, match="selector"):
            producer.send(Message("orders", "x"), selector=cast(Any, lambda *_, choice=choice: choice))


def test_what_a_selector_raises_reaches_the_caller_as_it_is(database: Database, producer: Producer) -> None:
    calls: list[object] = []

    def select(*_: object) -> MessageQueue:
        calls.append(1)
        raise LookupError("nowhere")

    with pytest.raises(LookupError, match="nowhere"):
        producer.send(Message("orders", "x"), selector=select)

    assert len(calls) == 1
    assert stored_bodies(database) == []


# -- what is no name, and no batch ------------------------------------------------------------


def test_what_is_no_name_is_refused(database: Database, producer: Producer) -> None:
    given: Any = 5
    with pytest.raises(NameInvalid, match="topic name '5': is int"):
        producer.fetch_publish_queues(given)
    with pytest.raises(ParameterInvalid, match="instance_name = 5"):
        producer_of(database.dsn, instance_name=given)


def test_a_message_is_no_batch(producer: Producer) -> None:
    given: Any = Message("orders", "x")
    with pytest.raises(ParameterInvalid, match="is one message; give a list"):
        producer.send_batch(given)
