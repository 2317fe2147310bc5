"""Batches: which messages may share a batch, how large a batch is, and how a long list is split."""

import uuid
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqdb.broker.log.send import record
from mqdb.common.message import Message
from mqdb.errors import (
    BatchTooLarge,
    BodyEmpty,
    BodyTooLarge,
    MessageIllegal,
    NotSupported,
    ParameterInvalid,
    PropertyInvalid,
    ResponseCode,
)
from mqdb.store.log.commit_log import Record
from mqdb_client.producer.sends.batch import (
    MAX_BATCH_BYTES,
    check_batch,
    check_batch_size,
    message_size,
    split_batches,
)

NOW = datetime(2024, 5, 1, 12, tzinfo=UTC)

#: What the properties of a message without any take: only the unique id is in them.
PROPERTIES_BYTES = message_size(Message("orders", b"x")) - 1


def a_record(message: Message) -> Record:
    return record(message, 7, uuid.uuid4(), NOW, "10.0.0.1")


# What a message may hold: no character below U+0003, nothing blank, and no blank in a key.
words = st.text(st.characters(min_codepoint=3, exclude_categories=["Cs"]), max_size=20).map("word-{}".format)
messages_to_send = st.builds(
    Message,
    st.just("orders"),
    st.binary(min_size=1, max_size=200),
    st.none() | words,
    st.lists(words.map(lambda word: word.replace(" ", "_")), max_size=3),
    st.dictionaries(words, words, max_size=4),
)


# -- what makes a batch -----------------------------------------------------------------------


def test_messages_of_one_topic_make_a_batch() -> None:
    check_batch([Message("orders", "one", "paid", "k1"), Message("orders", "two")])


def test_an_empty_batch_is_refused() -> None:
    with pytest.raises(ParameterInvalid, match="at least one message"):
        check_batch([])


def test_a_batch_of_two_topics_is_refused() -> None:
    with pytest.raises(ParameterInvalid, match=r"'payments'.*'orders'"):
        check_batch([Message("orders", "one"), Message("payments", "two")])


def test_a_batch_to_a_retry_topic_is_refused() -> None:
    with pytest.raises(NotSupported):
        check_batch([Message("%RETRY%billing", "one")])


def test_each_message_of_a_batch_is_checked() -> None:
    with pytest.raises(BodyEmpty):
        check_batch([Message("orders", "one"), Message("orders", "")])
    with pytest.raises(BodyTooLarge):
        check_batch([Message("orders", "one"), Message("orders", "four")], max_body_bytes=3)
    with pytest.raises(MessageIllegal, match="str is not a message"):
        check_batch("text")  # type: ignore[arg-type]


# -- how large it is --------------------------------------------------------------------------


def test_a_batch_may_be_as_large_as_the_limit_and_no_larger() -> None:
    records = [a_record(Message("orders", b"x" * 100)), a_record(Message("orders", b"y" * 50))]
    size = 150 + 2 * PROPERTIES_BYTES

    check_batch_size(records, size)
    with pytest.raises(BatchTooLarge) as caught:
        check_batch_size(records, size - 1)
    assert (caught.value.count, caught.value.size, caught.value.limit) == (2, size, size - 1)
    assert caught.value.code is ResponseCode.MESSAGE_ILLEGAL


def test_one_message_is_never_too_large_for_a_batch() -> None:
    check_batch_size([a_record(Message("orders", b"x" * MAX_BATCH_BYTES))])


@given(messages_to_send)
def test_the_size_of_a_message_is_that_of_its_record(message: Message) -> None:
    made = a_record(message)

    assert message_size(message) == len(message.body) + len(made.properties)


# -- how a long list is split -----------------------------------------------------------------


@given(st.lists(messages_to_send, max_size=30), st.integers(200, 2_000), st.none() | st.integers(1, 10))
def test_batches_keep_the_order_and_the_limits_and_are_as_large_as_they_can_be(
    messages: list[Message], max_bytes: int, max_messages: int | None
) -> None:
    batches = list(split_batches(messages, max_bytes, max_messages))

    assert [message for batch in batches for message in batch] == messages
    for batch in batches:
        check_batch(batch, max_bytes)
        check_batch_size([a_record(message) for message in batch], max_bytes)
        assert len(batch) <= (max_messages or 30)
    for batch, following in pairwise(batches):
        one_more = [*batch, following[0]]
        assert sum(map(message_size, one_more)) > max_bytes or len(one_more) > (max_messages or 30)


def test_by_default_a_batch_has_4_mib() -> None:
    half = Message("orders", b"x" * (MAX_BATCH_BYTES // 2 - PROPERTIES_BYTES))
    more_than_half = Message("orders", b"x" * (MAX_BATCH_BYTES // 2 - PROPERTIES_BYTES + 1))

    assert [len(batch) for batch in split_batches([half] * 5)] == [2, 2, 1]
    assert [len(batch) for batch in split_batches([more_than_half] * 3)] == [1, 1, 1]


def test_properties_count() -> None:
    wide = Message("orders", b"x" * (MAX_BATCH_BYTES // 2 - 1_000), properties={"city": "ü" * 1_000})

    assert [len(batch) for batch in split_batches([wide, wide])] == [1, 1]


def test_a_message_as_large_as_a_batch_goes_alone() -> None:
    small, large = Message("orders", b"x"), Message("orders", b"x" * MAX_BATCH_BYTES)

    assert [len(batch) for batch in split_batches([small, large, small])] == [1, 1, 1]


def test_no_messages_make_no_batch() -> None:
    assert list(split_batches([])) == []


def test_messages_may_come_from_anywhere() -> None:
    messages = (Message("orders", str(number)) for number in range(5))

    assert [len(batch) for batch in split_batches(messages, max_messages=2)] == [2, 2, 1]


@pytest.mark.parametrize(
    ("last", "error"),
    [
        (Message("orders", b"x" * (MAX_BATCH_BYTES + 1)), BodyTooLarge),
        (Message("orders", b"x", properties={"count": 1}), PropertyInvalid),  # type: ignore[dict-item]
        (Message("payments", b"x"), ParameterInvalid),
    ],
)
def test_one_message_that_cannot_be_sent_is_found_before_the_first_batch(last: Message, error: type[Exception]) -> None:
    with pytest.raises(error):
        split_batches([Message("orders", b"x"), last], max_messages=1)


@pytest.mark.parametrize("limits", [{"max_bytes": 0}, {"max_messages": 0}, {"max_bytes": "x"}])
def test_a_limit_that_is_none_is_refused(limits: dict[str, Any]) -> None:
    with pytest.raises(ParameterInvalid, match="1 or more"):
        split_batches([], **limits)
