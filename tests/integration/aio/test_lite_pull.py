"""The asyncio lite pull consumer: waiting polls, the effect of cancelling a poll, and the offsets of an iteration.

The tests of `LitePullConsumer` also run for it: see `tests.fixtures.loop_clients`.
"""

import asyncio
import random
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection

from mqdb.common.group import ConsumeFromWhere
from mqdb.errors import IllegalState, ParameterInvalid
from mqdb_client import Admin, MessageQueue
from mqdb_client.aio import AsyncAdmin, AsyncLitePullConsumer
from tests.fixtures.broker import append, bodies, topic
from tests.fixtures.lite_pull import committed, fill, numbers
from tests.fixtures.loop_clients import cancel_start
from tests.fixtures.postgres import Database

LONG = timedelta(seconds=60)
NOTHING = timedelta(0)


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(work())


async def consumer_of(database: Database, **options: Any) -> AsyncLitePullConsumer:
    options = {"consume_from_where": ConsumeFromWhere.FIRST_OFFSET} | options
    consumer = AsyncLitePullConsumer("readers", database.dsn, **options)
    await consumer.subscribe("orders")
    return consumer


def test_polls_that_wait_hold_no_thread(broker: Connection, database: Database) -> None:
    route = topic(broker)

    async def work() -> None:
        async with await consumer_of(database, pull_batch_size=1, poll_timeout=LONG, auto_commit=False) as consumer:
            before = threading.active_count()
            polls = [asyncio.create_task(consumer.poll()) for _ in range(200)]
            await asyncio.sleep(0)
            assert threading.active_count() < before + 10  # a service of the consumer may start only now
            executor, go = ThreadPoolExecutor(1), threading.Event()
            executor.submit(go.wait)
            asyncio.get_running_loop().set_default_executor(executor)
            append(broker, route, *numbers(0, 200))
            async with asyncio.timeout(60):
                received = await asyncio.gather(*polls)
            go.set()
        assert sorted((body for each in received for body in bodies(each)), key=int) == numbers(0, 200)

    run(work)


def test_a_poll_that_is_cancelled_takes_nothing(broker: Connection, database: Database) -> None:
    route = topic(broker)
    chance = random.Random(7)

    async def work() -> None:
        received: list[str] = []
        cancelled = 0
        async with await consumer_of(database, poll_timeout=LONG) as consumer:
            sending = asyncio.create_task(
                asyncio.to_thread(lambda: [append(broker, route, *numbers(n, n + 5)) for n in range(0, 500, 5)])
            )
            async with asyncio.timeout(60):
                while len(received) < 500:
                    try:
                        async with asyncio.timeout(chance.random() / 500):
                            received += bodies(await consumer.poll())
                    except TimeoutError:
                        cancelled += 1
            await sending
            assert await consumer.poll(NOTHING) == []
        assert cancelled
        assert received == numbers(0, 500)

    run(work)
    assert committed(broker, route) == [500]


def test_what_a_poll_has_returned_is_done_with_the_next_one_though_that_is_cancelled(
    broker: Connection, database: Database
) -> None:
    route = fill(broker, count=10)

    async def work() -> None:
        consumer = await consumer_of(database, poll_timeout=LONG)
        await consumer.start()
        received = bodies(await consumer.poll())
        while len(received) < 10:
            received += bodies(await consumer.poll())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await consumer.poll()
        await consumer.shutdown()

    run(work)
    assert committed(broker, route) == [10]


@pytest.mark.parametrize(("ends_well", "done"), [(False, 4), (True, 5)], ids=["shutdown", "block"])
def test_the_message_at_which_an_iteration_was_left_is_done_at_the_end_of_the_block(
    broker: Connection, database: Database, ends_well: bool, done: int
) -> None:
    route = fill(broker)

    async def work() -> None:
        async with await consumer_of(database) as consumer:
            async for message in consumer:
                if message.body == b"4":
                    break
            if not ends_well:
                await consumer.shutdown()

    run(work)
    assert committed(broker, route) == [done]


def test_an_iteration_goes_on_after_a_timeout_and_ends_with_a_shutdown(broker: Connection, database: Database) -> None:
    route = topic(broker)

    async def work() -> None:
        consumer = await consumer_of(database)
        with pytest.raises(IllegalState, match="not started"):
            aiter(consumer)
        await consumer.start()
        messages = aiter(consumer)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await anext(messages)
        append(broker, route, "late")
        assert bodies([await anext(messages)]) == ["late"]
        rest = asyncio.create_task(anext(messages, None))
        waiting = asyncio.create_task(consumer.poll(LONG))
        await asyncio.sleep(0)
        await consumer.shutdown()
        assert (await rest, await waiting) == (None, [])
        with pytest.raises(IllegalState, match="shut down"):
            await consumer.poll()

    run(work)


def test_a_loop_does_other_things_while_there_are_messages(broker: Connection, database: Database) -> None:
    fill(broker, count=1_000)

    async def work() -> None:
        async with await consumer_of(database, pull_batch_size=1, auto_commit=False) as consumer:
            other = asyncio.create_task(asyncio.sleep(0.02))
            for number in range(1_000):
                if other.done():
                    break
                assert bodies(await consumer.poll()) == [str(number)]
                time.sleep(0.001)  # what a program does with a message, without waiting for anything
            assert other.done()

    run(work)


def test_offsets_and_pauses_are_those_of_threads(broker: Connection, database: Database) -> None:
    route = fill(broker)
    queue = MessageQueue("orders", "broker-a", 0)

    async def work() -> None:
        async with await consumer_of(database, auto_commit=False) as consumer:
            assert bodies(await consumer.poll()) == numbers(0, 10)
            assert consumer.assignment == (queue,)
            await consumer.commit()
            assert await consumer.committed(queue) == 10
            await consumer.seek(queue, 20)
            assert bodies(await consumer.poll()) == numbers(20, 30)
            await consumer.seek_to_begin(queue)
            consumer.pause([queue])
            assert await consumer.poll(timedelta(milliseconds=100)) == []
            polling = asyncio.create_task(consumer.poll(LONG))
            await asyncio.sleep(0)
            consumer.resume([queue])
            assert bodies(await polling) == numbers(0, 10)
            with pytest.raises(ParameterInvalid, match="poll_timeout"):
                await consumer.poll(timedelta(seconds=-1))

    run(work)
    assert committed(broker, route) == [10]


def test_a_start_that_is_cancelled_leaves_the_group(broker: Connection, database: Database) -> None:
    fill(broker)
    consumers: list[AsyncLitePullConsumer] = []

    async def work() -> None:
        consumer = await consumer_of(database)
        consumers.append(consumer)
        await cancel_start(consumer, database)

    run(work)  # it waits for the threads of its executor
    assert not consumers[0].is_running
    with Admin(database.dsn) as admin:
        assert admin.consumers.list("readers") == []


def test_loops_of_several_threads_may_poll(broker: Connection, database: Database) -> None:
    route = topic(broker)

    async def work() -> None:
        async with await consumer_of(database, pull_batch_size=1, auto_commit=False) as consumer:
            polls = [
                asyncio.to_thread(lambda: asyncio.run(consumer.poll(LONG))),
                asyncio.to_thread(lambda: asyncio.run(consumer.poll(LONG))),
                consumer.poll(LONG),
            ]
            received = asyncio.gather(*polls)
            await asyncio.sleep(0)
            append(broker, route, *numbers(0, 3))
            assert sorted(body for each in await received for body in bodies(each)) == numbers(0, 3)

    run(work)


def test_a_listener_of_topics_runs_in_the_loop_and_may_assign_and_shut_down(
    broker: Connection, database: Database
) -> None:
    fill(broker)

    async def work() -> None:
        loop, done = asyncio.get_running_loop(), asyncio.Event()
        consumer = AsyncLitePullConsumer(
            "readers", database.dsn, topic_metadata_check_interval=timedelta(milliseconds=50)
        )

        async def listener(topic: str, queues: tuple[MessageQueue, ...]) -> None:
            assert asyncio.get_running_loop() is loop
            await consumer.assign(queues)
            await consumer.shutdown()
            done.set()

        with pytest.raises(ParameterInvalid, match="not a coroutine function"):
            await consumer.register_topic_message_queue_change_listener("orders", print)  # type: ignore[arg-type]
        await consumer.register_topic_message_queue_change_listener("orders", listener)
        await consumer.start()
        async with asyncio.timeout(30), AsyncAdmin(database.dsn) as admin:
            await admin.topics.update("orders", queues=3)
            await done.wait()
        assert len(consumer.assignment) == 3

    run(work)
