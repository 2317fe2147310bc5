"""The asyncio producer: the results of tasks, the effect of cancelling one, and the transactions that it joins.

The tests of lost connections and deadlines are those of `Producer`: see `tests.fixtures.loop_producers`.
"""

import asyncio
import os
import random
import sys
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from datetime import timedelta
from functools import partial
from typing import Any

import psycopg
import pytest

from mqdb.errors import IllegalState, MessageIllegal, ParameterInvalid, QueueNotFound, RouteNotFound
from mqdb.settings import load_settings
from mqdb_client import Message, MessageQueue, SendMessageContext, SendResult, SendStatus
from mqdb_client.aio import AsyncProducer, AsyncTransactionProducer, ids_that_may_be_stored
from tests.fixtures.joined_sends import url_of
from tests.fixtures.log import create_topic
from tests.fixtures.loop_clients import cancel_start
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.producers import Attempts, is_blocked, pid_of, stall, stored_bodies
from tests.fixtures.threads import Doing

SEED = random.randrange(2**32)


def run(database: Database, work: Callable[[AsyncProducer], Coroutine[Any, Any, None]]) -> None:
    """Run work with a producer that already has the route of topic `orders`."""

    async def main() -> None:
        async with AsyncProducer("senders", settings=load_settings(dsn=database.dsn)) as producer:
            await producer.send(Message("orders", "first"))
            await work(producer)

    asyncio.run(main())


async def until_blocked(database: Database, producer: AsyncProducer) -> None:
    """Wait until a statement of the producer waits for a lock."""
    await asyncio.to_thread(lambda: wait_until(lambda: is_blocked(database, pid_of(producer._below))))


def tasks_of(producer: AsyncProducer, count: int, key: str = "") -> list["asyncio.Task[SendResult]"]:
    return [asyncio.create_task(producer.send(Message("orders", f"{key}{n}"))) for n in range(count)]


# -- life -------------------------------------------------------------------------------------


async def unasked(*_: object) -> None: ...


WITH_TRANSACTIONS = partial(
    AsyncTransactionProducer, execute_local_transaction=unasked, check_local_transaction=unasked
)


@pytest.mark.parametrize("kind", [AsyncProducer, WITH_TRANSACTIONS])
def test_a_start_that_is_cancelled_leaves_the_group(database: Database, kind: Callable[..., AsyncProducer]) -> None:
    producer = kind("senders", settings=load_settings(dsn=database.dsn))

    asyncio.run(cancel_start(producer, database))  # it waits for the threads of its executor
    with pytest.raises(IllegalState, match="shut down"):
        producer._below.work()
    assert database.rows("SELECT FROM mqdb.client WHERE kind = 'PRODUCER'") == []


def test_a_shutdown_that_would_wait_for_its_own_loop_is_refused(database: Database) -> None:
    async def work(producer: AsyncProducer) -> None:
        with pytest.raises(IllegalState, match="waiting for this event loop"):
            producer.synchronous.shutdown()
        await producer.send(Message("orders", "second"))
        await producer.shutdown()
        producer.synchronous.shutdown()  # again: nothing happens

    run(database, work)
    assert stored_bodies(database) == ["first", "second"]


# -- sending ----------------------------------------------------------------------------------


def test_tasks_share_statements_and_each_gets_its_own_result(database: Database) -> None:
    async def work(producer: AsyncProducer) -> None:
        locker = stall(database)
        tasks = tasks_of(producer, 500)
        await until_blocked(database, producer)
        locker.rollback()
        results = await asyncio.gather(*tasks)

        rows = database.rows("SELECT log_pos, convert_from(body, 'UTF8'), xmin::text FROM mqdb.commit_log")
        stored = {log_pos: body for log_pos, body, _ in rows}
        assert [stored[result.log_pos] for result in results] == [str(n) for n in range(500)]
        assert len({xmin for *_, xmin in rows}) <= 3  # the first, those that were stalled, and all others
        assert {result.status for result in results} == {SendStatus.SEND_OK}

    run(database, work)


def test_a_batch_and_oneway_sends_are_stored_in_their_order(database: Database) -> None:
    async def work(producer: AsyncProducer) -> None:
        create_topic(database.connect(), "single", 1)
        batch = await producer.send_batch([Message("single", f"batch {n}") for n in range(10)])
        assert len({result.log_pos for result in batch}) == 10
        for n in range(50):
            await producer.send_oneway(Message("single", str(n)))

    run(database, work)

    assert stored_bodies(database)[1:] == [*(f"batch {n}" for n in range(10)), *map(str, range(50))]


def test_oneway_sends_wait_for_room(database: Database) -> None:
    async def main() -> None:
        settings = load_settings(dsn=database.dsn)
        async with AsyncProducer("senders", settings=settings, back_pressure_for_async_send_num=3) as producer:
            await producer.send(Message("orders", "first"))
            locker = stall(database)
            for n in range(3):
                await producer.send_oneway(Message("orders", str(n)))
            fourth = asyncio.create_task(producer.send_oneway(Message("orders", "3")))
            await until_blocked(database, producer)
            assert not fourth.done()
            locker.rollback()
            await fourth

    asyncio.run(main())

    assert stored_bodies(database) == ["first", "0", "1", "2", "3"]


def test_errors_are_those_of_producer(database: Database) -> None:
    async def work(producer: AsyncProducer) -> None:
        with pytest.raises(MessageIllegal):
            await producer.send(Message("orders", b""))
        with pytest.raises(ParameterInvalid, match="selector"):
            await producer.send(Message("orders", "x"), selector_argument=1)
        with pytest.raises(QueueNotFound):
            await producer.send(Message("orders", "x"), queue=MessageQueue("orders", "broker-a", 99))
        with pytest.raises(ParameterInvalid, match="give an AsyncConnection"):
            await producer.send(Message("orders", "x"), connection="no connection")  # type: ignore[arg-type]

    run(database, work)

    async def to_a_topic_that_is_missing() -> None:
        settings = load_settings(dsn=database.dsn, auto_create_topic_enable=False)
        async with AsyncProducer("senders", settings=settings) as producer:
            tasks = [asyncio.create_task(producer.send(Message("missing", str(n)))) for n in range(20)]
            answers = await asyncio.gather(*tasks, return_exceptions=True)
            assert {type(answer) for answer in answers} == {RouteNotFound}

    asyncio.run(to_a_topic_that_is_missing())

    async def unstarted() -> None:
        with pytest.raises(IllegalState, match="not started"):
            await AsyncProducer("senders", settings=load_settings(dsn=database.dsn)).send(Message("orders", "x"))

    asyncio.run(unstarted())


def test_hooks_see_the_sends_of_tasks(database: Database) -> None:
    attempts = Attempts()

    async def work(producer: AsyncProducer) -> None:
        producer.register_send_message_hook(attempts)
        await asyncio.gather(*tasks_of(producer, 10))

    run(database, work)

    assert len(attempts.begun) == len(attempts.ended) == 10


def test_loops_of_several_threads_share_a_producer(database: Database) -> None:
    async def send_all(producer: AsyncProducer, key: str) -> None:
        await asyncio.gather(*tasks_of(producer, 100, key))

    async def work(producer: AsyncProducer) -> None:
        threads = [Doing(lambda key=key: asyncio.run(send_all(producer, key))) for key in "abc"]  # type: ignore[misc]
        await send_all(producer, "d")
        await asyncio.to_thread(lambda: [thread.result() for thread in threads])

    run(database, work)

    assert Counter(stored_bodies(database)[1:]) == Counter(f"{key}{n}" for key in "abcd" for n in range(100))


def test_a_loop_that_is_gone_leaves_nothing_behind(database: Database) -> None:
    producer = AsyncProducer("senders", settings=load_settings(dsn=database.dsn))
    threads = set(threading.enumerate())

    async def start_and_send() -> None:
        await producer.start()
        await producer.send(Message("orders", "0"))

    async def send(number: int) -> None:
        await producer.send(Message("orders", str(number)))

    asyncio.run(start_and_send())
    descriptors = []
    for number in range(1, 4):
        asyncio.run(send(number))
        descriptors.append(len(os.listdir("/proc/self/fd")))
    asyncio.run(producer.shutdown())

    assert len(set(descriptors)) == 1
    assert set(threading.enumerate()) == threads
    assert stored_bodies(database) == ["0", "1", "2", "3"]


# -- cancelling -------------------------------------------------------------------------------


def test_a_send_that_is_cancelled_before_a_statement_has_it_is_not_made(database: Database) -> None:
    async def work(producer: AsyncProducer) -> None:
        locker = stall(database)
        [leading] = tasks_of(producer, 1, "leading ")
        await until_blocked(database, producer)
        waiting = tasks_of(producer, 10)
        await asyncio.sleep(0)  # they have begun
        for task in waiting[:5]:
            task.cancel()
        ended = await asyncio.gather(*waiting[:5], return_exceptions=True)
        assert {type(each) for each in ended} == {asyncio.CancelledError}
        assert not any(ids_that_may_be_stored(each) for each in ended if isinstance(each, BaseException))
        locker.rollback()
        await asyncio.gather(leading, *waiting[5:])

    run(database, work)

    assert stored_bodies(database) == ["first", "leading 0", *map(str, range(5, 10))]


def test_the_outcome_of_a_send_that_is_cancelled_in_a_statement_can_be_asked_for(database: Database) -> None:
    async def work(producer: AsyncProducer) -> None:
        locker = stall(database)

        async def send_until_blocked() -> None:
            async with asyncio.timeout(60) as limit:
                blocked = asyncio.create_task(until_blocked(database, producer))
                blocked.add_done_callback(lambda _: limit.reschedule(0))
                await producer.send(Message("orders", "second"))

        with pytest.raises(TimeoutError) as caught:
            await send_until_blocked()
        [message_id] = ids_that_may_be_stored(caught.value)
        outcome = asyncio.create_task(producer.outcome(message_id))
        await asyncio.sleep(0)
        locker.rollback()
        found = await outcome
        assert found is not None
        assert found.message_id == message_id
        assert (found.log_pos, "second") in database.rows(
            "SELECT log_pos, convert_from(body, 'UTF8') FROM mqdb.commit_log"
        )

    run(database, work)


def test_whenever_tasks_are_cancelled_each_send_was_not_made_or_has_an_outcome(database: Database) -> None:
    sys.stdout.write(f"seed {SEED}\n")
    chance = random.Random(SEED)
    is_stored: dict[str, bool] = {}
    endings: Counter[str] = Counter()

    async def send(producer: AsyncProducer, body: str) -> None:
        try:
            await producer.send(Message("orders", body))
        except asyncio.CancelledError as error:
            ids = ids_that_may_be_stored(error)
            endings["open" if ids else "not made"] += 1
            is_stored[body] = bool(ids) and await producer.outcome(ids[0]) is not None
        else:
            endings["stored"] += 1
            is_stored[body] = True

    async def work(producer: AsyncProducer) -> None:
        tasks = []
        for n in range(400):
            tasks.append(asyncio.create_task(send(producer, str(n))))
            if chance.random() < 0.5:
                await asyncio.sleep(chance.choice([0, 0, 0.0003, 0.001]))
            if chance.random() < 0.5 and (alive := [task for task in tasks if not task.cancelling()]):
                chance.choice(alive[-20:]).cancel()
        await asyncio.gather(*tasks, return_exceptions=True)  # some were cancelled before they began

    run(database, work)

    assert Counter(stored_bodies(database)[1:]) == Counter(body for body, stored in is_stored.items() if stored)
    assert set(endings) == {"stored", "open", "not made"}


# -- joining ----------------------------------------------------------------------------------

Join = Callable[[Any], Awaitable[Any]]


def check_joined(database: Database, joins: Callable[[Join, Join], Coroutine[Any, Any, None]]) -> None:
    """`joins` commits what the first call sends, and rolls back what the second one does."""

    async def work(producer: AsyncProducer) -> None:
        await joins(
            lambda connection: producer.send(Message("orders", "kept"), connection=connection),
            lambda connection: producer.send_batch([Message("orders", "gone")], connection=connection),
        )

    run(database, work)

    assert stored_bodies(database) == ["first", "kept"]


def test_a_connection_of_psycopg_is_joined(database: Database) -> None:
    async def joins(keep: Join, drop: Join) -> None:
        async with await psycopg.AsyncConnection.connect(database.dsn) as connection:
            await connection.execute("SELECT 1")
            await keep(connection)
            assert stored_bodies(database) == ["first"]
            await connection.commit()
            await drop(connection)
            await connection.rollback()

    check_joined(database, joins)


def test_a_joined_send_that_is_cancelled_stores_nothing_in_the_next_transaction(database: Database) -> None:
    class Waiting:
        """Keeps a send waiting in its thread, before its statement."""

        hook_name = "waiting"
        has_begun, may_go_on, has_ended = threading.Event(), threading.Event(), threading.Event()

        def send_message_before(self, _: SendMessageContext) -> None:
            self.has_begun.set()
            assert self.may_go_on.wait(30)

        def send_message_after(self, _: SendMessageContext) -> None:
            self.has_ended.set()

    async def work(producer: AsyncProducer) -> None:
        producer.register_send_message_hook(hook := Waiting())
        async with await psycopg.AsyncConnection.connect(database.dsn) as connection:
            sending = asyncio.create_task(producer.send(Message("orders", "x"), connection=connection))
            assert await asyncio.to_thread(hook.has_begun.wait, 30)
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
            await connection.rollback()
            hook.may_go_on.set()
            assert await asyncio.to_thread(hook.has_ended.wait, 30)
            await connection.commit()

    run(database, work)
    assert stored_bodies(database) == ["first"]


def test_a_joined_send_that_is_cancelled_cancels_its_statement(database: Database) -> None:
    async def work(producer: AsyncProducer) -> None:
        async with await psycopg.AsyncConnection.connect(database.dsn) as connection:
            pid = connection.info.backend_pid
            with stall(database):
                sending = asyncio.create_task(producer.send(Message("orders", "x"), connection=connection))
                await asyncio.to_thread(lambda: wait_until(lambda: is_blocked(database, pid)))
                sending.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await sending
                with pytest.raises(psycopg.errors.InFailedSqlTransaction):
                    await asyncio.wait_for(connection.execute("SELECT 1"), 30)

    run(database, work)
    assert stored_bodies(database) == ["first"]


def test_a_connection_and_a_session_of_sqlalchemy_are_joined(database: Database) -> None:
    pytest.importorskip("greenlet", reason="what is asynchronous in SQLAlchemy needs it")
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

    async def joins(keep: Join, drop: Join) -> None:
        engine = create_async_engine(url_of(database))
        async with engine.begin() as connection:
            await keep(connection)
            assert stored_bodies(database) == ["first"]
        async with AsyncSession(engine) as session:
            await drop(session)
            await session.rollback()
        await engine.dispose()

    check_joined(database, joins)


def test_a_joined_send_takes_no_timeout(database: Database) -> None:
    async def work(producer: AsyncProducer) -> None:
        async with await psycopg.AsyncConnection.connect(database.dsn) as connection:
            with pytest.raises(ParameterInvalid, match="statement_timeout"):
                await producer.send(Message("orders", "x"), connection=connection, timeout=timedelta(seconds=1))

    run(database, work)
