"""Rebalance by averages: every queue has exactly one reader, and the load is even."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqdb.message import MessageQueue
from mqdb.rebalance import AllocationStrategy, allocate_averagely


def shares(queues: int, clients: int) -> list[list[int]]:
    members = [f"client-{number:03}" for number in range(clients)]
    return [allocate_averagely("billing", member, range(queues), members) for member in members]


@pytest.mark.parametrize(
    ("queues", "clients", "expected"),
    [
        (8, 3, [[0, 1, 2], [3, 4, 5], [6, 7]]),
        (10, 4, [[0, 1, 2], [3, 4, 5], [6, 7], [8, 9]]),
        (4, 5, [[0], [1], [2], [3], []]),
        (7, 3, [[0, 1, 2], [3, 4], [5, 6]]),
        (4, 4, [[0], [1], [2], [3]]),
        (8, 1, [[0, 1, 2, 3, 4, 5, 6, 7]]),
        (0, 2, [[], []]),
    ],
)
def test_queues_are_shared_as_in_rocketmq(queues: int, clients: int, expected: list[list[int]]) -> None:
    assert shares(queues, clients) == expected


@given(st.integers(0, 300), st.integers(1, 60))
def test_every_queue_has_one_reader_and_runs_are_even(queues: int, clients: int) -> None:
    result = shares(queues, clients)

    # One after the other the runs are all queues: none left out, none twice, each run unbroken.
    assert [queue for share in result for queue in share] == [*range(queues)]
    sizes = [*map(len, result)]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


@given(st.lists(st.text(), unique=True), st.text(), st.integers(0, 20))
def test_who_is_not_a_member_gets_nothing(members: list[str], stranger: str, queues: int) -> None:
    others = [member for member in members if member != stranger]

    assert allocate_averagely("billing", stranger, range(queues), others) == []


@given(st.integers(1, 40), st.integers(1, 10), st.randoms(use_true_random=False))
def test_members_agree_whatever_order_they_see(queues: int, clients: int, order: random.Random) -> None:
    members = [f"client-{number:03}" for number in range(clients)]
    seen_queues = order.sample(range(queues), queues)
    seen_members = order.sample(members, clients)

    result = [allocate_averagely("billing", member, seen_queues, seen_members) for member in members]

    assert result == shares(queues, clients)


def test_message_queues_are_shared_by_topic_then_broker_then_number() -> None:
    queues = [
        MessageQueue("payments", "broker-a", 0),
        MessageQueue("orders", "broker-b", 0),
        MessageQueue("orders", "broker-a", 10),
        MessageQueue("orders", "broker-a", 9),
    ]
    strategy: AllocationStrategy[MessageQueue] = allocate_averagely

    assert [*map(str, strategy("billing", "a", queues, ["a", "b"]))] == ["orders@broker-a:9", "orders@broker-a:10"]
    assert [*map(str, strategy("billing", "b", queues, ["a", "b"]))] == ["orders@broker-b:0", "payments@broker-a:0"]
