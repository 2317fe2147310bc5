"""Rows 24 to 29 of the checklist of RocketMQ's behaviours: delay levels, through the public API.

A broker process delivers the messages. A message must not arrive early, so the tests only assert lower bounds, by the
broker's clock: the delivered copy is stored when the message is due. The benchmark measures the lateness.
"""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection

from mqdb.common.message import MessageQueue
from mqdb.common.received_message import ReceivedMessage
from mqdb_client import Message, Producer, SendResult
from tests.fixtures.consumers import Inbox, Member
from tests.fixtures.delay import stop_clock
from tests.fixtures.log import create_topic
from tests.fixtures.postgres import Database
from tests.fixtures.producers import producer_of
from tests.fixtures.serve import Starter, leader_pid

SECOND = timedelta(seconds=1)


@pytest.fixture
def broker_with(database: Database, serve: Starter) -> Callable[[str | None], None]:
    """Starts a broker process with a table of delay levels, for a topic of four queues."""

    def start(levels: str | None) -> None:
        create_topic(database.connect(), "orders", 4)
        serve(dsn=database.dsn, message_delay_level=levels)
        leader_pid(database.dsn)

    return start


@pytest.fixture
def producer(database: Database) -> Iterator[Producer]:
    with producer_of(database.dsn) as producer:
        yield producer


def rows(database: Database, statement: str, *values: object) -> list[tuple[Any, ...]]:
    return database.connect().execute(statement.encode(), values).fetchall()


def waited(database: Database, sent: SendResult, received: ReceivedMessage) -> timedelta:
    """The time from the send to the delivery."""
    [(store_time,)] = rows(database, "SELECT store_time FROM mqdb.commit_log WHERE log_pos = %s", sent.log_pos)
    waited: timedelta = received.store_time - store_time
    return waited


def delays(database: Database) -> list[timedelta]:
    """The delay of each waiting message, in the order of the levels; rounded up by up to 1 ms."""
    statement = """SELECT tags_code - extract(epoch FROM store_time) * 1000 FROM mqdb.commit_log
                   JOIN mqdb.queue USING (queue_key) JOIN mqdb.topic USING (topic_id)
                   WHERE topic = 'SCHEDULE_TOPIC_XXXX' ORDER BY queue_id, log_pos"""
    return [timedelta(milliseconds=int(milliseconds)) for (milliseconds,) in rows(database, statement)]


def test_row_24_a_level_above_the_last_one_is_the_last_one(
    broker_with: Callable[[str], None], database: Database, producer: Producer, member: Member
) -> None:
    broker_with("1s 2s")
    inbox = Inbox()
    member(inbox)

    sent = producer.send(Message("orders", "x", delay_level=100))
    inbox.wait_for(1)

    [received] = inbox.messages
    assert received.properties["DELAY"] == "2"
    assert waited(database, sent, received) >= 2 * SECOND


@pytest.mark.parametrize("level", [0, -1])
def test_row_25_level_0_or_a_negative_one_is_no_delay(
    broker_with: Callable[[str], None], database: Database, producer: Producer, member: Member, level: int
) -> None:
    broker_with("1h")
    inbox = Inbox()
    member(inbox)

    producer.send(Message("orders", "of level 1", delay_level=1))
    producer.send(Message("orders", "at once", delay_level=level))
    inbox.wait_for(1)

    assert inbox.bodies == ["at once"]
    assert delays(database) == [timedelta(hours=1)]


def test_row_26_the_levels_are_those_of_rocketmq(
    broker_with: Callable[[None], None], database: Database, producer: Producer, member: Member
) -> None:
    broker_with(None)
    inbox = Inbox()
    member(inbox)

    sent = [producer.send(Message("orders", f"{level}", delay_level=level)) for level in range(1, 19)]
    inbox.wait_for(1)

    seconds = [1, 5, 10, 30, *range(60, 601, 60), 1200, 1800, 3600, 7200]
    assert delays(database) == [timedelta(seconds=each) for each in seconds]
    first = inbox.messages[0]
    assert first.body == b"1"
    assert waited(database, sent[0], first) >= SECOND


def test_row_27_the_table_has_units_and_counts_from_1(
    broker_with: Callable[[str], None], database: Database, producer: Producer, member: Member
) -> None:
    broker_with("2s 1m 1h 1d")
    inbox = Inbox()
    member(inbox)

    sent = [producer.send(Message("orders", f"{level}", delay_level=level)) for level in (1, 2, 3, 4)]
    inbox.wait_for(1)

    assert delays(database) == [2 * SECOND, 60 * SECOND, 3_600 * SECOND, timedelta(days=1)]
    assert waited(database, sent[0], inbox.messages[0]) >= 2 * SECOND


def test_row_28_nobody_sees_a_message_before_its_time(
    broker_with: Callable[[str], None], database: Database, broker: Connection, producer: Producer, member: Member
) -> None:
    """While a message waits, consumers and the offsets of its topic are as if the message did not exist."""
    broker_with("2s 1h")
    inbox = Inbox()
    member(inbox)
    queue = MessageQueue("orders", "broker-a", 0)

    [(moving_clock,)] = rows(database, "SELECT pg_get_functiondef('mqdb.now'::regproc)")
    stop_clock(broker)
    producer.send(Message("orders", "in an hour", delay_level=2), queue=queue)
    delayed = producer.send(Message("orders", "in 2 s", delay_level=1), queue=queue)
    plain = producer.send(Message("orders", "now", tag="a"), queue=queue)
    inbox.wait_for(1)
    database.connect().execute(moving_clock)
    inbox.wait_for(2)

    assert plain.queue_offset == 0
    assert inbox.bodies == ["now", "in 2 s"]
    assert [message.queue_offset for message in inbox.messages] == [0, 1]
    assert waited(database, delayed, inbox.messages[1]) >= 2 * SECOND
    assert rows(database, "SELECT text FROM mqdb.message WHERE topic = 'orders' ORDER BY queue_offset") == [
        ("now",),
        ("in 2 s",),
    ]


def test_row_29_a_delayed_message_comes_to_the_queue_that_was_chosen(
    broker_with: Callable[[str], None], producer: Producer, member: Member
) -> None:
    broker_with("1s")
    inbox = Inbox()
    member(inbox, consume_thread_nums=1)
    queue = MessageQueue("orders", "broker-a", 3)

    sent = [producer.send(Message("orders", f"{number}", delay_level=1), queue=queue) for number in range(5)]
    inbox.wait_for(5)

    assert [result.queue for result in sent] == [queue] * 5
    assert [message.queue for message in inbox.messages] == [queue] * 5
    assert inbox.bodies == ["0", "1", "2", "3", "4"]
    assert [message.message_id for message in inbox.messages] == [result.message_id for result in sent]
