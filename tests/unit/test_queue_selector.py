"""Which queue a message goes to."""

from collections import Counter
from itertools import pairwise

import pytest

from mqdb.errors import TopicNotWritable
from mqdb.message import MessageQueue
from mqdb.store.topics import TopicRoute
from mqdb.topic import Perm, TopicConfig
from mqdb_client.queue_selector import RoundRobin, by_hash
from mqdb_client.route import PublishQueues


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


def test_in_turn_each_queue_gets_as_many() -> None:
    turn = RoundRobin()

    chosen = [turn.next(3) for _ in range(300)]

    assert Counter(chosen) == {0: 100, 1: 100, 2: 100}
    assert all((b - a) % 3 == 1 for a, b in pairwise(chosen))


def test_turns_begin_anywhere() -> None:
    assert len({RoundRobin().next(1_000) for _ in range(20)}) > 1


def route(perm: int = 6) -> TopicRoute:
    config = TopicConfig("orders", read_queue_nums=4, write_queue_nums=2, perm=Perm(perm))
    return TopicRoute(1, config, (10, 11, 12, 13))


def test_producers_choose_among_the_write_queues() -> None:
    queues = PublishQueues(route(), "broker-b")

    assert {queues.choose(None) for _ in range(10)} == {0, 1}
    assert {queues.choose(str(number)) for number in range(20)} == {0, 1}
    assert queues.keys == (10, 11)
    assert queues.queues == (MessageQueue("orders", "broker-b", 0), MessageQueue("orders", "broker-b", 1))


def test_without_the_write_bit_there_is_nothing_to_choose() -> None:
    with pytest.raises(TopicNotWritable):
        PublishQueues(route(perm=4), "broker-a")
