"""Asynchronous listeners that are orderly or exactly once, and loops that are blocked, closed, or several.

What they have in common with listeners of threads is in the tests of those: see `tests.fixtures.loop_consumers`.
"""

import asyncio
import json
import os
import signal
import threading
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from mqdb.common.group import ConsumeFromWhere, MessageModel
from mqdb.common.message import MessageQueue, ReceivedMessage
from mqdb.errors import IllegalState, ShutdownTimedOut
from mqdb.store.consumers.consumer_offsets import committed_offsets
from mqdb_client import (
    Admin,
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyStatus,
    DirectResult,
    Message,
    Producer,
)
from mqdb_client.aio import AsyncProducer, AsyncPushConsumer
from tests.fixtures.broker import append, topic
from tests.fixtures.orderly import OrderlyMember, Script
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.retries import dead_letters, scheduled
from tests.fixtures.spans import Spans, identity, parent_of
from tests.fixtures.transactional import SlowCommit

SOON = timedelta(milliseconds=10)

Messages = list[ReceivedMessage]

#: How a listener is registered, and what it answers.
KINDS: dict[str, tuple[dict[str, bool], str]] = {
    "concurrent": ({}, ConsumeConcurrentlyStatus.CONSUME_SUCCESS),
    "orderly": ({"orderly": True}, ConsumeOrderlyStatus.SUCCESS),
    "transactional": ({"transactional": True}, ConsumeConcurrentlyStatus.CONSUME_SUCCESS),
}
of_each_kind = pytest.mark.parametrize("kind", KINDS)
of_waiting_threads = pytest.mark.parametrize("kind", ["orderly", "transactional"])


def consumer_of(dsn: str, listener: Any, kind: str, **options: Any) -> AsyncPushConsumer:
    options.setdefault("consume_from_where", ConsumeFromWhere.FIRST_OFFSET)
    consumer = AsyncPushConsumer("readers", dsn, suspend_current_queue_time=SOON, **options)
    consumer._below.subscribe("orders")
    consumer.register_listener(listener, **KINDS[kind][0])
    return consumer


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(work())


async def until(is_so: Callable[[], object]) -> None:
    await asyncio.to_thread(wait_until, is_so)


def bodies(connection: Connection) -> list[str]:
    return list(connection.scalars(text("SELECT body FROM public.ledger ORDER BY entry")))


@pytest.fixture
def ledger(broker: Connection) -> Connection:
    """A table in which a listener writes what it consumes."""
    broker.execute(text("CREATE TABLE public.ledger (entry serial, body text)"))
    return broker


WRITE = text("INSERT INTO public.ledger (body) VALUES (:body)")


# -- orderly --------------------------------------------------------------------------------------


def test_an_orderly_listener_gets_each_queue_in_order(broker: Connection, database: Database) -> None:
    route = topic(broker, queues=3)
    for queue_id in range(3):
        append(broker, route, *map(str, range(20)), queue_id=queue_id)
    seen: dict[int, list[str]] = {0: [], 1: [], 2: []}
    tries: list[int] = []

    async def listener(messages: Messages) -> ConsumeOrderlyStatus:
        [message] = messages
        await asyncio.sleep(0)
        if message.body == b"7" and message.reconsume_times < 2:
            tries.append(message.reconsume_times)
            return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
        seen[message.queue.queue_id].append(message.body.decode())
        return ConsumeOrderlyStatus.SUCCESS

    async def work() -> None:
        async with consumer_of(database.dsn, listener, "orderly"):
            await until(lambda: all(len(each) == 20 for each in seen.values()))

    run(work)
    assert all(each == [str(number) for number in range(20)] for each in seen.values())
    assert sorted(tries) == [0, 0, 0, 1, 1, 1]
    assert committed_offsets(broker, "readers", route.queue_keys) == dict.fromkeys(route.queue_keys, 20)


def test_each_member_gets_all_in_order_in_broadcasting(broker: Connection, database: Database, tmp_path: Path) -> None:
    append(broker, topic(broker), *map(str, range(20)))
    seen: list[str] = []

    async def listener(messages: Messages) -> ConsumeOrderlyStatus:
        seen.append(messages[0].body.decode())
        return ConsumeOrderlyStatus.SUCCESS

    async def work() -> None:
        options = {"message_model": MessageModel.BROADCASTING, "local_offset_directory": tmp_path}
        async with consumer_of(database.dsn, listener, "orderly", **options):
            await until(lambda: len(seen) == 20)

    run(work)
    assert seen == [str(number) for number in range(20)]
    [offset] = json.loads(next(tmp_path.rglob("offsets.json")).read_text())["offsets"]
    assert offset["next_offset"] == 20


# -- exactly once -----------------------------------------------------------------------------------


def test_what_a_session_writes_and_sends_is_committed_with_the_offset(ledger: Connection, database: Database) -> None:
    route = topic(ledger)
    topic(ledger, "invoices")
    append(ledger, route, *map(str, range(10)))
    failed: set[str] = set()

    async def work() -> None:
        async def listener(messages: Messages, connection: AsyncConnection) -> ConsumeConcurrentlyStatus:
            async with AsyncSession(bind=connection) as session:
                for message in messages:
                    await session.execute(WRITE, {"body": message.body.decode()})
                    await producer.send(Message("invoices", message.body), connection=session)
                await session.commit()
            if messages[0].body not in (b"3", b"6") or messages[0].body.decode() in failed:
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS
            failed.add(messages[0].body.decode())
            raise RuntimeError("once")

        consumer = consumer_of(database.dsn, listener, "transactional", max_reconsume_times=0)
        async with AsyncProducer("invoicers", database.dsn) as producer, consumer:
            await until(lambda: len(bodies(ledger)) == 8 and len(dead_letters(ledger)) == 2)

    run(work)
    assert bodies(ledger) == ["0", "1", "2", "4", "5", "7", "8", "9"]
    assert [letter[0] for letter in dead_letters(ledger)] == ["3", "6"]
    assert committed_offsets(ledger, "readers", route.queue_keys) == {route.queue_keys[0]: 10}
    sent = ledger.scalars(text("SELECT text FROM mqdb.message WHERE topic = 'invoices' ORDER BY log_pos"))
    assert list(sent) == bodies(ledger)


def test_a_statement_that_its_listener_gives_up_has_failed_and_is_no_lost_connection(
    ledger: Connection, database: Database
) -> None:
    """SQLAlchemy throws away the connection of a task that is cancelled; then the broker would count as down."""
    append(ledger, topic(ledger), "slow", "good")
    pids: list[int] = []

    async def listener(messages: Messages, connection: AsyncConnection) -> ConsumeConcurrentlyStatus:
        pids.append(await connection.scalar(text("SELECT pg_backend_pid()")))
        await connection.execute(WRITE, {"body": messages[0].body.decode()})
        if messages[0].body == b"slow":
            async with asyncio.timeout(0.05):
                await connection.execute(text("SELECT pg_sleep(60)"))
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    async def work() -> None:
        async with consumer_of(database.dsn, listener, "transactional", max_reconsume_times=0):
            await until(lambda: bodies(ledger) == ["good"] and dead_letters(ledger))

    run(work)
    assert [letter[0] for letter in dead_letters(ledger)] == ["slow"]
    assert len(set(pids)) == 1


def test_a_commit_that_is_cancelled_happens_once(ledger: Connection, database: Database) -> None:
    append(ledger, topic(ledger), *map(str, range(10)))

    async def listener(messages: Messages, connection: AsyncConnection) -> ConsumeConcurrentlyStatus:
        await connection.execute(WRITE, {"body": messages[0].body.decode()})
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    async def work() -> None:
        commit = SlowCommit(database)
        async with consumer_of(database.dsn, listener, "transactional") as consumer:
            await until(commit.pid)
            strategy = consumer._below._strategy
            assert strategy is not None
            assert strategy.tasks is not None
            strategy.tasks.cancel()
            await until(lambda: commit.pid() is None)
            commit.let_go()
            await until(lambda: len(bodies(ledger)) == 10)

    run(work)
    assert bodies(ledger) == [str(number) for number in range(10)]
    assert scheduled(ledger) == []


def test_a_message_is_consumed_in_a_transaction_when_somebody_asks_for_it(
    ledger: Connection, database: Database
) -> None:
    topic(ledger)

    async def listener(messages: Messages, connection: AsyncConnection) -> ConsumeConcurrentlyStatus:
        await connection.execute(WRITE, {"body": messages[0].body.decode()})
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    async def work() -> None:
        async with consumer_of(database.dsn, listener, "transactional") as consumer:
            with Producer("senders", database.dsn) as producer:
                sent = await asyncio.to_thread(producer.send, Message("orders", "x"))
            await until(lambda: bodies(ledger) == ["x"])

            def ask() -> DirectResult:
                with Admin(database.dsn) as admin:
                    consumers = admin.on("broker-a").consumers
                    return consumers.consume(client_id_of(consumer), "readers", sent.message_id).result.result

            assert await asyncio.to_thread(ask) is DirectResult.CR_SUCCESS

    run(work)
    assert bodies(ledger) == ["x", "x"]


# -- shutdown, and what people see ------------------------------------------------------------------


class Held:
    """A listener of any kind whose first call waits until it is let go, or cancelled."""

    def __init__(self, kind: str) -> None:
        self._success = KINDS[kind][1]
        self.begun = asyncio.Event()
        self.go = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.done: list[str] = []

    async def __call__(self, messages: Messages, *_: object) -> Any:
        self.begun.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        self.done += [message.body.decode() for message in messages]
        return self._success


def client_id_of(consumer: AsyncPushConsumer) -> str:
    strategy = consumer._below._strategy
    assert strategy is not None
    return strategy.cluster.instances[0].client_id


@of_waiting_threads
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


@of_waiting_threads
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

        async with consumer_of(database.dsn, listener, kind) as consumer:
            assert "this listener" in str(await asyncio.wait_for(said.get(), 30))

    run(work)


@of_waiting_threads
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


@of_each_kind
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


@of_each_kind
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
    """An allocation that gives each member everything."""
    return list(queues)


@pytest.mark.long
def test_a_loop_that_is_blocked_keeps_its_queue_from_a_member_that_wants_it(
    broker: Connection, database: Database, orderly_member: OrderlyMember
) -> None:
    """Its lock would expire after a second, and is renewed."""
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


@of_waiting_threads
def test_what_comes_when_the_loop_is_closed_has_not_failed(
    broker: Connection, database: Database, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    route = topic(broker)
    consumer = consumer_of(database.dsn, Held(kind), kind, max_reconsume_times=0)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(consumer.start())
    loop.close()

    append(broker, route, "x")
    wait_until(lambda: "loop is closed" in caplog.text)
    consumer._below.shutdown()

    assert dead_letters(broker) == scheduled(broker) == []
    assert committed_offsets(broker, "readers", route.queue_keys) == {route.queue_keys[0]: 0}


def test_loops_of_several_threads_have_consumers_of_their_own(ledger: Connection, database: Database) -> None:
    route = topic(ledger, queues=6)
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
    count = 0
    while len(loops) < 3:
        append(ledger, route, str(count), queue_id=count % 6)
        count += 1
    wait_until(lambda: len(bodies(ledger)) >= count)
    enough.set()
    for thread in threads:
        thread.join()

    assert sorted(bodies(ledger), key=int) == [str(number) for number in range(count)]
