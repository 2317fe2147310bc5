"""Hooks around sends: when they are called, their view of each attempt, and the effect of their errors."""

import re
from typing import Any

import pytest

from mqdb.common.durability import Durability
from mqdb.errors import BatchTooLarge, ParameterInvalid, StorageRefused
from mqdb_client import Message, Producer, SendStatus
from mqdb_client.producer.sends.send_hooks import SendMode
from tests.fixtures.postgres import Database
from tests.fixtures.producers import TwoBrokers, attempts_of, producer_of, refuse_appends, stored_bodies
from tests.fixtures.send_hooks import Forbidden, Recorder

# One of two brokers that takes 0.3 s to connect to would be passed by.
pytestmark = pytest.mark.usefixtures("patient")


@pytest.fixture
def producer(to_one: Producer) -> Producer:
    return to_one


@pytest.fixture
def orders(orders_on_both: TwoBrokers) -> TwoBrokers:
    return orders_on_both


def test_hooks_are_called_in_the_order_of_their_registration(producer: Producer) -> None:
    calls: list[str] = []
    for name in ("one", "two"):
        hook = Recorder(calls, name)
        producer.register_send_message_hook(hook)
        producer.register_check_forbidden_hook(hook)

    producer.send(Message("orders", "x"))

    assert calls == ["one check", "two check", "one before", "two before", "one after", "two after"]


@pytest.mark.parametrize("moment", ["before", "after"])
def test_what_a_send_message_hook_raises_is_logged_and_stops_nobody(
    database: Database, producer: Producer, moment: str, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[str] = []
    producer.register_send_message_hook(Recorder(calls, "one", fails_at=moment))
    producer.register_send_message_hook(Recorder(calls, "two"))

    assert producer.send(Message("orders", "x")).status is SendStatus.SEND_OK

    assert calls == ["one before", "two before", "one after", "two after"]
    assert re.search("hook .* of group .* failed", caplog.text)
    assert stored_bodies(database) == ["x"]


def test_a_check_forbidden_hook_stops_each_way_to_send(database: Database, producer: Producer) -> None:
    calls: list[str] = []
    producer.register_check_forbidden_hook(Recorder(calls, "police", fails_at="check"))
    producer.register_send_message_hook(Recorder(calls, "witness"))

    with pytest.raises(Forbidden):
        producer.send(Message("orders", "x"))
    with pytest.raises(Forbidden):
        producer.send_batch([Message("orders", "x")] * 2)
    with pytest.raises(Forbidden):
        producer.send_async(Message("orders", "x")).result(10)
    producer.send_oneway(Message("orders", "x"))
    producer.shutdown()

    assert calls == ["police check"] * 4
    assert stored_bodies(database) == []


def test_what_is_stored_stays_a_result_where_the_next_try_is_forbidden(orders: TwoBrokers) -> None:
    calls: list[str] = []
    options: dict[str, Any] = {"durability": Durability.SYNC_MASTER, "retry_another_broker_when_not_store_ok": True}
    with producer_of(orders.dsn, **options) as producer:
        producer.register_check_forbidden_hook(Recorder(calls, "police", fails_at="check", from_call=2))

        result = producer.send(Message("orders", "x"))

    assert result.status is SendStatus.SLAVE_NOT_AVAILABLE
    assert calls == ["police check"] * 2
    assert stored_bodies(orders.a) + stored_bodies(orders.b) == ["x"]


def test_hooks_see_every_attempt_and_what_became_of_it(orders: TwoBrokers, to_two: Producer) -> None:
    attempts = attempts_of(to_two)
    refuse_appends(orders.a)

    results = [to_two.send(Message("orders", str(n))) for n in range(8)]

    assert attempts.ended == attempts.begun
    for context in attempts.ended:
        if context.broker_name == "broker-a":
            assert isinstance(context.error, StorageRefused)
            assert context.result is None
        else:
            assert context.error is None
            assert context.result in results


def test_a_hook_sees_a_batch_as_a_whole(producer: Producer) -> None:
    attempts = attempts_of(producer)
    messages = [Message("orders", str(n)) for n in range(3)]

    results = producer.send_batch(messages)

    [context] = attempts.ended
    assert list(context.messages) == messages
    assert list(context.message_ids) == [result.message_id for result in results]
    assert list(context.results) == results
    assert (context.producer_group, context.mode, context.queue) == ("senders", SendMode.SYNC, results[0].queue)


def test_a_hook_knows_how_the_caller_waits(producer: Producer) -> None:
    attempts = attempts_of(producer)

    producer.send_async(Message("orders", "x")).result(10)
    producer.send_oneway(Message("orders", "x"))
    producer.shutdown()

    assert [context.mode for context in attempts.ended] == [SendMode.ASYNC, SendMode.ONEWAY]


def test_what_begins_for_a_hook_ends_for_it_too_where_a_batch_is_too_large(producer: Producer) -> None:
    attempts = attempts_of(producer)

    with pytest.raises(BatchTooLarge):
        producer.send_batch([Message("orders", b"x" * 2_097_152)] * 2)

    assert attempts.begun == attempts.ended


def test_a_hook_that_is_none_is_refused(producer: Producer) -> None:
    no_hook: Any = object()
    with pytest.raises(ParameterInvalid):
        producer.register_send_message_hook(no_hook)
    with pytest.raises(ParameterInvalid):
        producer.register_check_forbidden_hook(no_hook)
