"""Queues that change owners among RocketMQ's clients, and between them and members in Python."""

from collections.abc import Callable

import pytest
from sqlalchemy import Connection, text

from mqdb.remoting.consuming.consuming import ConsumingTimes
from mqdb.remoting.consuming.hand_over import HandOverTimes
from tests.fixtures.broker import append, dispatch_all
from tests.fixtures.consumers import Inbox, Member
from tests.fixtures.processes import wait_until
from tests.fixtures.remoting_client import QUICK, Fronts
from tests.fixtures.remoting_groups import (
    A,
    B,
    JavaMember,
    filled,
    joined,
    owner,
    stored,
)
from tests.fixtures.variants import usually


def test_a_queue_that_is_pulled_no_more_is_given_back(broker: Connection, fronts: Fronts) -> None:
    route = filled(broker, queues=2)
    client = joined(fronts)
    for queue_id in range(2):
        client.query_offset("readers", "orders", queue_id)
        client.begin_pull("readers", "orders", 10, queue_id, hold_ms=20_000)
    client.commit("readers", "orders", 5, 1)

    joined(fronts, B)  # queue 0 stays the share of A

    wait_until(lambda: owner(broker, route, 1) is None)
    assert (owner(broker, route, 0), stored(broker, route, 1)) == (A, 5)


def test_a_queue_that_is_pulled_again_is_kept(broker: Connection, fronts: Fronts) -> None:
    fronts.start(ConsumingTimes(hand_over=HandOverTimes(rebalance=0.1, pull_again=2.0)))
    route = filled(broker, queues=4)
    client = joined(fronts)
    for queue_id in range(4):
        client.query_offset("readers", "orders", queue_id)
    epoch = text("SELECT epoch FROM mqdb.consumer_offset WHERE queue_key = :key")
    before = broker.scalar(epoch, {"key": route.queue_keys[2]})
    joined(fronts, B)  # queues 2 and 3 are its share

    def is_another_given_back() -> bool:
        client.pull("readers", "orders", 10, 2, hold_ms=200)
        return owner(broker, route, 3) is None

    wait_until(is_another_given_back)
    assert (owner(broker, route, 2), broker.scalar(epoch, {"key": route.queue_keys[2]})) == (A, before)


def test_a_share_that_another_client_asks_for_is_given_to_it_if_it_is_not_pulled(
    broker: Connection, fronts: Fronts
) -> None:
    """A queue that another client asks for is given to that client if its owner does not pull it.

    The clients use a strategy other than averages.
    """
    route = filled(broker, queues=2)
    client, other = joined(fronts), joined(fronts, B)
    client.query_offset("readers", "orders", 0)

    wait_until(lambda: other.pull("readers", "orders", 0).bodies)

    assert owner(broker, route, 0) == B


def test_a_queue_that_is_committed_and_no_share_is_given_back_soon(broker: Connection, fronts: Fronts) -> None:
    times = ConsumingTimes(pulls=QUICK.pulls, hand_over=HandOverTimes(20, 20, 0.1))
    fronts.start(times)
    route = filled(broker, queues=2)
    client = joined(fronts)
    held = []
    for queue_id in range(2):
        client.query_offset("readers", "orders", queue_id)
        held.append(client.begin_pull("readers", "orders", 10, queue_id, hold_ms=20_000))
    joined(fronts, B)

    def is_given_back() -> bool:
        for queue_id in range(2):
            client.commit("readers", "orders", 10, queue_id)  # counts from when the front has heard of the change
        return owner(broker, route, 1) is None

    wait_until(is_given_back)
    assert (owner(broker, route, 0), stored(broker, route, 1)) == (A, 10)
    assert not held[0].done()


@pytest.mark.parametrize("count", usually(2, of=[1, 2]))
def test_two_members_on_one_front_or_two_share_the_queues_and_hand_them_over(
    broker: Connection, fronts: Fronts, java: Callable[..., JavaMember], count: int
) -> None:
    served = [fronts.start() for _ in range(count)]
    route = filled(broker, 20, queues=4)
    first = java(A, 4)
    wait_until(lambda: len(first.bodies) == 80)
    second = java(B, 4, served[-1])
    wait_until(lambda: (first.assignment, second.assignment) == ({0, 1}, {2, 3}))

    for queue_id in range(4):
        append(broker, route, *(f"later {queue_id}-{n}" for n in range(20)), queue_id=queue_id)
    dispatch_all(broker)
    wait_until(lambda: len(first.bodies) + len(second.bodies) == 160)
    first.stop()
    wait_until(lambda: second.assignment == {0, 1, 2, 3})

    bodies = first.bodies + second.bodies
    assert len(bodies) == len(set(bodies)) == 160


def test_members_in_python_and_in_java_share_a_group(
    broker: Connection, fronts: Fronts, java: Callable[..., JavaMember], member: Member
) -> None:
    route = filled(broker, 20, queues=4)
    first = java(A, 4)
    wait_until(lambda: len(first.bodies) == 80)
    inbox = Inbox()
    consumer = member(inbox)
    wait_until(lambda: len(first.assignment) == 2 and len(consumer.assignment) == 2)

    for queue_id in range(4):
        append(broker, route, *(f"later {queue_id}-{n}" for n in range(20)), queue_id=queue_id)
    wait_until(lambda: len(first.bodies) + len(inbox.bodies) == 160)
    consumer.shutdown()
    wait_until(lambda: first.assignment == {0, 1, 2, 3})
    append(broker, route, *(f"last {n}" for n in range(5)), queue_id=3)
    append(broker, route, *(f"last {n + 5}" for n in range(5)), queue_id=0)
    wait_until(lambda: len(first.bodies) + len(inbox.bodies) == 170)

    bodies = first.bodies + inbox.bodies
    assert len(bodies) == len(set(bodies)) == 170
