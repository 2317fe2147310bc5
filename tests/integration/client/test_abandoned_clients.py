"""Members that can no longer be used give their queues back, leave, and log one line about it."""

import asyncio
import gc
import itertools
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from sqlalchemy import Connection, text

from mqdb.errors import ParameterInvalid
from mqdb_client import (
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    LitePullConsumer,
    LocalTransactionState,
    PushConsumer,
)
from mqdb_client.aio import AsyncLitePullConsumer, AsyncPushConsumer, AsyncTransactionProducer
from tests.fixtures.aio_consumers import KINDS, Held
from tests.fixtures.broker import append, topic
from tests.fixtures.consumers import Inbox
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.variants import usually

FIRST = ConsumeFromWhere.FIRST_OFFSET
#: To a client another address is another broker, so it gets another instance.
ELSEWHERE = "&application_name=elsewhere"


def asyncio_run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def closed_at_once(work: Coroutine[Any, Any, None]) -> None:
    """Run work in a loop that is closed without cancelling anything in it."""
    loop = asyncio.new_event_loop()
    loop.run_until_complete(work)
    loop.close()


ENDS: dict[str, Callable[[Coroutine[Any, Any, None]], None]] = {"run": asyncio_run, "close": closed_at_once}


def clients(broker: Connection) -> int:
    return int(broker.scalar(text("SELECT count(*) FROM mqdb.client")) or 0)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The warnings and errors in mqdb's log."""
    records = [record for record in caplog.records if record.name.startswith("mqdb")]
    return [str(record.msg) for record in records if record.levelno >= logging.WARNING]


SAID = ["%(client)s leaves its group without shutdown(): %(reason)s"]


@pytest.mark.parametrize(
    ("kind", "end"),
    usually(
        *(("concurrent", "run"), ("orderly", "close"), ("transactional", "run")), of=itertools.product(KINDS, ENDS)
    ),
)
def test_a_push_consumer_whose_loop_is_closed_leaves_its_queues_to_others(
    broker: Connection, database: Database, kind: str, end: str, caplog: pytest.LogCaptureFixture
) -> None:
    route = topic(broker, queues=4)
    options, success = KINDS[kind]
    consumer = AsyncPushConsumer("readers", database.dsn, consume_from_where=FIRST)

    async def listener(*_: object) -> Any:
        return success

    async def work() -> None:
        await consumer.subscribe("orders")
        consumer.register_listener(listener, **options)
        await consumer.start()

    ENDS[end](work())
    inbox = Inbox()
    other = PushConsumer("readers", database.dsn + ELSEWHERE, consume_from_where=FIRST)
    other.subscribe("orders")
    other.register_listener(inbox)
    with other:
        wait_until(lambda: len(other.assignment) == 4)
        for queue_id in range(4):
            append(broker, route, *map(str, range(4)), queue_id=queue_id)
        inbox.wait_for(16)

    assert warnings(caplog) == SAID
    asyncio.run(consumer.shutdown())
    assert clients(broker) == 0


@pytest.mark.parametrize("kind", usually("transactional", of=KINDS))
def test_a_message_in_hand_of_a_loop_that_is_closed_comes_to_another_member_and_has_not_failed(
    broker: Connection, database: Database, kind: str
) -> None:
    append(broker, topic(broker), "x")
    held: list[Held] = []

    async def work() -> None:
        held.append(Held(kind))
        consumer = AsyncPushConsumer("readers", database.dsn, consume_from_where=FIRST)
        await consumer.subscribe("orders")
        consumer.register_listener(held[0], **KINDS[kind][0])
        await consumer.start()
        await held[0].begun.wait()

    closed_at_once(work())
    inbox = Inbox()
    other = PushConsumer("readers", database.dsn + ELSEWHERE, consume_from_where=FIRST)
    other.subscribe("orders")
    other.register_listener(inbox)
    with other:
        inbox.wait_for(1)

    assert [message.reconsume_times for message in inbox.messages] == [0]


@pytest.mark.parametrize("end", ENDS)
def test_a_lite_pull_consumer_whose_loops_are_closed_leaves(
    broker: Connection, database: Database, end: str, caplog: pytest.LogCaptureFixture
) -> None:
    append(broker, topic(broker), "x", "y")
    consumer = AsyncLitePullConsumer("readers", database.dsn, consume_from_where=FIRST)
    loop = asyncio.new_event_loop()

    async def start() -> None:
        await consumer.subscribe("orders")
        await consumer.start()

    async def poll() -> None:
        assert await consumer.poll()

    loop.run_until_complete(start())
    ENDS[end](poll())
    assert consumer.is_running
    loop.close()
    wait_until(lambda: not consumer.is_running)
    wait_until(lambda: clients(broker) == 0)

    assert warnings(caplog) == SAID


@pytest.mark.parametrize("kind", [LitePullConsumer, AsyncLitePullConsumer])
def test_a_lite_pull_consumer_that_the_program_drops_leaves(
    broker: Connection, database: Database, kind: type, caplog: pytest.LogCaptureFixture
) -> None:
    topic(broker)
    ended = threading.Event()

    async def use() -> None:
        consumer = AsyncLitePullConsumer("readers", database.dsn)
        await consumer.subscribe("orders")
        await consumer.start()
        del consumer
        gc.collect()
        await asyncio.to_thread(wait_until, lambda: clients(broker) == 0)
        ended.set()

    if kind is AsyncLitePullConsumer:
        asyncio.run(use())
        assert ended.is_set()
    else:
        consumer = LitePullConsumer("readers", database.dsn)
        consumer.subscribe("orders")
        consumer.start()
        del consumer
        gc.collect()
        wait_until(lambda: clients(broker) == 0)

    assert warnings(caplog) == SAID


def test_a_transaction_producer_whose_loop_is_closed_is_asked_no_more(
    broker: Connection, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    async def execute(*_: object) -> LocalTransactionState:
        return LocalTransactionState.UNKNOWN

    producer = AsyncTransactionProducer(
        "orders", database.dsn, execute_local_transaction=execute, check_local_transaction=lambda_check
    )
    asyncio.run(producer.start())
    wait_until(lambda: clients(broker) == 0)

    assert warnings(caplog) == SAID


async def lambda_check(_message: object) -> LocalTransactionState:
    return LocalTransactionState.UNKNOWN


def test_no_thread_looks_when_the_last_client_has_left(broker: Connection, database: Database) -> None:
    def looking() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name == "mqdb-looks"]

    topic(broker)
    consumers = [LitePullConsumer(group, database.dsn) for group in ("one", "two")]
    for consumer in consumers:
        consumer.subscribe("orders")
        consumer.start()
    assert len(looking()) == 1
    consumers[0].shutdown()
    assert len(looking()) == 1
    consumers[1].shutdown()
    assert looking() == []


@pytest.mark.parametrize(
    "kind", usually("push consumer", of=["push consumer", "lite pull consumer", "transaction producer"])
)
def test_a_client_whose_loop_is_closed_while_it_starts_leaves(
    broker: Connection, database: Database, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    topic(broker)
    waits = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = %s"
    locker = database.connect(autocommit=False)

    async def execute(*_: object) -> LocalTransactionState:
        return LocalTransactionState.UNKNOWN

    async def consume(_messages: object) -> ConsumeConcurrentlyStatus:
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    async def work() -> None:
        client: AsyncPushConsumer | AsyncLitePullConsumer | AsyncTransactionProducer
        if kind == "transaction producer":
            client = AsyncTransactionProducer(
                "orders", database.dsn, execute_local_transaction=execute, check_local_transaction=lambda_check
            )
        else:
            client = (
                AsyncPushConsumer("readers", database.dsn)
                if "push" in kind
                else AsyncLitePullConsumer("readers", database.dsn)
            )
            await client.subscribe("orders")
        if isinstance(client, AsyncPushConsumer):
            client.register_listener(consume)
        clients_started.append(client)
        locker.execute("LOCK TABLE mqdb.client")
        starting.append(asyncio.create_task(client.start()))
        await asyncio.to_thread(wait_until, lambda: database.rows(waits, database.name))

    clients_started: list[object] = []
    starting: list[asyncio.Task[None]] = []
    closed_at_once(work())
    locker.rollback()
    wait_until(lambda: warnings(caplog) == SAID)
    wait_until(lambda: clients(broker) == 0)


def test_a_shutdown_that_is_refused_leaves_the_watch(
    broker: Connection, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    topic(broker)

    async def consume(_messages: object) -> ConsumeConcurrentlyStatus:
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    async def work() -> None:
        consumer = AsyncPushConsumer("readers", database.dsn)
        await consumer.subscribe("orders")
        consumer.register_listener(consume)
        await consumer.start()
        with pytest.raises(ParameterInvalid):
            await consumer.shutdown(5)  # type: ignore[arg-type]

    closed_at_once(work())
    wait_until(lambda: clients(broker) == 0)

    assert warnings(caplog) == SAID
