"""Limits that hold for every kind of send: queues, times, and the definition of a batch."""

from datetime import timedelta
from typing import Any

import pytest

from mqdb.common.compression import Compression
from mqdb.common.delay_level import MAX_DELAY
from mqdb.errors import PropertiesTooLarge, QueueNotFound
from mqdb.settings import Settings
from mqdb_client import LocalTransactionState, Message, MessageQueue, Producer, TransactionProducer
from tests.fixtures.async_sends import SECONDS
from tests.fixtures.log import create_topic
from tests.fixtures.postgres import Database
from tests.fixtures.producers import producer_of

BODY = "a" * 5_000


@pytest.mark.parametrize("joined", [False, True])
def test_a_batch_of_one_is_not_compressed_as_no_batch_is(database: Database, joined: bool) -> None:
    create_topic(database.connect(), "orders", 4)
    with (
        producer_of(database.dsn, compression=Compression.ZLIB) as producer,
        database.connect(autocommit=False) as connection,
    ):
        way: dict[str, Any] = {"connection": connection} if joined else {}
        producer.send(Message("orders", BODY), **way)
        producer.send_batch([Message("orders", BODY)], **way)
        producer.send_batch([Message("orders", BODY)] * 2, **way)

    flags = database.rows("SELECT sys_flag & 1 FROM mqdb.commit_log ORDER BY log_pos")
    assert flags == [(1,), (0,), (0,), (0,)]


@pytest.mark.parametrize(("read", "write"), [(8, 4), (4, 8)])
def test_a_joined_send_takes_the_same_chosen_queues_as_a_plain_one(database: Database, read: int, write: int) -> None:
    create_topic(database.connect(), "orders", 8)
    database.connect().execute("UPDATE mqdb.topic SET read_queue_nums = %s, write_queue_nums = %s", [read, write])
    last, beyond = MessageQueue("orders", "broker-a", 7), MessageQueue("orders", "broker-a", 8)
    with producer_of(database.dsn) as producer, database.connect(autocommit=False) as connection:
        assert producer.send(Message("orders", "x"), queue=last).queue == last
        assert producer.send(Message("orders", "x"), queue=last, connection=connection).queue == last
        several = [Message("orders", "x"), Message("orders", "y")]
        assert {sent.queue for sent in producer.send_batch(several, queue=last, connection=connection)} == {last}
        later = Message("orders", "x", delay=timedelta(hours=1))
        assert producer.send(later, queue=last, connection=connection).queue == last

        ways: tuple[dict[str, Any], ...] = ({}, {"connection": connection})
        for way in ways:
            with pytest.raises(QueueNotFound, match="has queues 0 to 7, not 8"):
                producer.send(Message("orders", "x"), queue=beyond, **way)
        turns = [producer.send(Message("orders", "x"), connection=connection).queue.queue_id for _ in range(2 * write)]
        assert sorted(turns) == sorted([*range(write)] * 2)


def test_a_send_timeout_without_end_is_one_that_a_thread_can_wait(database: Database) -> None:
    settings = Settings(dsn=database.dsn, send_message_timeout=MAX_DELAY)
    with Producer("senders", settings=settings) as producer:
        sent = producer.send(Message("orders", "x"))
        assert producer.send_async(Message("orders", "y")).result(SECONDS).queue.topic == "orders"
        assert producer.outcome(sent.message_id) is not None


def test_the_properties_of_a_half_message_count_as_a_users_do(database: Database) -> None:
    largest = {"a": "v" * 32_722}
    producer = TransactionProducer(
        "senders",
        dsn=database.dsn,
        execute_local_transaction=lambda _message, _argument: LocalTransactionState.COMMIT,
        check_local_transaction=lambda _message: LocalTransactionState.COMMIT,
    )
    with producer:
        producer.send(Message("orders", "x", properties=largest))
        with pytest.raises(PropertiesTooLarge):
            producer.send_in_transaction(Message("orders", "x", properties=largest))
