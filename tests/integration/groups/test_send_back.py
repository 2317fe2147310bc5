"""Send back: the queue that a failed message goes to, and the properties of its copy."""

import random
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, text

from mqdb.broker.consumers.groups import update_group
from mqdb.broker.consumers.send_back import SendBackRequest, SentBack, send_back
from mqdb.broker.topics import topics as admin
from mqdb.broker.topics.route import find_or_create_dlq_topic, find_or_create_retry_topic
from mqdb.common.failure import Failure
from mqdb.common.message import Message, MessageQueue
from mqdb.common.property import FailureProperty
from mqdb.common.retry import Retry
from mqdb.common.topic import SCHEDULE_TOPIC, TIMER_TOPIC, Perm, TopicConfig, dlq_topic, retry_topic
from mqdb.errors import GroupNotFound, MessageGone, TopicNotWritable
from mqdb.store.engine import driver
from mqdb.store.topics.topics import find_topic
from tests.fixtures.broker import append, dispatch_all, topic
from tests.fixtures.delay import move_clock
from tests.fixtures.timers import deliver_all
from tests.fixtures.variants import usually

GROUP = "billing"
ORDERS = MessageQueue("orders", "broker-a", 2)
AT = datetime(2024, 5, 1, 12, 30, tzinfo=UTC)
LATER = Failure.later("client-1", AT)


@pytest.fixture
def group(broker: Connection) -> str:
    """A group with the broker's defaults."""
    broker.execute(text("INSERT INTO mqdb.subscription_group (group_name) VALUES (:group)"), {"group": GROUP})
    return GROUP


@pytest.fixture
def orders(broker: Connection) -> list[int]:
    """Positions of three messages in queue 2 of the topic."""
    route = topic(broker, "orders", queues=4)
    message = Message("orders", "a body", "Paid", ["k1", "k2"], {"colour": "red"}, flag=7)
    return append(broker, route, message, "second", "third", queue_id=2)


def request(log_pos: int, delay_level: int = 0, failure: Failure = LATER) -> SendBackRequest:
    return SendBackRequest(log_pos, ORDERS, 10 + log_pos, failure, Retry(delay_level))


def record(broker: Connection, log_pos: int) -> dict[str, Any]:
    rows = broker.execute(
        text("""SELECT cl.*, t.topic, q.queue_id FROM mqdb.commit_log cl JOIN mqdb.queue q USING (queue_key)
                JOIN mqdb.topic t USING (topic_id) WHERE log_pos = :log_pos"""),
        {"log_pos": log_pos},
    )
    return dict(rows.mappings().one())


def newest(broker: Connection) -> dict[str, Any]:
    """The newest record, which is the copy."""
    return record(broker, broker.scalar(text("SELECT max(log_pos) FROM mqdb.commit_log")) or 0)


def fail(broker: Connection, log_pos: int, delay_level: int = 0, failure: Failure = LATER) -> dict[str, Any]:
    """Send one message back; returns the copy."""
    send_back(broker, GROUP, [request(log_pos, delay_level, failure)])
    return newest(broker)


def as_retry(broker: Connection, copy: Mapping[str, Any]) -> SendBackRequest:
    """Have the copy fail again, as pulled from the retry topic.

    The copy's record is still in the schedule topic, which does not matter.
    """
    return SendBackRequest(copy["log_pos"], MessageQueue(retry_topic(GROUP), "broker-a", 0), 0, LATER)


# -- where it goes --------------------------------------------------------------------------------


def test_the_first_failure_waits_ten_seconds(broker: Connection, group: str, orders: list[int]) -> None:
    results = send_back(broker, group, [request(orders[0])])

    copy = newest(broker)
    assert results == [SentBack(orders[0], is_dead=False, delay_level=3, reconsume_times=1)]
    assert (copy["topic"], copy["queue_id"], copy["reconsume_times"]) == (SCHEDULE_TOPIC, 2, 1)
    assert copy["properties"] | {"DELAY": "3", "REAL_TOPIC": "%RETRY%billing", "REAL_QID": "0"} == copy["properties"]
    stored = copy["store_time"].timestamp() * 1000
    assert stored + 10_000 <= copy["tags_code"] < stored + 10_001


def test_each_failure_waits_one_level_more(broker: Connection, group: str, orders: list[int]) -> None:
    for times, level in ((0, 3), (1, 4), (14, 17), (15, 18)):
        broker.execute(text("UPDATE mqdb.commit_log SET reconsume_times = :times"), {"times": times})

        assert send_back(broker, group, [request(orders[0])]) == [SentBack(orders[0], False, level, times + 1)]


def test_the_seventeenth_failure_is_the_last(broker: Connection, group: str, orders: list[int]) -> None:
    broker.execute(text("UPDATE mqdb.commit_log SET reconsume_times = 16"))

    results = send_back(broker, group, [request(orders[0])])

    copy = newest(broker)
    assert results == [SentBack(orders[0], is_dead=True, delay_level=0, reconsume_times=17)]
    assert (copy["topic"], copy["queue_id"], copy["reconsume_times"]) == ("%DLQ%billing", 0, 17)


def test_a_group_may_have_delays_of_its_own(broker: Connection, group: str, orders: list[int]) -> None:
    update_group(broker, group, retry_delays=[timedelta(seconds=1), timedelta(minutes=1)])
    for times, seconds in ((0, 1), (1, 60), (2, 60)):
        broker.execute(text("UPDATE mqdb.commit_log SET reconsume_times = :times"), {"times": times})

        assert send_back(broker, group, [request(orders[0])]) == [SentBack(orders[0], False, 0, times + 1)]

        copy = newest(broker)
        waits = copy["tags_code"] - copy["store_time"].timestamp() * 1000
        assert (copy["topic"], round(waits / 1000)) == (TIMER_TOPIC, seconds)
    assert send_back(broker, group, [request(orders[0], 5)]) == [SentBack(orders[0], False, 5, 3)]
    update_group(broker, group, retry_delays=[])
    assert send_back(broker, group, [request(orders[0])]) == [SentBack(orders[0], False, 5, 3)]


def test_above_the_last_level_the_last_delay_goes_on(broker: Connection, group: str, orders: list[int]) -> None:
    broker.execute(text("UPDATE mqdb.commit_log SET reconsume_times = 40"))

    (result,) = send_back(broker, group, [request(orders[0])], max_reconsume_times=100)

    assert (result.delay_level, newest(broker)["properties"]["DELAY"]) == (18, "18")


@pytest.mark.parametrize(("asked", "dead", "level"), [(-1, True, 0), (1, False, 1), (7, False, 7), (99, False, 18)])
def test_the_listener_may_choose_the_level(
    broker: Connection, group: str, orders: list[int], asked: int, dead: bool, level: int
) -> None:
    (result,) = send_back(broker, group, [request(orders[0], asked)])

    assert (result.is_dead, result.delay_level) == (dead, level)


@pytest.mark.parametrize("delay", [timedelta(milliseconds=1), timedelta(seconds=7, microseconds=1), timedelta(days=9)])
def test_a_listener_may_say_exactly_how_long(
    broker: Connection, group: str, orders: list[int], delay: timedelta
) -> None:
    broker.execute(text("UPDATE mqdb.broker SET timer_max_delay_ms = 259200000"))
    asked = request(orders[0])._replace(retry=Retry(delay=delay))

    assert send_back(broker, group, [asked]) == [SentBack(orders[0], False, 0, 1)]

    copy = newest(broker)
    limit = timedelta(days=3)
    waited = copy["tags_code"] - copy["store_time"].timestamp() * 1000
    assert 0 <= waited - min(delay, limit) / timedelta(milliseconds=1) < 2
    assert (copy["topic"], copy["queue_id"], copy["reconsume_times"]) == (TIMER_TOPIC, 0, 1)
    assert copy["properties"]["REAL_TOPIC"] == "%RETRY%billing"
    assert "DELAY" not in copy["properties"]


def test_without_a_limit_for_timers_the_longest_time_is_still_one(
    broker: Connection, group: str, orders: list[int]
) -> None:
    broker.execute(text("UPDATE mqdb.broker SET timer_max_delay_ms = NULL"))

    send_back(broker, group, [request(orders[0])._replace(retry=Retry(delay=timedelta.max))])

    assert newest(broker)["topic"] == TIMER_TOPIC


def test_after_an_exact_time_it_comes_again_with_its_tag(broker: Connection, group: str, orders: list[int]) -> None:
    send_back(broker, group, [request(orders[0])._replace(retry=Retry(delay=timedelta(hours=1)))])
    dispatch_all(broker)
    deliver_all(broker)
    assert newest(broker)["topic"] == TIMER_TOPIC
    move_clock(broker, timedelta(hours=2))

    deliver_all(broker)

    copy, sent = newest(broker), record(broker, orders[0])
    assert (copy["topic"], copy["reconsume_times"]) == ("%RETRY%billing", 1)
    assert [copy[name] for name in ("msg_id", "tags", "tags_code", "keys", "body")] == [
        sent[name] for name in ("msg_id", "tags", "tags_code", "keys", "body")
    ]
    assert (copy["properties"]["RETRY_TOPIC"], copy["properties"]["colour"]) == ("orders", "red")


@pytest.mark.parametrize("is_collected", usually(True, of=[False, True]))
@pytest.mark.parametrize(
    ("function", "topic"), [("recall", None), ("recall", "%RETRY%billing"), ("recall_own", "%RETRY%billing")]
)
def test_no_recall_takes_a_retry_back(
    broker: Connection, group: str, orders: list[int], function: str, topic: str | None, is_collected: bool
) -> None:
    send_back(broker, group, [request(orders[0])._replace(retry=Retry(delay=timedelta(hours=1)))])
    dispatch_all(broker)
    if is_collected:
        deliver_all(broker)
    asked = text(f"SELECT mqdb.{function}(:topic, :id)")

    assert broker.scalar(asked, {"topic": topic, "id": newest(broker)["msg_id"].hex}) == "ALREADY_DELIVERED"


@pytest.mark.parametrize(("of_listener", "of_consumer", "dead"), [(0, 9, True), (1, 0, False), (None, 0, True)])
def test_the_maximum_of_the_listener_outranks_that_of_the_consumer(
    broker: Connection, group: str, orders: list[int], of_listener: int | None, of_consumer: int, dead: bool
) -> None:
    asked = request(orders[0])._replace(retry=Retry(max_reconsume_times=of_listener))

    (result,) = send_back(broker, group, [asked], max_reconsume_times=of_consumer)

    assert result.is_dead is dead


@pytest.mark.parametrize(
    ("given", "of_group", "dead"), [(None, 0, True), (None, 1, False), (0, 5, True), (1, 0, False)]
)
def test_the_maximum_is_the_consumers_or_else_the_groups(
    broker: Connection, group: str, orders: list[int], given: int | None, of_group: int, dead: bool
) -> None:
    broker.execute(text("UPDATE mqdb.subscription_group SET retry_max_times = :times"), {"times": of_group})

    (result,) = send_back(broker, group, [request(orders[0])], max_reconsume_times=given)

    assert result.is_dead is dead


def test_retries_spread_over_the_queues_of_the_retry_topic(broker: Connection, group: str, orders: list[int]) -> None:
    broker.execute(text("UPDATE mqdb.subscription_group SET retry_queue_nums = 3"))
    random.seed(4)

    send_back(broker, group, [request(orders[0])] * 50)

    queues = broker.scalars(text("SELECT DISTINCT properties ->> 'REAL_QID' FROM mqdb.commit_log ORDER BY 1")).all()
    assert queues == ["0", "1", "2", None]


def test_the_level_table_says_how_long_a_level_is(broker: Connection, group: str, orders: list[int]) -> None:
    broker.execute(text("UPDATE mqdb.delay_level SET delay = '1 day' WHERE level = 3"))

    copy = fail(broker, orders[0])

    waits = copy["tags_code"] / 1000 - copy["store_time"].timestamp()
    assert waits == pytest.approx(timedelta(days=1).total_seconds(), abs=0.002)


# -- what the copy carries --------------------------------------------------------------------------


@pytest.mark.parametrize("delay_level", [0, -1])
def test_what_was_sent_stays_as_it_was(broker: Connection, group: str, orders: list[int], delay_level: int) -> None:
    broker.execute(text("UPDATE mqdb.commit_log SET sys_flag = 1, born_host = '10.0.0.7'"))

    copy = fail(broker, orders[0], delay_level)

    original = record(broker, orders[0])
    for column in ("born_time", "born_host", "msg_id", "keys", "tags", "flag", "sys_flag", "body"):
        assert copy[column] == original[column], column
    assert original["properties"].items() <= copy["properties"].items()
    assert copy["store_time"] > original["store_time"]


def test_a_dead_message_is_found_by_its_tag(broker: Connection, group: str, orders: list[int]) -> None:
    assert fail(broker, orders[0], -1)["tags_code"] == record(broker, orders[0])["tags_code"]


def test_the_copy_says_where_the_message_was(broker: Connection, group: str, orders: list[int]) -> None:
    properties = fail(broker, orders[1])["properties"]

    assert properties["RETRY_TOPIC"] == "orders"
    assert properties["ORIGIN_MESSAGE_ID"] == str(orders[1])
    assert properties[FailureProperty.ORIGIN_QUEUE_ID] == "2"
    assert properties[FailureProperty.ORIGIN_QUEUE_OFFSET] == str(10 + orders[1])


def test_where_it_was_is_said_once(broker: Connection, group: str, orders: list[int]) -> None:
    first = fail(broker, orders[1])

    send_back(broker, group, [as_retry(broker, first)])

    second = newest(broker)
    said = ["RETRY_TOPIC", "ORIGIN_MESSAGE_ID", FailureProperty.ORIGIN_QUEUE_ID, FailureProperty.ORIGIN_QUEUE_OFFSET]
    assert [second["properties"][name] for name in said] == [first["properties"][name] for name in said]
    assert (second["reconsume_times"], second["properties"]["DELAY"]) == (2, "4")


def test_the_copy_says_why_it_failed_last(broker: Connection, group: str, orders: list[int]) -> None:
    first = fail(broker, orders[0], failure=Failure.of(ValueError("no such customer"), "client-1", AT))
    properties = first["properties"]
    assert properties[FailureProperty.EXCEPTION] == "ValueError"
    assert properties[FailureProperty.MESSAGE] == "no such customer"
    assert properties[FailureProperty.ATTEMPT] == "1"

    send_back(broker, group, [as_retry(broker, first)._replace(failure=Failure.later("client-2", AT))])

    properties = newest(broker)["properties"]
    assert properties[FailureProperty.EXCEPTION] == "RECONSUME_LATER"
    assert properties[FailureProperty.MESSAGE] == ""
    assert properties[FailureProperty.HOST] == "client-2"
    assert properties[FailureProperty.ATTEMPT] == "2"


def test_a_dead_message_is_not_delayed_once_more(broker: Connection, group: str, orders: list[int]) -> None:
    first = fail(broker, orders[0])

    send_back(broker, group, [as_retry(broker, first)._replace(retry=Retry(-1))])

    assert "DELAY" in first["properties"]
    assert "DELAY" not in newest(broker)["properties"]


def test_texts_of_any_alphabet_survive(broker: Connection, group: str, orders: list[int]) -> None:
    error = ValueError("Grüße \U0001f600 \x00\x01 \ud800")

    properties = fail(broker, orders[0], failure=Failure.of(error, "client-1", AT))["properties"]

    assert properties[FailureProperty.MESSAGE] == "Grüße \U0001f600 \ufffd\ufffd \ufffd"


# -- all or nothing -----------------------------------------------------------------------------------


def test_a_batch_is_copied_in_its_order(broker: Connection, group: str, orders: list[int]) -> None:
    wanted = [orders[2], orders[0], orders[1], orders[0]]

    results = send_back(broker, group, [request(log_pos, -1 if log_pos == orders[1] else 0) for log_pos in wanted])

    copies = broker.execute(
        text("SELECT properties ->> 'ORIGIN_MESSAGE_ID' FROM mqdb.commit_log WHERE log_pos > :last ORDER BY log_pos"),
        {"last": orders[2]},
    )
    assert [int(row[0]) for row in copies] == wanted == [result.log_pos for result in results]
    assert [result.is_dead for result in results] == [False, False, True, False]


def test_nothing_to_send_back_is_no_request(broker: Connection) -> None:
    assert send_back(broker, "nobody", []) == []


def test_a_group_must_be_there(broker: Connection, orders: list[int]) -> None:
    with pytest.raises(GroupNotFound) as refused:
        send_back(broker, "nobody", [request(orders[0])])
    assert (refused.value.group, refused.value.code) == ("nobody", 26)


def test_a_message_that_is_gone_fails_all_of_the_batch(broker: Connection, group: str, orders: list[int]) -> None:
    with pytest.raises(MessageGone) as refused:
        send_back(broker, group, [request(orders[0]), request(999_999)])
    assert (refused.value.log_pos, refused.value.code) == (999_999, 1)
    assert newest(broker)["log_pos"] == orders[-1]


def test_a_closed_retry_topic_takes_nothing(broker: Connection, group: str, orders: list[int]) -> None:
    admin.create_topic(broker, TopicConfig(retry_topic(group), 1, 1, Perm.READ))
    with pytest.raises(TopicNotWritable):
        send_back(broker, group, [request(orders[0])])


def test_in_an_open_transaction_it_is_a_part_of_it(broker: Connection, group: str, orders: list[int]) -> None:
    session = driver(broker)
    session.execute("BEGIN")
    send_back(broker, group, [request(orders[0], -1)])
    topic_of_copy = newest(broker)["topic"]

    session.execute("ROLLBACK")

    assert topic_of_copy == dlq_topic(group)
    assert newest(broker)["log_pos"] == orders[-1]
    assert find_topic(broker, dlq_topic(group)) is None


def test_a_message_comes_from_any_partition(broker: Connection, group: str, orders: list[int]) -> None:
    broker.execute(text("SELECT mqdb.add_segment(1000) FROM generate_series(1, 3)"))
    start = broker.scalar(text("SELECT max(start_pos) FROM mqdb.segment"))
    broker.execute(text("SELECT setval('mqdb.log_pos', :start)"), {"start": start})
    route = find_topic(broker, "orders")
    assert route is not None
    (far,) = append(broker, route, "far away", queue_id=2)

    send_back(broker, group, [request(far), request(orders[0])])

    bodies = broker.scalars(
        text("SELECT body FROM mqdb.commit_log WHERE log_pos > :far ORDER BY log_pos"), {"far": far}
    )
    assert list(bodies) == [b"far away", b"a body"]


# -- the topics of a group ---------------------------------------------------------------------------


def test_the_retry_topic_has_as_many_queues_as_its_group_wants(broker: Connection, group: str) -> None:
    broker.execute(text("UPDATE mqdb.subscription_group SET retry_queue_nums = 3"))

    route = find_or_create_retry_topic(broker, group)

    assert route.config == TopicConfig("%RETRY%billing", 3, 3, Perm.READ | Perm.WRITE)
    assert find_or_create_retry_topic(broker, group) == route


def test_the_retry_topic_of_a_group_that_is_not_there_has_one_queue(broker: Connection) -> None:
    assert len(find_or_create_retry_topic(broker, GROUP).queue_keys) == 1


def test_the_dlq_is_made_by_the_first_dead_message(broker: Connection, group: str, orders: list[int]) -> None:
    assert find_topic(broker, dlq_topic(group)) is None

    send_back(broker, group, [request(orders[0], -1), request(orders[1], -1)])

    route = find_topic(broker, dlq_topic(group))
    assert route is not None
    assert route.config == TopicConfig("%DLQ%billing", 1, 1, Perm.READ | Perm.WRITE)
    assert find_or_create_dlq_topic(broker, group) == route
    assert dispatched(broker, route.queue_keys) == 2


def dispatched(broker: Connection, queue_keys: Sequence[int]) -> int:
    dispatch_all(broker)
    count: int = broker.execute(
        text("SELECT count(*) FROM mqdb.consume_queue WHERE queue_key = ANY(:keys)"), {"keys": list(queue_keys)}
    ).scalar_one()
    return count
