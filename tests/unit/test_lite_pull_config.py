"""Invalid options of a lite pull consumer are refused before it connects."""

import inspect
from datetime import UTC, datetime, timedelta
from types import NoneType
from typing import Any

import pytest

from mqdb.common.message import MessageQueue
from mqdb.errors import IllegalState, MqdbError, NameInvalid, ParameterInvalid, TagExpressionInvalid
from mqdb_client import LitePullConsumer

DSN = "postgresql://mqdb@127.0.0.1:1/nowhere"
QUEUE = MessageQueue("orders", "broker-a", 0)


def consumer(group: str = "readers", /, **options: Any) -> LitePullConsumer:
    return LitePullConsumer(group, DSN, **options)


RANGES = {
    "pull_batch_size": (1, 1_024),
    "pull_threshold_for_all": (1, 6_553_500),
    "pull_threshold_for_queue": (1, 65_535),
    "pull_threshold_size_for_queue_mib": (1, 1_024),
    "consume_max_span": (1, 65_535),
}


@pytest.mark.parametrize("name", RANGES)
def test_numbers_have_ranges(name: str) -> None:
    lowest, highest = RANGES[name]
    for value in (lowest, highest):
        consumer("readers", **{name: value})

    refused: list[object] = [lowest - 1, highest + 1, "20", 1.5, None]
    for wrong in refused:
        with pytest.raises(ParameterInvalid) as caught:
            consumer("readers", **{name: wrong})
        assert str(caught.value) == f"{name} = {wrong!r}: must be a whole number from {lowest:,} to {highest:,}"


@pytest.mark.parametrize("name", ["topic_metadata_check_interval", "rebalance_interval", "hand_over_grace"])
def test_intervals_are_longer_than_nothing(name: str) -> None:
    for value in (timedelta(0), timedelta(seconds=-1), 5):
        with pytest.raises(ParameterInvalid, match="must be a timedelta of more than 0"):
            consumer("readers", **{name: value})


def test_automatic_commits_are_a_second_apart_at_least() -> None:
    consumer(auto_commit_interval=timedelta(seconds=1))

    for value in (timedelta(milliseconds=999), 5):
        with pytest.raises(ParameterInvalid, match=r"auto_commit_interval.* must be a timedelta of 0:00:01 at least"):
            consumer(auto_commit_interval=value)


def test_a_poll_may_wait_for_nothing_but_not_for_less() -> None:
    consumer(poll_timeout=timedelta(0))

    for value in (timedelta(seconds=-1), 5):
        with pytest.raises(ParameterInvalid, match="poll_timeout"):
            consumer(poll_timeout=value)


def test_a_time_to_start_from_knows_its_zone() -> None:
    consumer(consume_timestamp=datetime(2024, 1, 1, tzinfo=UTC))

    for wrong in (datetime(2024, 1, 1), "20240101"):  # noqa: DTZ001
        with pytest.raises(ParameterInvalid, match="must be a datetime with a time zone, such as"):
            consumer(consume_timestamp=wrong)


#: The options that a text, None or a truth is fit for.
MEANT: dict[str, tuple[type, ...]] = {
    "auto_commit": (bool,),
    "consume_timestamp": (NoneType,),
    "instance_name": (str,),
}


@pytest.mark.parametrize(
    "name", sorted({*inspect.signature(LitePullConsumer).parameters} - {"group", "dsn", "settings"})
)
def test_no_option_takes_what_is_of_another_type(name: str) -> None:
    for wrong in ("no", None, 1.5, True, object(), b"x"):
        if not isinstance(wrong, MEANT.get(name, ())):
            with pytest.raises(ParameterInvalid) as caught:
                consumer("readers", **{name: wrong})
            assert (caught.value.name, caught.value.value) == (name, wrong)


def test_a_start_and_a_truth_are_not_their_names() -> None:
    with pytest.raises(ParameterInvalid, match=r"'first': must be ConsumeFromWhere\.LAST_OFFSET, "):
        consumer(consume_from_where="first")
    with pytest.raises(ParameterInvalid, match="auto_commit = 'no': must be True or False"):
        consumer(auto_commit="no")


NO_QUEUE: dict[str, tuple[Any, str]] = {
    "number": (1, "is int; give a MessageQueue"),
    "text": ("orders", "is str; give a MessageQueue"),
    "nothing": (None, "is NoneType; give a MessageQueue"),
    "number as text": (MessageQueue("orders", "broker-a", "0"), "its number is str, not int"),  # type: ignore[arg-type]
    "truth as number": (MessageQueue("orders", "broker-a", True), "its number is bool, not int"),
    "broker as list": (MessageQueue("orders", ["broker-a"], 0), "its broker is list, not str"),  # type: ignore[arg-type]
    "topic as number": (MessageQueue(5, "broker-a", 0), "its topic is int, not str"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("case", NO_QUEUE)
def test_what_is_no_queue_is_refused_in_a_list_of_them(case: str) -> None:
    wrong, words = NO_QUEUE[case]
    reader = consumer()

    for use in (reader.assign, reader.pause, reader.resume):
        with pytest.raises(ParameterInvalid, match=words):
            use([QUEUE, wrong])
    assert reader.assignment == ()


def test_queues_come_in_a_list() -> None:
    reader = consumer()
    alone: Any = QUEUE

    for use in (reader.assign, reader.pause, reader.resume):
        with pytest.raises(ParameterInvalid, match=r"queues = .*orders@broker-a:0.* is one queue; give a list"):
            use(alone)
        for wrong in ("orders", 1, None):
            given: Any = wrong
            with pytest.raises(ParameterInvalid, match=r"queues = .*; give a list of MessageQueues"):
                use(given)
    reader.assign(queue for queue in [QUEUE])
    assert reader.assignment == (QUEUE,)


def test_a_listener_of_topics_can_be_called_with_a_topic_and_queues() -> None:
    for wrong in ("listener", None, lambda topic: None):
        given: Any = wrong
        with pytest.raises(ParameterInvalid, match=r"listener = .* must be a callable that takes \(topic, queues\)"):
            consumer().register_topic_message_queue_change_listener("orders", given)


@pytest.mark.parametrize("group", ["", "a.b", "组", "g" * 121, "DEFAULT_CONSUMER"])
def test_groups_have_names(group: str) -> None:
    with pytest.raises(NameInvalid):
        consumer(group)


@pytest.mark.parametrize(
    ("topic", "expression", "error"),
    [("a.b", "*", NameInvalid), ("", "*", NameInvalid), ("orders", "||", TagExpressionInvalid)],
)
def test_what_is_read_is_checked(topic: str, expression: str, error: type[MqdbError]) -> None:
    with pytest.raises(error):
        consumer().subscribe(topic, expression)
    with pytest.raises(error):
        consumer().assign([MessageQueue(topic, "broker-a", 0)], expression)


def test_it_subscribes_or_is_assigned_queues_but_not_both() -> None:
    subscribed, assigned = consumer(), consumer()
    subscribed.subscribe("orders")
    assigned.assign([QUEUE])

    with pytest.raises(IllegalState, match="subscribe or assign, not both"):
        subscribed.assign([QUEUE])
    with pytest.raises(IllegalState, match="subscribe or assign, not both"):
        assigned.subscribe("orders")
    assert (subscribed.assignment, assigned.assignment) == ((), (QUEUE,))


def test_an_assignment_of_nothing_is_one() -> None:
    assigned = consumer()
    assigned.assign([])

    with pytest.raises(IllegalState, match="subscribe or assign, not both"):
        assigned.subscribe("orders")


def test_before_the_start_there_is_nothing_to_poll() -> None:
    waiting = consumer()

    for use in (waiting.poll, waiting.commit, lambda: next(iter(waiting)), lambda: waiting.seek(QUEUE, 0)):
        with pytest.raises(IllegalState, match="not started"):
            use()
    assert not waiting.is_running


def test_shutdown_before_the_start_is_for_ever() -> None:
    never_started = consumer()
    never_started.shutdown()

    with pytest.raises(IllegalState, match="shut down already"):
        never_started.start()
    with pytest.raises(IllegalState, match="shut down already"):
        never_started.assign([QUEUE])
    with pytest.raises(IllegalState, match="shut down already"):
        never_started.subscribe("orders")
    with pytest.raises(IllegalState, match="shut down"):
        never_started.poll()
