"""The choice of a message's queue."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqdb.common.message import Message, MessageQueue
from mqdb.errors import ParameterInvalid
from mqdb_client.producer.queues.queue_selector import (
    by_hash,
    check_sharding_key,
    select_by_hash,
    select_random,
    selected,
    turns,
)

QUEUES = [MessageQueue("orders", name, number) for name in ("broker-a", "broker-b") for number in range(4)]
MESSAGE = Message("orders", "x")


@pytest.mark.parametrize(
    ("key", "queue_nums", "queue"),
    [
        ("", 4, 0),
        ("a", 4, 1),
        ("hello", 8, 2),  # 99,162,322
        # -685,785,664: Java's remainder is -4 and made positive, Python's would be 1.
        ("zzzzzz", 5, 4),
        # -2,147,483,648, of which Java knows no absolute value.
        ("polygenelubricants", 7, 2),
        ("polygenelubricants", 8, 0),
    ],
)
def test_a_sharding_key_has_the_queue_that_java_would_choose(key: str, queue_nums: int, queue: int) -> None:
    assert by_hash(key, queue_nums) == queue


def test_each_sharding_key_has_a_queue_of_the_topic() -> None:
    queues = Counter(by_hash(f"customer-{number}", 5) for number in range(1_000))

    assert set(queues) == {0, 1, 2, 3, 4}


@pytest.mark.parametrize(
    ("argument", "queue_nums", "queue"),
    [
        ("hello", 8, 2),
        ("zzzzzz", 5, 4),
        # Integer.hashCode is the number itself.
        (0, 8, 0),
        (17, 8, 1),
        (-3, 8, 3),
        (-(2**31), 7, 2),
        # Beyond 32 bits Long.hashCode: the upper half xor the lower.
        (2**31, 8, 0),
        (2**32, 8, 1),
        (2**32 + 5, 8, 4),
        (-(2**31) - 1, 7, 2),
        (2**63 - 1, 7, 2),
        (-(2**63), 7, 2),
    ],
)
def test_an_argument_has_the_queue_that_java_would_choose(argument: object, queue_nums: int, queue: int) -> None:
    assert select_by_hash(QUEUES[:queue_nums], MESSAGE, argument) == QUEUES[queue]


@pytest.mark.parametrize("argument", [None, True, 1.5, b"key", ("a", 1), 2**63, -(2**63) - 1])
def test_an_argument_whose_hash_java_does_not_share_is_refused(argument: object) -> None:
    with pytest.raises(ParameterInvalid, match=r"selector_argument.*give text or a whole number of 64 bits"):
        select_by_hash(QUEUES, MESSAGE, argument)


@given(st.text() | st.integers(-(2**63), 2**63 - 1), st.integers(1, 8))
def test_the_same_argument_has_the_same_queue(argument: str | int, queue_nums: int) -> None:
    queue = select_by_hash(QUEUES[:queue_nums], MESSAGE, argument)

    assert queue == select_by_hash(tuple(QUEUES[:queue_nums]), MESSAGE, argument)
    assert queue in QUEUES[:queue_nums]
    if isinstance(argument, str):
        assert queue == QUEUES[by_hash(argument, queue_nums)]


def test_at_random_each_queue_is_chosen() -> None:
    assert {select_random(QUEUES, MESSAGE, None) for _ in range(2_000)} == set(QUEUES)


def test_a_selector_gets_the_queues_the_message_and_the_argument() -> None:
    def by_region(queues: Sequence[MessageQueue], message: Message, region: str) -> MessageQueue:
        assert (queues, message, region) == (QUEUES, MESSAGE, "north")
        return MessageQueue("orders", "broker-b", 1)

    assert selected(by_region, QUEUES, MESSAGE, "north") is QUEUES[5]


@pytest.mark.parametrize("returned", [None, 3, MessageQueue("orders", "broker-c", 0)])
def test_what_a_selector_returns_has_to_be_one_of_the_queues(returned: object) -> None:
    with pytest.raises(ParameterInvalid, match="not one of the 8 queues") as caught:
        selected(lambda queues, message, argument: returned, QUEUES, MESSAGE, None)  # type: ignore[arg-type]
    assert caught.value.value is returned


def test_what_a_selector_raises_reaches_the_caller() -> None:
    def fails(queues: Sequence[MessageQueue], message: Message, argument: object) -> MessageQueue:
        raise LookupError(argument)

    with pytest.raises(LookupError, match="north"):
        selected(fails, QUEUES, MESSAGE, "north")


def test_in_turn_each_queue_gets_as_many() -> None:
    numbers = turns()

    chosen = [next(numbers) % 3 for _ in range(300)]

    assert Counter(chosen) == {0: 100, 1: 100, 2: 100}
    assert all((b - a) % 3 == 1 for a, b in pairwise(chosen))


def test_turns_begin_anywhere() -> None:
    assert len({next(turns()) % 1_000 for _ in range(20)}) > 1


def test_a_sharding_key_has_a_limit_in_bytes() -> None:
    check_sharding_key("\u00e9" * 16_383 + "x")

    with pytest.raises(ParameterInvalid, match="has 32768 bytes, the limit is 32767"):
        check_sharding_key("\u00e9" * 16_384)
