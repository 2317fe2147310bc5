"""Orderly consumption: each queue has one listener at a time and is consumed in offset order.

This holds whichever members come and go.
"""

import itertools
import math
import random
import threading
import time
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from mqdb_client.consumer.listeners.consume_hooks import ConsumeHooks, ConsumeMessageContext, ConsumeReturnType
from mqdb_client.consumer.listeners.message_listener import ConsumeOrderlyContext, ConsumeOrderlyStatus
from mqdb_client.consumer.queues.process_queue import FlowLimits, ProcessQueue
from tests.fixtures.orderly import (
    SUCCESS,
    SUSPEND,
    DeadLetters,
    Messages,
    Orderly,
    Script,
    deliver,
    queue_of,
)
from tests.fixtures.processes import wait_until

# -- order --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("batch", "sizes"), [(1, [1] * 10), (4, [4, 4, 2]), (32, [10])])
def test_messages_come_in_order_in_batches_as_large_as_allowed(orderly: Orderly, batch: int, sizes: list[int]) -> None:
    script = Script()
    queue = queue_of()

    deliver(orderly(script, batch=batch), queue, 10)
    wait_until(lambda: len(queue) == 0)

    assert [len(call) for call in script.calls] == sizes
    assert list(itertools.chain(*script.calls)) == list(range(10))


def test_queues_are_consumed_at_the_same_time(orderly: Orderly) -> None:
    meeting = threading.Barrier(4)
    consume = orderly(lambda _messages: SUCCESS if meeting.wait(10) >= 0 else None, threads=4)
    queues = [queue_of(number) for number in range(4)]

    for queue in queues:
        deliver(consume, queue, 3)

    wait_until(lambda: all(len(queue) == 0 for queue in queues))


def test_a_listener_that_hangs_holds_up_its_queue_only(orderly: Orderly) -> None:
    leave = threading.Event()

    def listener(messages: Messages) -> ConsumeOrderlyStatus:
        assert messages[0].queue.queue_id != 0 or leave.wait(10)
        return SUCCESS

    consume = orderly(listener, threads=2)
    stuck, other = queue_of(0), queue_of(1)
    deliver(consume, stuck, 3)
    deliver(consume, other, 100)
    wait_until(lambda: len(other) == 0)

    assert len(stuck) == 3
    leave.set()
    wait_until(lambda: len(stuck) == 0)


def test_a_queue_shares_its_thread_when_its_time_is_over(orderly: Orderly) -> None:
    order: list[int] = []
    ready = threading.Event()

    def listener(messages: Messages) -> ConsumeOrderlyStatus:
        assert ready.wait(10)
        order.append(messages[0].queue.queue_id)
        return SUCCESS

    consume = orderly(listener, threads=1, time_slice=timedelta(0))
    queues = [queue_of(0), queue_of(1)]
    for queue in queues:
        deliver(consume, queue, 5)
    ready.set()
    wait_until(lambda: all(len(queue) == 0 for queue in queues))

    assert order == [0, 1] * 5


class Exam:
    """A listener that answers at random, and checks that each queue is consumed in order, one call at a time."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._guard = threading.Lock()
        self._busy: set[int] = set()
        self.done: Counter[int] = Counter()
        self.committed: Counter[int] = Counter()
        self.faults: list[str] = []

    def __call__(self, messages: Messages) -> ConsumeOrderlyStatus | None:
        queue_id = messages[0].queue.queue_id
        with self._guard:
            if queue_id in self._busy:
                self.faults.append(f"two listeners in queue {queue_id}")
            self._busy.add(queue_id)
            self._look_at(queue_id, [message.queue_offset for message in messages])
            chance = self._random.random()
        if chance < 0.3:
            time.sleep(0.0005)  # lets other threads have their turn
        with self._guard:
            self._busy.discard(queue_id)
            if chance < 0.02:
                raise ValueError("a listener may fail")
            if chance < 0.05:
                return SUSPEND
            self.done[queue_id] = max(self.done[queue_id], messages[-1].queue_offset + 1)
            return SUCCESS

    def _look_at(self, queue_id: int, offsets: list[int]) -> None:
        is_in_order = offsets == list(range(offsets[0], offsets[0] + len(offsets)))
        if not is_in_order or not self.committed[queue_id] <= offsets[0] <= self.done[queue_id]:
            state = f"{self.committed[queue_id]} are committed, {self.done[queue_id]} are done"
            self.faults.append(f"queue {queue_id}: {offsets} when {state}")


@pytest.mark.parametrize("seed", range(8))
def test_order_holds_whatever_happens(orderly: Orderly, seed: int) -> None:
    """Order holds while messages arrive and fail, and queues are handed over and taken away, all at random."""
    rng = random.Random(seed)
    exam = Exam(seed)
    consume = orderly(exam, threads=rng.randint(1, 6), batch=rng.randint(1, 5), time_slice=timedelta(milliseconds=5))
    queues = [queue_of(number) for number in range(4)]
    sent: Counter[int] = Counter()
    for _ in range(150):
        number = rng.randrange(4)
        deliver(consume, queues[number], rng.randint(1, 8))
        sent[number] = max(sent[number], queues[number].next_offset)
        if rng.random() < 0.1:
            is_lost = rng.random() < 0.5
            queues[number] = taken_again(queues[number], exam, is_lost=is_lost)
        if rng.random() < 0.05:
            consume.threads.resize(rng.randint(1, 6))
        time.sleep(0.0005)  # gives the threads something to interleave with
    for number, queue in enumerate(queues):
        deliver(consume, queue, sent[number] - queue.next_offset)
    wait_until(lambda: all(len(queue) == 0 for queue in queues), 30)

    assert exam.faults == []
    assert exam.done == sent


def taken_again(old: ProcessQueue, exam: Exam, *, is_lost: bool) -> ProcessQueue:
    """The queue is released and taken again.

    A lost queue is taken without waiting, so a listener may still be running on it.
    """
    old.drop(is_lost=is_lost)
    if not is_lost:
        wait_until(lambda: old.is_settled)
    queue_id = old.queue.queue_id
    exam.committed[queue_id] = old.position().next_offset
    return queue_of(queue_id, exam.committed[queue_id])


# -- queues that come and go --------------------------------------------------------------------


def test_no_listener_is_started_when_the_lease_has_ended(orderly: Orderly) -> None:
    """Checklist row 65, the client's half: no listener starts after the lease has ended.

    Consumption continues once the lease is renewed.
    """
    script = Script()
    queue = queue_of()

    def listener(messages: Messages, context: ConsumeOrderlyContext) -> Any:
        if messages[0].queue_offset == 1:
            queue.lease_ends = 0.0
        return script(messages, context)

    consume = orderly(listener)
    deliver(consume, queue, 4)
    other = queue_of(1)
    wait_until(lambda: len(queue) == 2)
    deliver(consume, other, 100)
    wait_until(lambda: len(other) == 0)

    assert len(queue) == 2
    queue.lease_ends = math.inf
    wait_until(lambda: len(queue) == 0)


def test_a_queue_that_is_dropped_starts_nothing_more(orderly: Orderly) -> None:
    gate = threading.Event()
    script = Script(lambda: SUCCESS if gate.wait(10) else None)
    queue = queue_of()
    queue.owner = orderly

    deliver(orderly(script), queue, 3)
    script.wait_for(1)
    queue.drop()
    assert not queue.is_settled
    gate.set()
    wait_until(lambda: orderly.progress == [queue])

    assert script.calls == [[0]]
    assert queue.position().next_offset == 1


def test_what_a_listener_says_about_a_lost_queue_is_ignored(orderly: Orderly) -> None:
    gate = threading.Event()
    dead = DeadLetters()
    script = Script(lambda: SUSPEND if gate.wait(10) else None)
    queue, other = queue_of(0), queue_of(1)
    consume = orderly(script, threads=1, send_back=dead, max_reconsume_times=0)

    deliver(consume, queue, 2)
    script.wait_for(1)
    queue.drop(is_lost=True)
    gate.set()
    deliver(consume, other, 1)
    wait_until(lambda: len(other) == 0)

    assert queue.position().next_offset == 0
    assert dead == []


def test_a_queue_with_room_again_is_told(orderly: Orderly) -> None:
    gate = threading.Event()
    queue = queue_of(limits=FlowLimits(messages=4, body_bytes=1_000, span=1_000))
    queue.owner = orderly

    deliver(orderly(Script(lambda: SUCCESS if gate.wait(10) else None)), queue, 6)
    assert not queue.has_room()
    gate.set()
    wait_until(lambda: len(queue) == 0)

    assert orderly.progress == [queue]


def test_a_queue_that_is_taken_again_waits_for_the_listener_that_is_still_in_it(orderly: Orderly) -> None:
    gate = threading.Event()
    script = Script(lambda: SUCCESS if gate.wait(10) else None)
    lost, again, other = queue_of(0), queue_of(0), queue_of(1)
    consume = orderly(script)

    deliver(consume, lost, 1)
    script.wait_for(1)
    lost.drop(is_lost=True)
    deliver(consume, again, 1)
    deliver(consume, other, 10)
    wait_until(lambda: len(other) == 0)
    assert len(again) == 1
    gate.set()

    wait_until(lambda: len(again) == 0)


# -- threads and hooks --------------------------------------------------------------------------


def test_threads_come_and_go(orderly: Orderly) -> None:
    running = Counter[str]()
    gate = threading.Semaphore(0)
    guard = threading.Lock()

    def listener(_messages: Messages) -> ConsumeOrderlyStatus:
        with guard:
            running["now"] += 1
        assert gate.acquire(timeout=10)
        with guard:
            running["now"] -= 1
        return SUCCESS

    consume = orderly(listener, threads=1)
    queues = [queue_of(number) for number in range(6)]
    for queue in queues:
        deliver(consume, queue, 10)
    wait_until(lambda: running["now"] == 1)
    consume.threads.resize(4)
    wait_until(lambda: running["now"] == 4)
    consume.threads.resize(2)
    gate.release(4)
    wait_until(lambda: running["now"] == 2)
    gate.release(60)
    wait_until(lambda: all(len(queue) == 0 for queue in queues))


def test_what_waits_does_not_keep_it_from_stopping(orderly: Orderly) -> None:
    script = Script(SUSPEND)
    queue = queue_of()
    consume = orderly(script, suspend_time=timedelta(seconds=30))

    deliver(consume, queue, 5)
    script.wait_for(1)

    assert consume.stop(10) == 0
    assert queue.position().next_offset == 0


def test_a_listener_that_does_not_return_is_left_behind(orderly: Orderly) -> None:
    leave = threading.Event()
    script = Script(lambda: SUCCESS if leave.wait(60) else None)
    consume = orderly(script, threads=3)

    deliver(consume, queue_of(), 1)
    script.wait_for(1)

    # The other two may need longer to notice.
    wait_until(lambda: consume.stop(0.01) == 1)
    assert [call.messages[0].queue_offset for call in consume.calls.current()] == [0]
    leave.set()


def test_it_knows_its_own_threads(orderly: Orderly) -> None:
    found: list[bool] = []
    queue = queue_of()

    def listener(_messages: Messages) -> ConsumeOrderlyStatus:
        found.append(orderly.started[0].threads.is_own_thread())
        return SUCCESS

    consume = orderly(listener)
    deliver(consume, queue, 1)
    wait_until(lambda: len(queue) == 0)

    assert found == [True]
    assert not consume.threads.is_own_thread()


def test_hooks_see_each_call(orderly: Orderly) -> None:
    class Hook:
        hook_name = "witness"

        def __init__(self) -> None:
            self.seen: list[tuple[object, ConsumeReturnType | None, bool]] = []

        def consume_message_before(self, context: ConsumeMessageContext) -> None:
            assert context.return_type is None

        def consume_message_after(self, context: ConsumeMessageContext) -> None:
            self.seen.append((context.status, context.return_type, context.is_success))

    hook, hooks = Hook(), ConsumeHooks("readers")
    hooks.register(hook)
    queue = queue_of()

    deliver(orderly(Script(SUCCESS, SUSPEND, None, lambda: 1 / 0), hooks=hooks), queue, 2)
    wait_until(lambda: len(hook.seen) == 5)

    assert hook.seen == [
        (SUCCESS, ConsumeReturnType.SUCCESS, True),
        (SUSPEND, ConsumeReturnType.FAILED, False),
        (None, ConsumeReturnType.RETURNNULL, False),
        (None, ConsumeReturnType.EXCEPTION, False),
        (SUCCESS, ConsumeReturnType.SUCCESS, True),
    ]
