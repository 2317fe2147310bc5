"""Consumers in event loops: how they stop, what their status shows, and loops that are blocked, closed, or several."""

import asyncio
import os
import signal
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import AsyncConnection

from mqdb.common.message import MessageQueue
from mqdb.errors import IllegalState, ShutdownTimedOut
from mqdb.store.consumers.consumer_offsets import committed_offsets
from mqdb_client import Admin, ConsumeConcurrentlyStatus, ConsumeOrderlyStatus, Message
from mqdb_client.aio import AsyncProducer
from tests.fixtures.aio_consumers import (
    KINDS,
    WAITING_THREADS,
    WRITE,
    Held,
    Messages,
    bodies,
    client_id_of,
    consumer_of,
    run,
    until,
)
from tests.fixtures.broker import append, topic
from tests.fixtures.orderly import OrderlyMember, Script
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.retries import dead_letters, scheduled
from tests.fixtures.spans import Spans, identity, parent_of
from tests.fixtures.variants import usually

# -- shutdown, and what people see ------------------------------------------------------------------


@pytest.mark.parametrize("kind", usually("transactional", of=WAITING_THREADS))
def test_calls_that_do_not_return_in_time_are_cancelled_and_come_again(
    broker: Connection, database: Database, kind: str
) -> None:
    append(broker, topic(broker), "stays")

    async def work() -> None:
        held = Held(kind)
        consumer = consumer_of(database.dsn, held, kind, max_reconsume_times=0)
        await consumer.start()
        await held.begun.wait()
        with pytest.raises(ShutdownTimedOut):
            await consumer.shutdown(timedelta(milliseconds=100))
        await asyncio.wait_for(held.cancelled.wait(), 30)

        again = Held(kind)
        again.go.set()
        async with consumer_of(database.dsn, again, kind):
            await until(lambda: again.done == ["stays"])

    run(work)
    assert dead_letters(broker) == []


@pytest.mark.parametrize("kind", usually("orderly", of=WAITING_THREADS))
def test_shutdown_in_the_listener_is_refused(broker: Connection, database: Database, kind: str) -> None:
    append(broker, topic(broker), "x")

    async def work() -> None:
        said: asyncio.Queue[Exception] = asyncio.Queue()

        async def listener(_: Messages, *_rest: object) -> Any:
            try:
                await consumer.shutdown()
            except IllegalState as error:
                said.put_nowait(error)
            return KINDS[kind][1]

        consumer = consumer_of(database.dsn, listener, kind)  # before it starts: the listener needs it at once
        async with consumer:
            assert "this listener" in str(await asyncio.wait_for(said.get(), 30))

    run(work)


@pytest.mark.parametrize("kind", usually("transactional", of=WAITING_THREADS))
def test_people_see_where_a_task_stands(broker: Connection, database: Database, kind: str) -> None:
    append(broker, topic(broker), "x")

    async def work() -> None:
        held = Held(kind)
        async with consumer_of(database.dsn, held, kind) as consumer:
            await held.begun.wait()
            client_id = client_id_of(consumer)

            def ask() -> dict[str, Any]:
                with Admin(database.dsn) as admin:
                    return admin.on("broker-a").consumers.status(client_id, group="readers")[0].details

            [listener] = (await asyncio.to_thread(ask))["listeners"]
            assert "await self.go.wait()" in listener["stack"]
            held.go.set()

    run(work)


@pytest.mark.parametrize("kind", usually("concurrent", of=KINDS))
def test_a_signal_handler_of_the_loop_shuts_down(broker: Connection, database: Database, kind: str) -> None:
    append(broker, topic(broker), "x")

    async def work() -> None:
        held = Held(kind)
        consumer = consumer_of(database.dsn, held, kind)
        await consumer.start()
        await held.begun.wait()
        ended: asyncio.Queue[asyncio.Task[None]] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, lambda: ended.put_nowait(loop.create_task(consumer.shutdown())))
        os.kill(os.getpid(), signal.SIGUSR1)
        shutdown = await asyncio.wait_for(ended.get(), 30)
        held.go.set()
        await asyncio.wait_for(shutdown, 30)
        loop.remove_signal_handler(signal.SIGUSR1)
        assert held.done == ["x"]
        assert consumer.assignment == ()

    run(work)


# -- loops ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", usually("transactional", of=KINDS))
def test_a_listener_is_in_the_trace_of_its_message(
    served: Connection, database: Database, spans: Spans, kind: str
) -> None:
    topic(served)

    async def listener(_: Messages, *_rest: object) -> Any:
        with spans.tracer.start_as_current_span("work"):
            await asyncio.sleep(0)
        return KINDS[kind][1]

    async def work() -> None:
        async with consumer_of(database.dsn, listener, kind), AsyncProducer("senders", database.dsn) as producer:
            await producer.send(Message("orders", "x"))
            await until(lambda: spans("process orders"))

    run(work)
    [work_span], [process], [send] = spans("work"), spans("process orders"), spans("send orders")
    assert parent_of(work_span) == identity(process)
    assert parent_of(process) == identity(send)


def all_queues(_group: str, _client_id: str, queues: Sequence[MessageQueue], _ids: Sequence[str]) -> list[MessageQueue]:
    """An allocation that gives every queue to each member."""
    return list(queues)


@pytest.mark.long
def test_a_loop_that_is_blocked_keeps_its_queue_from_a_member_that_wants_it(
    broker: Connection, database: Database, orderly_member: OrderlyMember
) -> None:
    """A blocked loop keeps its queue from a member that wants it.

    The lock of the queue would expire after a second, but is renewed.
    """
    expiry = timedelta(seconds=1)
    append(broker, topic(broker), "first", "second")
    greedy = Script()
    done: list[str] = []
    lock = text("SELECT expires_at FROM mqdb.queue_lock")

    async def listener(messages: Messages) -> ConsumeOrderlyStatus:
        if not done:  # nothing else runs in the loop meanwhile
            locked_until = broker.scalar(lock)
            other = orderly_member(greedy, queue_lock_expiry=expiry, allocate_message_queue_strategy=all_queues)
            wait_until(lambda: broker.scalar(lock) > locked_until + 2 * expiry)
            assert other.assignment == ()
        done.extend(message.body.decode() for message in messages)
        return ConsumeOrderlyStatus.SUCCESS

    async def work() -> None:
        options = {"queue_lock_expiry": expiry, "allocate_message_queue_strategy": all_queues}
        async with consumer_of(database.dsn, listener, "orderly", **options) as consumer:
            await until(lambda: len(done) == 2)
            assert len(consumer.assignment) == 1

    run(work)
    assert done == ["first", "second"]
    assert greedy.calls == []


@pytest.mark.parametrize("kind", usually("orderly", of=WAITING_THREADS))
def test_what_comes_when_the_loop_is_closed_has_not_failed(
    broker: Connection, database: Database, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    route = topic(broker)
    consumer = consumer_of(database.dsn, Held(kind), kind, max_reconsume_times=0)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(consumer.start())
    loop.close()

    append(broker, route, "x")
    wait_until(lambda: "leaves its group" in caplog.text)
    consumer._below.shutdown()

    assert dead_letters(broker) == scheduled(broker) == []
    assert committed_offsets(broker, "readers", route.queue_keys) == {route.queue_keys[0]: 0}


def test_loops_of_several_threads_have_consumers_of_their_own(aio_ledger: Connection, database: Database) -> None:
    route = topic(aio_ledger, queues=6)
    enough = threading.Event()
    loops: set[asyncio.AbstractEventLoop] = set()

    def member(number: int) -> None:
        async def work() -> None:
            own = asyncio.get_running_loop()

            async def listener(messages: Messages, connection: AsyncConnection) -> ConsumeConcurrentlyStatus:
                assert asyncio.get_running_loop() is own
                loops.add(own)
                await connection.execute(WRITE, {"body": messages[0].body.decode()})
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

            dsn = f"{database.dsn}&application_name=loop{number}"  # another address, another instance
            async with consumer_of(dsn, listener, "transactional"):
                await asyncio.to_thread(enough.wait)

        run(work)

    threads = [threading.Thread(target=member, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    sent: list[str] = []
    while len(loops) < 3:
        for queue_id in range(6):
            sent.append(str(len(sent)))
            append(aio_ledger, route, sent[-1], queue_id=queue_id)
        wait_until(lambda: len(bodies(aio_ledger)) >= len(sent))
    enough.set()
    for thread in threads:
        thread.join()

    assert sorted(bodies(aio_ledger), key=int) == sent
