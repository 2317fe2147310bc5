"""Asynchronous orderly and exactly-once listeners.

The tests of threaded listeners also run for them: see `tests.fixtures.loop_consumers`.
"""

import asyncio
import json
from pathlib import Path

from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from mqdb.common.group import MessageModel
from mqdb.store.consumers.consumer_offsets import committed_offsets
from mqdb_client import Admin, ConsumeConcurrentlyStatus, ConsumeOrderlyStatus, DirectResult, Message, Producer
from mqdb_client.aio import AsyncProducer
from tests.fixtures.aio_consumers import WRITE, Messages, bodies, client_id_of, consumer_of, run, until
from tests.fixtures.broker import append, dispatch_all, topic
from tests.fixtures.postgres import Database
from tests.fixtures.retries import dead_letters, scheduled
from tests.fixtures.transactional import SlowCommit

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


def test_what_a_session_writes_and_sends_is_committed_with_the_offset(
    aio_ledger: Connection, database: Database
) -> None:
    route = topic(aio_ledger)
    topic(aio_ledger, "invoices")
    append(aio_ledger, route, *map(str, range(10)))
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
            await until(lambda: len(bodies(aio_ledger)) == 8 and len(dead_letters(aio_ledger)) == 2)

    run(work)
    assert bodies(aio_ledger) == ["0", "1", "2", "4", "5", "7", "8", "9"]
    assert [letter[0] for letter in dead_letters(aio_ledger)] == ["3", "6"]
    assert committed_offsets(aio_ledger, "readers", route.queue_keys) == {route.queue_keys[0]: 10}
    dispatch_all(aio_ledger)  # who has shut down may not have come to that
    sent = aio_ledger.scalars(text("SELECT text FROM mqdb.message WHERE topic = 'invoices' ORDER BY log_pos"))
    assert list(sent) == bodies(aio_ledger)


def test_a_statement_that_its_listener_gives_up_has_failed_and_is_no_lost_connection(
    aio_ledger: Connection, database: Database
) -> None:
    """A statement that its listener gives up has failed, but does not count as a lost connection.

    SQLAlchemy closes the connection of a cancelled task; otherwise the broker would count as down.
    """
    append(aio_ledger, topic(aio_ledger), "slow", "good")
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
            await until(lambda: bodies(aio_ledger) == ["good"] and dead_letters(aio_ledger))

    run(work)
    assert [letter[0] for letter in dead_letters(aio_ledger)] == ["slow"]
    assert len(set(pids)) == 1


def test_a_commit_that_is_cancelled_happens_once(aio_ledger: Connection, database: Database) -> None:
    append(aio_ledger, topic(aio_ledger), *map(str, range(10)))

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
            await until(lambda: len(bodies(aio_ledger)) == 10)

    run(work)
    assert bodies(aio_ledger) == [str(number) for number in range(10)]
    assert scheduled(aio_ledger) == []


def test_a_message_is_consumed_in_a_transaction_when_somebody_asks_for_it(
    aio_ledger: Connection, database: Database
) -> None:
    topic(aio_ledger)

    async def listener(messages: Messages, connection: AsyncConnection) -> ConsumeConcurrentlyStatus:
        await connection.execute(WRITE, {"body": messages[0].body.decode()})
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    async def work() -> None:
        async with consumer_of(database.dsn, listener, "transactional") as consumer:
            with Producer("senders", database.dsn) as producer:
                sent = await asyncio.to_thread(producer.send, Message("orders", "x"))
            await until(lambda: bodies(aio_ledger) == ["x"])

            def ask() -> DirectResult:
                with Admin(database.dsn) as admin:
                    consumers = admin.on("broker-a").consumers
                    return consumers.consume(client_id_of(consumer), "readers", sent.message_id).result.result

            assert await asyncio.to_thread(ask) is DirectResult.CR_SUCCESS

    run(work)
    assert bodies(aio_ledger) == ["x", "x"]
