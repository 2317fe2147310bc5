"""Sends, a push consumer and polls in a uvloop event loop, which many programs use instead of asyncio's own."""

import asyncio
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection

from mqdb.common.group import ConsumeFromWhere
from mqdb.common.received_message import ReceivedMessage
from mqdb_client import ConsumeConcurrentlyStatus, Message
from mqdb_client.aio import AsyncLitePullConsumer, AsyncProducer, AsyncPushConsumer, ids_that_may_be_stored
from tests.fixtures.broker import bodies, topic
from tests.fixtures.lite_pull import numbers
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.producers import is_blocked, pid_of, stall

uvloop = pytest.importorskip("uvloop")  # Windows has none

FIRST = ConsumeFromWhere.FIRST_OFFSET


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work())


async def send(database: Database, count: int) -> None:
    """Send one message alone, and the others together."""
    async with AsyncProducer("senders", database.dsn) as producer:
        await producer.send(Message("orders", "0"))
        async with asyncio.TaskGroup() as tasks:
            for number in range(1, count):
                tasks.create_task(producer.send(Message("orders", str(number))))


def test_what_tasks_send_is_consumed(broker: Connection, database: Database) -> None:
    topic(broker)

    async def work() -> None:
        received: set[str] = set()
        all_there = asyncio.Event()

        async def listener(messages: list[ReceivedMessage]) -> ConsumeConcurrentlyStatus:
            received.update(bodies(messages))
            if len(received) == 200:
                all_there.set()
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

        consumer = AsyncPushConsumer("billing", database.dsn, consume_from_where=FIRST)
        await consumer.subscribe("orders")
        consumer.register_listener(listener)
        async with consumer, asyncio.timeout(60):
            await send(database, 200)
            await all_there.wait()
        assert received == set(numbers(0, 200))

    run(work)


def test_what_tasks_send_is_polled_and_a_poll_ends_in_time(broker: Connection, database: Database) -> None:
    topic(broker)

    async def work() -> None:
        consumer = AsyncLitePullConsumer("readers", database.dsn, consume_from_where=FIRST)
        await consumer.subscribe("orders")
        async with consumer, asyncio.timeout(60):
            first = asyncio.create_task(consumer.poll(timedelta(days=365_000)))
            await asyncio.sleep(0)
            await send(database, 200)
            received = bodies(await first)
            async for message in consumer:
                received += bodies([message])
                if len(received) == 200:
                    break
            assert sorted(received, key=int) == numbers(0, 200)
            assert await consumer.poll(timedelta(milliseconds=20)) == []
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.02):
                    await consumer.poll()

    run(work)


def test_the_outcome_of_a_send_that_is_cancelled_is_known(broker: Connection, database: Database) -> None:
    topic(broker)

    async def work() -> None:
        async with AsyncProducer("senders", database.dsn) as producer:
            await producer.send(Message("orders", "first"))
            locker = stall(database)
            sending = asyncio.create_task(producer.send(Message("orders", "second")))
            await asyncio.to_thread(lambda: wait_until(lambda: is_blocked(database, pid_of(producer._below))))
            sending.cancel()
            with pytest.raises(asyncio.CancelledError) as caught:
                await sending
            locker.rollback()
            [message_id] = ids_that_may_be_stored(caught.value)
            assert await producer.outcome(message_id) is not None

    run(work)
