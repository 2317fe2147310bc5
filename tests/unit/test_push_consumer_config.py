"""What a push consumer refuses before it connects anywhere."""

from datetime import datetime, timedelta
from functools import partial
from typing import Any

import pytest

from mqdb.errors import (
    IllegalState,
    MqdbError,
    NameInvalid,
    ParameterInvalid,
    SelectorSyntaxError,
    TagExpressionInvalid,
)
from mqdb.message import ReceivedMessage
from mqdb_client import ConsumeConcurrentlyStatus, MessageSelector, PushConsumer

DSN = "postgresql://mqdb@127.0.0.1:1/nowhere"


def consumer(group: str = "readers", /, **options: Any) -> PushConsumer:
    return PushConsumer(group, DSN, **options)


def listener(_messages: list[ReceivedMessage]) -> ConsumeConcurrentlyStatus:
    return ConsumeConcurrentlyStatus.CONSUME_SUCCESS


RANGES = {
    "consume_thread_nums": (1, 1_000),
    "consume_message_batch_max_size": (1, 1_024),
    "pull_batch_size": (1, 1_024),
    "pull_threshold_for_queue": (1, 65_535),
    "pull_threshold_size_for_queue": (1, 1_024),
    "consume_concurrently_max_span": (1, 65_535),
    "subscription_version": (0, 2**63 - 1),
}

#: With these -1 says that there is no limit.
RANGES_OR_NONE = {
    "pull_threshold_for_topic": (1, 6_553_500),
    "pull_threshold_size_for_topic": (1, 102_400),
    "max_reconsume_times": (0, 2**31 - 1),
}


@pytest.mark.parametrize("name", RANGES)
def test_numbers_have_the_ranges_of_rocketmq(name: str) -> None:
    lowest, highest = RANGES[name]
    for value in (lowest, highest):
        consumer("readers", **{name: value})

    refused: list[object] = [lowest - 1, highest + 1, "20", 1.5, None]
    for wrong in refused:
        with pytest.raises(ParameterInvalid) as caught:
            consumer("readers", **{name: wrong})
        assert str(caught.value) == f"{name} = {wrong!r}: must be a whole number from {lowest:,} to {highest:,}"


@pytest.mark.parametrize("name", RANGES_OR_NONE)
def test_numbers_that_may_be_unlimited(name: str) -> None:
    lowest, highest = RANGES_OR_NONE[name]
    for value in (-1, lowest, highest):
        consumer("readers", **{name: value})

    for wrong in (lowest - 1 or -2, highest + 1):
        if wrong != -1:
            with pytest.raises(ParameterInvalid, match=f"from {lowest:,} to {highest:,}, or -1"):
                consumer("readers", **{name: wrong})


@pytest.mark.parametrize(
    ("name", "shortest", "longest"),
    [
        ("suspend_current_queue_time", timedelta(milliseconds=10), timedelta(seconds=30)),
        ("pull_interval", timedelta(0), timedelta(milliseconds=65_535)),
    ],
)
def test_durations_within_limits(name: str, shortest: timedelta, longest: timedelta) -> None:
    for value in (shortest, longest):
        consumer("readers", **{name: value})

    for wrong in (shortest - timedelta(milliseconds=1), longest + timedelta(milliseconds=1), 5):
        with pytest.raises(ParameterInvalid, match=f"must be a timedelta from {shortest} to {longest}"):
            consumer("readers", **{name: wrong})


def test_a_timestamp_without_a_zone_is_refused() -> None:
    with pytest.raises(ParameterInvalid, match="must be aware"):
        consumer("readers", consume_timestamp=datetime(2024, 1, 1))  # noqa: DTZ001 - that is the mistake


@pytest.mark.parametrize(
    "name",
    [
        "persist_consumer_offset_interval",
        "rebalance_interval",
        "hand_over_grace",
        "consume_timeout",
        "queue_lock_expiry",
    ],
)
def test_durations_are_longer_than_nothing(name: str) -> None:
    for value in (timedelta(0), timedelta(seconds=-1), 5):
        with pytest.raises(ParameterInvalid, match="must be a timedelta of more than 0"):
            consumer("readers", **{name: value})


@pytest.mark.parametrize("group", ["", "a.b", "组", "g" * 121, "DEFAULT_CONSUMER"])
def test_rows_1_to_3_groups_have_names(group: str) -> None:
    """Checklist rows 1 to 3."""
    with pytest.raises(NameInvalid):
        consumer(group)


@pytest.mark.parametrize("listener", [lambda: None, lambda a, b, c: None], ids=["nothing", "three"])
def test_a_listener_that_cannot_be_called_is_refused(listener: Any) -> None:
    with pytest.raises(ParameterInvalid, match=r"must take \(messages\) or \(messages, context\)"):
        consumer().register_listener(listener)


class Asynchronous:
    async def __call__(self, messages: list[ReceivedMessage]) -> None: ...


async def asynchronous(messages: list[ReceivedMessage]) -> None: ...


@pytest.mark.parametrize(
    "listener", [asynchronous, partial(asynchronous), Asynchronous()], ids=["function", "partial", "object"]
)
@pytest.mark.parametrize("transactional", [False, True])
def test_an_asynchronous_listener_is_refused(listener: Any, transactional: bool) -> None:
    with pytest.raises(ParameterInvalid, match="is asynchronous"):
        consumer().register_listener(listener, transactional=transactional)


def test_a_transactional_listener_takes_a_connection() -> None:
    with pytest.raises(ParameterInvalid, match=r"must take \(messages, connection\)"):
        consumer().register_listener(listener, transactional=True)


def test_an_expression_that_is_no_text_is_refused() -> None:
    given: Any = 5
    with pytest.raises(ParameterInvalid, match=r"expression = 5.*is int; give text"):
        consumer().subscribe("orders", given)


def test_an_expression_that_does_not_compile_is_refused_with_the_place() -> None:
    with pytest.raises(SelectorSyntaxError) as caught:
        consumer().subscribe("orders", MessageSelector.by_sql("a > 1 AND b ="))

    assert caught.value.position == 13
    line, caret = str(caught.value).splitlines()[1:3]
    assert line.index("b =") + 3 == caret.index("^")


@pytest.mark.parametrize(
    ("topic", "expression", "error"),
    [("a.b", "*", NameInvalid), ("", "*", NameInvalid), ("orders", "||", TagExpressionInvalid)],
)
def test_subscriptions_are_checked(topic: str, expression: str, error: type[MqdbError]) -> None:
    with pytest.raises(error):
        consumer().subscribe(topic, expression)


def test_a_consumer_without_subscription_or_listener_does_not_start() -> None:
    without_subscription, without_listener = consumer(), consumer()
    without_subscription.register_listener(listener)
    without_listener.subscribe("orders")

    with pytest.raises(IllegalState, match=r"call subscribe\(\) first"):
        without_subscription.start()
    with pytest.raises(IllegalState, match=r"call register_listener\(\) first"):
        without_listener.start()


def test_shutdown_before_the_start_is_for_ever() -> None:
    never_started = consumer()
    never_started.shutdown()

    with pytest.raises(IllegalState, match="shut down already"):
        never_started.start()
    with pytest.raises(IllegalState, match="shut down"):
        never_started.subscribe("orders")


def test_dsn_and_settings_exclude_each_other() -> None:
    from mqdb.settings import load_settings

    with pytest.raises(ParameterInvalid):
        PushConsumer("readers", DSN, load_settings(dsn=DSN))
