"""The view mqdb.consumer_lag: the backlog of each group, in messages and in seconds."""

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Connection, text

from mqdb.broker.consumers.offsets import commit_offsets, take_queues
from mqdb.broker.consumers.send_back import SendBackRequest, send_back
from mqdb.broker.schedule.delay import deliver_due
from mqdb.broker.topics.route import find_or_create_retry_topic
from mqdb.common.failure import Failure
from mqdb.common.group import FROM_FIRST_OFFSET
from mqdb.common.message import MessageQueue
from mqdb.common.retry import Retry
from mqdb.store.consumers import groups
from mqdb.store.consumers.consumer_offsets import OwnedQueue
from mqdb.store.consumers.groups import QueueProgress, TopicLag
from mqdb.store.topics.topics import TopicRoute
from tests.fixtures.broker import append, dispatch_all, topic
from tests.fixtures.delay import delay, move_clock
from tests.fixtures.timers import deliver_all


@pytest.fixture
def route(broker: Connection) -> TopicRoute:
    """A topic with four messages in queue 0 and none in queue 1."""
    route = topic(broker, queues=2)
    append(broker, route, "a", "b", "c", "d")
    dispatch_all(broker)
    return route


@pytest.fixture
def owned(broker: Connection, route: TopicRoute) -> list[OwnedQueue]:
    """Both queues, owned by member `m` of group `readers`, which begins with the first message."""
    groups.save(broker, "readers", {})
    return take_queues(broker, "readers", "m", route.queue_keys, FROM_FIRST_OFFSET)


def lag(broker: Connection) -> list[QueueProgress]:
    return groups.progress(broker, "readers")


def commit(broker: Connection, owned: list[OwnedQueue], offset: int) -> None:
    assert commit_offsets(broker, "readers", [owned[0]._replace(next_offset=offset)]) == []


def test_a_queue_that_is_not_consumed_has_all_its_messages_as_its_lag(
    broker: Connection, owned: list[OwnedQueue]
) -> None:
    first, second = lag(broker)

    assert first[:6] == ("readers", "orders", 0, 0, 4, 4)
    assert (first.owner, first.epoch) == ("m", owned[0].epoch)
    assert second[:7] == ("readers", "orders", 1, 0, 0, 0, 0.0)


def test_lag_in_seconds_is_the_age_of_the_oldest_message_that_is_not_consumed(
    broker: Connection, route: TopicRoute, owned: list[OwnedQueue]
) -> None:
    broker.execute(text("SET mqdb.clock_offset = '1 h'"))
    append(broker, route, "e")
    dispatch_all(broker)
    broker.execute(text("SET mqdb.clock_offset = '3 h'"))
    seconds = []

    for offset in (0, 3, 4, 5):
        commit(broker, owned, offset)
        seconds.append(lag(broker)[0].lag_seconds)

    assert [round(each or 0, -2) for each in seconds] == [10_800, 10_800, 7_200, 0]
    assert seconds[-1] == 0


def test_commits_of_exactly_once_consumers_count_before_they_are_folded_in(
    broker: Connection, owned: list[OwnedQueue]
) -> None:
    broker.execute(
        text(
            """INSERT INTO mqdb.offset_commit (group_id, queue_key, from_offset, next_offset, segment, epoch)
               SELECT group_id, queue_key, o.from_offset, o.next_offset, 1, epoch
               FROM mqdb.consumer_offset, (VALUES (0, 1), (1, 3)) AS o (from_offset, next_offset)
               WHERE queue_key = :key"""
        ),
        {"key": owned[0].queue_key},
    )

    assert [(each.next_offset, each.lag) for each in lag(broker)] == [(3, 1), (0, 0)]
    # A consumer without transactions has passed by what is left of them.
    commit(broker, owned, 2)
    assert lag(broker)[0].next_offset == 2


def test_what_retention_has_dropped_unread_is_no_lag(broker: Connection, owned: list[OwnedQueue]) -> None:
    broker.execute(text("UPDATE mqdb.queue SET base_offset = 3 WHERE queue_key = :key"), {"key": owned[0].queue_key})

    first, _ = lag(broker)

    assert (first.next_offset, first.lag) == (0, 1)
    assert first.lag_seconds is not None


def test_an_offset_behind_the_end_is_no_lag(broker: Connection, owned: list[OwnedQueue]) -> None:
    commit(broker, owned, 1_000)

    assert lag(broker)[0][3:7] == (1_000, 4, 0, 0.0)


def test_the_oldest_message_that_is_not_consumed_is_named_by_its_position(
    broker: Connection, route: TopicRoute, owned: list[OwnedQueue]
) -> None:
    """The view names the position of the oldest unconsumed message.

    The message's entry may stand alone, or anywhere in a run.
    """
    for batch in ("e", "fgh", "i", "j", "kl"):
        append(broker, route, *batch)
        dispatch_all(broker)
    positions = broker.scalars(text("SELECT log_pos FROM mqdb.commit_log ORDER BY log_pos")).all()
    found = []

    for offset in range(len(positions) + 1):
        commit(broker, owned, offset)
        found.append(lag(broker)[0].oldest_pos)

    assert found == [*positions, None]
    assert lag(broker)[1].oldest_pos is None


# -- retries ------------------------------------------------------------------------------------


LEVEL_3 = Retry(3)


def fail(broker: Connection, *offsets: int, group: str = "readers", retry: Retry = LEVEL_3) -> None:
    """Have the group fail messages in queue 0 of the topic, and commit the whole queue."""
    rows = broker.execute(text("SELECT queue_offset, log_pos FROM mqdb.message WHERE topic = 'orders'"))
    positions = {row.queue_offset: row.log_pos for row in rows}
    queue, failure = MessageQueue("orders", "broker-a", 0), Failure.later("m", datetime.now(UTC))
    requests = [SendBackRequest(positions[each], queue, each, failure, retry) for each in offsets]
    send_back(broker, group, requests)
    dispatch_all(broker)


def waiting(broker: Connection) -> dict[tuple[str, int], tuple[int, int]]:
    """The lag and the waiting retries of each queue that has either."""
    return {(each.topic, each.queue_id): (each.lag, each.waiting) for each in lag(broker) if each.lag or each.waiting}


@pytest.mark.parametrize("retry", [LEVEL_3, Retry(delay=timedelta(hours=1))])
@pytest.mark.parametrize("is_collected", [False, True])
def test_a_message_that_waits_for_its_retry_shows_at_the_queue_where_it_failed(
    broker: Connection, owned: list[OwnedQueue], retry: Retry, is_collected: bool
) -> None:
    fail(broker, 1, 2, retry=retry)
    commit(broker, owned, 4)
    if is_collected:
        deliver_all(broker)

    assert waiting(broker) == {("orders", 0): (0, 2)}


def test_what_is_scheduled_says_where_a_retry_failed_first(broker: Connection, owned: list[OwnedQueue]) -> None:
    fail(broker, 1)
    delay(broker, 3, "new")

    found = broker.execute(text("SELECT topic, origin_topic, origin_queue_id FROM mqdb.scheduled ORDER BY log_pos"))

    assert [tuple(row) for row in found] == [("%RETRY%readers", "orders", 0), ("orders", None, None)]


def test_a_retry_that_is_due_is_in_the_lag_of_the_retry_topic(broker: Connection, owned: list[OwnedQueue]) -> None:
    fail(broker, 1)
    fail(broker, 2, retry=Retry(18))
    commit(broker, owned, 4)
    retry = find_or_create_retry_topic(broker, "readers")
    take_queues(broker, "readers", "m", retry.queue_keys, FROM_FIRST_OFFSET)

    move_clock(broker, timedelta(minutes=1))
    deliver_due(broker)
    dispatch_all(broker)

    assert waiting(broker) == {("orders", 0): (0, 1), ("%RETRY%readers", 0): (1, 0)}


def test_what_waits_for_others_or_for_the_first_time_is_no_retry_of_the_group(
    broker: Connection, owned: list[OwnedQueue]
) -> None:
    groups.save(broker, "others", {})
    fail(broker, 0, 1, group="others")
    delay(broker, 3, "new")
    commit(broker, owned, 4)

    assert waiting(broker) == {}


def test_a_younger_group_of_the_name_has_none_of_the_retries(broker: Connection, route: TopicRoute) -> None:
    groups.save(broker, "readers", {})
    fail(broker, 0)
    broker.execute(text("DELETE FROM mqdb.subscription_group WHERE group_name = 'readers'"))
    groups.save(broker, "readers", {})
    take_queues(broker, "readers", "m", route.queue_keys)

    assert waiting(broker) == {}


def test_a_retry_that_does_not_say_where_it_failed_shows_at_its_retry_topic(
    broker: Connection, owned: list[OwnedQueue]
) -> None:
    commit(broker, owned, 4)
    retry = find_or_create_retry_topic(broker, "readers")
    take_queues(broker, "readers", "m", retry.queue_keys, FROM_FIRST_OFFSET)
    delay(broker, 3, "odd", topic="%RETRY%readers")

    assert waiting(broker) == {("%RETRY%readers", 0): (0, 1)}


# -- by group and topic -------------------------------------------------------------------------


def test_the_lag_of_a_topic_is_that_of_all_its_queues(
    broker: Connection, route: TopicRoute, owned: list[OwnedQueue]
) -> None:
    broker.execute(text("SET mqdb.clock_offset = '1 h'"))
    append(broker, route, "e", "f", queue_id=1)
    append(broker, topic(broker, "other"), "g")
    dispatch_all(broker)
    fail(broker, 0)
    commit(broker, owned, 3)
    broker.execute(text("SET mqdb.clock_offset = '3 h'"))

    (found,) = groups.lags(broker)

    assert (found.group, found.topic, found.lag, found.waiting) == ("readers", "orders", 1 + 2, 1)
    assert round(found.lag_seconds, -2) == 10_800


def test_without_a_lag_the_age_of_a_topic_is_0(broker: Connection, owned: list[OwnedQueue]) -> None:
    commit(broker, owned, 4)

    assert groups.lags(broker) == [TopicLag("readers", "orders", 0, 0.0, 0, 0, 4, 0)]
