"""Random calls of the front for RocketMQ 5's SDKs: each gets an expected kind of answer.

Afterwards the front still accepts a message, and delivers it to a consumer.
"""

import logging
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Connection

from mqdb.grpc import consuming
from mqdb.grpc.wire import rocketmq_pb2 as pb
from tests.fixtures.broker import dispatch_all, topic
from tests.fixtures.grpc_client import GrpcClient, GrpcFronts, resource, subscription
from tests.fixtures.processes import wait_until

I32: Final = 2**31
I64: Final = 2**63

odd_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30) | st.sampled_from(
    ["", " ", "\0", "a\0b", "%", "ns%", "%RETRY%workers", "%DLQ%workers", "orders ", "*", "\ud7ff", "\U0010ffff",
     "x" * 300, "ö" * 200, "'", "$1", "\\", "TAGS", "SELF_TEST_TOPIC", "SCHEDULE_TOPIC_XXXX", "٣", "²"]
)  # fmt: skip


def mostly(usual: Any, odd: st.SearchStrategy[Any], share: int = 6) -> st.SearchStrategy[Any]:
    """The usual value, or, one time in `share`, an odd one. A call with many odd fields would fail at the first."""
    return st.integers(0, share - 1).flatmap(lambda number: odd if number == share - 1 else st.just(usual))


topics = mostly("orders", odd_texts)
groups = mostly("workers", st.sampled_from(["orderly", "pulled"]) | odd_texts)
i32 = st.sampled_from([0, 1, -1, 32, 33, I32 - 1, -I32]) | st.integers(-I32, I32 - 1)
seconds = st.sampled_from(
    [0, 1, -1, 10, 60, 43_200, 43_201, 253_402_300_799, 253_402_300_800, 315_576_000_001, -62_135_596_801, I64 - 1,
     -I64]
) | st.integers(-I64, I64 - 1)  # fmt: skip
nanos = st.sampled_from([0, 1, 999_999_999, 1_000_000_000, -1, I32 - 1, -I32])
enums = st.integers(0, 7) | i32

durations = st.builds(Duration, seconds=seconds, nanos=nanos)
timestamps = st.builds(Timestamp, seconds=seconds, nanos=nanos)


def maybe(strategy: st.SearchStrategy[Any], share: int = 6) -> st.SearchStrategy[Any]:
    """A field that is usually missing."""
    return mostly(None, strategy, share)


def resources(names: st.SearchStrategy[str]) -> st.SearchStrategy[pb.Resource]:
    namespaces = mostly("", odd_texts, 12)
    return st.builds(pb.Resource, name=names, resource_namespace=namespaces)


bodies = st.sampled_from([b"", b"x", b"\0", b"\x1f\x8b"]) | st.binary(max_size=50)

system_properties = st.builds(
    pb.SystemProperties,
    tag=maybe(odd_texts),
    keys=mostly([], st.lists(odd_texts, max_size=3)),
    message_id=mostly("01" + "0" * 32, odd_texts),
    body_digest=maybe(st.builds(pb.Digest, type=enums, checksum=odd_texts)),
    body_encoding=mostly(pb.Encoding.IDENTITY, enums),
    message_type=mostly(pb.MessageType.MESSAGE_TYPE_UNSPECIFIED, enums, 3),
    born_timestamp=maybe(timestamps),
    born_host=mostly("host", odd_texts),
    store_timestamp=maybe(timestamps),
    delivery_timestamp=maybe(timestamps, 3),
    receipt_handle=maybe(odd_texts),
    queue_id=i32,
    message_group=maybe(odd_texts),
    delivery_attempt=maybe(i32),
)

messages = st.builds(
    pb.Message,
    topic=resources(topics),
    user_properties=mostly({}, st.dictionaries(odd_texts, odd_texts, max_size=4), 3),
    system_properties=system_properties,
    body=mostly(b"body", bodies),
)

expressions = st.builds(
    pb.FilterExpression,
    type=enums,
    expression=odd_texts
    | st.sampled_from(["*", "a || b", "||", "a > 1", "a = '\0'", "(" * 200, "1e999 = a", "x" * 5_000]),
)  # fmt: skip

hexadecimal = st.text("0123456789abcdef", min_size=80, max_size=80)
handles = hexadecimal | st.sampled_from(["f" * 80, "0" * 80, "F" * 80, "0" * 64 + "f" * 16]) | odd_texts


def recall_handle(words: list[str]) -> str:
    return urlsafe_b64encode(" ".join(words).encode()).decode()


recall_words = st.tuples(
    st.just("v1") | odd_texts,
    topics,
    st.just("broker-a") | odd_texts,
    seconds.map(str) | odd_texts,
    st.just("0" * 32) | odd_texts,
)
recall_handles = recall_words.map(lambda words: recall_handle(list(words))) | odd_texts

transaction_ids = st.integers(0, 10**19).map(str) | seconds.map(str) | odd_texts
endpoints = st.builds(
    pb.Endpoints, scheme=enums, addresses=st.lists(st.builds(pb.Address, host=odd_texts, port=i32), max_size=3)
)

#: By the name of the call.
REQUESTS: Final[dict[str, st.SearchStrategy[Any]]] = {
    "SendMessage": st.builds(pb.SendMessageRequest, messages=st.lists(messages, max_size=2)),
    "AckMessage": st.builds(
        pb.AckMessageRequest,
        group=resources(groups),
        topic=resources(topics),
        entries=st.lists(st.builds(pb.AckMessageEntry, message_id=odd_texts, receipt_handle=handles), max_size=4),
    ),
    "ChangeInvisibleDuration": st.builds(
        pb.ChangeInvisibleDurationRequest,
        group=resources(groups),
        topic=resources(topics),
        receipt_handle=handles,
        invisible_duration=maybe(durations, 2),
        message_id=odd_texts,
    ),
    "ForwardMessageToDeadLetterQueue": st.builds(
        pb.ForwardMessageToDeadLetterQueueRequest,
        group=resources(groups),
        topic=resources(topics),
        receipt_handle=handles,
        message_id=odd_texts,
        delivery_attempt=i32,
        max_delivery_attempts=i32,
    ),
    "EndTransaction": st.builds(
        pb.EndTransactionRequest,
        topic=resources(topics),
        message_id=odd_texts,
        transaction_id=transaction_ids,
        resolution=enums,
        source=enums,
        trace_context=odd_texts,
    ),
    "RecallMessage": st.builds(pb.RecallMessageRequest, topic=resources(topics), recall_handle=recall_handles),
    "QueryRoute": st.builds(pb.QueryRouteRequest, topic=resources(topics), endpoints=maybe(endpoints)),
    "QueryAssignment": st.builds(
        pb.QueryAssignmentRequest, topic=resources(topics), group=resources(groups), endpoints=maybe(endpoints)
    ),
    "Heartbeat": st.builds(pb.HeartbeatRequest, group=resources(groups), client_type=enums),
    "NotifyClientTermination": st.builds(pb.NotifyClientTerminationRequest, group=maybe(resources(groups))),
}

receives = st.builds(
    pb.ReceiveMessageRequest,
    group=resources(groups),
    message_queue=st.builds(pb.MessageQueue, topic=resources(topics), id=i32, permission=enums),
    filter_expression=maybe(expressions, 3),
    batch_size=mostly(1, i32),
    invisible_duration=mostly(Duration(seconds=10), durations, 3),
    auto_renew=st.booleans(),
    long_polling_timeout=maybe(durations, 2),
    attempt_id=maybe(odd_texts),
)

commands = st.builds(
    pb.TelemetryCommand,
    settings=st.builds(
        pb.Settings,
        client_type=enums,
        access_point=maybe(endpoints),
        backoff_policy=maybe(st.builds(pb.RetryPolicy, max_attempts=i32)),
        request_timeout=maybe(durations),
        subscription=maybe(
            st.builds(
                pb.Subscription,
                group=resources(groups),
                subscriptions=st.lists(
                    st.builds(pb.SubscriptionEntry, topic=resources(topics), expression=maybe(expressions)), max_size=3
                ),
                fifo=st.booleans(),
                receive_batch_size=i32,
                long_polling_timeout=maybe(durations),
            ),
            2,
        ),
        user_agent=maybe(st.builds(pb.UA, language=enums, version=odd_texts, platform=odd_texts, hostname=odd_texts)),
    ),
) | st.builds(
    pb.TelemetryCommand,
    settings=st.builds(
        pb.Settings,
        publishing=st.builds(pb.Publishing, topics=st.lists(resources(topics), max_size=3), max_body_size=i32),
    ),
)

#: Answers to questions that nobody has asked.
answers = st.builds(
    pb.TelemetryCommand,
    status=maybe(st.builds(pb.Status, code=enums, message=odd_texts)),
    thread_stack_trace=st.builds(pb.ThreadStackTrace, nonce=odd_texts, thread_stack_trace=odd_texts),
) | st.builds(pb.TelemetryCommand, verify_message_result=st.builds(pb.VerifyMessageResult, nonce=odd_texts))

# gRPC itself lets no other characters pass, and takes blanks at the ends away.
printable = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=40).map(str.strip)
Metadata = tuple[tuple[str, str | bytes], ...]
metadata: st.SearchStrategy[Metadata] = st.fixed_dictionaries(
    {},
    optional={
        "x-mq-client-id": mostly("client", printable | st.just("c" * 300), 3),
        "x-mq-namespace": printable,
        "x-mq-language": printable | st.just("L" * 300),
        "x-mq-client-version": printable,
        "x-mq-date-time": printable,
        "authorization": printable | st.just("MQv2-HMAC-SHA1 Credential=//Rocketmq, SignedHeaders=x, Signature=0"),
        "x-mq-odd-bin": st.binary(max_size=20),
    },
).map(lambda fields: tuple(fields.items()))


class Unforeseen(logging.Handler):
    """Collects the errors that a logger gets."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def check(self) -> None:
        found, self.records = self.records, []
        assert [(record.getMessage(), record.exc_info) for record in found] == []


@pytest.fixture
def unforeseen() -> Iterator[Unforeseen]:
    with unforeseen_of("mqdb") as mqdb, unforeseen_of("grpc") as grpc, unforeseen_of("asyncio") as loop:
        yield mqdb
        grpc.check()
        loop.check()


@contextmanager
def unforeseen_of(name: str) -> Iterator[Unforeseen]:
    handler, logger = Unforeseen(), logging.getLogger(name)
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


@pytest.fixture
def client(broker: Connection, grpc_fronts: GrpcFronts, monkeypatch: pytest.MonkeyPatch) -> GrpcClient:
    """A client whose group `workers` has begun in the topic `orders`. Receives do not wait for messages."""
    monkeypatch.setattr(consuming, "_SHORTEST_POLL", timedelta(milliseconds=20))
    monkeypatch.setattr(consuming, "LONGEST_POLL", timedelta(milliseconds=20))
    topic(broker, "orders", 2)
    broker.exec_driver_sql("INSERT INTO mqdb.subscription_group (group_name, consume_mode) VALUES ('pulled', 'PULL')")
    broker.exec_driver_sql(
        "INSERT INTO mqdb.subscription_group (group_name, consume_mode, consume_message_orderly)"
        " VALUES ('orderly', 'POP', true)"
    )
    client = grpc_fronts.connect("well-known")
    stream = client.telemetry()
    assert stream.ask(subscription("workers", orders="*")).status.code == pb.Code.OK
    stream.close()
    return client


def assert_serves(broker: Connection, client: GrpcClient) -> None:
    """Check that the front accepts a message, and delivers it to a consumer."""
    assert client.send("orders", "as ever").status.code == pb.Code.OK
    dispatch_all(broker)

    def comes() -> bool:
        got = client.receive("workers", "orders")
        client.ack("workers", "orders", *got)
        return "as ever" in [each.body.decode(errors="replace") for each in got]

    wait_until(comes)


def check(status: pb.Status, unforeseen: Unforeseen) -> None:
    """Check that the front has chosen the status, and that the database has refused no statement."""
    assert status.code not in (pb.Code.CODE_UNSPECIFIED, pb.Code.INTERNAL_ERROR), status
    unforeseen.check()


@pytest.mark.parametrize("name", REQUESTS)
def test_any_request_gets_an_answer(
    broker: Connection, grpc_fronts: GrpcFronts, client: GrpcClient, unforeseen: Unforeseen, name: str
) -> None:
    other = grpc_fronts.connect("other")

    @given(request=REQUESTS[name])
    def ask(request: Message) -> None:
        check(other.call(name, request).status, unforeseen)

    ask()

    assert_serves(broker, client)


def test_any_metadata_get_an_answer(
    broker: Connection, grpc_fronts: GrpcFronts, client: GrpcClient, unforeseen: Unforeseen
) -> None:
    other = grpc_fronts.connect("other")

    @given(metadata=metadata)
    def ask(metadata: Metadata) -> None:
        other.metadata = metadata
        for answer in (
            other.send("orders", "x"),
            other.call("Heartbeat", pb.HeartbeatRequest()),
            other.call("QueryRoute", pb.QueryRouteRequest(topic=resource("orders"))),
            *other.begin_receive("workers", "orders", most=1),
        ):
            if isinstance(answer, pb.ReceiveMessageResponse) and not answer.HasField("status"):
                continue
            check(answer.status, unforeseen)

    ask()

    assert_serves(broker, client)


def test_any_receive_gets_an_answer(
    broker: Connection, grpc_fronts: GrpcFronts, client: GrpcClient, unforeseen: Unforeseen
) -> None:
    other = grpc_fronts.connect("other")

    @given(request=receives)
    def ask(request: pb.ReceiveMessageRequest) -> None:
        [first, *_, last] = list(other.begin_request(request))
        assert last.HasField("delivery_timestamp")
        check(first.status, unforeseen)

    ask()

    assert_serves(broker, client)


def test_any_settings_get_an_answer(
    broker: Connection, grpc_fronts: GrpcFronts, client: GrpcClient, unforeseen: Unforeseen
) -> None:
    other = grpc_fronts.connect("other")

    @given(said=st.lists(commands, min_size=1, max_size=2), unasked=maybe(answers, 2))
    def ask(said: list[pb.TelemetryCommand], unasked: pb.TelemetryCommand | None) -> None:
        stream = other.telemetry()
        if unasked is not None:
            stream.say_command(unasked)
        for command in said:
            check(stream.ask(command.settings).status, unforeseen)
        stream.close()

    ask()

    assert_serves(broker, client)
