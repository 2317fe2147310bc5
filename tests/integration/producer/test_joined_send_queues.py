"""Queues and topics of a send in the caller's own transaction: which it sees, chooses and refuses."""

from typing import Any

import pytest

from mqdb.errors import ParameterInvalid, QueueNotFound, TopicNotFound, TopicNotWritable
from mqdb_client import Message, MessageQueue, Producer
from tests.fixtures.joined_sends import Caller, accounts, texts
from tests.fixtures.log import Connection, create_topic, dispatch_all, scalar
from tests.fixtures.postgres import Database


@pytest.fixture
def database(joined_database: Database) -> Database:
    return joined_database


@pytest.fixture
def producer(joining_producer: Producer) -> Producer:
    return joining_producer


# -- which queue ------------------------------------------------------------------------------


def test_messages_without_a_key_go_to_all_queues_in_turn(producer: Producer, caller: Caller) -> None:
    queues = [producer.send(Message("orders", "x"), connection=caller.connection).queue.queue_id for _ in range(8)]

    assert [(number - queues[0]) % 4 for number in queues] == [0, 1, 2, 3] * 2


def test_batches_go_to_all_queues_in_turn(producer: Producer, caller: Caller) -> None:
    batch = [Message("orders", "x")] * 4
    queues = [producer.send_batch(batch, connection=caller.connection)[0].queue.queue_id for _ in range(8)]

    assert [(number - queues[0]) % 4 for number in queues] == [0, 1, 2, 3] * 2


def test_a_sharding_key_chooses_the_queue_that_it_chooses_everywhere(producer: Producer, caller: Caller) -> None:
    for key in ("N14228", "", "schlüssel", "polygenelubricants"):  # the last one has hash -2**31
        joined = producer.send(Message("orders", "x"), key, connection=caller.connection)
        both = [Message("orders", "x"), Message("invoices", "x")]
        batch = producer.send_batch(both, key, connection=caller.connection)

        queue = producer.send(Message("orders", "x"), key).queue
        assert [joined.queue, batch[0].queue] == [queue, queue], key
        assert batch[1].queue.queue_id == queue.queue_id, key


def test_only_write_queues_take_messages(log: Connection, producer: Producer, caller: Caller) -> None:
    log.execute("UPDATE mqdb.topic SET write_queue_nums = 2 WHERE topic = 'orders'")

    results = [producer.send(Message("orders", "x"), connection=caller.connection) for _ in range(6)]

    assert {result.queue.queue_id for result in results} == {0, 1}


def test_a_selector_chooses_among_the_queues_that_the_transaction_sees(
    log: Connection, producer: Producer, caller: Caller
) -> None:
    caller.execute("UPDATE mqdb.topic SET write_queue_nums = 3 WHERE topic = 'orders'")
    seen: list[MessageQueue] = []

    def last(queues: Any, message: Message, argument: object) -> Any:
        seen.extend(queues)
        return queues[-1]

    result = producer.send(Message("orders", "x"), selector=last, connection=caller.connection)

    assert seen == [MessageQueue("orders", "broker-a", number) for number in range(3)]
    assert result.queue == seen[-1]


@pytest.mark.parametrize("queue_id", [4, 2**31 - 1])
def test_a_queue_that_the_topic_does_not_have_leaves_the_transaction_usable(
    log: Connection, producer: Producer, caller: Caller, queue_id: int
) -> None:
    caller.execute("INSERT INTO account VALUES (1)")
    queue = MessageQueue("orders", "broker-a", queue_id)
    with pytest.raises(QueueNotFound):
        producer.send(Message("orders", "x"), queue=queue, connection=caller.connection)
    caller.commit()

    assert (accounts(log), texts(log)) == ([1], [])


def test_a_queue_of_another_broker_or_topic_is_refused(producer: Producer, caller: Caller) -> None:
    for queue in (
        MessageQueue("orders", "broker-b", 0),
        MessageQueue("invoices", "broker-a", 0),
        MessageQueue("orders", "broker-a", -1),
        MessageQueue("orders", "broker-a", 2**31),
    ):
        with pytest.raises(ParameterInvalid, match="queue"):
            producer.send(Message("orders", "x"), queue=queue, connection=caller.connection)


# -- topics -----------------------------------------------------------------------------------


def test_a_topic_that_is_missing_leaves_the_transaction_usable(
    log: Connection, producer: Producer, caller: Caller
) -> None:
    caller.execute("INSERT INTO account VALUES (1)")
    with pytest.raises(TopicNotFound):
        producer.send(Message("strangers", "x"), connection=caller.connection)
    producer.send(Message("orders", "y"), connection=caller.connection)
    caller.commit()

    assert (accounts(log), texts(log)) == ([1], ["y"])
    assert scalar(log, "SELECT count(*) FROM mqdb.topic WHERE topic = 'strangers'") == 0


def test_a_topic_that_takes_no_messages_leaves_the_transaction_usable(
    log: Connection, producer: Producer, caller: Caller
) -> None:
    producer.send(Message("orders", "before"), connection=caller.connection)
    log.execute("UPDATE mqdb.topic SET perm = 4 WHERE topic = 'orders'")
    with pytest.raises(TopicNotWritable) as refused:
        producer.send(Message("orders", "after"), connection=caller.connection)
    caller.commit()

    assert refused.value.perm == 4
    assert texts(log) == ["before"]


def test_a_topic_of_the_same_transaction_takes_messages(log: Connection, producer: Producer, caller: Caller) -> None:
    def create() -> None:
        caller.execute(
            """WITH made AS (INSERT INTO mqdb.topic (topic, read_queue_nums, write_queue_nums, perm)
                             VALUES ('young', 1, 1, 6) RETURNING topic_id)
               INSERT INTO mqdb.queue (topic_id, queue_id) SELECT topic_id, 0 FROM made"""
        )

    create()
    producer.send(Message("young", "first"), connection=caller.connection)
    caller.rollback()
    with pytest.raises(TopicNotFound):
        producer.send(Message("young", "between"), connection=caller.connection)
    create()
    producer.send(Message("young", "second"), connection=caller.connection)
    caller.commit()

    assert texts(log) == ["second"]


def test_a_topic_that_was_made_again_takes_messages(log: Connection, producer: Producer, caller: Caller) -> None:
    producer.send(Message("orders", "x"), connection=caller.connection)
    log.execute("DELETE FROM mqdb.topic WHERE topic = 'orders'")
    create_topic(log, "orders", 2)
    producer.send(Message("orders", "y"), connection=caller.connection)
    caller.commit()

    dispatch_all(log)
    assert [row[0] for row in log.execute("SELECT text FROM mqdb.message")] == ["y"]
