"""The asyncio consumer: the number of concurrent calls, the effect of cancelling them, and a loop that is blocked.

The tests of `PushConsumer` also run for it: see `tests.fixtures.loop_consumers`.
"""

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from inspect import signature
from typing import Any

import pytest
from sqlalchemy import Connection

from mqdb.common.group import ConsumeFromWhere
from mqdb.common.message import MessageQueue
from mqdb.common.received_message import ReceivedMessage
from mqdb.errors import BrokerUnavailable, IllegalState, ParameterInvalid, ShutdownTimedOut
from mqdb_client import Admin, ConsumeConcurrentlyContext, ConsumeConcurrentlyStatus, PushConsumer
from mqdb_client.aio import AsyncPushConsumer
from tests.fixtures.broker import append, topic
from tests.fixtures.consumers import SUCCESS, Inbox, Member
from tests.fixtures.loop_clients import cancel_start
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until

Status = ConsumeConcurrentlyStatus


class Held:
    """A listener whose calls wait until the test releases them."""

    def __init__(self) -> None:
        self.running: set[str] = set()
        self.done: list[str] = []
        self.most = 0
        self.go = asyncio.Event()
        self._changed = asyncio.Condition()

    async def __call__(self, messages: list[ReceivedMessage]) -> Status:
        bodies = {message.body.decode() for message in messages}
        self.running |= bodies
        self.most = max(self.most, len(self.running))
        await self._tell()
        try:
            await self.go.wait()
        finally:
            self.running -= bodies
        self.done += bodies
        await self._tell()
        return SUCCESS

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(30), self._changed:
            await self._changed.wait_for(is_so)

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()


async def consumer_of(database: Database, listener: Any, group: str = "readers", **options: Any) -> AsyncPushConsumer:
    options = {"consume_from_where": ConsumeFromWhere.FIRST_OFFSET} | options
    consumer = AsyncPushConsumer(group, database.dsn, **options)
    await consumer.subscribe("orders")
    consumer.register_listener(listener)
    return consumer


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(work())


@pytest.mark.parametrize("name", ["subscribe", "unsubscribe", "shutdown", "update_consume_thread_nums", "run"])
def test_methods_take_what_those_of_push_consumer_take(name: str) -> None:
    ours, theirs = signature(getattr(AsyncPushConsumer, name)), signature(getattr(PushConsumer, name))

    assert list(ours.parameters.values()) == list(theirs.parameters.values())
    assert signature(AsyncPushConsumer) == signature(PushConsumer)
    assert {each for each in dir(PushConsumer) if not each.startswith("_")} <= set(dir(AsyncPushConsumer))


def test_as_many_calls_run_at_once_as_there_may_be(broker: Connection, database: Database) -> None:
    append(broker, topic(broker), *map(str, range(300)))

    async def work() -> None:
        held = Held()
        async with await consumer_of(database, held, consume_thread_nums=100) as consumer:
            await held.until(lambda: len(held.running) == 100)
            consumer.update_consume_thread_nums(150)
            await held.until(lambda: len(held.running) == 150)
            held.go.set()
            await held.until(lambda: len(held.done) == 300)
        assert held.most == 150
        assert sorted(held.done, key=int) == [str(number) for number in range(300)]

    run(work)


def test_what_a_call_fails_and_what_is_cancelled_comes_again(broker: Connection, database: Database) -> None:
    append(broker, topic(broker), "raises", "cancelled", "later", "good")
    failures: dict[str, list[int]] = {}
    contexts = []

    async def listener(messages: list[ReceivedMessage], context: ConsumeConcurrentlyContext) -> Status | None:
        [message] = messages
        body = message.body.decode()
        failures.setdefault(body, []).append(message.reconsume_times)
        contexts.append(context.queue.topic)
        context.delay_level_when_next_consume = 1
        if message.reconsume_times == 0 and body == "raises":
            raise RuntimeError(body)
        if message.reconsume_times == 0 and body == "cancelled":
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(60)
        return None if message.reconsume_times == 0 and body == "later" else SUCCESS

    async def work() -> None:
        async with await consumer_of(database, listener):
            await asyncio.to_thread(lambda: wait_until(lambda: len(failures) == 4 and _waiting(database) == 3))
        assert set(contexts) == {"orders"}

    run(work)


def _waiting(database: Database) -> int:
    """The number of messages that were sent back and wait in their delay level."""
    [(count,)] = database.rows("SELECT count(*) FROM mqdb.commit_log WHERE reconsume_times = 1")
    return int(count)


def test_a_start_that_is_cancelled_leaves_the_group(broker: Connection, database: Database) -> None:
    topic(broker)

    async def work() -> None:
        await cancel_start(await consumer_of(database, Held()), database)

    asyncio.run(work())  # it waits for the threads of its executor
    assert database.rows("SELECT FROM mqdb.client WHERE kind = 'CONSUMER'") == []


def test_calls_that_do_not_return_in_time_are_cancelled(broker: Connection, database: Database) -> None:
    append(broker, topic(broker), "stays")

    async def work() -> None:
        held = Held()
        consumer = await consumer_of(database, held)
        await consumer.start()
        await held.until(lambda: bool(held.running))
        with pytest.raises(ShutdownTimedOut):
            await consumer.shutdown(timedelta(milliseconds=100))
        await asyncio.sleep(0)
        assert not held.running
        await consumer.shutdown()  # again: nothing happens

        held = Held()
        running = asyncio.create_task(
            (await consumer_of(database, held, shutdown_timeout=timedelta(milliseconds=100))).run()
        )
        await held.until(lambda: bool(held.running))
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

        again = Held()
        again.go.set()
        async with await consumer_of(database, again):
            await again.until(lambda: again.done == ["stays"])

    run(work)


def test_shutdown_in_the_listener_is_refused(broker: Connection, database: Database) -> None:
    append(broker, topic(broker), "x")

    async def work() -> None:
        said: asyncio.Queue[Exception] = asyncio.Queue()

        async def listener(_: list[ReceivedMessage]) -> Status:
            try:
                await consumer.shutdown()
            except IllegalState as error:
                said.put_nowait(error)
            return SUCCESS

        consumer = await consumer_of(database, listener)  # before it starts: the listener needs it at once
        async with consumer:
            assert "this listener" in str(await asyncio.wait_for(said.get(), 30))

    run(work)


def test_a_loop_that_is_blocked_keeps_its_queue_from_a_member_that_wants_it(
    broker: Connection, database: Database, member: Member
) -> None:
    """A blocked loop keeps its queue from a member that wants it.

    The other member gives up its claim, because the threads of the blocked consumer keep running.
    """
    route = topic(broker, queues=2)
    append(broker, route, "first", "second")
    inbox, done = Inbox(), list[str]()

    def first_or_all(_: str, _id: str, queues: Sequence[MessageQueue], ids: Sequence[str]) -> list[MessageQueue]:
        return list(queues[:1] if len(ids) > 1 else queues)

    async def listener(messages: list[ReceivedMessage]) -> Status:
        if not done:  # nothing else runs in the loop meanwhile
            other = member(inbox, allocate_message_queue_strategy=lambda _group, _id, queues, _ids: list(queues))
            wait_until(lambda: [queue.queue_id for queue in other.assignment] == [1])
        done.extend(message.body.decode() for message in messages)
        return SUCCESS

    async def work() -> None:
        options: dict[str, Any] = {"allocate_message_queue_strategy": first_or_all, "consume_thread_nums": 1}
        async with await consumer_of(database, listener, **options) as consumer:
            await asyncio.to_thread(lambda: wait_until(lambda: len(done) == 2))
            assert [queue.queue_id for queue in consumer.assignment] == [0]

    run(work)
    assert done == ["first", "second"]
    assert inbox.messages == []


def test_run_ends_by_a_signal(broker: Connection, database: Database) -> None:
    append(broker, topic(broker), "x")

    async def listener(_: list[ReceivedMessage]) -> Status:
        os.kill(os.getpid(), signal.SIGTERM)
        return SUCCESS

    async def work() -> None:
        consumer = await consumer_of(database, listener)
        await asyncio.wait_for(consumer.run(), 30)
        assert consumer.assignment == ()
        for again in (consumer.start, consumer.run):
            with pytest.raises(IllegalState, match="shut down already"):
                await again()

    before = signal.getsignal(signal.SIGTERM)
    run(work)
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_signal_ends_all_consumers_that_run_in_a_loop(broker: Connection, database: Database) -> None:
    append(broker, topic(broker), "x")
    both = asyncio.Barrier(2)

    async def listener(_: list[ReceivedMessage]) -> Status:
        if await both.wait() == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        return SUCCESS

    async def work() -> None:
        consumers = [await consumer_of(database, listener, group) for group in ("readers", "auditors")]
        await asyncio.wait_for(asyncio.gather(*(consumer.run() for consumer in consumers)), 30)

    before = signal.getsignal(signal.SIGTERM)
    run(work)
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_consumer_that_could_not_be_started_can_be_run_again() -> None:
    async def listener(_: list[ReceivedMessage]) -> Status:
        return SUCCESS

    async def work() -> None:
        consumer = AsyncPushConsumer("readers", "postgresql://127.0.0.1:1/nowhere")
        await consumer.subscribe("orders")
        consumer.register_listener(listener)
        for _ in range(2):
            with pytest.raises(BrokerUnavailable):
                await consumer.run()

    run(work)


def test_people_see_where_a_task_stands(broker: Connection, database: Database) -> None:
    append(broker, topic(broker), "x")

    async def work() -> None:
        held = Held()
        async with await consumer_of(database, held) as consumer:
            await held.until(lambda: bool(held.running))
            client_id = consumer._below._strategy.cluster.instances[0].client_id  # type: ignore[union-attr]

            def ask() -> dict[str, Any]:
                with Admin(database.dsn) as admin:
                    return admin.on("broker-a").consumers.status(client_id, group="readers")[0].details

            [listener] = (await asyncio.to_thread(ask))["listeners"]
            assert "await self.go.wait()" in listener["stack"]
            held.go.set()

    run(work)


def test_what_is_no_asynchronous_listener_is_refused() -> None:
    consumer = AsyncPushConsumer("readers", "postgresql://nowhere")

    async def listener(_: list[ReceivedMessage]) -> Status:
        return SUCCESS

    with pytest.raises(ParameterInvalid, match="async def"):
        consumer.register_listener(lambda _: SUCCESS)  # type: ignore[arg-type]
    with pytest.raises(ParameterInvalid, match=r"\(messages, connection\)"):
        consumer.register_listener(listener, exactly_once=True)
    with pytest.raises(IllegalState, match="listener"):
        asyncio.run(_subscribed(consumer))


async def _subscribed(consumer: AsyncPushConsumer) -> None:
    await consumer.subscribe("orders")
    await consumer.start()
