"""The threads of transactional consumption, with listeners whose transactions end as scripted, without a broker."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mqdb.common.received_message import ReceivedMessage
from mqdb.common.retry import Retry
from mqdb.errors import BrokerUnavailable
from mqdb_client.consumer.listeners import consume_exactly_once
from mqdb_client.consumer.listeners.consume_exactly_once import ConsumeExactlyOnce
from mqdb_client.consumer.listeners.exactly_once_listener import ConsumeAttempt, End
from mqdb_client.consumer.listeners.message_listener import ConsumeConcurrentlyContext, ConsumeOrderlyContext
from mqdb_client.consumer.queues.process_queue import ProcessQueue
from mqdb_client.instance import ClientInstance
from mqdb_client.outage import Outage
from tests.fixtures.orderly import queue_of, received
from tests.fixtures.processes import wait_until
from tests.fixtures.queue_owner import Owner

UNREACHED = ConsumeAttempt(End.UNREACHED, error=BrokerUnavailable("nowhere", "it is down"))


@dataclass
class Script:
    """A listener on a broker whose transactions end as scripted, one after another.

    Later transactions are all committed.
    """

    attempts: list[ConsumeAttempt | Callable[[], ConsumeAttempt]] = field(default_factory=list)
    #: How sending back ends; then it succeeds.
    taken_back: list[End] = field(default_factory=list)
    #: The offsets of each attempt, and the reconsume times of its first message.
    calls: list[tuple[list[int], int]] = field(default_factory=list)
    #: The offsets of each batch that was sent back, with delay level and most retries.
    sent_back: list[tuple[list[int], Retry, int | None]] = field(default_factory=list)

    def attempt(self, process_queue: ProcessQueue, messages: list[ReceivedMessage]) -> ConsumeAttempt:
        self.calls.append(([message.queue_offset for message in messages], messages[0].reconsume_times))
        attempt = self.attempts.pop(0) if self.attempts else ConsumeAttempt(End.COMMITTED)
        return attempt() if callable(attempt) else attempt

    def send_back(
        self,
        _queue: ProcessQueue,
        messages: list[ReceivedMessage],
        _attempt: ConsumeAttempt,
        retry: Retry,
        most: int | None,
    ) -> End:
        self.sent_back.append(([message.queue_offset for message in messages], retry, most))
        return self.taken_back.pop(0) if self.taken_back else End.COMMITTED

    def close(self) -> None:
        pass

    @property
    def offsets(self) -> list[list[int]]:
        return [offsets for offsets, _ in self.calls]


class Consuming(Owner):
    """Starts consumption by scripts, with the shortest possible waits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.started: list[ConsumeExactlyOnce] = []
        super().__init__()
        monkeypatch.setattr(consume_exactly_once, "_UNREACHED_SECONDS", 0.01)

    def __call__(self, script: Script, *, threads: int = 4, batch: int = 1, **options: Any) -> ConsumeExactlyOnce:
        self._monkeypatch.setattr(consume_exactly_once, "ExactlyOnceListener", lambda *_args, **_options: script)
        options.setdefault("is_orderly", False)
        options.setdefault("reconsume_delay", timedelta(0))
        options.setdefault("suspend_time", timedelta(milliseconds=10))
        consume = ConsumeExactlyOnce(
            "readers",
            lambda _messages, _connection: None,
            {"broker-a": cast(ClientInstance, SimpleNamespace(outage=Outage("broker-a")))},
            thread_nums=threads,
            batch_max_size=batch,
            **options,
        )
        self.started.append(consume)
        consume.start()
        consume.threads.begin()
        return consume


@pytest.fixture
def consuming(monkeypatch: pytest.MonkeyPatch) -> Iterator[Consuming]:
    consuming = Consuming(monkeypatch)
    yield consuming
    for consume in consuming.started:
        assert consume.stop(10) == 0


def deliver(consume: ConsumeExactlyOnce, queue: ProcessQueue, count: int) -> None:
    """Let `count` more messages arrive in a queue."""
    first = queue.next_offset
    if queue.put([received(queue, n) for n in range(first, first + count)], first + count, 0):
        consume.submit(queue, count)


def failed(delay_level: int = 0) -> ConsumeAttempt:
    """The listener has failed, and has chosen when its messages are delivered again."""
    context = ConsumeConcurrentlyContext(queue_of().queue, delay_level_when_next_consume=delay_level)
    return ConsumeAttempt(End.FAILED, context=context)


def suspended(suspend_time: timedelta | None = None) -> ConsumeAttempt:
    """An orderly listener has failed."""
    return ConsumeAttempt(End.FAILED, context=ConsumeOrderlyContext(queue_of().queue, True, suspend_time))


def consumed(queue: ProcessQueue) -> bool:
    return len(queue) == 0


# -- whose turn it is ---------------------------------------------------------------------------


def test_a_queue_is_consumed_batch_by_batch_in_order(consuming: Consuming) -> None:
    script, queue = Script(), queue_of()

    deliver(consuming(script, batch=4), queue, 10)
    wait_until(lambda: consumed(queue))

    assert script.offsets == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert queue.position().next_offset == 10


def test_a_queue_has_one_transaction_at_a_time_and_others_have_theirs_beside_it(consuming: Consuming) -> None:
    meeting = threading.Barrier(3)

    def meet() -> ConsumeAttempt:
        meeting.wait(10)
        return ConsumeAttempt(End.COMMITTED)

    script = Script([meet] * 6)
    consume = consuming(script, threads=6)
    queues = [queue_of(queue_id) for queue_id in range(3)]
    for queue in queues:
        deliver(consume, queue, 2)
    wait_until(lambda: all(map(consumed, queues)))

    # Each meeting is of three queues.
    assert script.offsets == [[0]] * 3 + [[1]] * 3


def test_a_queue_that_was_dropped_is_not_consumed(consuming: Consuming) -> None:
    entered, leave = threading.Event(), threading.Event()

    def wait() -> ConsumeAttempt:
        entered.set()
        assert leave.wait(10)
        return ConsumeAttempt(End.COMMITTED)

    script, queue = Script([wait]), queue_of()
    queue.owner = consuming
    deliver(consuming(script), queue, 3)
    assert entered.wait(10)
    queue.drop()
    leave.set()
    wait_until(lambda: consuming.progress == [queue])

    assert queue.is_settled
    assert script.offsets == [[0]]
    assert queue.position().next_offset == 1


def test_no_listener_is_called_while_the_lease_is_over(consuming: Consuming) -> None:
    script, queue, other = Script(), queue_of(0), queue_of(1)
    queue.lease_ends = time.monotonic()
    consume = consuming(script, threads=1)

    deliver(consume, queue, 1)
    deliver(consume, other, 1)
    wait_until(lambda: consumed(other))
    assert not consumed(queue)
    queue.lease_ends = time.monotonic() + 60

    wait_until(lambda: consumed(queue))


# -- how transactions end -----------------------------------------------------------------------


def test_what_failed_is_sent_back_and_the_queue_goes_on(consuming: Consuming) -> None:
    script, queue = Script([failed(delay_level=5)]), queue_of()

    deliver(consuming(script, batch=2, max_reconsume_times=7), queue, 3)
    wait_until(lambda: consumed(queue))

    assert script.sent_back == [([0, 1], Retry(5), 7)]
    assert script.offsets == [[0, 1], [2]]


def test_what_the_broker_does_not_take_back_is_consumed_here_again(consuming: Consuming) -> None:
    script, queue = Script([failed(), failed()], [End.FAILED, End.COMMITTED]), queue_of()

    deliver(consuming(script), queue, 2)
    wait_until(lambda: consumed(queue))

    assert script.calls == [([0], 0), ([0], 1), ([1], 0)]


@pytest.mark.parametrize("collisions", [1, 3])
def test_a_transaction_that_met_others_is_tried_again(consuming: Consuming, collisions: int) -> None:
    script, queue = Script([ConsumeAttempt(End.COLLIDED)] * collisions), queue_of()

    deliver(consuming(script), queue, 1)
    wait_until(lambda: consumed(queue))

    assert script.calls == [([0], 0)] * (collisions + 1)
    assert script.sent_back == []


def test_a_transaction_that_met_others_four_times_has_failed(consuming: Consuming) -> None:
    context = ConsumeConcurrentlyContext(queue_of().queue)
    script, queue = Script([ConsumeAttempt(End.COLLIDED, context=context)] * 4), queue_of()

    deliver(consuming(script), queue, 1)
    wait_until(lambda: consumed(queue))

    assert script.sent_back == [([0], Retry(), None)]


def test_a_broker_that_cannot_be_reached_is_no_failure_and_is_reported_once(
    consuming: Consuming, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    script, queue = Script([UNREACHED] * 3), queue_of()

    deliver(consuming(script), queue, 1)
    wait_until(lambda: consumed(queue))

    assert script.calls == [([0], 0)] * 4
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


@pytest.mark.parametrize(
    "attempt", [ConsumeAttempt(End.UNKNOWN), lambda: 1 / 0, failed()], ids=["unknown", "a defect", "sent back or not"]
)
def test_a_queue_of_which_nobody_knows_how_far_it_is_consumed_is_dropped(consuming: Consuming, attempt: Any) -> None:
    script, queue = Script([attempt], [End.UNKNOWN]), queue_of()
    queue.owner = consuming

    deliver(consuming(script), queue, 3)
    wait_until(lambda: consuming.progress == [queue])

    assert queue.is_settled
    assert queue.position().next_offset == 0
    assert script.offsets == [[0]]


# -- in order -----------------------------------------------------------------------------------


def test_in_order_what_failed_comes_again_first(consuming: Consuming) -> None:
    script, queue = Script([ConsumeAttempt(End.COMMITTED), suspended(), suspended()]), queue_of()

    deliver(consuming(script, is_orderly=True), queue, 3)
    wait_until(lambda: consumed(queue))

    assert script.calls == [([0], 0), ([1], 0), ([1], 1), ([1], 2), ([2], 0)]
    assert script.sent_back == []


def test_in_order_a_queue_stands_still_for_as_long_as_the_listener_says(consuming: Consuming) -> None:
    script, queue, other = Script([suspended(timedelta(seconds=0.3))]), queue_of(0), queue_of(1)
    consume = consuming(script, is_orderly=True, threads=1)

    began = time.monotonic()
    deliver(consume, queue, 1)
    wait_until(lambda: script.calls)
    deliver(consume, other, 1)
    wait_until(lambda: consumed(other))
    others_seconds = time.monotonic() - began
    wait_until(lambda: consumed(queue))

    assert others_seconds < time.monotonic() - began
    assert time.monotonic() - began >= 0.3


def test_in_order_what_failed_too_often_is_dead(consuming: Consuming) -> None:
    script, queue = Script([suspended()] * 3), queue_of()

    deliver(consuming(script, is_orderly=True, max_reconsume_times=2, batch=2), queue, 3)
    wait_until(lambda: consumed(queue))

    assert script.sent_back == [([0, 1], Retry(-1), 2)]
    assert script.offsets == [[0, 1]] * 3 + [[2]]


def test_in_order_what_a_listener_cannot_ask_for_counts_for_nothing(
    consuming: Consuming, caplog: pytest.LogCaptureFixture
) -> None:
    nonsense: Any = ConsumeOrderlyContext(queue_of().queue, True, 5, "7")  # type: ignore[arg-type]
    script, queue = Script([ConsumeAttempt(End.FAILED, context=nonsense)]), queue_of()

    deliver(consuming(script, is_orderly=True, max_reconsume_times=2), queue, 1)
    wait_until(lambda: consumed(queue))

    assert script.calls == [([0], 0), ([0], 1)]
    assert "ignored suspend_current_queue_time = 5 of the listener of group readers" in caplog.text


def test_in_order_a_batch_is_dead_when_none_of_it_may_be_tried_again(consuming: Consuming) -> None:
    """In ordered consumption a batch is dead when none of its messages may be retried.

    The batch grows when messages arrive before it is delivered again.
    """
    queue = queue_of()

    def one_more() -> ConsumeAttempt:
        deliver(consume, queue, 1)
        return suspended()

    script = Script([one_more, suspended(), suspended()])
    consume = consuming(script, is_orderly=True, max_reconsume_times=1, batch=2)
    deliver(consume, queue, 1)
    wait_until(lambda: consumed(queue))

    assert script.offsets == [[0], [0, 1], [0, 1]]
    assert script.sent_back == [([0, 1], Retry(-1), 1)]


# -- threads ------------------------------------------------------------------------------------


def test_a_listener_knows_that_it_runs_in_a_thread_of_the_consumer(consuming: Consuming) -> None:
    found: list[bool] = []
    ready = threading.Event()

    def ask() -> ConsumeAttempt:
        assert ready.wait(10)
        found.append(consume.threads.is_own_thread())
        return ConsumeAttempt(End.COMMITTED)

    queue = queue_of()
    consume = consuming(Script([ask]))
    deliver(consume, queue, 1)
    ready.set()
    wait_until(lambda: consumed(queue))

    assert found == [True]
    assert not consume.threads.is_own_thread()


def test_a_listener_that_does_not_return_is_left_behind(consuming: Consuming) -> None:
    entered, leave = threading.Event(), threading.Event()

    def wait() -> ConsumeAttempt:
        entered.set()
        assert leave.wait(60)
        return ConsumeAttempt(End.COMMITTED)

    consume = consuming(Script([wait]))
    deliver(consume, queue_of(), 1)
    assert entered.wait(10)

    # The other three may need longer to notice.
    wait_until(lambda: consume.stop(0.01) == 1)
    leave.set()
