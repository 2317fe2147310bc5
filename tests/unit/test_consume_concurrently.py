"""The threads that call the listener: how many, with which messages, and the effect of each answer."""

import logging
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import pytest

from mqdb.broker.consumers.send_back import SendBackRequest
from mqdb.common.message import MessageQueue
from mqdb.common.received_message import ReceivedMessage
from mqdb.common.retry import Retry
from mqdb.errors import BrokerUnavailable
from mqdb.store.consumers.consumer_offsets import OwnedQueue
from mqdb_client.consumer.listeners.consume_concurrently import ConsumeConcurrently
from mqdb_client.consumer.listeners.consume_hooks import ConsumeHooks, ConsumeMessageContext, ConsumeReturnType
from mqdb_client.consumer.listeners.message_listener import ConsumeConcurrentlyContext, ConsumeConcurrentlyStatus
from mqdb_client.consumer.listeners.send_back import SendBack
from mqdb_client.consumer.queues.process_queue import FlowLimits, ProcessQueue
from tests.fixtures.odd_errors import failing_log
from tests.fixtures.processes import wait_until
from tests.fixtures.queue_owner import Owner

SUCCESS = ConsumeConcurrentlyStatus.CONSUME_SUCCESS
LATER = ConsumeConcurrentlyStatus.RECONSUME_LATER
LIMITS = FlowLimits(messages=1_000, body_bytes=1_000_000, span=2_000)

Consuming = Callable[..., ConsumeConcurrently]


def queue_of(queue_id: int = 0, limits: FlowLimits = LIMITS, broker_name: str = "broker-a") -> ProcessQueue:
    return ProcessQueue(MessageQueue("orders", broker_name, queue_id), OwnedQueue(queue_id, 1, 0, 0), limits)


def deliver(consume: ConsumeConcurrently, queue: ProcessQueue, count: int) -> None:
    first = queue.next_offset
    messages = [
        ReceivedMessage(queue.queue, n, n, uuid.UUID(int=n), None, None, {}, b"x", 0, 0, "h", 0, 0, 0, 0, 0)
        for n in range(first, first + count)
    ]
    queue.put(messages, first + count, 0)
    consume.submit(queue, count)


def refuse(_broker_name: str, _requests: Sequence[SendBackRequest]) -> None:
    raise BrokerUnavailable("nowhere", "it is down")


class SentBack(list[SendBackRequest]):
    """A broker that accepts sent-back messages."""

    def __call__(self, _broker_name: str, requests: Sequence[SendBackRequest]) -> None:
        self.extend(requests)

    @property
    def offsets(self) -> list[int]:
        return [request.queue_offset for request in self]


@pytest.fixture
def consuming() -> Iterator[Consuming]:
    """Starts consumption by a listener; failed messages cannot be sent back, and are delivered again at once."""
    started: list[ConsumeConcurrently] = []

    def start(
        listener: Any,
        *,
        threads: int = 4,
        batch: int = 1,
        delay: timedelta = timedelta(0),
        send_back: SendBack | None = refuse,
        **options: Any,
    ) -> ConsumeConcurrently:
        consume = ConsumeConcurrently(
            "readers",
            listener,
            ["broker-a", "broker-b"],
            host="here",
            thread_nums=threads,
            batch_max_size=batch,
            send_back=send_back,
            reconsume_delay=delay,
            **options,
        )
        started.append(consume)
        consume.start()
        consume.threads.begin()
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


def test_plain_logging_names_the_message_at_which_a_listener_failed(
    consuming: Consuming, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    logging.basicConfig()
    queue = queue_of()

    deliver(consuming(lambda _messages: 1 / 0, send_back=SentBack()), queue, 1)
    wait_until(lambda: len(queue) == 0)

    line, *_, last = capsys.readouterr().err.splitlines()
    assert line == (
        "ERROR:mqdb_client.consumer.listeners.consume_concurrently:listener of group readers failed at message "
        f"{0:032X} of topic orders, delivery 1, batch of 1"
    )
    assert last == "ZeroDivisionError: division by zero"


def test_a_listener_that_asks_for_later_is_no_error(consuming: Consuming, caplog: pytest.LogCaptureFixture) -> None:
    answers = [SUCCESS, LATER]
    queue = queue_of()

    deliver(consuming(lambda _messages: answers.pop(), send_back=SentBack()), queue, 1)
    wait_until(lambda: len(queue) == 0)

    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_what_a_listener_does_to_its_list_does_not_matter(consuming: Consuming) -> None:
    queue = queue_of()

    def listener(messages: list[ReceivedMessage]) -> ConsumeConcurrentlyStatus:
        messages.clear()
        return SUCCESS

    deliver(consuming(listener, batch=4), queue, 10)

    wait_until(lambda: len(queue) == 0)


@pytest.mark.parametrize("field", ["queue", "queue_offset", "log_pos", "reconsume_times"])
def test_a_listener_cannot_set_where_its_message_is(consuming: Consuming, field: str) -> None:
    """A listener that assigns to its message's place fails like any listener that raises, and its thread continues."""
    sent_back = SentBack()
    queue = queue_of()

    def listener(messages: list[ReceivedMessage]) -> ConsumeConcurrentlyStatus:
        setattr(messages[0], field, None)
        return SUCCESS

    deliver(consuming(listener, send_back=sent_back), queue, 3)
    wait_until(lambda: len(queue) == 0)

    assert sorted((each.queue, each.queue_offset, each.log_pos) for each in sent_back) == [
        (queue.queue, n, n) for n in range(3)
    ]


def test_queues_that_were_dropped_are_not_consumed(consuming: Consuming) -> None:
    offsets: list[int] = []
    entered, leave = threading.Event(), threading.Event()
    queue = queue_of()
    queue.owner = owner = Owner()

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
    wait_until(lambda: owner.progress == [queue])

    assert offsets == [0]
    assert queue.is_settled


def test_a_queue_with_room_again_is_told(consuming: Consuming) -> None:
    queue = queue_of(limits=FlowLimits(messages=4, body_bytes=1_000, span=1_000))
    queue.owner = owner = Owner()
    leave = threading.Event()

    def listener(_messages: list[ReceivedMessage]) -> ConsumeConcurrentlyStatus:
        assert leave.wait(10)
        return SUCCESS

    deliver(consuming(listener, threads=1), queue, 6)
    assert not queue.has_room()
    leave.set()
    wait_until(lambda: len(queue) == 0)

    assert owner.progress == [queue]


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
        assert leave.wait(60)
        return SUCCESS

    consume = consuming(listener, threads=3)
    deliver(consume, queue, 1)
    assert entered.wait(10)

    # The other two may need longer to notice.
    wait_until(lambda: consume.stop(0.01) == 1)
    leave.set()


# -- what fails is sent back --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("failure", "reason"),
    [(lambda: LATER, "RECONSUME_LATER"), (lambda: None, "None"), (lambda: 1 / 0, "ZeroDivisionError")],
    ids=["RECONSUME_LATER", "None", "exception"],
)
def test_what_fails_is_sent_back_with_the_reason(
    consuming: Consuming, failure: Callable[[], object], reason: str
) -> None:
    sent_back = SentBack()
    queue = queue_of()

    deliver(consuming(lambda _messages: failure(), send_back=sent_back), queue, 3)
    wait_until(lambda: len(queue) == 0)

    assert sorted(sent_back.offsets) == [0, 1, 2]
    assert {(each.failure.exception, each.failure.host, each.retry.delay_level) for each in sent_back} == {
        (reason, "here", 0)
    }
    assert queue.position().next_offset == 3


def test_the_offset_waits_for_the_copy(consuming: Consuming) -> None:
    asked, answer = threading.Event(), threading.Event()

    def slow(_broker_name: str, _requests: Sequence[SendBackRequest]) -> None:
        asked.set()
        assert answer.wait(10)

    queue = queue_of()
    deliver(consuming(lambda _messages: LATER, send_back=slow), queue, 1)
    assert asked.wait(10)
    queue.drop()

    assert queue.position().next_offset == 0
    assert not queue.is_settled
    answer.set()
    wait_until(lambda: queue.is_settled)
    assert queue.position().next_offset == 1


def test_a_lost_queue_sends_nothing_back(consuming: Consuming) -> None:
    sent_back = SentBack()
    entered, leave = threading.Event(), threading.Event()
    queue = queue_of()

    def listener(_messages: list[ReceivedMessage]) -> ConsumeConcurrentlyStatus:
        entered.set()
        assert leave.wait(10)
        return LATER

    deliver(consuming(listener, send_back=sent_back), queue, 1)
    assert entered.wait(10)
    queue.drop(is_lost=True)
    leave.set()
    wait_until(lambda: queue.is_settled)

    assert sent_back == []


def test_the_messages_behind_ack_index_fail(consuming: Consuming) -> None:
    sent_back = SentBack()
    queue = queue_of()

    def listener(messages: list[ReceivedMessage], context: ConsumeConcurrentlyContext) -> ConsumeConcurrentlyStatus:
        context.ack_index = 4
        return SUCCESS

    deliver(consuming(listener, batch=10, send_back=sent_back), queue, 10)
    wait_until(lambda: len(queue) == 0)

    assert sent_back.offsets == [5, 6, 7, 8, 9]


@pytest.mark.parametrize("ack_index", [-1, -7])
def test_below_0_ack_index_fails_all(consuming: Consuming, ack_index: int) -> None:
    sent_back = SentBack()
    queue = queue_of()

    def listener(messages: list[ReceivedMessage], context: ConsumeConcurrentlyContext) -> ConsumeConcurrentlyStatus:
        context.ack_index = ack_index
        return SUCCESS

    deliver(consuming(listener, batch=2, send_back=sent_back), queue, 2)
    wait_until(lambda: len(queue) == 0)

    assert sent_back.offsets == [0, 1]


@pytest.mark.parametrize("level", [-1, 0, 7])
def test_the_context_chooses_the_delay_level(consuming: Consuming, level: int) -> None:
    sent_back = SentBack()
    queue = queue_of()

    def listener(_messages: list[ReceivedMessage], context: ConsumeConcurrentlyContext) -> ConsumeConcurrentlyStatus:
        context.delay_level_when_next_consume = level
        return LATER

    deliver(consuming(listener, send_back=sent_back), queue, 1)
    wait_until(lambda: len(queue) == 0)

    assert [each.retry.delay_level for each in sent_back] == [level]


@pytest.mark.parametrize("answer", [LATER, None, 1 / 3])
def test_what_a_listener_cannot_ask_for_does_not_keep_a_message_from_being_sent_back(
    consuming: Consuming, caplog: pytest.LogCaptureFixture, answer: Any
) -> None:
    sent_back = SentBack()
    queue = queue_of()

    def listener(_messages: list[ReceivedMessage], context: Any) -> Any:
        context.delay_level_when_next_consume = "3"
        context.delay_when_next_consume = 5
        context.max_reconsume_times = -1
        return answer

    deliver(consuming(listener, send_back=sent_back), queue, 1)
    wait_until(lambda: len(queue) == 0)

    assert [each.retry for each in sent_back] == [Retry()]
    assert "ignored delay_when_next_consume = 5 of the listener of group readers" in caplog.text


def test_one_message_that_cannot_be_sent_back_does_not_hold_up_the_others(consuming: Consuming) -> None:
    taken: list[int] = []
    queues = [queue_of(0), queue_of(1)]
    together = threading.Barrier(2)

    def listener(messages: list[ReceivedMessage]) -> ConsumeConcurrentlyStatus:
        if messages[0].reconsume_times:
            return SUCCESS
        together.wait(10)
        return LATER

    def send_back(_broker_name: str, requests: Sequence[SendBackRequest]) -> None:
        if any(request.queue.queue_id == 1 for request in requests):
            raise ValueError("this one")
        taken.extend(request.queue.queue_id for request in requests)

    consume = consuming(listener, send_back=send_back)
    for queue in queues:
        deliver(consume, queue, 1)
    wait_until(lambda: not any(map(len, queues)))

    assert taken == [0]


def test_a_broker_that_hangs_holds_up_no_message_of_another(consuming: Consuming) -> None:
    answer = threading.Event()
    taken: list[str] = []

    def send_back(broker_name: str, _requests: Sequence[SendBackRequest]) -> None:
        assert broker_name == "broker-b" or answer.wait(10)
        taken.append(broker_name)

    hanging, other = queue_of(), queue_of(broker_name="broker-b")
    consume = consuming(lambda _messages: LATER, threads=1, send_back=send_back)
    deliver(consume, hanging, 1)
    deliver(consume, other, 1)
    wait_until(lambda: len(other) == 0)

    assert taken == ["broker-b"]
    answer.set()
    wait_until(lambda: len(hanging) == 0)


def test_what_has_failed_on_any_broker_is_sent_back_before_it_has_stopped(consuming: Consuming) -> None:
    all_called = threading.Barrier(3)
    queues = [queue_of(), queue_of(broker_name="broker-b")]

    def listener(_messages: list[ReceivedMessage]) -> ConsumeConcurrentlyStatus:
        all_called.wait(10)
        return LATER

    consume = consuming(listener, threads=2, send_back=SentBack())
    for queue in queues:
        deliver(consume, queue, 1)
    all_called.wait(10)
    consume.stop(10)

    assert [len(queue) for queue in queues] == [0, 0]


def test_what_cannot_be_sent_back_is_consumed_here_with_its_times_counted(consuming: Consuming) -> None:
    times: list[int] = []
    queue = queue_of()

    def listener(messages: list[ReceivedMessage]) -> ConsumeConcurrentlyStatus:
        times.append(messages[0].reconsume_times)
        return SUCCESS if len(times) == 4 else LATER

    deliver(consuming(listener), queue, 1)
    wait_until(lambda: len(queue) == 0)

    assert times == [0, 1, 2, 3]


def test_in_broadcasting_what_fails_is_done_with(consuming: Consuming, caplog: pytest.LogCaptureFixture) -> None:
    queue = queue_of()

    deliver(consuming(lambda _messages: LATER, send_back=None), queue, 2)
    wait_until(lambda: len(queue) == 0)

    assert queue.position().next_offset == 2
    assert "broadcasting group readers has no retries" in caplog.text


class Incomparable:
    """A value like an array, for which a comparison does not return a truth value."""

    def __eq__(self, other: object) -> bool:
        raise ValueError("ambiguous")

    __hash__ = None  # type: ignore[assignment]


def test_whatever_a_listener_answers_its_thread_goes_on(consuming: Consuming) -> None:
    sent_back = SentBack()
    queue = queue_of()
    answers: list[object] = [Incomparable(), Incomparable(), SUCCESS]

    def listener(messages: list[ReceivedMessage], context: ConsumeConcurrentlyContext) -> object:
        if messages[0].queue_offset == 3:
            context.ack_index = None  # type: ignore[assignment]
        return answers.pop(0) if answers else SUCCESS

    deliver(consuming(listener, threads=1, send_back=sent_back), queue, 5)
    wait_until(lambda: len(queue) == 0)

    assert sent_back.offsets == [0, 1, 3]


# -- listeners that take too long ---------------------------------------------------------------


def test_a_listener_that_takes_too_long_is_given_up(consuming: Consuming) -> None:
    sent_back = SentBack()
    leave = threading.Event()
    queue = queue_of()

    def listener(messages: list[ReceivedMessage]) -> ConsumeConcurrentlyStatus:
        if messages[0].queue_offset == 0:
            assert leave.wait(10)
        return SUCCESS

    consume = consuming(listener, send_back=sent_back, consume_timeout=timedelta(milliseconds=50))
    deliver(consume, queue, 2)
    wait_until(lambda: len(queue) == 0)

    assert [(each.queue_offset, each.failure.exception, each.retry.delay_level) for each in sent_back] == [
        (0, "TIMEOUT", 3)
    ]
    leave.set()
    deliver(consume, queue, 1)
    wait_until(lambda: len(queue) == 0)
    assert queue.position().next_offset == 3
    assert sent_back.offsets == [0]


# -- threads ------------------------------------------------------------------------------------


def test_the_pool_grows_and_shrinks(consuming: Consuming) -> None:
    leave = threading.Event()
    running: set[int] = set()

    def listener(_messages: list[ReceivedMessage]) -> ConsumeConcurrentlyStatus:
        running.add(threading.get_ident())
        assert leave.wait(10)
        running.discard(threading.get_ident())
        return SUCCESS

    def listeners_of(consume: ConsumeConcurrently, count: int) -> None:
        leave.clear()
        queue = queue_of()
        deliver(consume, queue, 6)
        wait_until(lambda: len(running) == count and len(queue) == 6)
        leave.set()
        wait_until(lambda: len(queue) == 0)

    consume = consuming(listener, threads=2)
    listeners_of(consume, 2)
    consume.threads.resize(5)
    listeners_of(consume, 5)
    consume.threads.resize(1)
    wait_until(lambda: sum("readers-consume" in thread.name for thread in threading.enumerate()) == 1)
    listeners_of(consume, 1)


def test_no_listener_runs_before_it_may(consuming: Consuming) -> None:
    offsets: list[int] = []
    queue = queue_of()

    def listener(messages: list[ReceivedMessage]) -> ConsumeConcurrentlyStatus:
        offsets.append(messages[0].queue_offset)
        return SUCCESS

    consume = ConsumeConcurrently("readers", listener, [], host="", thread_nums=2, batch_max_size=1, send_back=None)
    consume.start()
    deliver(consume, queue, 3)

    assert consume.stop(10) == 0
    assert offsets == []


# -- hooks --------------------------------------------------------------------------------------


class Recorder:
    """A hook that records its calls."""

    hook_name = "recorder"

    def __init__(self) -> None:
        self.seen: list[tuple[str, ConsumeReturnType | None, bool]] = []
        self.error: BaseException | None = None

    def consume_message_before(self, context: ConsumeMessageContext) -> None:
        self.seen.append(("before", context.return_type, context.is_success))

    def consume_message_after(self, context: ConsumeMessageContext) -> None:
        self.seen.append(("after", context.return_type, context.is_success))
        self.error = context.error


class Raiser(Recorder):
    """A hook that raises."""

    hook_name = "raiser"

    def consume_message_before(self, context: ConsumeMessageContext) -> None:
        raise ValueError("before")

    def consume_message_after(self, context: ConsumeMessageContext) -> None:
        raise ValueError("after")


@pytest.mark.parametrize(
    ("answer", "return_type"),
    [
        (lambda: SUCCESS, ConsumeReturnType.SUCCESS),
        (lambda: LATER, ConsumeReturnType.FAILED),
        (lambda: None, ConsumeReturnType.RETURNNULL),
        (lambda: 1 / 0, ConsumeReturnType.EXCEPTION),
    ],
    ids=["SUCCESS", "RECONSUME_LATER", "None", "exception"],
)
def test_hooks_see_how_each_call_ends(
    consuming: Consuming, answer: Callable[[], object], return_type: ConsumeReturnType
) -> None:
    hooks, recorder, queue = ConsumeHooks("readers"), Recorder(), queue_of()
    hooks.register(recorder)

    deliver(consuming(lambda _messages: answer(), send_back=SentBack(), hooks=hooks), queue, 1)
    wait_until(lambda: len(queue) == 0)

    is_success = return_type is ConsumeReturnType.SUCCESS
    assert recorder.seen == [("before", None, False), ("after", return_type, is_success)]
    assert isinstance(recorder.error, ZeroDivisionError) == (return_type is ConsumeReturnType.EXCEPTION)


def test_what_a_hook_raises_changes_nothing(consuming: Consuming, caplog: pytest.LogCaptureFixture) -> None:
    hooks, recorder, queue, sent_back = ConsumeHooks("readers"), Recorder(), queue_of(), SentBack()
    hooks.register(Raiser())
    hooks.register(recorder)

    deliver(consuming(lambda _messages: SUCCESS, send_back=sent_back, hooks=hooks), queue, 1)
    wait_until(lambda: len(queue) == 0)

    assert [each[0] for each in recorder.seen] == ["before", "after"]
    assert sent_back == []
    assert caplog.text.count("hook raiser of group readers failed") == 2


def test_a_log_that_fails_drops_the_queue_and_ends_no_thread(consuming: Consuming) -> None:
    failing, sound = queue_of(0), queue_of(1)

    def listener(messages: list[ReceivedMessage]) -> ConsumeConcurrentlyStatus:
        if messages[0].queue == failing.queue:
            raise ValueError("no stock")
        return SUCCESS

    consume = consuming(listener, threads=1)
    with failing_log():
        deliver(consume, failing, 2)
        deliver(consume, sound, 1)
        wait_until(lambda: len(sound) == 0)

    assert failing.is_settled
    assert consume.calls.current() == []
