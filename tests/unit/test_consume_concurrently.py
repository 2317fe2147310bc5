"""The threads that call the listener: how many, with what, and what becomes of its answers."""

import logging
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from mqdb.message import MessageQueue, ReceivedMessage
from mqdb.store.consumer_offsets import OwnedQueue
from mqdb_client.consumer.consume_concurrently import ConsumeConcurrently
from mqdb_client.consumer.message_listener import ConsumeConcurrentlyStatus
from mqdb_client.consumer.process_queue import FlowLimits, ProcessQueue
from tests.fixtures.processes import wait_until

SUCCESS = ConsumeConcurrentlyStatus.CONSUME_SUCCESS
LATER = ConsumeConcurrentlyStatus.RECONSUME_LATER
LIMITS = FlowLimits(messages=1_000, body_bytes=1_000_000, span=2_000)

Consuming = Callable[..., ConsumeConcurrently]


def queue_of(queue_id: int = 0, limits: FlowLimits = LIMITS) -> ProcessQueue:
    return ProcessQueue(MessageQueue("orders", "broker-a", queue_id), OwnedQueue(queue_id, 1, 0, 0), limits)


def deliver(consume: ConsumeConcurrently, queue: ProcessQueue, count: int) -> None:
    first = queue.next_offset
    messages = [
        ReceivedMessage(queue.queue, n, n, uuid.UUID(int=n), None, None, {}, b"x", 0, 0, "h", 0, 0, 0, 0, 0)
        for n in range(first, first + count)
    ]
    queue.put(messages, first + count, 0)
    consume.submit(queue, count)


@pytest.fixture
def progress() -> list[ProcessQueue]:
    """The queues of which progress was told."""
    return []


@pytest.fixture
def consuming(progress: list[ProcessQueue]) -> Iterator[Consuming]:
    """Starts consumption by a listener; failed messages come again at once."""
    started: list[ConsumeConcurrently] = []

    def start(listener: Any, *, threads: int = 4, batch: int = 1, delay: timedelta = timedelta(0)) -> Any:
        consume = ConsumeConcurrently(
            "readers",
            listener,
            thread_nums=threads,
            batch_max_size=batch,
            on_progress=progress.append,
            reconsume_delay=delay,
        )
        consume.start()
        started.append(consume)
        return consume

    yield start
    for consume in started:
        assert consume.stop(10) == 0


def test_as_many_listeners_run_at_once_as_there_are_threads(consuming: Consuming) -> None:
    meeting = threading.Barrier(4)
    queue = queue_of()

    def listener(_messages: list[ReceivedMessage]) -> ConsumeConcurrentlyStatus:
        meeting.wait(10)
        return SUCCESS

    consume = consuming(listener, threads=4)
    deliver(consume, queue, 4)

    wait_until(lambda: len(queue) == 0)


@pytest.mark.parametrize(("batch", "sizes"), [(1, [1] * 10), (4, [4, 4, 2]), (32, [10])])
def test_batches_are_as_large_as_allowed(consuming: Consuming, batch: int, sizes: list[int]) -> None:
    found: list[int] = []
    queue = queue_of()

    def listener(messages: list[ReceivedMessage]) -> ConsumeConcurrentlyStatus:
        found.append(len(messages))
        return SUCCESS

    deliver(consuming(listener, threads=1, batch=batch), queue, 10)
    wait_until(lambda: len(queue) == 0)

    assert found == sizes


@pytest.mark.parametrize(
    "failure",
    [lambda: LATER, lambda: None, lambda: "yes", lambda: 1 / 0, sys.exit],
    ids=["RECONSUME_LATER", "None", "another value", "exception", "sys.exit"],
)
def test_what_fails_is_consumed_again_and_nothing_else_is(
    consuming: Consuming, failure: Callable[[], object], caplog: pytest.LogCaptureFixture
) -> None:
    offsets: list[int] = []
    queue = queue_of()

    def listener(messages: list[ReceivedMessage]) -> object:
        offset = messages[0].queue_offset
        offsets.append(offset)
        return failure() if offset == 1 and offsets.count(1) < 3 else SUCCESS

    deliver(consuming(listener, threads=1), queue, 3)
    wait_until(lambda: len(queue) == 0)

    assert sorted(offsets) == [0, 1, 1, 1, 2]
    assert queue.position().next_offset == 3


def test_a_listener_that_asks_for_later_is_no_error(consuming: Consuming, caplog: pytest.LogCaptureFixture) -> None:
    answers = [SUCCESS, LATER]
    queue = queue_of()

    deliver(consuming(lambda _messages: answers.pop()), queue, 1)
    wait_until(lambda: len(queue) == 0)

    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_what_a_listener_does_to_its_list_does_not_matter(consuming: Consuming) -> None:
    queue = queue_of()

    def listener(messages: list[ReceivedMessage]) -> ConsumeConcurrentlyStatus:
        messages.clear()
        return SUCCESS

    deliver(consuming(listener, batch=4), queue, 10)

    wait_until(lambda: len(queue) == 0)


def test_queues_that_were_dropped_are_not_consumed(consuming: Consuming, progress: list[ProcessQueue]) -> None:
    offsets: list[int] = []
    entered, leave = threading.Event(), threading.Event()
    queue = queue_of()

    def listener(messages: list[ReceivedMessage]) -> ConsumeConcurrentlyStatus:
        offsets.append(messages[0].queue_offset)
        entered.set()
        assert leave.wait(10)
        return SUCCESS

    deliver(consuming(listener, threads=1), queue, 3)
    assert entered.wait(10)
    queue.drop()
    assert not queue.is_settled
    leave.set()
    wait_until(lambda: progress == [queue])

    assert offsets == [0]
    assert queue.is_settled


def test_a_queue_with_room_again_is_told(consuming: Consuming, progress: list[ProcessQueue]) -> None:
    queue = queue_of(limits=FlowLimits(messages=4, body_bytes=1_000, span=1_000))
    leave = threading.Event()

    def listener(_messages: list[ReceivedMessage]) -> ConsumeConcurrentlyStatus:
        assert leave.wait(10)
        return SUCCESS

    deliver(consuming(listener, threads=1), queue, 6)
    assert not queue.has_room()
    leave.set()
    wait_until(lambda: len(queue) == 0)

    assert progress == [queue]


def test_failed_messages_do_not_keep_it_from_stopping(consuming: Consuming) -> None:
    queue = queue_of()
    failed = threading.Event()

    def listener(_messages: list[ReceivedMessage]) -> ConsumeConcurrentlyStatus:
        failed.set()
        return LATER

    consume = consuming(listener, delay=timedelta(hours=1))
    deliver(consume, queue, 5)
    assert failed.wait(10)

    assert consume.stop(10) == 0
    assert queue.position().next_offset == 0


def test_a_listener_that_does_not_return_is_left_behind(consuming: Consuming) -> None:
    entered, leave = threading.Event(), threading.Event()
    queue = queue_of()

    def listener(_messages: list[ReceivedMessage]) -> ConsumeConcurrentlyStatus:
        entered.set()
        assert leave.wait(10)
        return SUCCESS

    consume = consuming(listener, threads=3)
    deliver(consume, queue, 1)
    assert entered.wait(10)

    assert consume.stop(0.01) == 1
    leave.set()
