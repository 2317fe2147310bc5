"""The asyncio simple consumer: behaviour that differs from that of the threaded one."""

import asyncio
from datetime import timedelta

import pytest
from sqlalchemy import Connection

from mqdb.broker.consumers import pop
from mqdb_client import Admin, ConsumeFromWhere
from mqdb_client.aio import AsyncSimpleConsumer
from tests.fixtures.broker import append, bodies, dispatch_all, topic
from tests.fixtures.loop_clients import cancel_start
from tests.fixtures.postgres import Database

MINUTE = timedelta(minutes=1)


def consumer_of(database: Database) -> AsyncSimpleConsumer:
    consumer = AsyncSimpleConsumer(
        "workers", f"broker-a={database.dsn}", consume_from_where=ConsumeFromWhere.FIRST_OFFSET
    )
    consumer.subscribe("orders")
    return consumer


def test_calls_that_wait_hold_no_thread(broker: Connection, database: Database) -> None:
    async def work() -> None:
        route = await asyncio.to_thread(topic, broker)
        async with consumer_of(database) as consumer:
            waiting = [asyncio.create_task(consumer.receive(1, MINUTE, MINUTE)) for _ in range(200)]
            await asyncio.sleep(0)

            await asyncio.to_thread(append, broker, route, *(str(n) for n in range(200)))

            received = [body for messages in await asyncio.gather(*waiting) for body in bodies(messages)]
        assert sorted(map(int, received)) == list(range(200))

    asyncio.run(work())


def test_a_cancelled_task_gives_its_messages_back(
    broker: Connection, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pop, "_DUE_FIRST", 0.0)  # the message is taken, and then the insert waits

    async def work() -> None:
        route = await asyncio.to_thread(topic, broker)
        await asyncio.to_thread(append, broker, route, "x")
        await asyncio.to_thread(dispatch_all, broker)
        async with consumer_of(database) as consumer:
            locker = database.connect(autocommit=False)
            locker.execute("LOCK TABLE mqdb.pop_batch")
            receiving = asyncio.create_task(consumer.receive(1, 10 * MINUTE, MINUTE))
            while not database.rows("SELECT FROM pg_locks WHERE NOT granted AND relation = 'mqdb.pop_batch'::regclass"):
                await asyncio.sleep(0.01)

            receiving.cancel()
            await asyncio.sleep(0)
            locker.rollback()
            await asyncio.wait([receiving])

            assert receiving.cancelled()
            [again] = await consumer.receive(1, MINUTE, MINUTE)
            assert (again.body, again.delivery_attempt) == (b"x", 1)  # nobody has read it

    asyncio.run(work())


def test_a_cancelled_start_leaves_nothing_behind(broker: Connection, database: Database) -> None:
    topic(broker)

    async def work() -> None:
        await cancel_start(consumer_of(database), database)

    asyncio.run(work())  # it waits for the threads of its executor
    with Admin(database.dsn) as admin:
        assert admin.consumers.list("workers") == []
