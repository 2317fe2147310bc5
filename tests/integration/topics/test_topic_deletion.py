"""Deletion of a topic that is in use: it is refused, or the users are deleted with the topic."""

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from uuid import UUID

import pytest
from sqlalchemy import Connection

from mqdb.broker.consumers.groups import update_group
from mqdb.broker.schedule import delay as delays
from mqdb.broker.schedule import timers
from mqdb.broker.schedule.timers import recall_message
from mqdb.broker.topics.route import find_or_create_retry_topic
from mqdb.broker.topics.topics import delete_topic, find_uses
from mqdb.broker.transactions.transactions import Resolution, resolve
from mqdb.common.topic import retry_topic
from mqdb.common.transaction import HalfState
from mqdb.common.unique_id import format_unique_id
from mqdb.errors import ResponseCode, TopicInUse, TopicNotFound
from mqdb.store.engine import transaction
from mqdb.store.schedule.cron import list_crons
from mqdb.store.schedule.waiting_timers import list_timers
from mqdb.store.topics.topic_uses import TopicUses
from mqdb.store.topics.topics import TopicRoute, find_topic
from tests.fixtures import crons
from tests.fixtures.broker import append, topic
from tests.fixtures.delay import delay, deliver_all, delivered, move_clock
from tests.fixtures.timers import column, timer
from tests.fixtures.timers import deliver_all as deliver_timers
from tests.fixtures.transactions import COMMIT, ROLLBACK, SECOND, Checker, halves, send_half
from tests.fixtures.variants import usually

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
NOTHING = TopicUses((), 0, 0)

Use = Callable[[Connection, TopicRoute], object]


@pytest.fixture
def orders(broker: Connection) -> TopicRoute:
    """The topic that the test deletes."""
    return topic(broker)


def collected_timer(broker: Connection, _orders: TopicRoute) -> None:
    """A timer that was collected into its slot."""
    timer(broker, MINUTE, "old")
    deliver_timers(broker)


def timer_behind_the_clock(broker: Connection, _orders: TopicRoute) -> None:
    """A timer that was collected into slot 0."""
    deliver_timers(broker)
    move_clock(broker, -HOUR)
    timers.deliver_due(broker)
    timer(broker, MINUTE, "old")
    timers.deliver_due(broker)


def asked_half_message(broker: Connection, orders: TopicRoute) -> None:
    """A half message that the checker has already collected."""
    send_half(broker, orders, "old")
    Checker(broker).after(7 * SECOND)


def resumed_half_message(broker: Connection, orders: TopicRoute) -> None:
    """A half message that was given up and then resumed, so that it is checked again."""
    half = send_half(broker, orders, "old")
    Checker(broker, reserved=SECOND).after(7 * SECOND)
    assert [each["state"] for each in halves(broker)] == ["DISCARDED"]
    resolve(broker, format_unique_id(half.unique_id), Resolution.RESUME)


USES: dict[str, tuple[Use, TopicUses]] = {
    "cron": (lambda broker, _: crons.add(broker), TopicUses(("tick",), 0, 0)),
    "delayed message": (lambda broker, _: delay(broker, 3, "old"), TopicUses((), 1, 0)),
    "timer": (lambda broker, _: timer(broker, MINUTE, "old"), TopicUses((), 1, 0)),
    "collected timer": (collected_timer, TopicUses((), 1, 0)),
    "timer behind the clock": (timer_behind_the_clock, TopicUses((), 1, 0)),
    "half message": (lambda broker, orders: send_half(broker, orders, "old"), TopicUses((), 0, 1)),
    "half message that was asked about": (asked_half_message, TopicUses((), 0, 1)),
    "half message that was resumed": (resumed_half_message, TopicUses((), 0, 1)),
}

each_use = pytest.mark.parametrize("use", USES)
#: Those that are rows of several tables, or were moved there; the others as well in `--all`.
some_uses = pytest.mark.parametrize(
    "use", usually("cron", "timer behind the clock", "collected timer", "half message that was resumed", of=USES)
)


# -- refused ------------------------------------------------------------------------------------


@each_use
def test_a_topic_that_something_names_is_not_deleted(broker: Connection, orders: TopicRoute, use: str) -> None:
    name_it, uses = USES[use]
    name_it(broker, orders)

    with pytest.raises(TopicInUse) as refused:
        delete_topic(broker, "orders")

    assert (refused.value.crons, refused.value.scheduled, refused.value.half_messages) == uses
    assert find_topic(broker, "orders") == orders
    assert find_uses(broker, "orders") == uses


def test_the_refusal_says_what_names_the_topic_and_how_to_delete_it(broker: Connection, orders: TopicRoute) -> None:
    crons.add(broker, name="tick")
    crons.add(broker, name="tock")
    delay(broker, 3, "a", "b")
    timer(broker, MINUTE, "c")
    send_half(broker, orders)

    with pytest.raises(TopicInUse) as refused:
        delete_topic(broker, "orders")

    assert refused.value.code is ResponseCode.ILLEGAL_OPERATION
    assert str(refused.value) == (
        "topic 'orders' is used by crons (2: tick, tock) and scheduled messages (3) and half messages (1); "
        "to delete it with them: mqdb topic delete orders --force"
    )


def test_what_has_ended_or_names_another_topic_is_in_nobodys_way(broker: Connection, orders: TopicRoute) -> None:
    invoices = topic(broker, "invoices")
    crons.add(broker, topic="invoices")
    delay(broker, 3, "a", topic="invoices")
    timer(broker, HOUR, "a", topic="invoices")
    send_half(broker, invoices)
    delay(broker, 1, "delivered")
    timer(broker, SECOND, "delivered")
    (recalled,) = timer(broker, HOUR, "recalled")
    recall_message(broker, UUID(recalled))
    send_half(broker, orders).end(broker, COMMIT)
    send_half(broker, orders).end(broker, ROLLBACK)
    move_clock(broker, 2 * SECOND)
    deliver_all(broker)
    deliver_timers(broker)

    assert delete_topic(broker, "orders") == NOTHING
    assert find_uses(broker, "invoices") == TopicUses(("tick",), 2, 1)


def test_a_topic_that_is_not_there(broker: Connection) -> None:
    assert delete_topic(broker, "orders", force=True) is None
    with pytest.raises(TopicNotFound):
        find_uses(broker, "orders")


# -- forced -------------------------------------------------------------------------------------


@some_uses
def test_what_names_a_topic_ends_with_it_when_that_is_forced(broker: Connection, orders: TopicRoute, use: str) -> None:
    name_it, uses = USES[use]
    name_it(broker, orders)

    assert delete_topic(broker, "orders", force=True) == uses

    assert find_topic(broker, "orders") is None
    assert column(broker, "SELECT count(*) FROM mqdb.scheduled") == [0]
    assert list_timers(broker) == []
    assert list_crons(broker) == []
    assert [half["state"] for half in halves(broker)] == [HalfState.ROLLED_BACK] * uses.half_messages


@some_uses
def test_a_younger_topic_of_the_name_gets_only_what_is_new(broker: Connection, orders: TopicRoute, use: str) -> None:
    name_it, _ = USES[use]
    name_it(broker, orders)
    delete_topic(broker, "orders", force=True)
    young = topic(broker)
    assert find_uses(broker, "orders") == NOTHING
    delay(broker, 1, "delayed")
    timer(broker, SECOND, "timed")
    send_half(broker, young, "half").end(broker, COMMIT)
    append(broker, young, "sent")
    move_clock(broker, 2 * HOUR)

    counted = deliver_all(broker), sum(each.messages for each in deliver_timers(broker))

    assert counted == (1, 1)
    assert sorted(delivered(broker)) == ["delayed", "half", "sent", "timed"]


def test_a_topic_can_be_deleted_by_force_again(broker: Connection, orders: TopicRoute) -> None:
    for _ in range(2):
        delay(broker, 3, "old")
        assert delete_topic(broker, "orders", force=True) == TopicUses((), 1, 0)
        topic(broker)
    move_clock(broker, MINUTE)

    assert delays.deliver_due(broker).skipped == {"orders": 2}
    assert delivered(broker) == []


def test_the_producer_of_a_half_message_hears_that_it_is_rolled_back(broker: Connection, orders: TopicRoute) -> None:
    half = send_half(broker, orders)
    delete_topic(broker, "orders", force=True)
    topic(broker)

    ended = half.end(broker, COMMIT)

    assert (ended.has_changed, ended.state) == (False, HalfState.ROLLED_BACK)
    assert delivered(broker) == []


def test_retries_go_with_the_retry_topic(broker: Connection) -> None:
    update_group(broker, "billing")
    find_or_create_retry_topic(broker, "billing")
    delay(broker, 1, "retry", topic=retry_topic("billing"))
    delete_topic(broker, retry_topic("billing"), force=True)
    move_clock(broker, 2 * SECOND)

    result = delays.deliver_due(broker)

    assert (result.messages, result.skipped) == (0, {retry_topic("billing"): 1})
    assert find_topic(broker, retry_topic("billing")) is None


def test_all_of_it_is_one_transaction(broker: Connection, orders: TopicRoute) -> None:
    crons.add(broker)
    delay(broker, 3, "a")
    send_half(broker, orders)
    before = find_uses(broker, "orders")

    with suppress(LookupError), transaction(broker):
        assert delete_topic(broker, "orders", force=True) == before == TopicUses(("tick",), 1, 1)
        assert column(broker, "SELECT count(*) FROM mqdb.scheduled") == [0]
        raise LookupError

    assert find_topic(broker, "orders") == orders
    assert find_uses(broker, "orders") == before
