"""Messages for later delivery: the place in which a send stores them, and the result of the send.

No service delivers here.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Connection, text

from mqdb.broker.log import send
from mqdb.broker.schedule.timers import RecallStatus
from mqdb.common.delivery_schedule import DelayLevel, DeliverAfter, DeliverAt
from mqdb.common.message import MessageQueue
from mqdb.common.recall_handle import RecallHandle, decode_handle, encode_handle
from mqdb.errors import (
    MessageIllegal,
    NotSupported,
    RecallHandleInvalid,
    ScheduleInvalid,
    TopicNotFound,
    TransactionRefused,
)
from mqdb_client import Message, Producer, SendResult
from tests.fixtures.broker import append, topic
from tests.fixtures.log import create_topic
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.producers import is_blocked, pid_of, producer_of, stall, terminate
from tests.fixtures.threads import Doing
from tests.fixtures.transactions import Asked, StartProducer
from tests.fixtures.variants import usually

QUEUE_3 = MessageQueue("orders", "broker-a", 3)
HOUR = timedelta(hours=1)

#: What a record says of where it is and when it is due.
PLACED = """
SELECT t.topic, q.queue_id, cl.properties ->> 'REAL_TOPIC', cl.properties ->> 'REAL_QID', cl.properties ->> 'DELAY',
       cl.tags_code - floor(extract(epoch FROM cl.store_time) * 1000)
FROM mqdb.commit_log cl JOIN mqdb.queue q USING (queue_key) JOIN mqdb.topic t USING (topic_id)
WHERE convert_from(cl.body, 'UTF8') = %s ORDER BY cl.log_pos
"""

SCHEDULES: dict[str, dict[str, Any]] = {
    "level": {"delay_level": 3},
    "delay": {"delay": HOUR},
    "time": {"deliver_at": datetime(2100, 1, 1, tzinfo=UTC)},
}
each_schedule = pytest.mark.parametrize(
    "schedule", usually(SCHEDULES["level"], SCHEDULES["time"], of=SCHEDULES.values()), ids=SCHEDULES
)


@pytest.fixture
def orders(database: Database) -> Database:
    """A broker without services, which has a topic with four queues."""
    create_topic(database.connect(), "orders", 4)
    return database


@pytest.fixture
def producer(orders: Database) -> Iterator[Producer]:
    with producer_of(orders.dsn) as producer:
        yield producer


def placed(database: Database, body: str = "x") -> list[tuple[Any, ...]]:
    return database.rows(PLACED, body)


# -- where it is stored -----------------------------------------------------------------------


def test_a_message_of_a_level_waits_in_the_queue_of_the_level(producer: Producer, orders: Database) -> None:
    producer.send(Message("orders", "x", tag="new", delay_level=3), queue=QUEUE_3)

    [(*where, waits)] = placed(orders)
    assert where == ["SCHEDULE_TOPIC_XXXX", 2, "orders", "3", "3"]
    assert waits in (10_000, 10_001)  # rounded up


def test_a_message_with_a_delay_waits_among_the_timers(producer: Producer, orders: Database) -> None:
    producer.send(Message("orders", "x", delay=HOUR), queue=QUEUE_3)

    [(*where, waits)] = placed(orders)
    assert where == ["rmq_sys_wheel_timer", 0, "orders", "3", None]
    assert waits in (3_600_000, 3_600_001)


def test_a_message_with_a_time_waits_until_that_time(producer: Producer, orders: Database) -> None:
    producer.send(Message("orders", "x", deliver_at=datetime(2100, 1, 1, tzinfo=UTC)), queue=QUEUE_3)

    row = (
        orders.connect().execute("SELECT tags_code, properties ->> 'TIMER_DELIVER_MS' FROM mqdb.commit_log").fetchone()
    )
    assert row == (4_102_444_800_000, "4102444800000")
    assert placed(orders)[0][:4] == ("rmq_sys_wheel_timer", 0, "orders", "3")


DUE: list[dict[str, Any]] = [
    {"delay_level": -1},
    {"delay": timedelta(0)},
    {"delay": -HOUR},
    {"deliver_at": 0},
    {"deliver_at": -5},
]


@pytest.mark.parametrize("schedule", usually(DUE[0], DUE[2], DUE[3], of=DUE), ids=str)
def test_what_is_due_already_is_stored_as_any_other_message(
    producer: Producer, orders: Database, schedule: dict[str, Any]
) -> None:
    result = producer.send(Message("orders", "x", tag="new", **schedule), queue=QUEUE_3)

    assert placed(orders)[0][:4] == ("orders", 3, None, None)
    assert orders.connect().execute("SELECT tags_code FROM mqdb.commit_log").fetchone() == (108_960,)
    assert result.queue_offset == 0


def test_the_time_is_that_of_the_broker(broker: Connection, database: Database) -> None:
    route = topic(broker)
    broker.execute(text("SET mqdb.clock_offset = '2 hours'"))

    append(broker, route, Message("orders", "x", deliver_at=datetime.now(UTC) + HOUR))
    append(broker, route, Message("orders", "y", deliver_at=datetime.now(UTC) + 3 * HOUR))

    assert [placed(database, body)[0][0] for body in "xy"] == ["orders", "rmq_sys_wheel_timer"]


def test_a_level_above_the_last_one_is_the_last_one_of_this_moment(producer: Producer, orders: Database) -> None:
    producer.send(Message("orders", "before", delay_level=100))
    orders.connect().execute("DELETE FROM mqdb.delay_level WHERE level > 2")
    producer.send(Message("orders", "after", delay_level=100))

    assert [row[1] for row in placed(orders, "before")] == [17]
    assert [(row[1], row[4]) for row in placed(orders, "after")] == [(1, "2")]


def test_a_level_wins_over_times_which_are_not_kept(producer: Producer, orders: Database) -> None:
    times = {"TIMER_DELAY_SEC": "5", "TIMER_DELAY_MS": "5", "TIMER_DELIVER_MS": "5"}
    producer.send(Message("orders", "x", system_properties=times, delay_level=2))

    names = "SELECT array_agg(name ORDER BY name) FROM mqdb.commit_log, jsonb_object_keys(properties) AS name"
    kept = ["DELAY", "MQDB_TAGS_CODE", "REAL_QID", "REAL_TOPIC"]
    assert orders.connect().execute(names).fetchone() == (kept,)


# -- all ways to send -------------------------------------------------------------------------

WAYS: dict[str, Callable[[Producer, Message], object]] = {
    "sync": lambda producer, message: producer.send(message, queue=QUEUE_3),
    "async": lambda producer, message: producer.send_async(message, queue=QUEUE_3).result(10),
    "oneway": lambda producer, message: producer.send_oneway(message, queue=QUEUE_3),
}


@each_schedule
@pytest.mark.parametrize("way", WAYS)
def test_each_way_of_sending_has_it_wait(
    producer: Producer, orders: Database, way: str, schedule: dict[str, Any]
) -> None:
    WAYS[way](producer, Message("orders", "x", **schedule))

    wait_until(lambda: placed(orders))
    [(name, _, real_topic, real_queue, *_)] = placed(orders)
    assert name in ("SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer")
    assert (real_topic, real_queue) == ("orders", "3")


@each_schedule
def test_a_joined_send_waits_from_the_commit_on(producer: Producer, orders: Database, schedule: dict[str, Any]) -> None:
    caller = orders.connect(autocommit=False)
    producer.send(Message("orders", "undone", **schedule), connection=caller)
    caller.rollback()

    result = producer.send(Message("orders", "x", **schedule), queue=QUEUE_3, connection=caller)
    caller.commit()

    assert placed(orders, "undone") == []
    [(name, _, real_topic, real_queue, *_)] = placed(orders)
    assert (name == "SCHEDULE_TOPIC_XXXX") == ("delay_level" in schedule)
    assert (real_topic, real_queue, result.queue, result.queue_offset) == ("orders", "3", QUEUE_3, 0)


def test_messages_that_wait_take_others_along_in_one_statement(broker: Connection, orders: Database) -> None:
    """Waiting messages take others along in one statement, as do sends of several threads.

    Each message gets its own position.
    """
    route = topic(broker, "parcels", 2)
    messages = [
        Message("parcels", f"{number}", **schedule) for number, schedule in enumerate([*SCHEDULES.values(), {}])
    ]

    positions = append(broker, route, *messages, queue_id=1)

    found = [placed(orders, f"{number}")[0][0] for number in range(4)]
    assert found == ["SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer", "rmq_sys_wheel_timer", "parcels"]
    assert positions == list(range(positions[0], positions[0] + 4))


@pytest.mark.parametrize("connected", [False, True], ids=["own connection", "caller's connection"])
def test_batches_of_what_is_for_later_are_refused(producer: Producer, orders: Database, connected: bool) -> None:
    messages = [Message("orders", "x"), Message("orders", "y", delay_level=1)]

    with pytest.raises(NotSupported, match="a batch with a delay"):
        producer.send_batch(messages, connection=orders.connect() if connected else None)

    assert placed(orders) == []


# -- what the caller learns -------------------------------------------------------------------


@each_schedule
def test_the_result_names_the_queue_it_is_for_and_the_offset_where_it_waits(
    producer: Producer, schedule: dict[str, Any]
) -> None:
    first = producer.send(Message("orders", "x", **schedule), queue=QUEUE_3)
    second = producer.send(Message("orders", "x", **schedule), queue=MessageQueue("orders", "broker-a", 0))

    assert (first.queue, second.queue.queue_id) == (QUEUE_3, 0)
    assert (first.queue_offset, second.queue_offset) == (0, 1)


@each_schedule
def test_its_outcome_can_be_asked_for_while_it_waits(producer: Producer, schedule: dict[str, Any]) -> None:
    sent = producer.send(Message("orders", "x", **schedule), queue=QUEUE_3)

    found = producer.outcome(sent.message_id)

    assert isinstance(found, SendResult)
    assert (found.queue, found.log_pos, found.queue_offset) == (QUEUE_3, sent.log_pos, 0)


@each_schedule
def test_a_send_whose_connection_breaks_is_stored_once(
    producer: Producer, orders: Database, schedule: dict[str, Any]
) -> None:
    producer.send(Message("orders", "first"))
    locker = stall(orders)
    sending = Doing(lambda: producer.send(Message("orders", "x", **schedule)))
    pid = pid_of(producer)
    wait_until(lambda: is_blocked(orders, pid))
    terminate(orders, pid)
    locker.rollback()

    result = sending.outcome()

    assert isinstance(result, SendResult)
    [(name, *_)] = placed(orders)
    assert name != "orders"
    assert result.queue_offset == 0


# -- recall -----------------------------------------------------------------------------------


@pytest.mark.parametrize("connected", [False, True], ids=["own connection", "caller's connection"])
@pytest.mark.parametrize("name", usually("delay", of=["delay", "time"]))
def test_a_message_with_a_time_is_recalled_by_its_handle(
    producer: Producer, orders: Database, name: str, connected: bool
) -> None:
    caller = orders.connect() if connected else None
    sent = producer.send(Message("orders", "x", **SCHEDULES[name]), connection=caller)
    assert sent.queue_offset == 0  # dispatched
    assert sent.recall_handle is not None

    assert producer.recall(sent.recall_handle) is RecallStatus.RECALLED

    handle = decode_handle(sent.recall_handle)
    assert (handle.topic, handle.broker_name, handle.message_id) == (
        "orders",
        "broker-a",
        sent.message_id,
    )


@pytest.mark.parametrize("name", ["delay", "time"])
def test_whose_send_got_no_answer_gets_the_handle_with_the_outcome(producer: Producer, name: str) -> None:
    sent = producer.send(Message("orders", "x", **SCHEDULES[name]))

    found = producer.outcome(sent.message_id)

    assert found is not None
    assert found.recall_handle is not None
    assert producer.recall(found.recall_handle) is RecallStatus.RECALLED


@pytest.mark.parametrize("schedule", [{}, {"delay_level": 1}], ids=["plain", "level"])
def test_a_message_without_a_time_has_no_handle(producer: Producer, schedule: dict[str, Any]) -> None:
    sent = producer.send(Message("orders", "x", **schedule))
    found = producer.outcome(sent.message_id)

    assert found is not None
    assert (sent.recall_handle, found.recall_handle) == (None, None)


def test_a_handle_of_another_broker_is_refused(producer: Producer) -> None:
    handle = encode_handle(RecallHandle("orders", "broker-z", 5, "0" * 31 + "1"))

    with pytest.raises(RecallHandleInvalid, match="this producer has broker-a"):
        producer.recall(handle)


# -- what is refused --------------------------------------------------------------------------


def test_what_is_for_a_queue_that_is_gone_is_not_stored(broker: Connection) -> None:
    route = topic(broker)
    gone = replace(route, queue_keys=(4_711,))

    with pytest.raises(TopicNotFound):
        append(broker, gone, Message("orders", "x", delay_level=3))


@pytest.fixture
def three_days(orders: Database) -> Database:
    """RocketMQ's limit of three days."""
    orders.connect().execute("UPDATE mqdb.broker SET timer_max_delay_ms = 3 * 86400000")
    return orders


TOO_FAR: dict[str, dict[str, Any]] = {
    "delay": {"delay": timedelta(days=3, milliseconds=1)},
    "time": {"deliver_at": datetime(2100, 1, 1, tzinfo=UTC)},
}


@pytest.mark.parametrize("schedule", TOO_FAR.values(), ids=TOO_FAR)
def test_a_time_beyond_the_limit_of_the_broker_is_refused(
    three_days: Database, producer: Producer, schedule: dict[str, Any]
) -> None:
    with pytest.raises(MessageIllegal, match="259200000"):
        producer.send(Message("orders", "x", **schedule))

    assert placed(three_days) == []


@pytest.mark.parametrize("schedule", TOO_FAR.values(), ids=TOO_FAR)
def test_a_refused_time_leaves_the_transaction_of_a_joined_send_as_it_was(
    three_days: Database, producer: Producer, schedule: dict[str, Any]
) -> None:
    caller = three_days.connect(autocommit=False)

    with pytest.raises(ScheduleInvalid, match="259,200,000"):
        producer.send(Message("orders", "x", **schedule), connection=caller)

    producer.send(Message("orders", "x", delay=timedelta(days=2)), connection=caller)
    caller.commit()
    assert len(placed(three_days)) == 1


def test_a_refused_time_does_not_spoil_the_sends_beside_it(three_days: Database, producer: Producer) -> None:
    producer.send(Message("orders", "first"))
    locker = stall(three_days)
    leading = Doing(lambda: producer.send(Message("orders", "leading")))
    pid = pid_of(producer)
    wait_until(lambda: is_blocked(three_days, pid))
    good = [producer.send_async(Message("orders", f"good {number}", delay=HOUR)) for number in range(3)]
    bad = producer.send_async(Message("orders", "bad", **TOO_FAR["delay"]))
    locker.rollback()

    assert isinstance(leading.outcome(), SendResult)
    assert isinstance(bad.exception(10), MessageIllegal)
    assert all(isinstance(future.result(10), SendResult) for future in good)


def test_a_refused_half_message_does_not_spoil_the_sends_beside_it(
    orders: Database, transactional_producer: StartProducer
) -> None:
    orders.connect().execute("UPDATE mqdb.broker SET reject_transaction_message = true")
    producer = transactional_producer(Asked())
    [link] = producer._work().links.values()
    producer.send(Message("orders", "first"))
    locker = stall(orders)
    leading = Doing(lambda: producer.send(Message("orders", "leading")))
    pid = pid_of(producer)
    wait_until(lambda: is_blocked(orders, pid))
    good = [producer.send_async(Message("orders", f"good {number}", delay=HOUR)) for number in range(3)]
    half = Doing(lambda: producer.send_in_transaction(Message("orders", "half")))
    wait_until(lambda: len(link.appends._plan.waiting) == 4)
    locker.rollback()

    assert isinstance(leading.outcome(), SendResult)
    assert isinstance(half.error(), TransactionRefused)
    assert all(isinstance(future.result(10), SendResult) for future in good)


# -- the record -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "wait"),
    [
        ({}, None),
        ({"delay_level": 3}, DelayLevel(3)),
        ({"delay": HOUR}, DeliverAfter(3_600_000)),
        ({"deliver_at": 5}, DeliverAt(5)),
    ],
    ids=str,
)
def test_a_record_says_what_it_waits_for(schedule: dict[str, Any], wait: object) -> None:
    made = send.record(Message("orders", "x", **schedule), 1, UUID(int=1), datetime.now(UTC), "here")

    assert made.wait == wait
