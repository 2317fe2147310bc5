"""Metrics of producers and consumers in a user's process."""

import uuid
from datetime import UTC, datetime, timedelta

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from mqdb.common.message import Message, MessageQueue, SendStatus
from mqdb.common.received_message import ReceivedMessage
from mqdb.errors import BrokerUnavailable, ParameterInvalid
from mqdb_client.consumer.listeners.consume_hooks import ConsumeHooks, ConsumeReturnType
from mqdb_client.metrics import MetricsHook
from mqdb_client.producer.sends.send_hooks import Hooks, SendMessageContext, SendMode
from mqdb_client.producer.sends.send_result import SendResult
from tests.fixtures.web import series

QUEUE = MessageQueue("orders", "broker-a", 3)
POSTGRESQL_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def hook(registry: CollectorRegistry) -> MetricsHook:
    return MetricsHook(registry)


def said(registry: CollectorRegistry) -> dict[str, float]:
    """All series except creation times and buckets."""
    found = series(generate_latest(registry).decode())
    return {name: value for name, value in found.items() if "_created" not in name and "_bucket" not in name}


def attempt(hooks: Hooks, bodies: int = 1, mode: SendMode = SendMode.SYNC) -> SendMessageContext:
    messages = [Message("orders", b"x")] * bodies
    context = SendMessageContext("shop", messages, ["0" * 32] * bodies, QUEUE, mode, "10.0.0.1")
    hooks.begin(context)
    return context


def message(age: timedelta) -> ReceivedMessage:
    stored = (datetime.now(UTC) - age - POSTGRESQL_EPOCH) // timedelta(microseconds=1)
    return ReceivedMessage(QUEUE, 1, 1, uuid.UUID(int=1), None, None, {}, b"x", 0, stored, "h", 0, 0, 0, 0, 0)


def test_each_attempt_to_send_counts_by_topic_and_result(registry: CollectorRegistry, hook: MetricsHook) -> None:
    hooks = Hooks()
    hooks.register_send_message_hook(hook)
    result = SendResult(SendStatus.SEND_OK, "0" * 32, QUEUE, 17, lambda: 0)

    for bodies in (1, 3):
        hooks.end(attempt(hooks, bodies), [result] * bodies)
    hooks.end(attempt(hooks), error=BrokerUnavailable("h", "away"))
    hooks.end(attempt(hooks, mode=SendMode.ONEWAY))

    found = said(registry)
    assert {name: found[name] for name in found if "_sum" not in name} == {
        "mqdb_client_send_seconds_count{SEND_OK,orders}": 2,
        "mqdb_client_sent_messages_total{SEND_OK,orders}": 4,
        "mqdb_client_send_seconds_count{BrokerUnavailable,orders}": 1,
        "mqdb_client_sent_messages_total{BrokerUnavailable,orders}": 1,
        "mqdb_client_send_seconds_count{ONEWAY,orders}": 1,
        "mqdb_client_sent_messages_total{ONEWAY,orders}": 1,
    }
    assert 0 < found["mqdb_client_send_seconds_sum{SEND_OK,orders}"] < 10


def test_each_call_of_a_listener_counts_by_group_topic_and_result(
    registry: CollectorRegistry, hook: MetricsHook
) -> None:
    hooks = ConsumeHooks("billing")
    hooks.register(hook)
    # The clock of the database may be ahead.
    messages = [message(timedelta(seconds=2)), message(timedelta(hours=-1))]

    for return_type in (ConsumeReturnType.SUCCESS, ConsumeReturnType.EXCEPTION):
        context = hooks.begin(QUEUE, messages)
        assert context is not None
        hooks.end(context, None, return_type)

    found = said(registry)
    assert {name: found[name] for name in found if "_sum" not in name} == {
        "mqdb_client_process_seconds_count{billing,SUCCESS,orders}": 1,
        "mqdb_client_consumed_messages_total{billing,SUCCESS,orders}": 2,
        "mqdb_client_process_seconds_count{billing,EXCEPTION,orders}": 1,
        "mqdb_client_consumed_messages_total{billing,EXCEPTION,orders}": 2,
        "mqdb_client_delivery_seconds_count{billing,orders}": 4,
    }
    assert 4 <= found["mqdb_client_delivery_seconds_sum{billing,orders}"] < 60


def test_one_hook_is_for_all_of_a_registry(registry: CollectorRegistry, hook: MetricsHook) -> None:
    with pytest.raises(ParameterInvalid, match="use one MetricsHook for all producers and consumers"):
        MetricsHook(registry)
