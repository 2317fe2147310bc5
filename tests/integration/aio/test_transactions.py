"""The asyncio transaction producer: the thread of its listener, and the state after a cancelled send.

The tests of `TransactionProducer` also run for it: see `tests.fixtures.loop_clients`.
"""

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import Any

import pytest
from sqlalchemy import Connection

from mqdb.common.received_message import ReceivedMessage
from mqdb.common.transaction import LocalTransactionState
from mqdb.errors import IllegalState, ParameterInvalid
from mqdb.settings import load_settings
from mqdb_client import Message, PreparedMessage, TransactionProducer
from mqdb_client.aio import AsyncTransactionProducer, ids_that_may_be_stored
from mqdb_client.process_hooks import OperationContext, operations
from tests.fixtures.broker import topic
from tests.fixtures.delay import delivered
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.transactions import COMMIT, ROLLBACK, SECOND, UNKNOWN, Checker, halves

ORDER = Message("orders", "half", "paid", "order-17", {"a": "b"})

_names = itertools.count(1)


class Asked:
    """A listener that gives the test's answers, and records the check-backs."""

    def __init__(self, executed: LocalTransactionState | None = UNKNOWN, checked: Any = UNKNOWN) -> None:
        self.executed = executed
        self.checked = checked
        self.arguments: list[Any] = []
        self.loops: set[asyncio.AbstractEventLoop] = set()
        self.checks: list[ReceivedMessage] = []

    async def execute_local_transaction(self, message: PreparedMessage, argument: Any) -> LocalTransactionState | None:
        self.loops.add(asyncio.get_running_loop())
        self.arguments.append(argument)
        await asyncio.sleep(0)
        return self.executed

    async def check_local_transaction(self, message: ReceivedMessage) -> LocalTransactionState | None:
        self.loops.add(asyncio.get_running_loop())
        self.checks.append(message)
        await asyncio.sleep(0)
        answer: LocalTransactionState | None = self.checked() if callable(self.checked) else self.checked
        return answer


def run(
    database: Database, listener: Any, work: Callable[[AsyncTransactionProducer], Coroutine[Any, Any, None]]
) -> None:
    async def main() -> None:
        settings = load_settings(dsn=f"{database.dsn}&application_name=aio{next(_names)}")
        async with AsyncTransactionProducer("senders", settings=settings, listener=listener) as producer:
            await work(producer)

    asyncio.run(main())


def until(condition: Callable[[], object]) -> "Coroutine[Any, Any, None]":
    return asyncio.to_thread(lambda: wait_until(condition))


@pytest.mark.parametrize(("answer", "bodies"), [(COMMIT, ["half"]), (ROLLBACK, [])], ids=["commit", "rollback"])
def test_the_listener_runs_in_the_loop_and_says_what_becomes_of_the_message(
    broker: Connection, database: Database, answer: LocalTransactionState, bodies: list[str]
) -> None:
    topic(broker)
    listener = Asked(answer)

    async def work(producer: AsyncTransactionProducer) -> None:
        result = await producer.send_in_transaction(ORDER, 17)
        assert (result.local_transaction_state, result.transaction_id) == (answer, result.message_id)
        assert listener.loops == {asyncio.get_running_loop()}
        assert delivered(broker) == bodies

    run(database, listener, work)
    assert listener.arguments == [17]


@pytest.mark.parametrize("answer", [None, UNKNOWN], ids=repr)
def test_a_check_is_answered_in_the_loop(
    broker: Connection, database: Database, answer: LocalTransactionState | None
) -> None:
    topic(broker)
    listener = Asked(answer, COMMIT)

    async def work(producer: AsyncTransactionProducer) -> None:
        result = await producer.send_in_transaction(ORDER)
        assert result.local_transaction_state is UNKNOWN
        await asyncio.to_thread(lambda: Checker(broker).after(7 * SECOND))
        await until(lambda: delivered(broker) == ["half"])
        assert [message.message_id for message in listener.checks] == [result.message_id]
        assert listener.loops == {asyncio.get_running_loop()}

    run(database, listener, work)


def test_a_check_sees_the_context_of_its_trace(
    broker: Connection, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic(broker)
    trace: ContextVar[str] = ContextVar("trace")
    seen: list[str] = []

    class Hook:
        hook_name = "test"

        def operation_before(self, context: OperationContext) -> None:
            trace.set(context.message_ids[0])

        def operation_after(self, context: OperationContext) -> None:
            pass

    listener = Asked(checked=lambda: seen.append(trace.get()))
    monkeypatch.setattr(operations, "is_empty", True)
    monkeypatch.setattr(operations, "_hooks", ())

    async def work(producer: AsyncTransactionProducer) -> None:
        result = await producer.send_in_transaction(ORDER)
        operations.adopt(Hook())
        await asyncio.to_thread(lambda: Checker(broker).after(7 * SECOND))
        await until(lambda: seen)
        assert seen == [result.message_id]

    run(database, listener, work)


def test_tasks_run_their_transactions_at_the_same_time(broker: Connection, database: Database) -> None:
    topic(broker)
    running = 0
    all_run = asyncio.Event()

    async def execute(message: PreparedMessage, argument: Any) -> LocalTransactionState:
        nonlocal running
        running += 1
        if running == 100:
            all_run.set()
        await all_run.wait()
        return COMMIT

    async def check(message: ReceivedMessage) -> LocalTransactionState:
        return UNKNOWN

    async def main() -> None:
        producer = AsyncTransactionProducer(
            "senders", database.dsn, execute_local_transaction=execute, check_local_transaction=check
        )
        async with producer, asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            for _ in range(100):
                tasks.create_task(producer.send_in_transaction(ORDER))

    asyncio.run(main())
    assert len(delivered(broker)) == 100


def test_a_transaction_that_is_cancelled_is_asked_about(broker: Connection, database: Database) -> None:
    topic(broker)

    class Slow(Asked):
        async def execute_local_transaction(self, message: PreparedMessage, argument: Any) -> LocalTransactionState:
            argument.set()
            await asyncio.sleep(60)
            return COMMIT

    listener = Slow(checked=ROLLBACK)

    async def work(producer: AsyncTransactionProducer) -> None:
        begun = asyncio.Event()
        task = asyncio.create_task(producer.send_in_transaction(ORDER, begun))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
        [message_id] = ids_that_may_be_stored(caught.value)
        await asyncio.to_thread(lambda: Checker(broker).after(7 * SECOND))
        await until(lambda: [half["state"] for half in halves(broker)] == ["ROLLED_BACK"])
        assert [message.message_id for message in listener.checks] == [message_id]

    run(database, listener, work)


def test_a_check_cannot_shut_its_producer_down_and_one_that_is_cancelled_has_not_answered(
    broker: Connection, database: Database
) -> None:
    topic(broker)
    said: list[str] = []

    class Listener(Asked):
        async def check_local_transaction(self, message: ReceivedMessage) -> LocalTransactionState:
            if said:
                return COMMIT
            try:
                await producers[0].shutdown()
            except IllegalState as error:
                said.append(str(error))
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(60)
            return ROLLBACK

    producers: list[AsyncTransactionProducer] = []

    async def work(producer: AsyncTransactionProducer) -> None:
        producers.append(producer)
        await producer.send_in_transaction(ORDER)
        checker = Checker(broker)
        await asyncio.to_thread(lambda: checker.after(7 * SECOND))
        await until(lambda: said and [half["check_client"] for half in halves(broker)] == [None])
        await asyncio.to_thread(lambda: checker.after(31 * SECOND))
        await until(lambda: delivered(broker) == ["half"])

    run(database, Listener(), work)
    assert "call shutdown() in another task" in said[0]


def test_listeners_of_the_other_kind_are_refused(database: Database) -> None:
    async def coroutine_function(*_: object) -> LocalTransactionState:
        return COMMIT

    def function(*_: object) -> Any:
        return COMMIT

    for execute, check in ((function, coroutine_function), (coroutine_function, function)):
        functions = {"execute_local_transaction": execute, "check_local_transaction": check}
        with pytest.raises(ParameterInvalid, match="write async def"):
            AsyncTransactionProducer("senders", database.dsn, **functions)  # type: ignore[arg-type]
        with pytest.raises(ParameterInvalid, match="AsyncTransactionProducer"):
            TransactionProducer("senders", database.dsn, **functions)  # type: ignore[arg-type]
    with pytest.raises(ParameterInvalid, match="listener"):
        AsyncTransactionProducer("senders", database.dsn)
