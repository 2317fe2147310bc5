"""Refusals by the fences of appends and commits.

Nothing is stored, and PostgreSQL reports the refusal in one sentence.
"""

from datetime import UTC, datetime
from itertools import product
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, Engine, text

from mqdb.broker.consumers import exactly_once
from mqdb.broker.consumers.exactly_once import ConsumedBatch
from mqdb.broker.log import send
from mqdb.broker.topics import topics as admin
from mqdb.common.delivery_schedule import DelayLevel, DeliverAt, Half, Wait
from mqdb.common.message import Message, MessageQueue
from mqdb.common.unique_id import UniqueIdGenerator
from mqdb.errors import MqdbError, QueueLost, TopicNotFound, TransactionEnded
from mqdb.store.consumers.offset_commits import OffsetCommit
from mqdb.store.log import history
from mqdb.store.log.commit_log import Record
from mqdb.store.topics.topics import TopicRoute
from tests.fixtures.broker import topic
from tests.fixtures.postgres import Database
from tests.fixtures.spark_sink import batch_writer_for, batches_of
from tests.fixtures.transactions import COMMIT, send_half
from tests.fixtures.variants import case

_ids = UniqueIdGenerator()

WAITS: tuple[Wait | None, ...] = (None, DelayLevel(1), DeliverAt(4_000_000_000_000), Half())


def record(route: TopicRoute, **changes: Any) -> Record:
    made = send.record(Message("orders", "secret"), route.queue_keys[0], _ids.next(), datetime.now(UTC), "h")
    return made._replace(**changes)


def refusal(error: MqdbError) -> str:
    """The SQLSTATE, and everything that PostgreSQL's log has about the error."""
    cause = error.__cause__
    assert isinstance(cause, psycopg.Error)
    said = cause.diag
    assert "secret" not in f"{said.message_primary} {said.message_detail} {said.message_hint}"
    return f"{cause.sqlstate} {said.message_primary}"


def log_is_empty(broker: Connection) -> bool:
    return not broker.scalar(text("SELECT EXISTS (SELECT FROM mqdb.commit_log)"))


def test_an_append_to_a_queue_that_is_gone_says_so(broker: Connection) -> None:
    """An append to a deleted queue reports that the queue is gone.

    The cases are one record or several, to one queue or several, waiting or not.
    """
    gone, there = topic(broker), topic(broker, "others", 2)
    admin.delete_topic(broker, "orders")
    others: tuple[list[Record], ...] = (
        [],
        [record(gone)],
        [record(there)],
        [record(there), record(there, queue_key=there.queue_keys[1])],
    )

    for wait, before in product(WAITS, others):
        with case((wait, len(before))), pytest.raises(TopicNotFound) as refused:
            send.append(broker, [*before, record(gone, wait=wait)], "orders")
        assert refusal(refused.value).startswith("MQ301 nothing is stored: the queue is gone")
        assert refused.value.topic == "orders"
    assert log_is_empty(broker)


def test_an_append_with_another_history_says_so(broker: Connection) -> None:
    route = topic(broker)
    before = history.find(broker) ^ 1

    for wait, count in product(WAITS, (1, 2)):
        with case((wait, count)), pytest.raises(TopicNotFound) as refused:
            send.append(broker, [record(route, wait=wait, history=before) for _ in range(count)], "orders")
        assert refusal(refused.value).startswith("MQ301 nothing is stored")
    assert log_is_empty(broker)


def test_a_half_message_whose_topic_is_gone_says_so(broker: Connection) -> None:
    half = send_half(broker, topic(broker), "secret")
    broker.execute(text("DELETE FROM mqdb.topic WHERE topic = 'orders'"))

    with pytest.raises(TopicNotFound) as refused:
        half.end(broker, COMMIT)

    assert refusal(refused.value).startswith("MQ301 nothing is stored")


def test_a_batch_of_spark_whose_queue_is_gone_says_so(broker: Connection, database: Database) -> None:
    topic(broker)
    table = {"body": ["secret"]}
    writer = batch_writer_for(database, table, topic="orders")
    written = writer.write(batches_of(table))
    admin.delete_topic(broker, "orders")

    with pytest.raises(TopicNotFound) as refused:
        writer.commit([written])

    assert refusal(refused.value).startswith("MQ301 nothing is stored")
    assert log_is_empty(broker)


def test_a_commit_that_is_refused_says_so(broker: Connection, engine: Engine) -> None:
    key = topic(broker).queue_keys[0]
    broker.execute(text("INSERT INTO mqdb.subscription_group (group_name) VALUES ('readers')"))
    owned = """INSERT INTO mqdb.consumer_offset (group_id, queue_key, next_offset, owner, epoch)
               SELECT group_id, :key, 0, 'member', 7 FROM mqdb.subscription_group"""
    broker.execute(text(owned), {"key": key})
    batch = ConsumedBatch("readers", "member", MessageQueue("orders", "broker-a", 0), OffsetCommit(key, 7, 0, 1, 1))

    with engine.connect().execution_options(isolation_level="READ COMMITTED") as connection:
        connection.begin()
        exactly_once.begin(connection)
        with pytest.raises(QueueLost) as lost:
            exactly_once.commit(connection, batch._replace(commit=batch.commit._replace(epoch=6)))
        connection.rollback()
        connection.execute(text("SELECT 1"))  # without the mark of `begin`
        with pytest.raises(TransactionEnded) as ended:
            exactly_once.commit(connection, batch)

    assert refusal(lost.value).startswith("MQ402 nothing is committed: another member has taken the queue")
    assert refusal(ended.value).startswith("MQ403 nothing is committed: the listener ended its transaction")
    assert broker.scalar(text("SELECT count(*) FROM mqdb.offset_commit")) == 0
