"""The answers of an orderly listener, and their effects on its messages."""

import itertools
import sys
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from mqdb.broker.consumers.send_back import SendBackRequest
from mqdb_client.consumer.listeners.message_listener import ConsumeOrderlyContext, ConsumeOrderlyStatus
from mqdb_client.consumer.listeners.orderly_verdict import clamp
from mqdb_client.consumer.listeners.queue_line import LinedQueue, QueueLine
from tests.fixtures.odd_errors import failing_log
from tests.fixtures.orderly import (
    COMMIT,
    ROLLBACK,
    SUCCESS,
    SUSPEND,
    DeadLetters,
    Messages,
    Orderly,
    Script,
    deliver,
    queue_of,
    refuse,
)
from tests.fixtures.processes import wait_until

# -- what the listener answers ------------------------------------------------------------------


@pytest.mark.parametrize(
    "failure",
    [SUSPEND, None, "yes", lambda: 1 / 0, sys.exit, list],
    ids=["SUSPEND", "None", "another value", "exception", "sys.exit", "unhashable"],
)
def test_what_fails_blocks_its_queue_and_comes_again(orderly: Orderly, failure: object) -> None:
    """Checklist row 62: a failed message blocks its queue, and is delivered again with the count of its deliveries."""
    script = Script(SUCCESS, failure, failure)
    queue = queue_of()

    deliver(orderly(script), queue, 3)
    wait_until(lambda: len(queue) == 0)

    assert script.calls == [[0], [1], [1], [1], [2]]
    assert script.reconsume_times == [0, 0, 1, 2, 0]
    assert queue.position().next_offset == 3


def test_a_batch_that_fails_comes_again_before_all_others(orderly: Orderly) -> None:
    script = Script(SUSPEND)
    queue = queue_of()

    deliver(orderly(script, batch=3), queue, 7)
    wait_until(lambda: len(queue) == 0)

    assert script.calls == [[0, 1, 2], [0, 1, 2], [3, 4, 5], [6]]


@pytest.mark.parametrize(
    ("asked", "expected"), [(None, 0.05), (timedelta(seconds=-1), 0.01), (timedelta(milliseconds=80), 0.08)]
)
def test_the_queue_stands_still_as_long_as_it_is_told(
    orderly: Orderly, asked: timedelta | None, expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checklist row 62: a queue is suspended for the context's time, else the configured one, but at least 10 ms."""
    times: list[float] = []
    pauses: list[float] = []
    pause = QueueLine.pause
    queue = queue_of()

    def note(line: QueueLine, lane: LinedQueue, seconds: float) -> None:
        pauses.append(seconds)
        pause(line, lane, seconds)

    monkeypatch.setattr(QueueLine, "pause", note)

    def listener(_messages: Messages, context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
        times.append(time.monotonic())
        context.suspend_current_queue_time = asked
        return SUSPEND if len(times) == 1 else SUCCESS

    deliver(orderly(listener, suspend_time=timedelta(milliseconds=50)), queue, 1)
    wait_until(lambda: len(queue) == 0)

    assert pauses == [expected]
    assert times[1] - times[0] >= expected


def test_nobody_waits_longer_than_30_seconds() -> None:
    assert clamp(timedelta(hours=1)) == timedelta(seconds=30)


def test_a_queue_that_stands_still_keeps_no_thread(orderly: Orderly) -> None:
    queues = [queue_of(number) for number in range(8)]

    def listener(messages: Messages, context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
        context.suspend_current_queue_time = timedelta(seconds=30)
        return SUCCESS if messages[0].queue.queue_id == 7 else SUSPEND

    consume = orderly(listener, threads=1)
    for queue in queues:
        deliver(consume, queue, 1)

    wait_until(lambda: len(queues[7]) == 0)
    assert [len(queue) for queue in queues[:7]] == [1] * 7


def test_what_was_not_meant_is_logged(orderly: Orderly, caplog: pytest.LogCaptureFixture) -> None:
    queue = queue_of()

    deliver(orderly(Script(SUSPEND, None, lambda: 1 / 0, ROLLBACK)), queue, 2)
    wait_until(lambda: len(queue) == 0)

    place = f"message {0:032X} of topic orders, delivery"
    assert [record.getMessage() for record in caplog.records] == [
        f"listener of group readers returned None instead of a ConsumeOrderlyStatus for {place} 2, batch of 1",
        f"listener of group readers failed at {place} 3, batch of 1",
        f"took ROLLBACK as SUCCESS, because the listener of group readers has auto_commit: {place} 4, batch of 1",
    ]


@pytest.mark.parametrize(("name", "wish"), [("max_reconsume_times", "5"), ("suspend_current_queue_time", 1000)])
@pytest.mark.parametrize(("answer", "deliveries"), [(SUCCESS, 1), (SUSPEND, 2)])
def test_a_wish_of_a_wrong_type_is_logged_and_counts_for_nothing(
    orderly: Orderly,
    caplog: pytest.LogCaptureFixture,
    name: str,
    wish: Any,
    answer: ConsumeOrderlyStatus,
    deliveries: int,
) -> None:
    queue = queue_of()
    calls = itertools.count()

    def listener(_messages: Messages, context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
        setattr(context, name, wish)
        return SUCCESS if next(calls) else answer

    deliver(orderly(listener), queue, 1)
    wait_until(lambda: len(queue) == 0)

    assert next(calls) == deliveries
    assert "TypeError" not in caplog.text
    assert f"ignored {name} = {wish!r} of the listener of group readers in queue" in caplog.text


def test_what_a_listener_does_to_its_list_does_not_matter(orderly: Orderly) -> None:
    queue = queue_of()

    def listener(messages: Messages) -> ConsumeOrderlyStatus:
        messages.clear()
        return SUCCESS

    deliver(orderly(listener, batch=4), queue, 10)

    wait_until(lambda: len(queue) == 0)


# -- without auto_commit ------------------------------------------------------------------------


def test_row_64_success_commits_nothing_and_commit_everything(orderly: Orderly) -> None:
    """Checklist row 64, in one process: SUCCESS commits nothing, and COMMIT commits everything."""
    script = Script(SUCCESS, SUCCESS, COMMIT, SUCCESS, auto_commit=False)
    committed: list[int] = []
    queue = queue_of()

    def listener(messages: Messages, context: ConsumeOrderlyContext) -> Any:
        committed.append(queue.position().next_offset)
        return script(messages, context)

    deliver(orderly(listener), queue, 4)
    wait_until(lambda: len(script.calls) == 4 and len(queue) == 1)

    assert committed == [0, 0, 0, 3]
    assert queue.position().next_offset == 3


def test_a_rollback_brings_back_all_since_the_last_commit(orderly: Orderly) -> None:
    script = Script(COMMIT, SUCCESS, SUCCESS, ROLLBACK, COMMIT, COMMIT, COMMIT, auto_commit=False)
    queue = queue_of()

    deliver(orderly(script), queue, 4)
    wait_until(lambda: len(queue) == 0)

    assert script.calls == [[0], [1], [2], [3], [1], [2], [3]]
    assert set(script.reconsume_times) == {0}


def test_a_suspension_brings_back_its_own_batch(orderly: Orderly) -> None:
    script = Script(SUCCESS, SUCCESS, SUSPEND, COMMIT, auto_commit=False)
    queue = queue_of()

    deliver(orderly(script), queue, 3)
    wait_until(lambda: len(queue) == 0)

    assert script.calls == [[0], [1], [2], [2]]


def test_a_dropped_queue_settles_without_what_was_not_committed(orderly: Orderly) -> None:
    gate = threading.Event()
    script = Script(SUCCESS, SUCCESS, lambda: SUCCESS if gate.wait(10) else None, auto_commit=False)
    queue = queue_of()
    queue.owner = orderly

    deliver(orderly(script), queue, 5)
    script.wait_for(3)
    queue.drop()
    assert not queue.is_settled
    gate.set()
    wait_until(lambda: orderly.progress == [queue])

    assert len(script.calls) == 3
    assert queue.position().next_offset == 0


def test_a_commit_counts_for_all_that_was_kept_although_the_queue_was_dropped_meanwhile(orderly: Orderly) -> None:
    """A COMMIT covers all kept messages even if the queue was dropped.

    No other member has the queue while the listener runs, so no message need be delivered again.
    """
    gate = threading.Event()
    script = Script(SUCCESS, SUCCESS, lambda: COMMIT if gate.wait(10) else None, auto_commit=False)
    queue = queue_of()
    queue.owner = orderly

    deliver(orderly(script), queue, 5)
    script.wait_for(3)
    queue.drop()
    gate.set()
    wait_until(lambda: orderly.progress == [queue])

    assert queue.position().next_offset == 3


def test_what_was_kept_is_committed_only_once(orderly: Orderly) -> None:
    script = Script(SUCCESS, COMMIT, SUCCESS, COMMIT, auto_commit=False)
    queue = queue_of()

    deliver(orderly(script), queue, 4)
    wait_until(lambda: len(queue) == 0)

    assert script.calls == [[0], [1], [2], [3]]
    assert queue.position().next_offset == 4


def test_a_queue_that_was_lost_is_consumed_from_where_it_is_taken_again(orderly: Orderly) -> None:
    script = Script(SUCCESS, SUCCESS, COMMIT, auto_commit=False)
    queue = queue_of()
    consume = orderly(script)
    deliver(consume, queue, 2)
    script.wait_for(2)

    queue.drop(is_lost=True)
    again = queue_of(first=1)
    deliver(consume, again, 1)
    wait_until(lambda: len(again) == 0)

    assert script.calls == [[0], [1], [1]]


# -- what fails too often -----------------------------------------------------------------------


def test_row_63_what_fails_too_often_is_a_dead_letter_and_its_queue_goes_on(orderly: Orderly) -> None:
    """Checklist row 63: a message that fails too often is dead-lettered, and its queue continues.

    Two retries make three deliveries.
    """
    dead = DeadLetters()
    script = Script(SUCCESS, *[lambda: 1 / 0] * 3)
    queue = queue_of()

    deliver(orderly(script, send_back=dead, max_reconsume_times=2), queue, 3)
    wait_until(lambda: len(queue) == 0)

    assert script.calls == [[0], [1], [1], [1], [2]]
    [request] = dead
    assert request.queue_offset == 1
    assert request.retry.delay_level == -1
    assert (request.failure.exception, request.failure.host) == ("ZeroDivisionError", "here")


def test_while_the_dead_letter_queue_cannot_be_reached_the_queue_waits(orderly: Orderly) -> None:
    dead = DeadLetters()
    tries = itertools.count()

    def send_back(broker_name: str, requests: Sequence[SendBackRequest]) -> None:
        (dead if next(tries) == 2 else refuse)(broker_name, requests)

    script = Script(SUSPEND, SUSPEND, SUSPEND)
    queue = queue_of()

    deliver(orderly(script, send_back=send_back, max_reconsume_times=0), queue, 2)
    wait_until(lambda: len(queue) == 0)

    assert script.calls == [[0], [0], [0], [1]]
    assert dead.offsets == [0]


def test_a_batch_waits_for_all_of_its_messages_to_have_failed_too_often(orderly: Orderly) -> None:
    dead = DeadLetters()
    queue = queue_of()

    def one_more() -> ConsumeOrderlyStatus:
        deliver(consume, queue, 1)
        return SUSPEND

    script = Script(one_more, SUSPEND, SUSPEND)
    consume = orderly(script, batch=2, send_back=dead, max_reconsume_times=1)
    deliver(consume, queue, 1)
    wait_until(lambda: len(queue) == 0)

    assert script.calls == [[0], [0, 1], [0, 1]]
    assert dead.offsets == [0, 1]


def test_in_broadcasting_what_fails_too_often_is_done_with(orderly: Orderly) -> None:
    script = Script(SUSPEND, SUSPEND)
    queue = queue_of()

    deliver(orderly(script, send_back=None, max_reconsume_times=1), queue, 2)
    wait_until(lambda: len(queue) == 0)

    assert script.calls == [[0], [0], [1]]


def test_a_log_that_fails_drops_the_queue_and_ends_no_thread(orderly: Orderly) -> None:
    failing, sound = queue_of(0), queue_of(1)

    def listener(messages: Messages) -> ConsumeOrderlyStatus:
        if messages[0].queue == failing.queue:
            raise ValueError("no stock")
        return SUCCESS

    consume = orderly(listener, threads=1)
    with failing_log():
        deliver(consume, failing, 2)
        deliver(consume, sound, 1)
        wait_until(lambda: len(sound) == 0)

    assert failing.is_settled
    assert consume.calls.current() == []
