"""The simple consumer: receive, acknowledge, redelivery, and many workers on one queue."""

import threading
from datetime import timedelta
from functools import partial

import pytest
from sqlalchemy import Connection

from mqdb.broker.consumers.groups import show_group, update_group
from mqdb.common.group import ConsumeFromWhere, ConsumeMode
from mqdb.errors import ConsumeModeConflict, IllegalState, ParameterInvalid, ReceiptHandleInvalid
from mqdb_client import Message, MessageSelector, Producer, SimpleConsumer
from tests.fixtures.broker import append, bodies, dispatch_all, topic
from tests.fixtures.lite_pull import Lite
from tests.fixtures.postgres import Database
from tests.fixtures.simple import Simple
from tests.fixtures.threads import Doing

pytestmark = pytest.mark.usefixtures("both_kinds_of_clients")

NOW = timedelta(0)
MINUTE = timedelta(minutes=1)


def in_flight(broker: Connection) -> int:
    return sum(each.in_flight for each in show_group(broker, "workers").progress)


def test_what_is_received_and_acknowledged_does_not_come_again(broker: Connection, simple: Simple) -> None:
    append(broker, topic(broker), "a", "b", "c")
    consumer = simple()

    received = consumer.receive(2, MINUTE, MINUTE)
    rest = consumer.receive(2, MINUTE, MINUTE)

    assert (bodies(received), bodies(rest), consumer.receive(2, MINUTE, NOW)) == (["a", "b"], ["c"], [])
    assert [each.delivery_attempt for each in received] == [1, 1]
    consumer.ack(received[0])
    consumer.ack([received[1], *rest])
    assert in_flight(broker) == 0


def test_a_waiting_call_returns_when_a_message_arrives(broker: Connection, simple: Simple) -> None:
    route = topic(broker)
    consumer = simple()
    waiting = Doing(lambda: consumer.receive(timeout=timedelta.max))

    append(broker, route, "x")

    assert bodies(waiting.result()) == ["x"]


def test_a_waiting_call_returns_when_a_message_comes_again(broker: Connection, simple: Simple) -> None:
    append(broker, topic(broker), "x")
    consumer, other = simple(), simple()
    [message] = consumer.receive(1, MINUTE, MINUTE)
    waiting = Doing(lambda: other.receive(timeout=MINUTE))

    consumer.change_invisible(message, timedelta(milliseconds=300))

    [again] = waiting.result()
    assert (again.body, again.delivery_attempt) == (b"x", 2)
    assert waiting.seconds < 4  # it would look again after 5 s
    with pytest.raises(ReceiptHandleInvalid):
        consumer.ack(message)
    other.ack(again)


def test_a_waiting_call_returns_when_a_queue_in_order_is_free(broker: Connection, simple: Simple) -> None:
    append(broker, topic(broker), "a", "b")
    update_group(broker, "workers", consume_mode=ConsumeMode.POP, consume_message_orderly=True)
    consumer, other = simple(), simple()
    [message] = consumer.receive(1, MINUTE, MINUTE)
    waiting = Doing(lambda: other.receive(timeout=MINUTE))

    consumer.ack(message)

    assert bodies(waiting.result()) == ["b"]
    assert waiting.seconds < 4


def test_a_longer_time_has_a_new_handle(broker: Connection, simple: Simple) -> None:
    append(broker, topic(broker), "x")
    consumer = simple()
    [message] = consumer.receive(1, MINUTE, MINUTE)
    before = message.receipt_handle

    consumer.change_invisible(message, 5 * MINUTE)

    assert message.receipt_handle != before
    consumer.ack(message)
    assert in_flight(broker) == 0


def test_a_message_that_is_given_up_is_a_dead_letter(broker: Connection, simple: Simple) -> None:
    append(broker, topic(broker), "x", "y")
    consumer = simple()
    x, y = consumer.receive(2, MINUTE, MINUTE)

    consumer.forward_to_dlq(x, ValueError("no such account"))
    consumer.forward_to_dlq(y, "poison")

    dispatch_all(broker)
    rows = broker.exec_driver_sql("SELECT convert_from(body, 'UTF8'), exception, error FROM mqdb.dlq ORDER BY 1")
    assert [tuple(row) for row in rows] == [("x", "ValueError", "no such account"), ("y", "RECONSUME_LATER", "poison")]
    assert in_flight(broker) == 0


def test_filters_pass_over_the_others(broker: Connection, simple: Simple) -> None:
    route = topic(broker)
    append(broker, route, "paid", tag="paid")
    append(broker, route, "open", tag="open")

    assert bodies(simple("paid").receive(10, MINUTE, MINUTE)) == ["paid"]
    by_sql = simple(MessageSelector.by_sql("TAGS = 'open'"), group="auditors")
    assert bodies(by_sql.receive(10, MINUTE, MINUTE)) == ["open"]


def test_many_workers_share_one_queue(broker: Connection, simple: Simple) -> None:
    """Many workers share one queue: each gets a share, and no message is delivered twice or lost."""
    count, workers = 400, 8
    append(broker, topic(broker), *(str(n) for n in range(count)))
    dispatch_all(broker)
    consumers = [simple() for _ in range(workers)]
    shares: list[list[str]] = [[] for _ in consumers]
    barrier = threading.Barrier(workers)

    def work(consumer: SimpleConsumer, share: list[str]) -> None:
        barrier.wait(30)
        while len(share) < count and (received := consumer.receive(5, MINUTE, timedelta(milliseconds=100))):
            share += bodies(received)
            consumer.ack(received)

    for doing in [Doing(partial(work, *each)) for each in zip(consumers, shares, strict=True)]:
        doing.result()

    had = [body for share in shares for body in share]
    assert sorted(map(int, had)) == list(range(count))
    assert all(shares)
    assert in_flight(broker) == 0


def test_a_new_topic_is_read_from_its_beginning(
    broker: Connection, simple: Simple, caplog: pytest.LogCaptureFixture
) -> None:
    consumer = simple(consume_from_where=ConsumeFromWhere.LAST_OFFSET)
    append(broker, topic(broker), "first")

    assert bodies(consumer.receive(1, MINUTE, MINUTE)) == ["first"]
    assert caplog.text.count("does not exist yet") == 1


def test_a_shutdown_ends_a_waiting_call(broker: Connection, simple: Simple) -> None:
    topic(broker)
    consumer = simple()
    waiting = Doing(lambda: consumer.receive(timeout=timedelta.max))

    consumer.shutdown()
    consumer.shutdown()

    assert waiting.result() == []
    with pytest.raises(IllegalState, match="shut down"):
        consumer.receive()


def test_a_group_pulls_or_pops(broker: Connection, simple: Simple, lite: Lite) -> None:
    topic(broker)
    lite("orders", group="pullers")
    with pytest.raises(ConsumeModeConflict, match="mqdb group set pullers --consume-mode pop"):
        simple(group="pullers")
    simple()
    with pytest.raises(ConsumeModeConflict, match="consumes by pop, but this consumer by pull"):
        lite("orders", group="workers")


def test_what_was_not_received_is_not_acknowledged(broker: Connection, simple: Simple, lite: Lite) -> None:
    append(broker, topic(broker), "x")
    [pulled] = lite("orders").poll(MINUTE)

    with pytest.raises(ParameterInvalid, match="was not received from a SimpleConsumer"):
        simple().ack(pulled)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"max_messages": 0}, "max_messages"),
        ({"invisible_for": NOW}, "invisible_for"),
        ({"invisible_for": timedelta(hours=13)}, "invisible_for"),
        ({"timeout": timedelta(seconds=-1)}, "timeout"),
    ],
)
def test_bad_arguments_are_refused(broker: Connection, simple: Simple, arguments: dict[str, object], name: str) -> None:
    topic(broker)
    consumer = simple()

    with pytest.raises(ParameterInvalid, match=name):
        consumer.receive(**arguments)  # type: ignore[arg-type]


def test_it_has_to_be_subscribed_before_its_start(database: Database) -> None:
    consumer = SimpleConsumer("workers", database.dsn)
    with pytest.raises(IllegalState, match="subscribe to a topic before the start"):
        consumer.start()
    with pytest.raises(IllegalState, match="not started"):
        consumer.receive()


def test_it_works_with_a_producer(broker: Connection, database: Database, simple: Simple) -> None:
    topic(broker)
    consumer = simple()
    with Producer("shop", f"broker-a={database.dsn}") as producer:
        producer.send(Message("orders", b"x", "paid", properties={"colour": "red"}))

    [message] = consumer.receive(1, MINUTE, MINUTE)

    assert (message.body, message.tag, message.properties["colour"]) == (b"x", "paid", "red")
