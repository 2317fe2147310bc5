"""Groups that change between pull and pop: no queue is read in both modes, and no message in flight is lost."""

from collections.abc import Callable

import pytest
from sqlalchemy import text

from mqdb.broker.clients.membership import register
from mqdb.broker.consumers.groups import update_group
from mqdb.broker.consumers.leftovers import return_leftovers
from mqdb.broker.consumers.offsets import commit_offsets, release_queues, take_queues
from mqdb.broker.consumers.pop import (
    pop,
)
from mqdb.common.group import ConsumeMode
from mqdb.common.message import MessageQueue
from mqdb.errors import ConsumeModeConflict, StorageRefused
from mqdb.store import engine
from mqdb.store.clients.clients import ClientKind, Registration
from mqdb.store.engine import driver
from tests.fixtures.broker import bodies, dispatch_all
from tests.fixtures.popped_queues import GROUP, HALF_A_MINUTE, Queues, letters
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.producers import is_blocked
from tests.fixtures.threads import Doing


def test_a_group_that_pulls_does_not_pop(make_queues: Callable[..., Queues]) -> None:
    orders = make_queues()
    orders.send("a")
    update_group(orders.broker, "pullers")

    with pytest.raises(ConsumeModeConflict, match="--consume-mode pop"):
        pop(orders.broker, "pullers", "w1", {orders.route.queue_keys[0]: MessageQueue("orders", "broker-a", 0)},
            limit=1, invisible=HALF_A_MINUTE)  # fmt: skip
    assert take_queues(orders.broker, GROUP, "w1", orders.route.queue_keys) == []


def test_a_group_that_begins_to_pull_reads_on_behind_what_is_in_flight(make_queues: Callable[..., Queues]) -> None:
    orders = make_queues()
    orders.send("a", "b", "c", "d")
    first, second, third = orders.pop(3)
    orders.ack(first)

    update_group(orders.broker, GROUP, consume_mode=ConsumeMode.PULL)

    with pytest.raises(ConsumeModeConflict):
        orders.pop()
    [owned] = take_queues(orders.broker, GROUP, "w1", orders.route.queue_keys)
    assert owned.next_offset == 3
    assert orders.ack(second) == [True]
    assert return_leftovers(orders.broker) == 0
    orders.pass_time(30)
    assert return_leftovers(orders.broker) == 1
    assert (orders.rows(), orders.ack(third)) == (0, [False])
    dispatch_all(orders.broker)
    waiting = "SELECT topic, origin_topic, due_at = mqdb.now() FROM mqdb.scheduled"
    assert orders.broker.execute(text(waiting)).all() == [("%RETRY%workers", "orders", True)]


def test_all_that_is_left_over_comes_again_in_one_round(make_queues: Callable[..., Queues]) -> None:
    orders = make_queues(2)
    for queue_id in range(2):
        orders.send(*(str(number) for number in range(100)), queue_id=queue_id)
    assert len(orders.pop(200)) == 200
    update_group(orders.broker, GROUP, consume_mode=ConsumeMode.PULL)
    orders.pass_time(30)

    assert (return_leftovers(orders.broker), orders.rows()) == (200, 0)


def test_what_was_popped_too_often_is_dead_when_the_group_pulls(make_queues: Callable[..., Queues]) -> None:
    orders = make_queues(retry_max_times=0)
    orders.send("a")
    orders.pop()
    update_group(orders.broker, GROUP, consume_mode=ConsumeMode.PULL)
    orders.pass_time(30)

    assert return_leftovers(orders.broker) == 1

    dispatch_all(orders.broker)
    assert letters(orders.broker) == [("a", "TIMEOUT", 1)]


def test_a_group_in_order_goes_back_to_what_is_in_flight_when_it_pulls(make_queues: Callable[..., Queues]) -> None:
    orders = make_queues(2, orderly=True)
    orders.send("a", "b", "c")
    orders.send("x", queue_id=1)
    first, _, other = sorted(orders.pop(2) + orders.pop(2), key=lambda each: each.body)
    orders.ack(first, other)

    update_group(orders.broker, GROUP, consume_mode=ConsumeMode.PULL)

    taken = take_queues(orders.broker, GROUP, "w1", orders.route.queue_keys)
    assert [each.next_offset for each in taken] == [1, 1]
    assert orders.rows() == 0


def test_a_group_that_begins_to_pop_leaves_queues_to_their_owners(make_queues: Callable[..., Queues]) -> None:
    orders = make_queues(2)
    orders.send("a", "b")
    orders.send("x", queue_id=1)
    update_group(orders.broker, GROUP, consume_mode=ConsumeMode.PULL)
    register(orders.broker, Registration("owner", ClientKind.CONSUMER, GROUP, "1"))
    [owned, gone] = [
        *take_queues(orders.broker, GROUP, "owner", orders.route.queue_keys[:1]),
        *take_queues(orders.broker, GROUP, "no-member", orders.route.queue_keys[1:]),
    ]

    update_group(orders.broker, GROUP, consume_mode=ConsumeMode.POP)

    assert bodies(orders.pop()) == ["x"]
    assert commit_offsets(orders.broker, GROUP, [owned._replace(next_offset=1)]) == []
    assert commit_offsets(orders.broker, GROUP, [gone._replace(next_offset=1)]) != []
    release_queues(orders.broker, GROUP, [owned])
    assert bodies(orders.pop()) == ["b"]


def test_a_change_waits_for_the_pop_that_is_under_way(
    make_queues: Callable[..., Queues], database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = make_queues()
    orders.send("a", "b")
    other = database.connect(autocommit=False)
    other.execute("SELECT * FROM mqdb.pop_queues(%s, %s, 1)", [GROUP, list(orders.route.queue_keys)])
    with monkeypatch.context() as patch:
        patch.setattr(engine, "_TRIES", 1)
        with pytest.raises(StorageRefused, match="lock timeout"):
            update_group(orders.broker, GROUP, consume_mode=ConsumeMode.PULL)

    change = Doing(lambda: update_group(orders.broker, GROUP, consume_mode=ConsumeMode.PULL))

    wait_until(lambda: is_blocked(database, driver(orders.broker).info.backend_pid))
    other.commit()
    change.result()
    with pytest.raises(ConsumeModeConflict):
        orders.pop()
