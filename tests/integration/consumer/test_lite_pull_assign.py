"""Lite pull consumers with assigned queues, next to members of their group, and with several brokers."""

import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, text

from mqdb.broker.topics.topics import create_topic, update_topic
from mqdb.common.group import ConsumeFromWhere
from mqdb.common.message import MessageQueue
from mqdb.common.received_message import ReceivedMessage
from mqdb.common.topic import TopicConfig
from mqdb.errors import IllegalState, ParameterInvalid, QueueOwned, RouteNotFound
from mqdb.store.consumers.consumer_offsets import committed_offsets
from mqdb.store.engine import create_engine
from mqdb_client import LitePullConsumer
from tests.fixtures.broker import append, dispatch_all, topic
from tests.fixtures.consumers import Inbox, Member
from tests.fixtures.lite_pull import Lite, committed, drained, fill, numbers, polled, queue_of
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.proxy import Proxy

pytestmark = pytest.mark.usefixtures("both_kinds_of_clients")

SECOND = timedelta(seconds=1)


# -- assign -------------------------------------------------------------------------------------


def test_only_the_assigned_queues_are_read(broker: Connection, lite: Lite) -> None:
    fill(broker, queues=3)
    consumer = lite(queue_ids=[0, 2])

    received = drained(consumer, 60)

    assert {body[0] for body in received} == {"0", "2"}
    assert len(received) == 60
    assert consumer.assignment == (queue_of(0), queue_of(2))


def test_queues_may_be_found_and_assigned_while_it_runs(broker: Connection, lite: Lite) -> None:
    fill(broker, queues=2)
    consumer = lite()
    assert consumer.poll(timedelta(0)) == []

    queues = consumer.fetch_message_queues("orders")
    consumer.assign(queues[1:])

    assert drained(consumer, 30) == [f"1-{number}" for number in range(30)]
    with pytest.raises(RouteNotFound):
        consumer.fetch_message_queues("nothing")
    with pytest.raises(ParameterInvalid, match="must belong to a broker of the settings: broker-a"):
        consumer.assign([queue_of(0, broker_name="broker-z")])


def test_a_queue_of_a_broker_that_nobody_knows_keeps_it_from_starting(broker: Connection, lite: Lite) -> None:
    consumer = lite(is_started=False)
    consumer.assign([queue_of(0, broker_name="broker-z")])

    with pytest.raises(ParameterInvalid, match="broker-z"):
        consumer.start()
    consumer.assign([queue_of(0)])
    consumer.start()

    assert consumer.is_running


def test_a_new_assignment_takes_the_place_of_the_old_one(broker: Connection, lite: Lite) -> None:
    """A new assignment replaces the old one: a queue in both assignments continues without a gap.

    A queue that is only in the old assignment returns nothing from then on, not even messages already pulled.
    """
    route = fill(broker, queues=3, count=50)
    consumer = lite(queue_ids=[0, 1])
    first = polled(consumer, 10)

    consumer.assign([queue_of(1), queue_of(2)])
    received = drained(consumer, 100 - count_of(1, first))
    consumer.commit()
    consumer.assign([queue_of(0)])
    rest = drained(consumer, 50 - count_of(0, first))

    assert not [body for body in received if body.startswith("0-")]
    for queue_id in range(3):
        everything = [body for body in first + received + rest if body.startswith(f"{queue_id}-")]
        assert everything == [f"{queue_id}-{number}" for number in range(50)]
    assert committed(broker, route)[1:] == [50, 50]


def count_of(queue_id: int, bodies: list[str]) -> int:
    return sum(body.startswith(f"{queue_id}-") for body in bodies)


def test_an_assignment_that_comes_and_goes_in_a_moment_loses_nothing(broker: Connection, lite: Lite) -> None:
    fill(broker, queues=2, count=100)
    consumer = lite(queue_ids=[0, 1], auto_commit=False)

    missing = {f"{queue_id}-{number}" for queue_id in range(2) for number in range(100)}
    for _ in range(20):
        consumer.assign([])
        consumer.assign([queue_of(0), queue_of(1)])
        missing.difference_update(polled(consumer, 1))
    while missing:  # where the change was noticed the queue begins again at the committed offset
        missing.difference_update(polled(consumer, 1))


def test_seek_may_follow_assign_at_once(broker: Connection, lite: Lite) -> None:
    fill(broker, count=100)
    consumer = lite()

    consumer.assign([queue_of(0)])
    consumer.seek(queue_of(0), 70)

    assert drained(consumer, 30) == numbers(70, 100)


def test_a_pause_may_follow_assign_at_once(broker: Connection, lite: Lite) -> None:
    fill(broker, count=10)
    consumer = lite()

    consumer.assign([queue_of(0)])
    consumer.pause([queue_of(0)])
    paused = drained(consumer)
    consumer.resume([queue_of(0)])

    assert (paused, drained(consumer, 10)) == ([], numbers(0, 10))


def test_the_tag_expression_of_an_assignment_counts(broker: Connection, lite: Lite) -> None:
    route = topic(broker)
    for number in range(10):
        append(broker, route, f"{number}", tag="AB"[number % 2])
    consumer = lite(queue_ids=[0], expression="B")

    assert polled(consumer, 5) == ["1", "3", "5", "7", "9"]


def test_a_queue_that_comes_later_is_waited_for(broker: Connection, lite: Lite) -> None:
    consumer = lite(queue_ids=[1], consume_from_where=ConsumeFromWhere.LAST_OFFSET)

    append(broker, topic(broker, queues=2), "first", queue_id=1)

    assert polled(consumer, 1) == ["first"]


def test_offsets_are_committed_without_a_group_being_there(broker: Connection, lite: Lite) -> None:
    route = fill(broker, queues=2)
    consumer = lite(queue_ids=[0, 1], auto_commit_interval=SECOND)
    polled(consumer, 60)
    consumer.poll(timedelta(0))

    wait_until(lambda: committed(broker, route) == [30, 30])
    consumer.shutdown()

    assert drained(lite(queue_ids=[0, 1])) == []


def test_it_leaves_no_trace_without_a_commit(broker: Connection, lite: Lite) -> None:
    fill(broker)
    consumer = lite(queue_ids=[0], auto_commit=False)
    polled(consumer, 30)
    consumer.shutdown()

    for table in ("client", "consumer_offset", "subscription_group"):
        assert broker.execute(text(f"SELECT count(*) FROM mqdb.{table}")).scalar_one() == 0
    assert polled(lite(queue_ids=[0]), 30) == numbers(0, 30)


def test_it_reads_beside_the_members_of_its_group_and_commits_nothing_of_theirs(
    broker: Connection, lite: Lite, member: Member, caplog: pytest.LogCaptureFixture
) -> None:
    route = fill(broker)
    inbox = Inbox()
    consumer = lite(queue_ids=[0], auto_commit_interval=SECOND)
    owner = member(inbox, persist_consumer_offset_interval=timedelta(hours=1))
    inbox.wait_for(30)

    assert polled(consumer, 30) == numbers(0, 30)
    with pytest.raises(QueueOwned, match=r"orders@broker-a:0 of group 'readers' is owned by member"):
        consumer.commit()
    consumer.poll(timedelta(0))
    wait_until(lambda: "did not commit the offset of group readers in queue orders@broker-a:0" in caplog.text)
    assert committed(broker, route) == [0]
    owner.shutdown()
    consumer.commit()

    assert committed(broker, route) == [30]


def test_row_68_an_assigned_queue_whose_offset_does_not_exist_goes_on_at_another(
    broker: Connection, lite: Lite
) -> None:
    """Checklist row 68: an assigned queue whose offset does not exist continues at the min offset."""
    route = fill(broker)
    consumer = lite(queue_ids=[0])
    polled(consumer, 10)
    consumer.commit()
    consumer.shutdown()
    broker.execute(text("UPDATE mqdb.queue SET base_offset = 20"))

    observer = lite(queue_ids=[0], auto_commit=False)
    assert polled(observer, 10) == numbers(20, 30)
    assert committed(broker, route) == [10]
    assert polled(lite(queue_ids=[0]), 10) == numbers(20, 30)
    assert committed(broker, route) == [20]


# -- what it can be asked -----------------------------------------------------------------------


def test_committed_offsets_of_any_queue_can_be_asked_for(broker: Connection, lite: Lite) -> None:
    fill(broker, queues=2)
    consumer = lite(queue_ids=[0])
    polled(consumer, 30)
    consumer.commit()

    assert (consumer.committed(queue_of(0)), consumer.committed(queue_of(1))) == (30, None)


def test_the_offset_of_a_time_is_that_of_the_first_message_stored_then_or_later(broker: Connection, lite: Lite) -> None:
    route = fill(broker, count=3)
    consumer = lite(queue_ids=[0])
    between = max(message.store_time for message in received(consumer, 3)) + timedelta(microseconds=1)
    append(broker, route, "3")
    polled(consumer, 1)

    found = [consumer.offset_for_timestamp(queue_of(0), time) for time in (datetime(2020, 1, 1, tzinfo=UTC), between)]
    future = consumer.offset_for_timestamp(queue_of(0), datetime.now(UTC) + timedelta(hours=1))

    assert (found, future) == ([0, 3], 4)
    with pytest.raises(ParameterInvalid, match="time zone"):
        consumer.offset_for_timestamp(queue_of(0), datetime(2020, 1, 1))  # noqa: DTZ001
    for wrong in ("2020-01-01", 0, None):
        given: Any = wrong
        with pytest.raises(ParameterInvalid, match=r"time = .*: must be a datetime with a time zone"):
            consumer.offset_for_timestamp(queue_of(0), given)


def received(consumer: LitePullConsumer, count: int) -> list[ReceivedMessage]:
    messages: list[ReceivedMessage] = []
    while len(messages) < count:
        messages += consumer.poll(SECOND)
    return messages


def test_a_group_may_start_at_a_time(broker: Connection, lite: Lite) -> None:
    fill(broker, count=5)
    half_an_hour_ago = {"consume_from_where": ConsumeFromWhere.TIMESTAMP}
    tomorrow = half_an_hour_ago | {"consume_timestamp": datetime.now(UTC) + timedelta(days=1)}

    assert drained(lite(queue_ids=[0], **half_an_hour_ago), 5) == numbers(0, 5)
    assert drained(lite("orders", group="others", **half_an_hour_ago), 5) == numbers(0, 5)
    assert drained(lite(queue_ids=[0], group="third", **tomorrow)) == []


def test_a_listener_hears_of_queues_that_are_added(broker: Connection, lite: Lite) -> None:
    topic(broker)
    heard: list[tuple[str, tuple[MessageQueue, ...]]] = []
    told = threading.Event()

    def listener(name: str, queues: tuple[MessageQueue, ...]) -> None:
        heard.append((name, queues))
        told.set()
        raise RuntimeError("a listener's own affair")

    consumer = lite(is_started=False, topic_metadata_check_interval=timedelta(milliseconds=20))
    consumer.register_topic_message_queue_change_listener("orders", listener)
    consumer.register_topic_message_queue_change_listener("bills", listener)
    consumer.start()

    update_topic(broker, "orders", read_queue_nums=2, write_queue_nums=2)
    assert told.wait(10)
    told.clear()
    create_topic(broker, TopicConfig("bills", 1, 1))
    assert told.wait(10)

    assert heard == [("orders", (queue_of(0), queue_of(1))), ("bills", (queue_of(0, "bills"),))]


@pytest.mark.of_threads("in a task sys.exit ends the loop")
def test_a_listener_that_calls_sys_exit_hears_of_the_next_queues(broker: Connection, lite: Lite) -> None:
    topic(broker)
    told = threading.Event()

    def listener(*_: object) -> None:
        told.set()
        sys.exit("a listener's own affair")

    consumer = lite(is_started=False, topic_metadata_check_interval=timedelta(milliseconds=20))
    consumer.register_topic_message_queue_change_listener("orders", listener)
    consumer.start()

    for queues in (2, 3):
        update_topic(broker, "orders", read_queue_nums=queues, write_queue_nums=queues)
        assert told.wait(10)
        told.clear()


def test_a_consumer_of_a_group_that_this_process_has_already_is_refused(database: Database, broker: Connection) -> None:
    topic(broker)
    first, second = (LitePullConsumer("readers", database.dsn) for _ in range(2))
    first.subscribe("orders")
    second.subscribe("orders")

    with first, pytest.raises(IllegalState, match="there already"):
        second.start()


# -- several brokers ----------------------------------------------------------------------------


@pytest.fixture
def other(second_database: Database) -> Iterator[Connection]:
    """A connection to broker-b."""
    second_database.connect().execute("UPDATE mqdb.broker SET broker_name = 'broker-b'")
    engine = create_engine(second_database.dsn)
    with engine.connect() as connection:
        dispatch_all(connection)
        yield connection
    engine.dispose()


def test_queues_of_all_brokers_are_polled_and_committed(
    broker: Connection, other: Connection, database: Database, second_database: Database, lite: Lite
) -> None:
    brokers = {"broker-a": database.dsn, "broker-b": second_database.dsn}
    route, its_route = topic(broker, queues=2), topic(other)
    append(broker, route, "a0")
    append(other, its_route, "b0", "b1")
    subscribed = lite("orders", brokers=brokers)
    assigned = lite(queue_ids=[], group="others", brokers=brokers)

    queues = assigned.fetch_message_queues("orders")
    assigned.assign(queues)
    received = sorted(polled(subscribed, 3)), sorted(polled(assigned, 3))
    subscribed.commit()
    assigned.commit()

    assert queues == (queue_of(0), queue_of(1), queue_of(0, broker_name="broker-b"))
    assert received == (["a0", "b0", "b1"], ["a0", "b0", "b1"])
    for group in ("readers", "others"):
        assert committed_offsets(other, group, its_route.queue_keys) == {its_route.queue_keys[0]: 2}


def test_a_broker_that_is_lost_holds_up_no_other(
    broker: Connection, other: Connection, proxy: Proxy, second_database: Database, lite: Lite
) -> None:
    route, its_route = topic(broker), topic(other)
    consumer = lite("orders", brokers={"broker-a": proxy.dsn, "broker-b": second_database.dsn})
    append(broker, route, "a0")
    polled(consumer, 1)
    before = consumer.fetch_message_queues("orders")

    proxy.cut()
    append(other, its_route, "b0")
    alone = polled(consumer, 1)
    meanwhile = consumer.fetch_message_queues("orders")
    append(broker, route, "a1")
    proxy.restore()

    assert (alone, polled(consumer, 1, 30)) == (["b0"], ["a1"])
    assert len(before) == 2
    assert meanwhile == before
