"""The tasks that run an asynchronous listener leave no message behind."""

import asyncio
import gc
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from mqdb.common.received_message import ReceivedMessage
from mqdb_client.consumer.listeners.consume_in_loop import ConsumeInLoop
from mqdb_client.consumer.listeners.message_listener import ConsumeConcurrentlyStatus
from mqdb_client.consumer.queues.process_queue import ProcessQueue
from tests.fixtures.aio_consumers import until
from tests.fixtures.odd_errors import failing_log
from tests.fixtures.orderly import DeadLetters, queue_of, received


async def listener(messages: list[ReceivedMessage]) -> ConsumeConcurrentlyStatus:
    if messages[0].queue_offset == 1:
        raise ValueError("no stock")
    return ConsumeConcurrentlyStatus.CONSUME_SUCCESS


def consume_in_loop(listener: Any) -> ConsumeInLoop:
    """Two tasks of this loop that consume from now on."""
    tasks = ConsumeInLoop(
        "readers",
        listener,
        ["broker-a"],
        loop=asyncio.get_running_loop(),
        host="host",
        thread_nums=2,
        batch_max_size=1,
        send_back=DeadLetters(),
    )
    tasks.start()
    tasks.threads.begin()
    return tasks


def consuming(work: Callable[[ConsumeInLoop], Coroutine[Any, Any, None]]) -> None:
    """Run a coroutine in a loop in which a listener consumes."""

    async def consume() -> None:
        tasks = consume_in_loop(listener)
        try:
            await work(tasks)
        finally:
            await asyncio.to_thread(tasks.stop, 30)

    asyncio.run(consume())


def deliver(consume: ConsumeInLoop, queue: ProcessQueue, count: int) -> None:
    queue.put([received(queue, offset) for offset in range(count)], count, 0)
    consume.submit(queue, count)


def test_a_task_that_is_cancelled_before_it_has_begun_leaves_no_message_in_hand() -> None:
    queue = queue_of()

    async def work(consume: ConsumeInLoop) -> None:
        cancelled: list[asyncio.Task[Any]] = []

        def cancelling(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
            task = asyncio.Task(work, loop=loop, **options)
            if work.__name__ == "_consume_in_task" and len(cancelled) < 3:
                task.cancel()
                cancelled.append(task)
            return task

        asyncio.get_running_loop().set_task_factory(cancelling)
        deliver(consume, queue, 5)
        await until(lambda: len(queue) == 0)
        assert len(cancelled) == 3

    consuming(work)

    assert queue.position().next_offset == 5


def test_a_queue_is_dropped_when_consuming_fails_in_an_unforeseen_way() -> None:
    """A failing log handler is one unforeseen error. The broker delivers the messages again."""
    queue = queue_of()
    unseen: list[object] = []

    async def work(consume: ConsumeInLoop) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unseen.append(context))
        deliver(consume, queue, 3)
        await until(lambda: queue.is_settled)
        assert consume.calls.current() == []

    with failing_log():
        consuming(work)

    assert unseen == []


def test_no_call_begins_when_asyncio_run_cancels_the_others(caplog: pytest.LogCaptureFixture) -> None:
    """No listener call begins once `asyncio.run` cancels the tasks, which it does once, at its end.

    Later tasks would be destroyed, each with a log line.
    """
    begun: list[int] = []
    queue = queue_of()

    async def hold(messages: list[ReceivedMessage]) -> ConsumeConcurrentlyStatus:
        begun.append(messages[0].queue_offset)
        await asyncio.sleep(3_600)
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    async def work() -> ConsumeInLoop:
        consume = consume_in_loop(hold)
        deliver(consume, queue, 10)
        while len(begun) < 2:
            await asyncio.sleep(0)
        return consume

    consume = asyncio.run(work())
    consume.stop(0)
    gc.collect()

    assert begun == [0, 1]
    assert [record for record in caplog.records if record.name == "asyncio"] == []
