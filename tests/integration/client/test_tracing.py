"""Traces: the spans that the clients of a process create with a real PostgreSQL, and their parents."""

import json
import threading
import tomllib
from datetime import timedelta
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from opentelemetry import baggage
from opentelemetry.context import attach, detach
from opentelemetry.trace import SpanKind, StatusCode
from sqlalchemy import Connection, text

from mqdb.broker.dead_letters import Redrive, redrive_messages
from mqdb.common.topic import reply_topic
from mqdb.errors import BrokerUnavailable, StorageRefused
from mqdb_client import (
    ConsumeConcurrentlyStatus,
    Message,
    Producer,
    RecallStatus,
    ReceivedMessage,
    create_reply_message,
)
from mqdb_client.tracing import SCHEMA_URL, MqdbInstrumentor
from tests.fixtures.async_sends import SECONDS
from tests.fixtures.broker import dispatch_all, topic
from tests.fixtures.consumers import LATER, SUCCESS, Inbox, Member
from tests.fixtures.lite_pull import Lite, drained, polled
from tests.fixtures.log import create_topic
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.producers import break_connections, refuse_appends, stored_bodies
from tests.fixtures.retries import dead_letters
from tests.fixtures.spans import Spans, attributes, identity, linked, parent_of, stored_contexts, trace_of
from tests.fixtures.spark_sink import write
from tests.fixtures.transactions import COMMIT, UNKNOWN, Asked, Checker, StartProducer
from tests.fixtures.variants import usually

LONG = timedelta(seconds=30)

#: Of a user's own.
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def producer(to_one: Producer) -> Producer:
    return to_one


def test_a_message_is_one_trace_from_its_send_over_retry_and_dead_letter_to_its_redrive(
    producer: Producer, served: Connection, member: Member, spans: Spans
) -> None:
    is_broken = threading.Event()
    is_broken.set()

    def listener(_messages: list[ReceivedMessage]) -> ConsumeConcurrentlyStatus:
        with spans.tracer.start_as_current_span("work"):
            if is_broken.is_set():
                raise ValueError("no price")
        return SUCCESS

    consumer = member(listener, max_reconsume_times=1)
    with spans.tracer.start_as_current_span("order"):
        sent = producer.send(Message("orders", "an order", tag="paid", keys="order-17"))
    wait_until(lambda: dead_letters(served))
    is_broken.clear()
    [(position,)] = served.execute(text("SELECT log_pos FROM mqdb.message WHERE topic = '%DLQ%readers'"))
    redrive_messages(served, [position], Redrive("mended"))
    spans.wait_for("process", 3)
    consumer.shutdown()

    [order], [send], processed, back = spans("order"), spans("send orders"), spans("process orders"), spans("send_back")
    assert {trace_of(span) for span in spans()} == {trace_of(order)}
    assert parent_of(send) == identity(order)
    assert [parent_of(span) for span in [*processed, *back]] == [identity(send)] * 5
    assert [linked(span) for span in [*processed, *back]] == [{identity(send)}] * 5
    assert [parent_of(span) for span in spans("work")] == [identity(span) for span in processed]
    assert [span.status.status_code for span in processed] == [StatusCode.ERROR, StatusCode.ERROR, StatusCode.UNSET]
    assert [attributes(span).get("mqdb.message.reconsume_times") for span in processed] == [None, 1, None]
    assert [attributes(span)["mqdb.dead_letter.count"] for span in back] == [0, 1]
    assert [span.name for span in back] == ["send_back orders"] * 2

    failed = processed[0]
    assert failed.status.description == "no price"
    assert attributes(failed)["error.type"] == "ValueError"
    [event] = failed.events
    assert (event.attributes or {})["exception.message"] == "no price"
    shared = {
        "system": "mqdb",
        "destination.name": "orders",
        "destination.partition.id": str(sent.queue.queue_id),
        "message.id": sent.message_id,
        "message.body.size": 8,
        "mqdb.broker.name": "broker-a",
        "mqdb.message.tag": "paid",
        "mqdb.message.keys": ("order-17",),
    }
    ours, theirs = attributes(send), attributes(failed)
    assert ours.pop("client.id") != theirs.pop("client.id")
    assert ours == shared | {"operation.name": "send", "operation.type": "send", "mqdb.producer.group": "senders"}
    assert theirs == shared | {
        "operation.name": "process",
        "operation.type": "process",
        "consumer.group.name": "readers",
        "error.type": "ValueError",
    }
    assert (send.kind, failed.kind, back[0].kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER, SpanKind.CLIENT)
    assert send.instrumentation_scope is not None
    assert send.instrumentation_scope.schema_url == SCHEMA_URL


def test_all_kinds_of_sends_carry_the_context_of_their_span(
    database: Database, producer: Producer, spans: Spans
) -> None:
    message = Message("orders", "1")
    with spans.tracer.start_as_current_span("order") as order:
        producer.send(message)
        producer.send_async(Message("orders", "2")).result(SECONDS)
        producer.send_oneway(Message("orders", "3"))
        with database.connect(autocommit=False) as connection:
            producer.send(Message("orders", "4"), connection=connection)
        producer.send_batch([Message("orders", "5"), Message("orders", "6")])
    sent = spans.wait_for("send", 5)

    carried = stored_contexts(database)
    assert sorted(stored_bodies(database)) == list("123456")
    assert {f"{identity(span):016x}" for span in sent} == {(context or "").split("-")[2] for context in carried}
    assert {parent_of(span) for span in sent} == {order.get_span_context().span_id}
    assert dict(message.properties) == {}
    [batch] = [span for span in sent if "batch.message_count" in attributes(span)]
    assert attributes(batch)["batch.message_count"] == 2
    assert "message.id" not in attributes(batch)


def test_a_batch_links_to_its_messages_and_belongs_to_none(producer: Producer, member: Member, spans: Spans) -> None:
    queue = producer.fetch_publish_queues("orders")[0]
    for body in ("1", "2"):
        producer.send(Message("orders", body), queue=queue)
    inbox = Inbox()
    member(inbox, consume_message_batch_max_size=10, consume_thread_nums=1)
    inbox.wait_for(2)

    wait_until(lambda: sum(len(linked(span)) for span in spans("process")) == 2)
    assert {each for span in spans("process") for each in linked(span)} == {identity(span) for span in spans("send")}
    for span in spans("process"):
        assert (parent_of(span) is None) == (attributes(span).get("batch.message_count") == 2)


def test_each_attempt_is_a_span_that_tells_why_it_has_failed(
    database: Database, producer: Producer, spans: Spans
) -> None:
    refuse_appends(database)

    with spans.tracer.start_as_current_span("order"), pytest.raises(StorageRefused):
        producer.send(Message("orders", "x"))

    [order], attempts = spans("order"), spans("send")
    assert len(attempts) == 3
    for attempt in attempts:
        assert parent_of(attempt) == identity(order)
        assert attempt.status.status_code is StatusCode.ERROR
        assert attributes(attempt)["error.type"] == "mqdb.errors.StorageRefused"


def test_an_attempt_of_another_thread_has_the_same_parent(database: Database, producer: Producer, spans: Spans) -> None:
    break_connections(database)

    with spans.tracer.start_as_current_span("order"):
        future = producer.send_async(Message("orders", "x"))
    assert isinstance(future.exception(SECONDS), BrokerUnavailable)

    [order], attempts = spans("order"), spans("send")
    assert len(attempts) == 3
    assert {parent_of(attempt) for attempt in attempts} == {identity(order)}


def test_a_users_own_context_stays(database: Database, producer: Producer, member: Member, spans: Spans) -> None:
    token = attach(baggage.set_baggage("tenant", "a shop"))
    try:
        producer.send(Message("orders", "x", properties={"traceparent": TRACEPARENT}))
    finally:
        detach(token)
    member(Inbox())
    [process] = spans.wait_for("process")

    [send] = spans("send")
    assert database.rows("SELECT properties FROM mqdb.commit_log") == [({"traceparent": TRACEPARENT},)]
    assert f"{trace_of(process):032x}" in TRACEPARENT
    assert f"{trace_of(send):032x}" not in TRACEPARENT
    assert linked(send) == linked(process) == {parent_of(process)}
    assert send.kind is SpanKind.CLIENT


def test_baggage_goes_with_a_message_into_the_listener(producer: Producer, member: Member, spans: Spans) -> None:
    heard: list[object] = []

    def listener(_messages: list[ReceivedMessage]) -> ConsumeConcurrentlyStatus:
        heard.append(baggage.get_baggage("tenant"))
        return SUCCESS

    token = attach(baggage.set_baggage("tenant", "a shop"))
    try:
        producer.send(Message("orders", "x"))
    finally:
        detach(token)
    member(listener)
    spans.wait_for("process")

    assert heard == ["a shop"]


def test_a_message_that_has_no_room_for_a_context_goes_without(
    database: Database, producer: Producer, spans: Spans
) -> None:
    producer.send(Message("orders", "x", properties={"filling": "x" * 32_700}))

    assert stored_contexts(database) == [None]
    assert spans("send")


def test_a_message_without_a_context_begins_a_trace(
    broker: Connection, database: Database, member: Member, spans: Spans
) -> None:
    topic(broker)
    database.connect().execute("SELECT mqdb.send('orders', 'by SQL'::text)")
    contexts = [None, json.dumps({"traceparent": TRACEPARENT})]
    write(database, {"body": ["by Spark", "with a context"], "properties": contexts}, topic="orders")

    member(Inbox())
    processed = spans.wait_for("process", 3)

    assert sorted(len(linked(span)) for span in processed) == [0, 0, 1]
    assert [span for span in processed if parent_of(span) is None] == [span for span in processed if not linked(span)]
    assert [f"{trace_of(span):032x}" in TRACEPARENT for span in processed] == [bool(span.links) for span in processed]


@pytest.mark.parametrize("way", usually("transactional_member", of=["orderly_member", "transactional_member"]))
def test_a_dead_letter_of_the_other_ways_to_consume_is_a_span(
    producer: Producer, way: str, request: pytest.FixtureRequest, spans: Spans
) -> None:
    producer.send(Message("orders", "x"))

    def listener(*_arguments: object) -> None:
        raise ValueError("no price")

    request.getfixturevalue(way)(listener, max_reconsume_times=0)
    [back] = spans.wait_for("send_back orders")

    [send], [process] = spans("send orders"), spans("process")
    assert parent_of(back) == parent_of(process) == identity(send)
    assert attributes(process)["error.type"] == "ValueError"
    assert attributes(back)["mqdb.dead_letter.count"] == 1
    assert attributes(back)["client.id"] == attributes(process)["client.id"] != attributes(send)["client.id"]


def test_to_ask_for_a_message_again_is_an_error_without_an_exception(
    producer: Producer, member: Member, spans: Spans
) -> None:
    producer.send(Message("orders", "x"))

    member(lambda _messages: LATER)
    [process] = spans.wait_for("process")

    assert process.status.status_code is StatusCode.ERROR
    assert attributes(process)["error.type"] == "RECONSUME_LATER"
    assert process.events == ()


@pytest.mark.usefixtures("both_kinds_of_clients")
def test_a_poll_links_to_the_messages_that_it_returns(
    broker: Connection, producer: Producer, lite: Lite, spans: Spans
) -> None:
    consumer = lite("orders")
    producer.send(Message("orders", "1"))
    producer.send(Message("orders", "2"))
    dispatch_all(broker)

    assert sorted(polled(consumer, 2)) == ["1", "2"]
    drained(consumer)  # polls without a message

    received = spans("receive orders")
    assert {each for span in received for each in linked(span)} == {identity(span) for span in spans("send")}
    assert all(linked(span) for span in received)
    assert {span.kind for span in received} == {SpanKind.CLIENT}
    assert attributes(received[0])["consumer.group.name"] == "readers"


def test_a_reply_belongs_to_the_trace_of_its_request(producer: Producer, member: Member, spans: Spans) -> None:
    def listener(messages: list[ReceivedMessage]) -> ConsumeConcurrentlyStatus:
        producer.send(create_reply_message(messages[0], "it costs 17"))
        return SUCCESS

    member(listener)
    reply = producer.request(Message("orders", "how much?"), LONG)

    [process] = spans.wait_for("process")
    # The reply may be on its way before the send of the request has returned.
    [asked], [answered] = spans("send orders"), spans(f"send {reply_topic('DefaultCluster')}")
    assert (parent_of(process), parent_of(answered)) == (identity(asked), identity(process))
    assert f"{identity(answered):016x}" in reply.properties["traceparent"]


@pytest.mark.usefixtures("both_kinds_of_clients")
def test_the_end_of_a_transaction_and_its_check_belong_to_the_trace(
    broker: Connection, database: Database, transactional_producer: StartProducer, spans: Spans
) -> None:
    create_topic(database.connect(), "orders", 1)
    listener = Asked(executed=COMMIT, checked=COMMIT)
    producer = transactional_producer(listener)
    with spans.tracer.start_as_current_span("told") as told:
        producer.send_in_transaction(Message("orders", "1"))
    listener.executed = UNKNOWN
    with spans.tracer.start_as_current_span("asked"):
        producer.send_in_transaction(Message("orders", "2"))
    Checker(broker).after(timedelta(hours=1))
    listener.wait_for_checks(1)
    spans.wait_for("end_transaction", 2)

    [first, second], [check] = spans("end_transaction orders"), spans("check_transaction orders")
    assert parent_of(first) == told.get_span_context().span_id
    assert trace_of(check) == trace_of(second) == trace_of(spans("send")[1])
    assert parent_of(check) == identity(spans("send")[1])
    assert attributes(check)["mqdb.outcome"] == attributes(second)["mqdb.outcome"] == "COMMIT"


def test_a_recall_is_a_span(producer: Producer, spans: Spans) -> None:
    sent = producer.send(Message("orders", "x", delay=timedelta(hours=1)))
    assert sent.recall_handle is not None

    assert producer.recall(sent.recall_handle) is RecallStatus.RECALLED

    [recall] = spans("recall orders")
    assert attributes(recall)["mqdb.outcome"] == "RECALLED"
    assert attributes(recall)["message.id"] == sent.message_id


def test_opentelemetry_instrument_finds_it() -> None:
    configuration = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8"))
    [where] = configuration["project"]["entry-points"]["opentelemetry_instrumentor"].values()

    assert EntryPoint("mqdb", where, "opentelemetry_instrumentor").load() is MqdbInstrumentor
