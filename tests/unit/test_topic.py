"""Topics: which names are legal, which belong to the broker, and which settings are valid."""

import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqdb.common.topic import (
    MAX_QUEUE_NUMS,
    NOT_ALLOWED_SEND,
    SYSTEM_TOPICS,
    MessageType,
    Perm,
    TopicConfig,
    check_send_topic,
    check_topic_name,
    dlq_topic,
    is_group_topic,
    is_system_topic,
    retry_topic,
)
from mqdb.errors import NameInvalid, ParameterInvalid, ResponseCode, TopicNotAllowed

ALLOWED = string.ascii_letters + string.digits + "_-%|"


@given(st.text(alphabet=ALLOWED, min_size=1, max_size=127))
def test_a_name_of_allowed_characters_is_legal(name: str) -> None:
    check_topic_name(name)


@given(
    st.text(alphabet=ALLOWED, max_size=60),
    st.characters(exclude_characters=ALLOWED),
    st.text(alphabet=ALLOWED, max_size=60),
)
def test_one_other_character_makes_a_name_illegal(before: str, stranger: str, after: str) -> None:
    with pytest.raises(NameInvalid) as caught:
        check_topic_name(before + stranger + after)

    assert repr(stranger) in str(caught.value)


@pytest.mark.parametrize("name", ["orders\n", "órders", "orders.eu", "a b", " ", "\t", "٣"])
def test_names_that_a_careless_pattern_would_let_through_are_illegal(name: str) -> None:
    with pytest.raises(NameInvalid):
        check_topic_name(name)


def test_the_empty_name_is_illegal() -> None:
    with pytest.raises(NameInvalid, match="'': is empty; allowed are 1 to 127 characters"):
        check_topic_name("")


def test_127_characters_are_the_longest_name() -> None:
    check_topic_name("t" * 127)
    with pytest.raises(NameInvalid, match="has 128 characters; allowed are 1 to 127"):
        check_topic_name("t" * 128)


def test_the_sentence_names_value_limit_and_characters() -> None:
    with pytest.raises(NameInvalid) as caught:
        check_topic_name("orders.eu")

    assert str(caught.value) == (
        "topic name 'orders.eu': holds '.'; allowed are 1 to 127 characters of A-Z a-z 0-9 _ - % |"
    )
    assert caught.value.code is ResponseCode.INVALID_PARAMETER


@pytest.mark.parametrize("name", [None, 7, b"orders"])
def test_something_else_than_text_is_no_name(name: Any) -> None:
    with pytest.raises(NameInvalid, match="not text"):
        check_topic_name(name)


def test_retry_and_dlq_topic_of_the_longest_group_are_legal() -> None:
    group = "g" * 120

    assert retry_topic(group) == "%RETRY%" + group
    assert dlq_topic(group) == "%DLQ%" + group
    check_topic_name(retry_topic(group))
    check_topic_name(dlq_topic(group))


def test_nobody_may_send_to_the_topics_of_the_broker() -> None:
    """Clients may not send to the broker's topics.

    The broker's topics are RocketMQ's six, and the timer topic, which RocketMQ accepts and trusts from any client.
    """
    refused = (
        "SCHEDULE_TOPIC_XXXX rmq_sys_wheel_timer RMQ_SYS_TRANS_HALF_TOPIC RMQ_SYS_TRANS_OP_HALF_TOPIC "
        "TRANS_CHECK_MAX_TIME_TOPIC SELF_TEST_TOPIC OFFSET_MOVED_EVENT"
    )
    assert set(refused.split()) == NOT_ALLOWED_SEND

    for name in NOT_ALLOWED_SEND:
        with pytest.raises(TopicNotAllowed, match=name) as caught:
            check_send_topic(name)
        assert caught.value.code is ResponseCode.NO_PERMISSION


@pytest.mark.parametrize("name", ["orders", "TBW102", "%RETRY%billing", "%DLQ%billing", "self_test_topic"])
def test_users_may_send_to_everything_else(name: str) -> None:
    check_send_topic(name)


def test_system_topics_are_those_of_rocketmq() -> None:
    others = {"TBW102", "BenchmarkTest", "RMQ_SYS_TRACE_TOPIC", "CHECKPOINT_TOPIC"}

    assert others == SYSTEM_TOPICS - NOT_ALLOWED_SEND
    assert all(map(is_system_topic, SYSTEM_TOPICS))


@pytest.mark.parametrize(
    ("name", "system"),
    [
        ("rmq_sys_wheel_timer", True),
        ("rmq_sys_", True),
        ("RMQ_SYS_ORDERS", False),
        ("orders", False),
        ("tbw102", False),
        ("%RETRY%billing", False),
    ],
)
def test_the_system_prefix_counts_in_lower_case_only(name: str, system: bool) -> None:
    assert is_system_topic(name) is system


def test_the_topics_of_a_group_are_told_from_others() -> None:
    assert [is_group_topic(name) for name in ("%RETRY%billing", "%DLQ%billing", "billing", "a%RETRY%")] == [
        *(True, True),
        *(False, False),
    ]


def test_a_topic_has_the_defaults_of_mqadmin() -> None:
    config = TopicConfig("orders")

    assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (8, 8, 6)
    assert config.order is False
    assert config.message_type is MessageType.NORMAL


def test_plain_numbers_and_text_become_what_they_stand_for() -> None:
    row: dict[str, Any] = {"perm": 4, "message_type": "FIFO"}

    config = TopicConfig("orders", **row)

    assert config.perm is Perm.READ
    assert config.message_type is MessageType.FIFO
    assert config == TopicConfig("orders", perm=Perm.READ, message_type=MessageType.FIFO)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("read_queue_nums", 0),
        ("read_queue_nums", -1),
        ("write_queue_nums", 0),
        ("write_queue_nums", MAX_QUEUE_NUMS + 1),
        ("write_queue_nums", "8"),
        ("perm", -1),
        ("perm", 8),
        ("perm", "RW"),
        ("message_type", "URGENT"),
        ("message_type", None),
    ],
)
def test_a_setting_out_of_range_is_named_with_its_value(setting: str, value: Any) -> None:
    with pytest.raises(ParameterInvalid) as caught:
        TopicConfig("orders", **{setting: value})

    assert (caught.value.name, caught.value.value) == (setting, value)
    assert str(caught.value).startswith(f"{setting} = {value!r}: must be ")


@pytest.mark.parametrize("perm", range(8))
def test_every_sum_of_read_write_and_inherit_is_a_permission(perm: int) -> None:
    assert TopicConfig("orders", perm=Perm(perm)).perm == perm


def test_a_topic_with_an_illegal_name_cannot_be_configured() -> None:
    with pytest.raises(NameInvalid):
        TopicConfig("or ders")
