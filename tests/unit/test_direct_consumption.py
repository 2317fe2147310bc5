"""The result reported when a listener is asked to consume one message directly."""

import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from mqdb.common.message import MessageQueue
from mqdb.common.received_message import ReceivedMessage
from mqdb.store.consumers.consumer_offsets import OwnedQueue
from mqdb_client import ConsumeConcurrentlyStatus
from mqdb_client.consumer.listeners.direct_consumption import (
    ConsumeMessageDirectlyResult,
    DirectResult,
    consume_directly,
    judge,
)
from mqdb_client.consumer.listeners.message_listener import ConsumeOrderlyContext, ConsumeOrderlyStatus
from mqdb_client.consumer.listeners.running_calls import RunningCall
from mqdb_client.consumer.queues.process_queue import FlowLimits, ProcessQueue
from tests.fixtures.processes import wait_until


def message() -> ReceivedMessage:
    queue = MessageQueue("orders", "broker-a", 0)
    return ReceivedMessage(queue, 7, 9, b"\0" * 16, None, None, {}, b"body", 0, 0, "here", 0, 0, 0, 0, 8)


def judged(call: Callable[[], object]) -> ConsumeMessageDirectlyResult:
    """The result for a message whose listener makes this call."""
    return judge("readers", message(), call)


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        (ConsumeConcurrentlyStatus.CONSUME_SUCCESS, "CR_SUCCESS"),
        (ConsumeConcurrentlyStatus.RECONSUME_LATER, "CR_LATER"),
        (ConsumeOrderlyStatus.SUCCESS, "CR_SUCCESS"),
        (ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT, "CR_LATER"),
        (ConsumeOrderlyStatus.COMMIT, "CR_COMMIT"),
        (ConsumeOrderlyStatus.ROLLBACK, "CR_ROLLBACK"),
        (None, "CR_RETURN_NULL"),
    ],
    ids=str,
)
def test_row_73_each_answer_has_its_result(answer: object, result: str) -> None:
    """Checklist row 73, for each answer: every listener answer has its result."""
    told = judged(lambda: answer)

    assert (told.result, told.remark, told.traceback) == (result, "", "")


@pytest.mark.parametrize("answer", ["fine\0", 7, {"a": 1}], ids=["text", "number", "unhashable"])
def test_an_answer_that_means_nothing_counts_as_later_and_is_told(answer: object) -> None:
    told = judged(lambda: answer)

    assert told.result is DirectResult.CR_LATER
    assert told.remark.startswith("the listener returned ")
    assert "\0" not in told.remark


def raising(error: BaseException) -> Any:
    raise error


@pytest.mark.parametrize("error", [ValueError("no\0price"), SystemExit("no")], ids=["exception", "exit"])
def test_an_exception_is_told_with_its_traceback(error: BaseException) -> None:
    told = judged(lambda: raising(error))

    assert told.result is DirectResult.CR_THROW_EXCEPTION
    assert type(error).__name__ in told.remark
    assert "no" in told.remark
    assert "raising" in told.traceback
    assert "\0" not in told.remark + told.traceback


def test_it_is_told_how_long_it_took() -> None:
    waiting = threading.Event()

    assert judged(lambda: waiting.wait(0.02)).spent_ms >= 20


def test_a_listener_gets_the_message_and_a_context_if_it_wants_one() -> None:
    given: list[Any] = []

    def plain(messages: list[ReceivedMessage]) -> ConsumeConcurrentlyStatus:
        given.append(messages)
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    def orderly(messages: list[ReceivedMessage], context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
        given.append((messages, context.queue))
        return ConsumeOrderlyStatus.COMMIT

    one = message()
    results = [consume_directly("readers", plain, one), consume_directly("readers", orderly, one, orderly=True)]

    assert given == [[one], ([one], one.queue)]
    assert [(told.result, told.is_orderly) for told in results] == [("CR_SUCCESS", False), ("CR_COMMIT", True)]


def call_of(thread_id: int) -> RunningCall:
    queue = ProcessQueue(message().queue, OwnedQueue(7, 1, 0, 0), FlowLimits(1, 1, 1))
    return RunningCall(queue, [message()], thread_id)


def test_a_running_call_tells_where_its_thread_is() -> None:
    released = threading.Event()

    def wait_here() -> None:
        released.wait(60)

    thread = threading.Thread(target=wait_here, name="stuck")
    thread.start()
    assert thread.ident is not None
    call = call_of(thread.ident)
    try:
        wait_until(lambda: "released.wait(60)" in str(call.describe()["stack"]))
        told = call.describe()
    finally:
        released.set()
        thread.join()

    assert "wait_here" in str(told["stack"])
    assert "released.wait(60)" in str(told["stack"])
    assert told["thread"] == "stuck"


def test_a_thread_that_has_ended_has_no_stack() -> None:
    told = call_of(sys.maxsize).describe()

    assert (told["stack"], told["thread"]) == (None, None)
