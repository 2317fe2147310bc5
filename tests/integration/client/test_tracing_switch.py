"""Tracing is switched on and off for all clients of a process; when it is off, it costs nothing."""

import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from types import FrameType
from typing import Any

import pytest
from opentelemetry import trace
from sqlalchemy import Connection

from mqdb_client import ConsumeConcurrentlyStatus, Message, Producer, RecallStatus, ReceivedMessage, process_hooks
from mqdb_client.consumer.listeners import consume_hooks
from mqdb_client.producer.joined import joined_sending
from mqdb_client.producer.sends import sending
from mqdb_client.tracing import MqdbInstrumentor
from tests.fixtures.async_sends import SECONDS
from tests.fixtures.broker import dispatch_all
from tests.fixtures.consumers import SUCCESS, Inbox, Member
from tests.fixtures.lite_pull import Lite, polled
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.spans import Spans, attributes, identity, parent_of, stored_contexts


@pytest.fixture
def producer(to_one: Producer) -> Producer:
    return to_one


def modules_called(work: Callable[[], object]) -> set[str]:
    """The modules of hooks and tracing whose functions this thread calls."""
    called: set[str] = set()

    def note(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call":
            called.add(frame.f_globals.get("__name__", ""))

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    ours = {name for name in called if name.startswith("mqdb_client") and name.endswith(("hooks", "tracing"))}
    return ours | {name for name in called if name.startswith("opentelemetry")}


def test_what_is_off_calls_no_hook_and_makes_no_object(
    broker: Connection,
    database: Database,
    producer: Producer,
    member: Member,
    lite: Lite,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    poller, inbox = lite("orders", group="pollers"), Inbox()

    def work() -> None:
        producer.send(Message("orders", "x"))
        with database.connect(autocommit=False) as connection:
            producer.send_batch([Message("orders", "y")], connection=connection)
        dispatch_all(broker)
        polled(poller, 2)

    before = modules_called(work)
    spans = Spans()
    MqdbInstrumentor().instrument(tracer_provider=spans.provider)
    during = modules_called(work)
    MqdbInstrumentor().uninstrument()
    traced = len(spans())

    def make(*_: object, **__: object) -> None:
        raise AssertionError("an object was made for a hook")

    monkeypatch.setattr(sending, "SendMessageContext", make)
    monkeypatch.setattr(joined_sending, "SendMessageContext", make)
    monkeypatch.setattr(consume_hooks, "ConsumeMessageContext", make)
    monkeypatch.setattr(process_hooks, "OperationContext", make)
    after = modules_called(work)
    member(inbox)
    inbox.wait_for(6)
    contexts = stored_contexts(database)
    recalled = producer.recall(producer.send(Message("orders", "z", delay=timedelta(hours=1))).recall_handle or "")

    assert recalled is RecallStatus.RECALLED
    assert (before, after) == (set(), set())
    assert {"mqdb_client.tracing", "mqdb_client.process_hooks", "mqdb_client.producer.sends.send_hooks"} < during
    assert len(spans()) == traced > 0
    assert [context is None for context in contexts] == [True, True, False, False, True, True]


def test_a_call_that_has_begun_ends_its_span_when_tracing_is_switched_off(producer: Producer, member: Member) -> None:
    spans, current, is_off = Spans(), [], threading.Event()
    MqdbInstrumentor().instrument(tracer_provider=spans.provider)

    def listener(_messages: list[ReceivedMessage]) -> ConsumeConcurrentlyStatus:
        current.append(trace.get_current_span().is_recording())
        if len(current) == 1:
            MqdbInstrumentor().uninstrument()
            is_off.set()
        return SUCCESS

    producer.send(Message("orders", "1"))
    member(listener, consume_thread_nums=1)
    assert is_off.wait(30)
    producer.send(Message("orders", "2"))
    wait_until(lambda: len(current) == 2)

    assert current == [True, False]
    assert [span.name for span in spans()] == ["send orders", "process orders"]


def test_sends_of_many_threads_have_the_parents_of_their_threads(producer: Producer, spans: Spans) -> None:
    def send(number: int) -> "Future[Any]":
        with spans.tracer.start_as_current_span(f"order {number}"):
            return producer.send_async(Message("orders", str(number), keys=str(number)))

    threads = [threading.Thread(target=lambda number=number: send(number).result(SECONDS)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    orders = {identity(span): span.name for span in spans("order ")}
    sent = spans.wait_for("send", 8)
    assert all(orders[parent_of(span) or 0] == f"order {attributes(span)['mqdb.message.keys'][0]}" for span in sent)
