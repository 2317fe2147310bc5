"""The push consumer from subscription to listener: the messages that it receives, and the effect of its answers."""

import logging
import threading
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, text

from mqdb.common.group import ConsumeFromWhere
from mqdb.common.message import Message
from mqdb.common.received_message import ReceivedMessage
from mqdb.common.topic import SCHEDULE_TOPIC
from mqdb.errors import BrokerUnavailable, IllegalState, ShutdownTimedOut
from mqdb.store.consumers.consumer_offsets import committed_offsets
from mqdb_client import ConsumeConcurrentlyStatus, MessageSelector, PushConsumer
from tests.fixtures.broker import append, dispatch_all, topic
from tests.fixtures.consumers import LATER, SUCCESS, Gate, Inbox, Member, duplicates
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.variants import usually

pytestmark = pytest.mark.usefixtures("both_kinds_of_consumers")

FIRST, LAST = ConsumeFromWhere.FIRST_OFFSET, ConsumeFromWhere.LAST_OFFSET

# -- which messages -----------------------------------------------------------------------------


def test_an_expression_of_blanks_matches_nothing_and_moves_on(
    broker: Connection, database: Database, member: Member
) -> None:
    route = topic(broker)
    append(broker, route, "1", "2")
    inbox = Inbox()

    member(inbox, expression=" ", persist_consumer_offset_interval=timedelta(milliseconds=20))
    wait_until(lambda: committed_offsets(broker, "readers", route.queue_keys) == {route.queue_keys[0]: 2})

    assert inbox.messages == []


def test_messages_arrive_whole(broker: Connection, member: Member) -> None:
    route = topic(broker)
    inbox = Inbox()
    member(inbox)

    append(broker, route, Message("orders", b"\x00body", tag="paid", keys="k1 k2", properties={"a": "b"}, flag=7))
    inbox.wait_for(1)

    [message] = inbox.messages
    assert (message.topic, message.queue.queue_id, message.queue_offset) == ("orders", 0, 0)
    assert (message.body, message.tag, message.keys, message.flag) == (b"\x00body", "paid", ("k1", "k2"), 7)
    assert message.properties["a"] == "b"


def test_several_topics_have_filters_of_their_own(database: Database, broker: Connection) -> None:
    orders, bills = topic(broker, "orders", queues=2), topic(broker, "bills", queues=2)
    inbox = Inbox()
    consumer = PushConsumer("readers", database.dsn, consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    consumer.subscribe("orders", MessageSelector.by_tag("new"))
    consumer.subscribe("bills")
    consumer.register_listener(inbox)

    with consumer:
        for route in (orders, bills):
            for tag in ("new", "old"):
                append(broker, route, f"{route.config.name} {tag}", tag=tag, queue_id=1)
        inbox.wait_for(3)

    assert sorted(inbox.bodies) == ["bills new", "bills old", "orders new"]


def test_bodies_of_one_pull_are_limited_and_all_come(broker: Connection, member: Member) -> None:
    route = topic(broker)
    append(broker, route, *(f"{number}" + "x" * 3_000_000 for number in range(5)))
    inbox = Inbox()

    member(inbox, consume_thread_nums=1)
    inbox.wait_for(5)

    assert [body[0] for body in inbox.bodies] == ["0", "1", "2", "3", "4"]


# -- where it starts ----------------------------------------------------------------------------


def test_row_50_a_new_group_under_last_offset_sees_only_what_is_newer(broker: Connection, member: Member) -> None:
    """Checklist row 50: a new group with LAST_OFFSET sees only newer messages.

    RocketMQ reads all messages of a young topic; mqdb does not, by design.
    """
    route = topic(broker, queues=2)
    append(broker, route, *(f"old {number}" for number in range(10)))
    dispatch_all(broker)
    inbox = Inbox()

    member(inbox, consume_from_where=ConsumeFromWhere.LAST_OFFSET)
    append(broker, route, "new 0")
    append(broker, route, "new 1", queue_id=1)
    inbox.wait_for(2)

    assert sorted(inbox.bodies) == ["new 0", "new 1"]


def test_a_new_group_under_first_offset_sees_all(broker: Connection, member: Member) -> None:
    route = topic(broker)
    append(broker, route, *(f"{number}" for number in range(10)))
    inbox = Inbox()

    member(inbox, consume_thread_nums=1)
    inbox.wait_for(10)

    assert inbox.bodies == [f"{number}" for number in range(10)]


def test_a_group_goes_on_where_it_was(broker: Connection, member: Member) -> None:
    route = topic(broker)
    append(broker, route, "1", "2")
    first, second = Inbox(), Inbox()
    consumer = member(first)
    first.wait_for(2)
    consumer.shutdown()

    append(broker, route, "3")
    member(second)
    second.wait_for(1)

    assert second.bodies == ["3"]


@pytest.mark.parametrize("where", usually(LAST, of=[LAST, FIRST]))
def test_a_topic_that_does_not_exist_yet_is_waited_for(
    broker: Connection, member: Member, where: ConsumeFromWhere, caplog: pytest.LogCaptureFixture
) -> None:
    """A consumer waits for a topic that does not exist yet.

    All its messages are newer than the subscription, so none is too old.
    """
    inbox = Inbox()
    consumer = member(inbox, consume_from_where=where)
    assert consumer.assignment == ()

    route = topic(broker)
    append(broker, route, "first")
    inbox.wait_for(1)

    assert inbox.bodies == ["first"]
    warnings = [record for record in caplog.records if "does not exist yet" in record.message]
    assert len(warnings) == 1


# -- what becomes of the answers ----------------------------------------------------------------


@pytest.mark.parametrize("size", usually(8, of=[1, 8]))
def test_a_batch_holds_as_many_messages_of_one_queue_as_asked_for(
    broker: Connection, member: Member, size: int
) -> None:
    route = topic(broker, queues=2)
    for queue_id in range(2):
        append(broker, route, *(f"{queue_id} {number}" for number in range(32)), queue_id=queue_id)
    dispatch_all(broker)
    inbox = Inbox()

    member(inbox, consume_message_batch_max_size=size)
    inbox.wait_for(64)

    assert {len(batch) for batch in inbox.batches} == {size}
    assert all(len({message.queue for message in batch}) == 1 for batch in inbox.batches)
    assert duplicates(inbox) == {}


def raising(_messages: list[ReceivedMessage]) -> ConsumeConcurrentlyStatus:
    raise ValueError("no stock")


FAILURES: dict[str, tuple[Any, str]] = {
    "RECONSUME_LATER": (lambda _: LATER, ""),
    "None": (lambda _: None, "listener of group readers returned None instead of a ConsumeConcurrentlyStatus"),
    "another value": (lambda _: True, "listener of group readers returned True instead of a ConsumeConcurrentlyStatus"),
    "exception": (raising, "listener of group readers failed at message "),
}


@pytest.mark.parametrize("failure", usually("RECONSUME_LATER", "None", "exception", of=FAILURES))
def test_row_55_what_a_listener_fails_is_sent_back(
    broker: Connection, member: Member, caplog: pytest.LogCaptureFixture, failure: str
) -> None:
    """Checklist row 55:

    None and exceptions count as RECONSUME_LATER; the message waits at level 3, and its queue continues.
    """
    failing, logged = FAILURES[failure]
    route = topic(broker)
    inbox = Inbox()

    def listener(messages: list[ReceivedMessage]) -> object:
        return failing(messages) if messages[0].body == b"bad" else inbox(messages)

    member(listener, consume_thread_nums=1, persist_consumer_offset_interval=timedelta(milliseconds=20))
    append(broker, route, "good 1", "bad", "good 2", "good 3")
    inbox.wait_for(3)
    wait_until(lambda: committed_offsets(broker, "readers", route.queue_keys) == {route.queue_keys[0]: 4})

    waiting = f"SELECT queue_id, text, reconsume_times FROM mqdb.message WHERE topic = '{SCHEDULE_TOPIC}'"
    dispatch_all(broker)
    assert broker.execute(text(waiting)).all() == [(2, "bad", 1)]
    assert inbox.bodies == ["good 1", "good 2", "good 3"]
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(errors) == bool(logged)
    assert all(record.message.startswith(logged) for record in errors)


def test_a_slow_message_does_not_hold_up_its_queue(broker: Connection, member: Member) -> None:
    route = topic(broker)
    gate = Gate("slow")

    member(gate, consume_thread_nums=2)
    append(broker, route, "slow", *(f"{number}" for number in range(100)))
    gate.wait_for(100)

    assert gate.waiting == {"slow"}


def test_a_message_that_takes_long_does_not_stop_its_queue(broker: Connection, member: Member) -> None:
    """A slow message does not stop its queue.

    The span rule does not stop the queue either, because it lets a queue run ahead of its oldest message step by step.
    """
    route = topic(broker)
    append(broker, route, "slow", *(f"{number}" for number in range(200)))
    gate = Gate("slow")

    member(gate, consume_concurrently_max_span=100, pull_batch_size=10)
    gate.wait_for(200)

    assert gate.waiting == {"slow"}
    assert duplicates(gate) == {}


# -- its life -----------------------------------------------------------------------------------


def test_start_and_shutdown_leave_no_thread_and_no_connection(broker: Connection, database: Database) -> None:
    topic(broker)
    before = set(threading.enumerate())
    consumer = PushConsumer("readers", database.dsn)
    consumer.subscribe("orders")
    consumer.register_listener(Inbox())

    with consumer:
        assert len(threading.enumerate()) >= len(before) + 20
        assert consumer.assignment != ()

    assert set(threading.enumerate()) == before
    assert consumer.assignment == ()
    mine = "select count(*) from pg_stat_activity where datname = current_database() and application_name like 'mqdb %'"
    wait_until(lambda: database.connect().execute(mine).fetchone() == (0,))


def test_shutdown_waits_for_running_listeners_and_starts_nothing_more(broker: Connection, member: Member) -> None:
    route = topic(broker)
    append(broker, route, *(f"{number}" for number in range(10)))
    gate = Gate("0", "1")
    consumer = member(gate, consume_thread_nums=2)
    wait_until(lambda: gate.waiting == {"0", "1"})

    leaving = threading.Thread(target=consumer.shutdown)
    leaving.start()
    wait_until(lambda: consumer.assignment == ())
    gate.open()
    leaving.join()

    assert sorted(gate.bodies) == ["0", "1"]
    assert committed_offsets(broker, "readers", route.queue_keys) == {route.queue_keys[0]: 2}


def test_shutdown_with_a_timeout_leaves_a_hanging_listener_behind(broker: Connection, member: Member) -> None:
    route = topic(broker)
    append(broker, route, "0", "hangs", "2")
    gate = Gate("hangs")
    consumer = member(gate, consume_thread_nums=2)
    gate.wait_for(2)

    with pytest.raises(ShutdownTimedOut) as left:
        consumer.shutdown(timedelta(milliseconds=50))

    assert (left.value.group, left.value.listeners, left.value.timeout_seconds) == ("readers", 1, 0.05)
    assert committed_offsets(broker, "readers", route.queue_keys) == {route.queue_keys[0]: 1}
    heir = Inbox()
    member(heir, consume_thread_nums=1)
    heir.wait_for(2)
    assert heir.bodies == ["hangs", "2"]


@pytest.mark.of_threads("its listener is no task, but a thread that a task waits for")
def test_shutdown_in_a_listener_is_refused(broker: Connection, member: Member) -> None:
    route = topic(broker)
    refusals: list[BaseException] = []

    def listener(_messages: list[ReceivedMessage]) -> ConsumeConcurrentlyStatus:
        with pytest.raises(IllegalState, match="call shutdown\\(\\) in another thread") as caught:
            consumer.shutdown()
        refusals.append(caught.value)
        return SUCCESS

    consumer = member(listener)
    append(broker, route, "1")

    wait_until(lambda: refusals)


def test_run_in_any_thread_ends_with_a_shutdown_by_another(broker: Connection, database: Database) -> None:
    route = topic(broker)
    inbox = Inbox()
    consumer = PushConsumer("readers", database.dsn, consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    consumer.subscribe("orders")
    consumer.register_listener(inbox)
    running = threading.Thread(target=consumer.run)
    running.start()

    append(broker, route, "1")
    inbox.wait_for(1)
    consumer.shutdown()
    running.join(10)

    assert not running.is_alive()
    with pytest.raises(IllegalState, match="shut down already"):
        consumer.run()


def test_row_4_a_group_has_one_consumer_in_a_process(broker: Connection, database: Database) -> None:
    """Checklist row 4: a group has one consumer in a process.

    The second start fails, and the first consumer keeps running.
    """
    route = topic(broker)
    inbox = Inbox()
    first, second = PushConsumer("readers", database.dsn), PushConsumer("readers", database.dsn)
    for consumer in (first, second):
        consumer.subscribe("orders")
        consumer.register_listener(inbox)

    with first:
        with pytest.raises(IllegalState, match="group 'readers'"):
            second.start()
        append(broker, route, "1")
        inbox.wait_for(1)


def test_a_consumer_is_started_once(broker: Connection, member: Member) -> None:
    topic(broker)
    consumer = member(Inbox())

    with pytest.raises(IllegalState, match="running already"):
        consumer.start()
    consumer.shutdown()
    consumer.shutdown()
    with pytest.raises(IllegalState, match="shut down already"):
        consumer.start()


def test_a_start_that_fails_leaves_nothing_behind(database: Database) -> None:
    before = set(threading.enumerate())
    consumer = PushConsumer("readers", "postgresql://mqdb@127.0.0.1:1/nowhere")
    consumer.subscribe("orders")
    consumer.register_listener(Inbox())

    with pytest.raises(BrokerUnavailable):
        consumer.start()

    assert set(threading.enumerate()) == before
