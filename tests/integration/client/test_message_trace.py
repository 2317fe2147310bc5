"""The trace of a message: its copies in store order, the dispatch time of each, and the state of groups."""

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Connection, text

from mqdb.broker.dead_letters import Redrive, redrive_messages
from mqdb.broker.log import send
from mqdb.broker.schedule.timers import RecallStatus, recall_message
from mqdb.common.message import Message
from mqdb.common.unique_id import UniqueIdGenerator, parse_unique_id
from mqdb.store.dead_letters import RedriveStatus
from mqdb.store.engine import driver, text_of
from mqdb.store.log import message_trace
from mqdb.store.topics.topics import TopicRoute
from mqdb_client import MessageCopy, TrackType, WaitState
from tests.fixtures.broker import append, append_records, dispatch_all, drop_topic, topic
from tests.fixtures.consumers import LATER, Inbox, Member
from tests.fixtures.delay import delay, deliver_all, move_clock, stop_clock
from tests.fixtures.processes import wait_until
from tests.fixtures.timers import deliver_all as deliver_timers
from tests.fixtures.timers import slots, timer
from tests.fixtures.traces import copies, fail, id_at, read, send_one, states
from tests.fixtures.transactions import COMMIT, ROLLBACK, Checker, HalfSent, send_half

HOUR = timedelta(hours=1)


@pytest.fixture
def orders(broker: Connection) -> TopicRoute:
    stop_clock(broker)
    return topic(broker)


# -- copies and groups ----------------------------------------------------------------------------


def test_a_message_is_dispatched_at_the_time_of_its_batch(broker: Connection, orders: TopicRoute) -> None:
    unique_id = send_one(broker, orders)
    (sent,) = copies(broker, unique_id)
    move_clock(broker, timedelta(seconds=3))
    dispatch_all(broker)
    move_clock(broker, HOUR)
    append(broker, orders, "another")
    dispatch_all(broker)

    (dispatched,) = copies(broker, unique_id)

    assert (sent.topic, sent.queue_id, sent.queue_offset, sent.dispatched_at) == ("orders", 0, None, None)
    assert (dispatched.log_pos, dispatched.queue_offset, dispatched.stored_at) == (sent.log_pos, 0, sent.stored_at)
    assert sent.stored_at is not None
    assert dispatched.dispatched_at == sent.stored_at + timedelta(seconds=3)
    assert (sent.failure, sent.wait, sent.half, sent.redrives, sent.tracks) == (None, None, None, (), ())


def test_each_group_stands_to_a_message_in_its_own_way(broker: Connection, orders: TopicRoute) -> None:
    append(broker, orders, "before")
    unique_id = send_one(broker, orders, tag="paid")
    dispatch_all(broker)
    read(broker, "a-done", next_offset=2, filter="*", model="CLUSTERING")
    read(broker, "b-reads", next_offset=1, filter="paid || new", model="CLUSTERING")
    read(broker, "c-away", next_offset=1)
    read(broker, "d-other-tags", next_offset=2, filter="refunded", model="CLUSTERING")
    read(broker, "e-new", filter="*", model="CLUSTERING")
    read(broker, "f-all", filter="*", model="BROADCASTING")
    read(broker, "g-elsewhere", next_offset=9, topic_name="TBW102")

    (copy,) = copies(broker, unique_id)

    assert [(each.group, each.status, each.next_offset) for each in copy.tracks] == [
        ("a-done", TrackType.CONSUMED, 2),
        ("b-reads", TrackType.NOT_CONSUME_YET, 1),
        ("c-away", TrackType.NOT_ONLINE, 1),
        ("d-other-tags", TrackType.FILTERED, 2),
        ("e-new", TrackType.NOT_CONSUME_YET, None),
        ("f-all", TrackType.CONSUME_BROADCASTING, None),
    ]


def test_real_consumers_leave_such_rows(broker: Connection, member: Member) -> None:
    route = topic(broker)
    unique_id = send_one(broker, route, tag="paid")

    def tracks(copy: MessageCopy) -> dict[str, TrackType]:
        return {each.group: each.status for each in copy.tracks}

    member(Inbox(), group="mail", expression="refunded")
    billing = member(lambda messages: LATER, group="billing")
    wait_until(lambda: len(copies(broker, unique_id)) == 2)
    online = tracks(copies(broker, unique_id)[0])
    billing.shutdown()  # commits its offset

    sent, waiting = copies(broker, unique_id)
    assert online["mail"] is TrackType.FILTERED
    assert tracks(sent) == {"billing": TrackType.CONSUMED, "mail": TrackType.FILTERED}
    assert waiting.wait is not None
    assert (waiting.wait.state, waiting.wait.topic) == (WaitState.WAITING, "%RETRY%billing")
    assert waiting.failure is not None


def test_what_an_exactly_once_consumer_has_committed_counts(broker: Connection, orders: TopicRoute) -> None:
    unique_id = send_one(broker, orders)
    dispatch_all(broker)
    read(broker, "billing", next_offset=0)
    broker.execute(
        text("""INSERT INTO mqdb.offset_commit (group_id, queue_key, from_offset, next_offset, segment, epoch)
                SELECT group_id, queue_key, 0, 1, 0, 0 FROM mqdb.consumer_offset""")
    )

    assert [(each.status, each.next_offset) for each in copies(broker, unique_id)[0].tracks] == [("CONSUMED", 1)]


def test_a_message_that_was_stored_twice_has_two_copies(broker: Connection, orders: TopicRoute) -> None:
    unique_id = UniqueIdGenerator().next()
    record = send.record(Message("orders", "twice"), orders.queue_keys[0], unique_id, datetime.now(UTC), "127.0.0.1")
    positions = append_records(broker, [record]) + append_records(broker, [record])
    dispatch_all(broker)

    found = copies(broker, unique_id)

    assert [(each.log_pos, each.topic, each.queue_offset) for each in found] == [
        (positions[0], "orders", 0),
        (positions[1], "orders", 1),
    ]


def test_a_message_of_a_deleted_topic_is_still_there(broker: Connection, orders: TopicRoute) -> None:
    unique_id = send_one(broker, orders)
    dispatch_all(broker)
    drop_topic(broker, "orders")

    (copy,) = copies(broker, unique_id)

    assert (copy.topic, copy.queue_id, copy.tracks) == (None, None, ())


@pytest.mark.parametrize("is_guest", [False, True], ids=["owner", "role"])
def test_nothing_is_scanned(broker: Connection, is_guest: bool) -> None:
    statement = text_of(message_trace._records(is_guest))

    plan = driver(broker).execute("EXPLAIN " + statement, {"unique_id": UniqueIdGenerator().next()}).fetchall()

    # Tables of as many rows as there are topics and queues may be.
    scanned = {line.split(" on ")[1].split()[0] for (line,) in plan if "Seq Scan on " in line}
    assert scanned <= {"queue", "topic"}


# -- retries --------------------------------------------------------------------------------------


def test_a_message_fails_comes_again_dies_and_is_redriven(broker: Connection, orders: TopicRoute) -> None:
    unique_id = send_one(broker, orders)
    dispatch_all(broker)
    read(broker, "billing", next_offset=1, model="CLUSTERING")

    fail(broker, copies(broker, unique_id)[0])
    sent, waiting = copies(broker, unique_id)
    assert (waiting.topic, waiting.reconsume_times) == ("SCHEDULE_TOPIC_XXXX", 1)
    assert waiting.wait is not None
    assert sent.stored_at is not None
    assert (waiting.wait.state, waiting.wait.topic, waiting.wait.delay_level) == ("WAITING", "%RETRY%billing", 3)
    assert waiting.wait.due_at == sent.stored_at + timedelta(seconds=10)
    assert waiting.failure is not None
    assert (waiting.failure.exception, waiting.failure.error, waiting.failure.host) == (
        "shop.NoPrice",
        "no price",
        "client-1",
    )

    move_clock(broker, timedelta(seconds=10))
    deliver_all(broker)
    dispatch_all(broker)
    read(broker, "billing", next_offset=0, topic_name="%RETRY%billing")
    _, delivered, retry = copies(broker, unique_id)
    assert delivered.wait is not None
    assert (delivered.wait.state, retry.topic, retry.reconsume_times) == (WaitState.DELIVERED, "%RETRY%billing", 1)
    assert [(each.group, each.status) for each in retry.tracks] == [("billing", TrackType.NOT_CONSUME_YET)]

    fail(broker, retry, delay_level=-1)
    dead = copies(broker, unique_id)[-1]
    assert (dead.topic, dead.reconsume_times, dead.redrives) == ("%DLQ%billing", 2, ())

    redrive_messages(broker, [dead.log_pos], Redrive("all"), actor="ada")
    *_, dead, again = copies(broker, unique_id)
    assert [(each.status, each.actor, each.new_log_pos) for each in dead.redrives] == [
        (RedriveStatus.REDRIVEN, "ada", again.log_pos)
    ]
    assert (again.topic, again.reconsume_times, again.failure, again.queue_offset) == ("%RETRY%billing", 0, None, None)


@pytest.mark.usefixtures("orders")
def test_a_message_whose_topic_went_while_it_waited_is_dropped(broker: Connection) -> None:
    unique_id = id_at(broker, delay(broker, 3, "late")[0])
    drop_topic(broker, "orders")
    before = states(broker, unique_id)
    move_clock(broker, timedelta(seconds=10))
    deliver_all(broker)

    assert (before, states(broker, unique_id)) == ([WaitState.WAITING], [WaitState.DROPPED])


# -- timers ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("orders")
def test_a_timer_waits_until_its_time(broker: Connection) -> None:
    unique_id = parse_unique_id(timer(broker, HOUR, "later", dispatched=False)[0])
    seen = [states(broker, unique_id)]
    dispatch_all(broker)
    seen.append(states(broker, unique_id))
    deliver_timers(broker)
    seen.append(states(broker, unique_id))
    broker.execute(text("DELETE FROM mqdb.commit_log"))  # as retention does
    (collected,) = copies(broker, unique_id)
    seen.append(states(broker, unique_id))
    move_clock(broker, HOUR)
    deliver_timers(broker)
    dispatch_all(broker)

    assert seen == [[WaitState.WAITING]] * 4
    assert collected.wait is not None
    assert collected.stored_at is not None
    assert (collected.wait.topic, collected.wait.delay_level) == ("orders", None)
    assert collected.wait.due_at == collected.stored_at + HOUR
    assert states(broker, unique_id) == [WaitState.DELIVERED, "orders"]


@pytest.mark.usefixtures("orders")
def test_a_recall_that_came_too_late_is_none(broker: Connection) -> None:
    unique_id = parse_unique_id(timer(broker, HOUR, "later")[0])
    move_clock(broker, HOUR)
    deliver_timers(broker)
    # As recall_own leaves it, when the batch that delivers does not see it yet.
    broker.execute(text("INSERT INTO mqdb.timer_recall SELECT log_pos, tags_code FROM mqdb.commit_log LIMIT 1"))

    assert states(broker, unique_id) == [WaitState.DELIVERED, "orders"]


@pytest.mark.usefixtures("orders")
def test_a_timer_behind_the_deliverer_waits_too(broker: Connection) -> None:
    timer(broker, HOUR, "first")
    move_clock(broker, 2 * HOUR)
    deliver_timers(broker)
    move_clock(broker, -2 * HOUR)  # the clock was put back
    unique_id = parse_unique_id(timer(broker, HOUR, "later")[0])
    deliver_timers(broker)
    assert slots(broker) == ["behind"]

    assert states(broker, unique_id) == [WaitState.WAITING]


@pytest.mark.usefixtures("orders")
@pytest.mark.parametrize("is_collected", [False, True], ids=["new", "collected"])
def test_a_recalled_timer_stays_recalled(broker: Connection, is_collected: bool) -> None:
    unique_id = parse_unique_id(timer(broker, HOUR, "later")[0])
    if is_collected:
        deliver_timers(broker)
    assert recall_message(broker, unique_id) is RecallStatus.RECALLED
    before = states(broker, unique_id)
    move_clock(broker, 2 * HOUR)
    deliver_timers(broker)

    assert (before, states(broker, unique_id)) == ([WaitState.RECALLED], [WaitState.RECALLED])


# -- transactions ---------------------------------------------------------------------------------


def half_copies(connection: Connection, half: HalfSent) -> tuple[MessageCopy, ...]:
    dispatch_all(connection)
    return copies(connection, half.unique_id)


def test_the_state_of_a_half_message_is_told(broker: Connection, orders: TopicRoute) -> None:
    committed, rolled_back, prepared = (send_half(broker, orders) for _ in range(3))
    (before,) = half_copies(broker, committed)
    committed.end(broker, COMMIT)
    rolled_back.end(broker, ROLLBACK)
    Checker(broker).round()

    half, copy = half_copies(broker, committed)

    assert before.half is not None
    assert half.half is not None
    assert (before.topic, before.half.state, before.half.ended_at) == ("RMQ_SYS_TRANS_HALF_TOPIC", "PREPARED", None)
    assert (half.half.state, half.half.topic, half.half.producer_group) == ("COMMITTED", "orders", "senders")
    assert (half.half.copy_pos, copy.topic, copy.queue_offset, copy.half) == (copy.log_pos, "orders", 0, None)
    for each, state in ((rolled_back, "ROLLED_BACK"), (prepared, "PREPARED")):
        assert [found.half and found.half.state for found in half_copies(broker, each)] == [state]
