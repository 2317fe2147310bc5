"""Rebalance: with every strategy each queue has exactly one reader, and all members agree on the allocation."""

import random
from hashlib import md5

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqdb.common.message import MessageQueue
from mqdb.rebalance import (
    AllocationStrategy,
    allocate_averagely,
    allocate_averagely_by_circle,
    allocate_by_config,
    allocate_by_consistent_hash,
    allocate_by_machine_room,
    allocate_machine_room_nearby,
)

GROUP = "billing"
ROOMS = ("east", "north", "west")

#: Who reads which queues.
Shares = dict[str, list[MessageQueue]]


def room_of_queue(queue: MessageQueue) -> str:
    return queue.broker_name.partition("@")[0]


def room_of_client(client_id: str) -> str:
    return client_id.partition("-")[0]


by_average: AllocationStrategy[MessageQueue] = allocate_averagely
by_hash: AllocationStrategy[MessageQueue] = allocate_by_consistent_hash
strategies: dict[str, AllocationStrategy[MessageQueue]] = {
    "AVG": by_average,
    "AVG_BY_CIRCLE": allocate_averagely_by_circle,
    "CONSISTENT_HASH": by_hash,
    "MACHINE_ROOM": allocate_by_machine_room(ROOMS),
    "MACHINE_ROOM_NEARBY-AVG": allocate_machine_room_nearby(by_average, room_of_queue, room_of_client),
    "MACHINE_ROOM_NEARBY-CONSISTENT_HASH": allocate_machine_room_nearby(by_hash, room_of_queue, room_of_client),
}
each_strategy = pytest.mark.parametrize("name", strategies)
even_strategies = pytest.mark.parametrize("name", ["AVG", "AVG_BY_CIRCLE", "MACHINE_ROOM"])

queue_lists = st.lists(
    st.builds(
        MessageQueue, st.sampled_from(["orders", "payments"]), st.sampled_from([f"{room}@a" for room in ROOMS]),
        st.integers(0, 40),
    ),
    unique=True,
)  # fmt: skip
member_lists = st.lists(st.builds("{}-{}".format, st.sampled_from(ROOMS), st.integers(0, 30)), min_size=1, unique=True)


def orders(count: int, broker_name: str = "broker-a") -> list[MessageQueue]:
    return [MessageQueue("orders", broker_name, queue_id) for queue_id in range(count)]


def members(count: int) -> list[str]:
    return [f"client-{number:03}" for number in range(count)]


def shares(strategy: AllocationStrategy[MessageQueue], queues: list[MessageQueue], client_ids: list[str]) -> Shares:
    return {client_id: strategy(GROUP, client_id, queues, client_ids) for client_id in client_ids}


def queue_ids(result: Shares) -> list[list[int]]:
    return [[queue.queue_id for queue in share] for share in result.values()]


def readers(result: Shares) -> dict[MessageQueue, str]:
    return {queue: client_id for client_id, share in result.items() for queue in share}


# -- what all strategies promise --------------------------------------------------------------


@each_strategy
@given(queue_lists, member_lists)
def test_each_queue_has_one_reader(name: str, queues: list[MessageQueue], client_ids: list[str]) -> None:
    result = shares(strategies[name], queues, client_ids)

    assert sorted(queue for share in result.values() for queue in share) == sorted(queues)


@each_strategy
@given(queue_lists, member_lists, st.randoms(use_true_random=False))
def test_members_agree_whatever_order_they_see(
    name: str, queues: list[MessageQueue], client_ids: list[str], order: random.Random
) -> None:
    result = shares(strategies[name], queues, client_ids)

    for client_id, share in result.items():
        seen_queues = order.sample(queues, len(queues))
        seen_client_ids = order.sample(client_ids, len(client_ids))
        assert strategies[name](GROUP, client_id, seen_queues, seen_client_ids) == share


@each_strategy
@given(queue_lists, member_lists)
def test_a_share_is_in_order(name: str, queues: list[MessageQueue], client_ids: list[str]) -> None:
    assert all(share == sorted(share) for share in shares(strategies[name], queues, client_ids).values())


@each_strategy
@given(queue_lists, member_lists)
def test_who_is_not_a_member_gets_nothing(name: str, queues: list[MessageQueue], client_ids: list[str]) -> None:
    assert strategies[name](GROUP, client_ids[0], queues, client_ids[1:]) == []


@even_strategies
@given(queue_lists, member_lists)
def test_shares_differ_by_one_queue_at_most(name: str, queues: list[MessageQueue], client_ids: list[str]) -> None:
    sizes = [len(share) for share in shares(strategies[name], queues, client_ids).values()]

    assert max(sizes) - min(sizes) <= 1


# -- averagely, and by circle -----------------------------------------------------------------


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
def test_by_averages_queues_are_shared_as_in_rocketmq(queues: int, clients: int, expected: list[list[int]]) -> None:
    assert queue_ids(shares(by_average, orders(queues), members(clients))) == expected


@given(st.integers(0, 300), st.integers(1, 60))
def test_by_averages_the_first_members_get_unbroken_runs_and_the_larger_ones(queues: int, clients: int) -> None:
    result = queue_ids(shares(by_average, orders(queues), members(clients)))

    assert [queue_id for share in result for queue_id in share] == [*range(queues)]
    sizes = [*map(len, result)]
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize(
    ("queues", "clients", "expected"),
    [
        (8, 3, [[0, 3, 6], [1, 4, 7], [2, 5]]),
        (4, 5, [[0], [1], [2], [3], []]),
        (3, 1, [[0, 1, 2]]),
        (0, 2, [[], []]),
    ],
)
def test_by_circle_queues_are_dealt_out_as_in_rocketmq(queues: int, clients: int, expected: list[list[int]]) -> None:
    assert queue_ids(shares(allocate_averagely_by_circle, orders(queues), members(clients))) == expected


def test_message_queues_are_shared_by_topic_then_broker_then_number() -> None:
    queues = [
        MessageQueue("payments", "broker-a", 0),
        MessageQueue("orders", "broker-b", 0),
        MessageQueue("orders", "broker-a", 10),
        MessageQueue("orders", "broker-a", 9),
    ]

    assert [*map(str, by_average(GROUP, "a", queues, ["a", "b"]))] == ["orders@broker-a:9", "orders@broker-a:10"]
    assert [*map(str, by_average(GROUP, "b", queues, ["a", "b"]))] == ["orders@broker-b:0", "payments@broker-a:0"]


# -- by consistent hash -----------------------------------------------------------------------


def distance(start: str, end: str) -> int:
    """The upward distance between two keys on a ring of 2^32 places."""
    start_place, end_place = (int(md5(key.encode()).hexdigest()[:8], 16) for key in (start, end))
    return (end_place - start_place) % 2**32


@given(queue_lists, member_lists)
def test_by_hash_a_queue_goes_to_the_next_of_10_virtual_nodes(
    queues: list[MessageQueue], client_ids: list[str]
) -> None:
    nodes = {f"{client_id}-{index}": client_id for client_id in client_ids for index in range(10)}

    result = readers(shares(by_hash, queues, client_ids))

    assert result == {queue: nodes[min(nodes, key=lambda node: distance(str(queue), node))] for queue in queues}


@given(queue_lists, member_lists, st.text(min_size=1))
def test_by_hash_only_queues_of_who_came_or_went_change_hands(
    queues: list[MessageQueue], client_ids: list[str], other: str
) -> None:
    without = readers(shares(by_hash, queues, [client_id for client_id in client_ids if client_id != other]))
    with_it = readers(shares(by_hash, queues, [*{*client_ids, other}]))

    assert all(with_it[queue] in (reader, other) for queue, reader in without.items())


def test_by_hash_most_members_get_something() -> None:
    sizes = [len(share) for share in shares(by_hash, orders(256), members(8)).values()]

    assert min(sizes) > 0


# -- by machine room --------------------------------------------------------------------------


def test_by_room_the_rest_is_dealt_out_after_equal_runs() -> None:
    result = shares(allocate_by_machine_room(["east"]), orders(8, "east@a"), members(3))

    assert queue_ids(result) == [[0, 1, 6], [2, 3, 7], [4, 5]]


def test_by_room_queues_of_other_rooms_have_no_reader() -> None:
    queues = [*orders(2, "east@a"), *orders(2, "west@a")]

    result = shares(allocate_by_machine_room({"west"}), queues, members(2))

    assert list(readers(result)) == orders(2, "west@a")


@pytest.mark.parametrize("broker_name", ["east", "east@a@b", "a@east", "@east", ""])
def test_by_room_a_broker_whose_name_tells_no_room_has_no_reader(broker_name: str) -> None:
    assert readers(shares(allocate_by_machine_room({"east"}), orders(4, broker_name), members(2))) == {}


def test_nearby_queues_are_read_in_their_room() -> None:
    queues = [*orders(4, "east@a"), *orders(2, "west@a")]

    result = shares(strategies["MACHINE_ROOM_NEARBY-AVG"], queues, ["east-1", "east-2", "west-1"])

    assert result == {"east-1": queues[:2], "east-2": queues[2:4], "west-1": queues[4:]}


def test_nearby_queues_of_a_room_without_members_are_read_by_all() -> None:
    queues = [*orders(2, "east@a"), *orders(2, "north@a")]

    result = shares(strategies["MACHINE_ROOM_NEARBY-AVG"], queues, ["east-1", "west-1"])

    assert result == {"east-1": [*queues[:2], queues[2]], "west-1": [queues[3]]}


# -- by configuration -------------------------------------------------------------------------


def test_by_configuration_a_member_gets_its_queues_whatever_the_others_have() -> None:
    strategy = allocate_by_config([orders(4)[3], orders(4)[1]])

    assert strategy(GROUP, "a", orders(4), ["a", "b"]) == [orders(4)[1], orders(4)[3]]


def test_by_configuration_queues_that_are_not_there_are_left_out() -> None:
    # Those of another broker as well: it is asked about its own queues only.
    strategy = allocate_by_config([*orders(9)[7:], *orders(1, "broker-b")])

    assert strategy(GROUP, "a", orders(8), ["a"]) == [orders(8)[7]]


def test_by_configuration_who_is_not_a_member_gets_nothing() -> None:
    assert allocate_by_config(orders(4))(GROUP, "stranger", orders(4), ["a", "b"]) == []
