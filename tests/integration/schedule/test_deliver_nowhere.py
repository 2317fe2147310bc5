"""Delivery of delayed messages without a target, and of levels that have lost a message."""

from datetime import timedelta

import pytest
from sqlalchemy import Connection, text

from mqdb.broker.consumers.groups import delete_group, update_group
from mqdb.broker.schedule.delay import deliver_due
from mqdb.broker.topics.route import find_or_create_retry_topic
from mqdb.common.topic import HALF_TOPIC, retry_topic
from mqdb.store.topics.topics import TopicRoute, find_topic
from tests.fixtures.broker import topic
from tests.fixtures.delay import delay, delivered, move_clock, rewrite_entries

SECOND = timedelta(seconds=1)


@pytest.fixture
def orders(broker: Connection) -> TopicRoute:
    """The target topic of the delayed messages."""
    return topic(broker, "orders", queues=4)


# -- topics and groups that are gone --------------------------------------------------------------


def test_what_is_for_a_topic_that_is_gone_is_skipped(broker: Connection, orders: TopicRoute) -> None:
    delay(broker, 1, "a", topic="gone")
    delay(broker, 1, "b")
    delay(broker, 1, "c", "d", topic="gone")
    move_clock(broker, 2 * SECOND)

    result = deliver_due(broker)

    assert (result.messages, result.skipped) == (1, {"gone": 2 + 1})
    assert delivered(broker) == ["b"]
    assert delivered(broker, "SCHEDULE_TOPIC_XXXX") == ["a", "b", "c", "d"]
    assert deliver_due(broker)[:3] == (0, None, {})


def test_what_is_for_the_half_topic_is_passed_by(broker: Connection) -> None:
    delay(broker, 1, "a", topic=HALF_TOPIC)
    move_clock(broker, 2 * SECOND)

    result = deliver_due(broker)

    assert (result.messages, result.skipped, len(result.unreadable)) == (0, {}, 1)


def test_a_retry_topic_that_is_gone_is_made_again(broker: Connection, orders: TopicRoute) -> None:
    update_group(broker, "billing", retry_queue_nums=3)
    update_group(broker, "shipping")
    delay(broker, 1, "a", topic=retry_topic("billing"))
    delay(broker, 1, "b")
    delay(broker, 1, "c", topic="gone")
    delay(broker, 2, "d", topic=retry_topic("shipping"))
    move_clock(broker, 6 * SECOND)

    result = deliver_due(broker)

    assert (result.messages, result.skipped) == (3, {"gone": 1})
    assert delivered(broker, retry_topic("billing")) == ["a"]
    assert delivered(broker, retry_topic("shipping")) == ["d"]
    route = find_topic(broker, retry_topic("billing"))
    assert route is not None
    assert len(route.queue_keys) == 3


@pytest.mark.usefixtures("orders")
def test_retries_of_a_group_that_is_deleted_go_nowhere(broker: Connection) -> None:
    update_group(broker, "billing")
    delay(broker, 1, "retry", "retry", topic=retry_topic("billing"))
    delay(broker, 1, "b")
    delete_group(broker, "billing", with_topics=True)
    move_clock(broker, 2 * SECOND)

    result = deliver_due(broker)

    assert (result.messages, result.skipped) == (1, {retry_topic("billing"): 2})
    assert find_topic(broker, retry_topic("billing")) is None
    assert delivered(broker, "SCHEDULE_TOPIC_XXXX") == ["retry", "retry", "b"]


def test_retries_of_a_deleted_group_come_to_the_topic_that_was_kept(broker: Connection) -> None:
    update_group(broker, "billing")
    find_or_create_retry_topic(broker, "billing")
    delay(broker, 1, "retry", topic=retry_topic("billing"))
    delete_group(broker, "billing")
    move_clock(broker, 2 * SECOND)

    assert deliver_due(broker).messages == 1
    assert delivered(broker, retry_topic("billing")) == ["retry"]


@pytest.mark.parametrize("with_topics", [True, False], ids=["deleted with its topics", "topics kept"])
@pytest.mark.parametrize("is_awaited", [True, False], ids=["retry topic made anew", "no retry topic yet"])
def test_a_new_group_of_the_same_name_gets_no_old_retries(
    broker: Connection, with_topics: bool, is_awaited: bool
) -> None:
    update_group(broker, "billing")
    find_or_create_retry_topic(broker, "billing")
    delay(broker, 1, "old", topic=retry_topic("billing"))
    delete_group(broker, "billing", with_topics=with_topics)
    update_group(broker, "billing")
    if is_awaited:
        find_or_create_retry_topic(broker, "billing")
    delay(broker, 1, "new", topic=retry_topic("billing"))
    move_clock(broker, 2 * SECOND)

    result = deliver_due(broker)

    assert (result.messages, result.skipped) == (1, {retry_topic("billing"): 1})
    assert delivered(broker, retry_topic("billing")) == ["new"]


def test_a_retry_topic_that_cannot_be_made_holds_up_nothing_else(broker: Connection, orders: TopicRoute) -> None:
    """A retry topic that cannot be created holds up no other delivery.

    The topic's name would be illegal, because its group was written into the table by hand.
    """
    broker.execute(text("INSERT INTO mqdb.subscription_group (group_name) VALUES ('no name'), ('billing')"))
    delay(broker, 1, "a", "b", topic=retry_topic("no name"))
    delay(broker, 1, "c")
    delay(broker, 2, "d", topic=retry_topic("billing"))
    move_clock(broker, 6 * SECOND)

    result = deliver_due(broker)

    assert (result.messages, result.skipped, result.missing) == (2, {retry_topic("no name"): 2}, ())
    assert delivered(broker) == ["c"]
    assert delivered(broker, retry_topic("billing")) == ["d"]


# -- messages that are lost -----------------------------------------------------------------------


def test_a_level_that_has_lost_a_message_stands_still_and_the_others_go_on(
    broker: Connection, orders: TopicRoute
) -> None:
    _, lost, _ = delay(broker, 1, "a", "lost", "b")
    delay(broker, 2, "c", "d")
    broker.execute(text("DELETE FROM mqdb.commit_log WHERE log_pos = :lost"), {"lost": lost})
    move_clock(broker, 6 * SECOND)

    first, second = deliver_due(broker), deliver_due(broker)

    assert (first.messages, second.messages) == (3, 0)
    assert delivered(broker) == ["a", "c", "d"]
    assert [(error.queue_offset, error.log_pos) for error in second.missing] == [(1, lost)]
    assert [str(error) for error in first.missing] == [str(error) for error in second.missing]


@pytest.mark.usefixtures("orders")
def test_a_level_that_stands_still_takes_no_room_from_the_others(broker: Connection) -> None:
    lost, *_ = delay(broker, 1, *map(str, range(9)))
    delay(broker, 2, "a", "b", "c", "d")
    broker.execute(text("DELETE FROM mqdb.commit_log WHERE log_pos = :lost"), {"lost": lost})
    move_clock(broker, 6 * SECOND)

    rounds = [deliver_due(broker, max_messages=3) for _ in range(3)]

    assert [(each.messages, each.next_due_in) for each in rounds] == [(3, timedelta(0)), (1, None), (0, None)]
    assert delivered(broker) == ["a", "b", "c", "d"]


@pytest.mark.usefixtures("orders")
def test_a_level_that_has_lost_an_entry_stands_still(broker: Connection) -> None:
    delay(broker, 1, "lost", "a")
    rewrite_entries(broker, keep="queue_offset <> 0")
    move_clock(broker, 2 * SECOND)

    result = deliver_due(broker)

    assert (result.messages, len(result.missing)) == (0, 1)


@pytest.mark.usefixtures("orders")
def test_a_level_that_has_lost_an_entry_behind_others_stands_still_there(broker: Connection) -> None:
    delay(broker, 1, "a", "lost", "b")
    delay(broker, 2, "c")
    rewrite_entries(broker, keep="queue_offset <> 1")
    move_clock(broker, 6 * SECOND)

    first, second = deliver_due(broker), deliver_due(broker)

    assert (first.messages, second.messages) == (2, 0)
    assert [error.queue_offset for error in second.missing] == [1]
    assert delivered(broker) == ["a", "c"]


@pytest.mark.usefixtures("orders")
def test_delivery_goes_on_where_retention_has_got_to(broker: Connection) -> None:
    delay(broker, 1, "a", "b", "c")
    broker.execute(text("UPDATE mqdb.queue SET base_offset = 2"))
    move_clock(broker, 2 * SECOND)

    assert deliver_due(broker).messages == 1
    assert delivered(broker) == ["c"]
