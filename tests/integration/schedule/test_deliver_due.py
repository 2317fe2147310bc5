"""Delivery of delayed messages: time, target, form, order, and amount at a time."""

from datetime import timedelta

import pytest
from sqlalchemy import Connection, text

from mqdb.broker.broker_settings import change_settings
from mqdb.broker.consumers.groups import update_group
from mqdb.broker.consumers.pull import pull
from mqdb.broker.consumers.send_back import SendBackRequest, send_back
from mqdb.broker.schedule.delay import deliver_due
from mqdb.broker.topics import topics as admin
from mqdb.common.delay_level import DEFAULT_DELAY_LEVELS, parse_delay_levels
from mqdb.common.failure import Failure
from mqdb.common.message import Message, MessageQueue
from mqdb.common.topic import retry_topic
from mqdb.store.broker_settings import BrokerSettings
from mqdb.store.topics.topics import TopicRoute, find_topic
from tests.fixtures.broker import append, bodies, dispatch_all, request, topic
from tests.fixtures.delay import delay, deliver_all, delivered, move_clock, records, stop_clock
from tests.fixtures.processes import wait_until
from tests.fixtures.variants import usually

LEVELS = parse_delay_levels(DEFAULT_DELAY_LEVELS)
SECOND = timedelta(seconds=1)
MS = timedelta(milliseconds=1)


@pytest.fixture
def orders(broker: Connection) -> TopicRoute:
    """The target topic of the delayed messages."""
    return topic(broker, "orders", queues=4)


# -- when -----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("orders")
@pytest.mark.parametrize("level", usually(1, 18, of=[1, 2, 3, 4, 9, 18]))
def test_a_message_comes_when_its_level_is_over_and_not_before(broker: Connection, level: int) -> None:
    stop_clock(broker)
    delay(broker, level, "a")

    move_clock(broker, LEVELS.delay(level) - MS)
    assert deliver_due(broker).messages == 0
    move_clock(broker, LEVELS.delay(level))

    assert deliver_due(broker).messages == 1
    assert delivered(broker) == ["a"]


@pytest.mark.usefixtures("orders")
def test_not_a_millisecond_is_missing(broker: Connection) -> None:
    (sent,) = delay(broker, 1, "a")
    wait_until(lambda: deliver_due(broker).messages == 1)

    (copy,) = records(broker)
    original = records(broker, "SCHEDULE_TOPIC_XXXX")[0]
    assert original["log_pos"] == sent
    assert copy["store_time"] - original["store_time"] >= SECOND


def test_while_nothing_waits_there_is_no_next_time(broker: Connection) -> None:
    assert deliver_due(broker).next_due_in is None


@pytest.mark.usefixtures("orders")
def test_a_round_knows_when_the_next_message_is_due(broker: Connection) -> None:
    stop_clock(broker)
    delay(broker, 4, "later")
    delay(broker, 2, "sooner", "with it")

    first = deliver_due(broker).next_due_in
    move_clock(broker, 6 * SECOND)
    second = deliver_due(broker).next_due_in

    assert (first, second) == (5 * SECOND, 24 * SECOND)


@pytest.mark.usefixtures("orders")
def test_after_a_long_stop_all_that_fell_due_comes_at_once(broker: Connection) -> None:
    for level in range(1, 19):
        delay(broker, level, f"{level} a", f"{level} b")
    move_clock(broker, timedelta(days=3))

    assert deliver_all(broker, max_messages=7) == 36

    assert sorted(delivered(broker)) == sorted(f"{level} {which}" for level in range(1, 19) for which in "ab")


@pytest.mark.usefixtures("orders")
def test_a_message_is_delivered_once(broker: Connection) -> None:
    delay(broker, 1, "a")
    move_clock(broker, 2 * SECOND)

    assert [deliver_due(broker).messages for _ in range(3)] == [1, 0, 0]


@pytest.mark.usefixtures("orders")
def test_when_a_level_becomes_shorter_what_waits_longer_is_due_now(broker: Connection) -> None:
    delay(broker, 18, "a")
    move_clock(broker, timedelta(minutes=30))
    assert deliver_due(broker).messages == 0

    change_settings(broker, BrokerSettings(), parse_delay_levels("1s " * 17 + "10s"))

    assert deliver_due(broker).messages == 1


@pytest.mark.usefixtures("orders")
def test_when_the_clock_was_set_back_what_waits_is_due_now(broker: Connection) -> None:
    delay(broker, 18, "a")

    move_clock(broker, -timedelta(days=1))

    assert deliver_due(broker).messages == 1


@pytest.mark.usefixtures("orders")
def test_a_small_step_back_of_the_clock_delivers_nothing_early(broker: Connection) -> None:
    delay(broker, 18, "a")

    move_clock(broker, -0.9 * SECOND)

    assert deliver_due(broker).messages == 0


@pytest.mark.usefixtures("orders")
def test_what_waits_in_a_level_that_is_gone_comes_when_it_was_to(broker: Connection) -> None:
    delay(broker, 18, "a")
    change_settings(broker, BrokerSettings(), parse_delay_levels("1s 5s"))

    move_clock(broker, timedelta(hours=1, minutes=59))
    assert deliver_due(broker).messages == 0
    move_clock(broker, timedelta(hours=2))

    assert deliver_due(broker).messages == 1


@pytest.mark.usefixtures("orders")
def test_a_longer_table_has_more_levels(broker: Connection) -> None:
    change_settings(broker, BrokerSettings(), parse_delay_levels(DEFAULT_DELAY_LEVELS + " 1d"))
    delay(broker, 19, "a")

    move_clock(broker, timedelta(hours=23, minutes=59))
    assert deliver_due(broker).messages == 0
    move_clock(broker, timedelta(days=1))

    assert deliver_due(broker).messages == 1


# -- where, and as what ---------------------------------------------------------------------------


def test_a_message_comes_in_the_queue_that_was_chosen(broker: Connection, orders: TopicRoute) -> None:
    delay(broker, 1, "a", queue_id=3)
    move_clock(broker, 2 * SECOND)

    deliver_due(broker)
    dispatch_all(broker)

    [result], _ = pull(broker, [request(orders, queue_id=3)])
    assert bodies(result.messages) == ["a"]


@pytest.mark.usefixtures("orders")
def test_the_copy_is_the_message(broker: Connection) -> None:
    delay(broker, 1, "a", tag="Paid")
    broker.execute(text("UPDATE mqdb.commit_log SET keys = 'k1 k2', flag = 7, sys_flag = 1, born_host = '10.0.0.7'"))
    move_clock(broker, 2 * SECOND)

    deliver_due(broker)

    (copy,), (original,) = records(broker), records(broker, "SCHEDULE_TOPIC_XXXX")
    for column in ("born_time", "born_host", "msg_id", "keys", "tags", "flag", "sys_flag", "body", "reconsume_times"):
        assert copy[column] == original[column], column
    assert copy["properties"] == original["properties"]
    assert copy["tags_code"] == broker.scalar(text("SELECT mqdb.tag_code('Paid')"))
    assert copy["store_time"] > original["store_time"]


def test_where_the_topic_has_become_smaller_another_of_its_queues_is_taken(
    broker: Connection, orders: TopicRoute
) -> None:
    delay(broker, 1, "a", queue_id=3)
    admin.update_topic(broker, "orders", read_queue_nums=2, write_queue_nums=2)
    move_clock(broker, 2 * SECOND)

    deliver_due(broker)

    assert records(broker)[0]["queue_id"] == 1


def test_a_retry_takes_the_whole_way(broker: Connection, orders: TopicRoute) -> None:
    update_group(broker, "billing")
    (position,) = append(broker, orders, Message("orders", "a", "Paid"), queue_id=2)
    queue = MessageQueue("orders", "broker-a", 2)
    now = broker.execute(text("SELECT mqdb.now()")).scalar_one()
    send_back(broker, "billing", [SendBackRequest(position, queue, 0, Failure.later("client-1", now))])
    dispatch_all(broker)
    move_clock(broker, 10 * SECOND)

    deliver_due(broker)
    dispatch_all(broker)

    route = find_topic(broker, retry_topic("billing"))
    assert route is not None
    [result], _ = pull(broker, [request(route)])
    [message] = result.messages
    assert (message.topic, message.queue.topic, message.body) == ("orders", "%RETRY%billing", b"a")
    assert (message.tag, message.reconsume_times) == ("Paid", 1)


# -- order, and how much --------------------------------------------------------------------------


@pytest.mark.usefixtures("orders")
def test_a_level_is_delivered_in_its_order(broker: Connection) -> None:
    sent = [str(n) for n in range(50)]
    delay(broker, 1, *sent)
    move_clock(broker, 2 * SECOND)

    deliver_all(broker, max_messages=8)

    assert delivered(broker) == sent


@pytest.mark.usefixtures("orders")
def test_what_stands_behind_a_message_that_waits_waits_too(broker: Connection) -> None:
    """A message behind a waiting one waits, too. A late committer may be behind younger messages."""
    stop_clock(broker)
    first, _ = delay(broker, 1, "waits", "is due", dispatched=False)
    broker.execute(text("UPDATE mqdb.commit_log SET tags_code = tags_code + 500 WHERE log_pos = :p"), {"p": first})
    dispatch_all(broker)

    move_clock(broker, 1.5 * SECOND - MS)
    assert deliver_due(broker).messages == 0
    move_clock(broker, 1.5 * SECOND)

    assert deliver_due(broker).messages == 2
    assert delivered(broker) == ["waits", "is due"]


@pytest.mark.usefixtures("orders")
def test_levels_do_not_wait_for_each_other(broker: Connection) -> None:
    delay(broker, 5, "slow")
    delay(broker, 1, "quick")
    move_clock(broker, 2 * SECOND)

    deliver_due(broker)

    assert delivered(broker) == ["quick"]


@pytest.mark.usefixtures("orders")
def test_a_round_is_bounded_and_takes_first_what_is_due_longest(broker: Connection) -> None:
    stop_clock(broker)
    delay(broker, 2, "5 s: 1", "5 s: 2")
    delay(broker, 3, "10 s: 1")
    delay(broker, 1, "1 s: 1", "1 s: 2")
    move_clock(broker, timedelta(minutes=1))

    rounds = [deliver_due(broker, max_messages=3) for _ in range(3)]

    assert [(each.messages, each.next_due_in) for each in rounds] == [(3, timedelta(0)), (2, None), (0, None)]
    assert delivered(broker) == ["1 s: 1", "1 s: 2", "5 s: 1", "5 s: 2", "10 s: 1"]


@pytest.mark.usefixtures("orders")
def test_delivery_goes_on_over_many_segments(broker: Connection) -> None:
    for _ in range(4):
        delay(broker, 2, "a", "b")
        delay(broker, 1, "c")
        broker.execute(text("SELECT mqdb.add_segment(262144)"))
        broker.execute(text("SELECT setval('mqdb.log_pos', (SELECT max(start_pos) FROM mqdb.segment))"))
    delay(broker, 1, "newest")
    move_clock(broker, 6 * SECOND)

    segments, first_segment = [], 0
    while (result := deliver_due(broker, 3, first_segment)).messages:
        first_segment = result.first_segment
        segments.append(first_segment)

    assert sorted(delivered(broker)) == ["a"] * 4 + ["b"] * 4 + ["c"] * 4 + ["newest"]
    assert segments == sorted(segments)
    assert segments[-1] > 4
