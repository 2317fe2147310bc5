"""Invalid options of a push consumer are refused before it connects."""

import inspect
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Any

import pytest

from mqdb.common.group import ConsumeFromWhere, MessageModel
from mqdb.common.received_message import ReceivedMessage
from mqdb.errors import (
    IllegalState,
    MqdbError,
    NameInvalid,
    ParameterInvalid,
    SelectorSyntaxError,
    TagExpressionInvalid,
)
from mqdb.rebalance import allocate_by_config
from mqdb_client import ConsumeConcurrentlyStatus, MessageSelector, PushConsumer
from mqdb_client.consumer.push_consumer_config import PushConsumerConfig

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
    "pull_threshold_size_for_queue_mib": (1, 1_024),
    "consume_concurrently_max_span": (1, 65_535),
    "subscription_version": (0, 2**63 - 1),
}

#: With these None, and RocketMQ's -1, say that there is no limit.
RANGES_OR_NONE = {
    "pull_threshold_for_topic": (1, 6_553_500),
    "pull_threshold_size_for_topic_mib": (1, 102_400),
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
    for value, meant in ((None, None), (-1, None), (lowest, lowest), (highest, highest)):
        assert getattr(PushConsumerConfig("readers", **{name: value}), name) == meant  # type: ignore[arg-type]

    for wrong in (-2, -1.0, highest + 1):
        with pytest.raises(ParameterInvalid, match=f"from {lowest:,} to {highest:,}, or None"):
            consumer("readers", **{name: wrong})


def test_the_constructor_shows_the_options_and_refuses_others() -> None:
    shown = inspect.signature(PushConsumer).parameters["pull_batch_size"]

    assert (shown.annotation, shown.default, shown.kind) == (int, 32, inspect.Parameter.KEYWORD_ONLY)
    with pytest.raises(TypeError, match="'pull_batch'"):
        consumer(pull_batch=5)


def test_a_configuration_does_not_show_a_password() -> None:
    assert "secret" not in repr(PushConsumerConfig("readers", "postgresql://mqdb:secret@host/database"))


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


#: The options that a text or None is fit for.
MEANT: dict[str, tuple[type, ...]] = {
    "consume_timestamp": (NoneType,),
    "instance_name": (str,),
    "local_offset_directory": (str, NoneType),
    **dict.fromkeys(RANGES_OR_NONE, (NoneType,)),
}


@pytest.mark.parametrize("name", sorted({*inspect.signature(PushConsumer).parameters} - {"group", "dsn", "settings"}))
def test_no_option_takes_what_is_of_another_type(name: str) -> None:
    for wrong in ("no", None, 1.5, True, object(), b"x"):
        if not isinstance(wrong, MEANT.get(name, ())):
            with pytest.raises(ParameterInvalid) as caught:
                consumer("readers", **{name: wrong})
            assert (caught.value.name, caught.value.value) == (name, wrong)


WHERE = "ConsumeFromWhere.LAST_OFFSET, ConsumeFromWhere.FIRST_OFFSET or ConsumeFromWhere.TIMESTAMP"


@pytest.mark.parametrize("name", ["LAST_OFFSET", "TIMESTAMP", "CONSUME_FROM_FIRST_OFFSET", 3])
def test_a_start_is_a_member_of_the_enum_and_not_its_name(name: object) -> None:
    for member in ConsumeFromWhere:
        consumer(consume_from_where=member)

    with pytest.raises(ParameterInvalid) as caught:
        consumer(consume_from_where=name)
    assert str(caught.value) == f"consume_from_where = {name!r}: must be {WHERE}"


def test_a_message_model_is_a_member_of_the_enum_and_not_its_name() -> None:
    for member in MessageModel:
        consumer(message_model=member)

    with pytest.raises(ParameterInvalid, match=r"'BROADCASTING': must be MessageModel\.CLUSTERING or MessageModel\.B"):
        consumer(message_model="BROADCASTING")


@pytest.mark.parametrize("time", ["20200101", datetime(2024, 1, 1), 0], ids=["text", "naive", "number"])  # noqa: DTZ001
def test_a_time_to_start_from_knows_its_zone(time: object) -> None:
    with pytest.raises(ParameterInvalid, match=r"consume_timestamp = .*: must be a datetime with a time zone, such as"):
        consumer("readers", consume_timestamp=time)


def test_the_directory_of_local_offsets_is_a_path_or_a_text() -> None:
    for path in ("/x", "x/y", Path("/x"), None):
        consumer(local_offset_directory=path)

    for wrong in ("", "a\0b", 5, b"/x"):
        with pytest.raises(ParameterInvalid, match=r"local_offset_directory = .* must be the path of a directory"):
            consumer(local_offset_directory=wrong)


def test_a_strategy_can_be_called_with_the_four_arguments() -> None:
    def with_more(group: str, client_id: str, queues: Any, ids: Any, more: int = 0) -> list[Any]:
        return []

    strategies: list[Any] = [with_more, allocate_by_config([]), lambda *arguments: [], partial(with_more, more=1)]
    for strategy in strategies:
        consumer(allocate_message_queue_strategy=strategy)

    # The last one is not a strategy, it makes one.
    for wrong in ("averagely", lambda queues, client_ids: queues, allocate_by_config):
        with pytest.raises(
            ParameterInvalid, match=r"must be a callable that takes \(group, client_id, queues, client_ids"
        ):
            consumer(allocate_message_queue_strategy=wrong)


@pytest.mark.parametrize("name", ["orderly", "exactly_once"])
def test_how_a_listener_wants_its_messages_is_true_or_false(name: str) -> None:
    for wrong in ("no", 1, None):
        options: dict[str, Any] = {name: wrong}
        with pytest.raises(ParameterInvalid, match=f"{name} = .*: must be True or False"):
            consumer().register_listener(listener, **options)


def test_a_listener_that_is_no_callable_is_refused() -> None:
    for wrong in ("listener", None, 5):
        given: Any = wrong
        with pytest.raises(ParameterInvalid, match=r"is not callable; it must take \(messages\) or"):
            consumer().register_listener(given)


def test_a_version_of_subscriptions_is_a_whole_number() -> None:
    reader = consumer()

    for wrong in ("2", 1.5, True):
        given: Any = wrong
        with pytest.raises(ParameterInvalid, match="subscription_version = "):
            reader.subscribe("orders", version=given)
    assert reader._subscriptions == {}


def test_a_shutdown_with_a_timeout_that_is_none_does_nothing() -> None:
    reader = consumer()
    seconds: Any = 5

    with pytest.raises(ParameterInvalid, match="timeout = 5: must be a timedelta from 0:00:00 to 365 days"):
        reader.shutdown(seconds)
    for out_of_range in (timedelta(microseconds=-1), timedelta.max):
        with pytest.raises(ParameterInvalid, match="timeout = datetime"):
            reader.shutdown(out_of_range)
    reader.subscribe("orders")


@pytest.mark.parametrize(
    "name",
    [
        "persist_consumer_offset_interval",
        "rebalance_interval",
        "hand_over_grace",
        "consume_timeout",
    ],
)
def test_durations_are_longer_than_nothing(name: str) -> None:
    for value in (timedelta(0), timedelta(seconds=-1), 5):
        with pytest.raises(ParameterInvalid, match="must be a timedelta of more than 0"):
            consumer("readers", **{name: value})


def test_a_lock_of_a_queue_expires_within_a_year() -> None:
    consumer(queue_lock_expiry=timedelta(days=365))

    for value in (timedelta(0), timedelta(days=365, microseconds=1), timedelta.max, 5):
        with pytest.raises(ParameterInvalid, match=r"queue_lock_expiry = .* from 0:00:00\.001000 to 365 days"):
            consumer(queue_lock_expiry=value)


@pytest.mark.parametrize("group", ["", "a.b", "组", "g" * 121, "DEFAULT_CONSUMER"])
def test_rows_1_to_3_groups_have_names(group: str) -> None:
    """Checklist rows 1 to 3: a group needs a legal name."""
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
        consumer().register_listener(listener, exactly_once=transactional)


def test_a_transactional_listener_takes_a_connection() -> None:
    with pytest.raises(ParameterInvalid, match=r"must take \(messages, connection\)"):
        consumer().register_listener(listener, exactly_once=True)


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


def test_settings_are_settings() -> None:
    for wrong in ("mqdb.toml", {"dsn": DSN}):
        given: Any = wrong
        with pytest.raises(ParameterInvalid, match=r"give Settings, as load_settings\(\) returns them"):
            PushConsumer("readers", settings=given)
