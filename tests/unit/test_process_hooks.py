"""Hooks of the process: the topic that they receive, and the handling of their errors."""

import logging
import sys
import threading
import uuid

import pytest
from opentelemetry.trace import StatusCode

from mqdb.common.message import MessageQueue
from mqdb.common.received_message import ReceivedMessage
from mqdb_client import ConsumeConcurrentlyStatus
from mqdb_client.consumer.listeners.consume_hooks import ConsumeHooks, ConsumeMessageContext, ConsumeReturnType
from mqdb_client.process_hooks import ClientOperation, OperationContext, OperationHooks, topic_of
from mqdb_client.tracing import Tracing
from tests.fixtures.spans import Spans, attributes

RETRIES = MessageQueue("%RETRY%readers", "broker-a", 0)


def retry(topic: str) -> ReceivedMessage:
    properties = {"RETRY_TOPIC": topic}
    return ReceivedMessage(RETRIES, 1, 1, uuid.UUID(int=1), None, None, properties, b"x", 0, 0, "h", 1, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("topics", "topic"), [(["orders"], "orders"), (["orders"] * 2, "orders"), (["orders", "invoices"], RETRIES.topic)]
)
def test_the_topic_of_a_call_is_that_to_which_its_messages_were_sent(topics: list[str], topic: str) -> None:
    assert ConsumeMessageContext("readers", RETRIES, [retry(each) for each in topics]).topic == topic


def test_broken_properties_tell_no_topic() -> None:
    message = retry("orders")
    message._properties = "[" * 100_000

    assert topic_of([message]) == ""


@pytest.mark.parametrize(
    ("status", "return_type", "error_type"),
    [
        (ConsumeConcurrentlyStatus.CONSUME_SUCCESS, ConsumeReturnType.SUCCESS, None),
        (ConsumeConcurrentlyStatus.CONSUME_SUCCESS, ConsumeReturnType.TIME_OUT, "TIME_OUT"),
        (ConsumeConcurrentlyStatus.RECONSUME_LATER, ConsumeReturnType.FAILED, "RECONSUME_LATER"),
        (None, ConsumeReturnType.RETURNNULL, "RETURNNULL"),
        (object(), ConsumeReturnType.FAILED, "FAILED"),
    ],
)
def test_the_span_of_a_call_says_how_it_ended(
    status: object, return_type: ConsumeReturnType, error_type: str | None
) -> None:
    spans, hooks = Spans(), ConsumeHooks("readers")
    hooks.register(Tracing(spans.tracer))

    context = hooks.begin(RETRIES, [retry("orders")])
    assert context is not None
    hooks.end(context, status, return_type)

    [span] = spans("process orders")
    assert attributes(span).get("error.type") == error_type
    assert (span.status.status_code is StatusCode.ERROR) == (error_type is not None)


class Recorder:
    """A hook that records operations, and raises if `fails` is set."""

    hook_name = "recorder"

    def __init__(self, fails: bool = False) -> None:
        self.seen: list[object] = []
        self._fails = fails

    def operation_before(self, context: OperationContext) -> None:
        self._note(context.operation)

    def operation_after(self, context: OperationContext) -> None:
        self._note(context.outcome or context.error)

    def _note(self, what: object) -> None:
        self.seen.append(what)
        if self._fails:
            raise ValueError


def test_operations_are_seen_with_their_outcome_or_error(caplog: pytest.LogCaptureFixture) -> None:
    hooks, broken, sound, error = OperationHooks(), Recorder(fails=True), Recorder(), ConnectionError()
    for hook in (broken, sound):
        hooks.adopt(hook)

    with caplog.at_level(logging.ERROR), hooks.around(ClientOperation.RECALL, "senders", "client") as context:
        assert context is not None
        context.outcome = "RECALLED"
    with pytest.raises(ConnectionError), hooks.around(ClientOperation.RECALL, "senders", "client"):
        raise error

    assert broken.seen == sound.seen == ["recall", "RECALLED", "recall", error]
    assert len(caplog.records) == 4


class Exiting:
    """A hook whose name cannot even be printed."""

    def operation_before(self, _context: OperationContext) -> None:
        sys.exit()

    operation_after = operation_before

    @property
    def hook_name(self) -> str:
        raise SystemExit("no name")


def test_a_hook_that_exits_ends_no_thread_of_a_client(caplog: pytest.LogCaptureFixture) -> None:
    """A hook that exits does not end any thread of a client, such as the one that sends failed messages back."""
    hooks, sound, outcomes = OperationHooks(), Recorder(), []
    for hook in (Exiting(), sound):
        hooks.adopt(hook)  # type: ignore[arg-type]

    def send_back() -> None:
        with hooks.around(ClientOperation.SEND_BACK, "readers", "client") as context:
            outcomes.append(context)

    thread = threading.Thread(target=send_back)
    thread.start()
    thread.join(30)

    assert len(outcomes) == 1
    assert len(sound.seen) == 2
    assert [record.getMessage() for record in caplog.records] == ["hook None of group readers failed"] * 2


def test_a_hook_without_a_name_changes_no_call_of_a_listener(caplog: pytest.LogCaptureFixture) -> None:
    class Nameless:
        hook_name = "forgets its name"

        def consume_message_before(self, _context: ConsumeMessageContext) -> None:
            type(self).hook_name = property(lambda _: sys.exit())  # type: ignore[assignment]
            raise ValueError

        consume_message_after = consume_message_before

    hooks = ConsumeHooks("readers")
    hooks.register(Nameless())

    context = hooks.begin(RETRIES, [retry("orders")])
    assert context is not None
    hooks.end(context, None, ConsumeReturnType.RETURNNULL)

    assert [record.getMessage() for record in caplog.records] == ["hook None of group readers failed"] * 2


def test_without_a_hook_there_is_no_context() -> None:
    hooks = OperationHooks()

    with hooks.around(ClientOperation.RECALL, "senders", "client") as context:
        assert context is None
    assert hooks.around(ClientOperation.RECALL, "senders", "client") is hooks.around(
        ClientOperation.RECEIVE, "readers", "client"
    )
