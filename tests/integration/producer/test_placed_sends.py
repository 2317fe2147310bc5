"""Sends that place their messages: each kind of producer gets the queue offset at once, without another statement."""

import asyncio
from collections.abc import Iterator

import pytest

from mqdb_client import Durability, Message, MessageQueue, Producer, SendResult
from mqdb_client.aio import AsyncProducer
from mqdb_client.producer.sends.sent_messages import SentMessages
from tests.fixtures.log import Connection, append, attend, create_topic, dispatch, positions, scalar, settle
from tests.fixtures.postgres import Database
from tests.fixtures.principals import Principal
from tests.fixtures.producers import producer_of


@pytest.fixture
def log(database: Database) -> Connection:
    """A log without undispatched records; no session dispatches."""
    log = database.connect()
    attend(log)
    dispatch(log)  # the database may be a copy, and is adopted then
    settle(log)
    return log


@pytest.fixture
def queue(log: Connection) -> int:
    """The key of the only queue of `orders`."""
    return create_topic(log, "orders")[0]


@pytest.fixture
def producer(queue: int, database: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[Producer]:
    """A producer that does not request offsets."""

    def find_queue_offset(*_: object, **__: object) -> int:
        raise AssertionError("it asks")

    monkeypatch.setattr(SentMessages, "find_queue_offset", find_queue_offset)
    with producer_of(database.dsn) as producer:
        yield producer


def offsets(*results: SendResult) -> list[int]:
    return [result.queue_offset for result in results]


def test_a_send_and_a_batch_know_their_queue_offsets(producer: Producer, log: Connection, queue: int) -> None:
    one = producer.send(Message("orders", "x", tag="paid", keys="k"))
    batch = producer.send_batch([Message("orders", str(number)) for number in range(120)])

    assert offsets(one, *batch) == list(range(121))
    assert positions(log, queue) == [result.log_pos for result in (one, *batch)]


def test_sends_that_gather_know_their_queue_offsets(producer: Producer, log: Connection, queue: int) -> None:
    create_topic(log, "others", 2)
    sent = [producer.send_async(Message(topic, "x")) for _ in range(100) for topic in ("orders", "others")]

    found: dict[MessageQueue, list[int]] = {}
    for result in [future.result(10) for future in sent]:
        found.setdefault(result.queue, []).extend(offsets(result))

    assert sorted(len(each) for each in found.values()) == [50, 50, 100]
    assert all(sorted(each) == list(range(len(each))) for each in found.values())


def test_a_send_of_an_event_loop_knows_its_queue_offset(producer: Producer, database: Database) -> None:
    async def work() -> list[int]:
        async with AsyncProducer("loop", database.dsn) as other:
            results = [await other.send(Message("orders", "x")) for _ in range(3)]
        return offsets(*results)

    assert asyncio.run(work()) == [0, 1, 2]


def test_what_has_come_by_other_ways_keeps_its_place(producer: Producer, log: Connection, queue: int) -> None:
    first = producer.send(Message("orders", "1"))
    [second] = append(log, queue)
    log.execute("SELECT mqdb.send('orders', 'text'::text)")
    log.execute("SELECT setval('mqdb.dispatcher_state', 1)")  # who is woken has not heard it

    last = producer.send(Message("orders", "4"))

    assert offsets(first, last) == [0, 3]
    assert positions(log, queue) == [first.log_pos, second, second + 1, last.log_pos]


@pytest.mark.parametrize("durability", Durability)
def test_only_what_a_crash_cannot_take_back_is_placed(
    log: Connection, queue: int, database: Database, durability: Durability
) -> None:
    """Only records that a crash cannot undo are placed. Without a standby SYNC_MASTER is equivalent to SYNC_FLUSH."""
    with producer_of(database.dsn, durability=durability) as producer:
        producer.send(Message("orders", "x"))

    assert len(positions(log, queue)) == (durability is not Durability.ASYNC_FLUSH)


def test_a_send_places_its_message_although_many_before_could_not(log: Connection, producer: Producer) -> None:
    """A send places its message although many earlier sends could not.

    If it paused after those, it would wake the dispatcher that has just fallen asleep, and so on for ever.
    """
    log.execute("SELECT setval('mqdb.dispatcher_state', 2)")
    for _ in range(50):
        producer.send(Message("orders", "before"))
    dispatch(log)
    settle(log)

    assert producer.send(Message("orders", "x")).queue_offset == 50


def test_a_role_that_does_not_own_the_broker_places_nothing(database: Database, principal: Principal) -> None:
    """A role that does not own the broker places nothing.

    Such a role could keep the lock of dispatch in a transaction that stays open.
    """
    dsn = principal("shop", send=["orders"])
    log = database.connect()
    dispatch(log)
    settle(log)
    with producer_of(dsn) as producer:
        producer.send(Message("orders", "x"))

    assert scalar(log, "SELECT count(*) FROM mqdb.consume_queue") == 0
    assert scalar(log, "SELECT count(xid) FROM mqdb.commit_log") == 1
