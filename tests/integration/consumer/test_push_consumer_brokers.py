"""The push consumer with several brokers: it reads all of them, and trouble with one does not affect the others."""

import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

import pytest
from sqlalchemy import Connection, text

from mqdb.broker.topics.topics import update_topic
from mqdb.common.group import ConsumeFromWhere
from mqdb.common.message import MessageQueue
from mqdb.common.received_message import ReceivedMessage
from mqdb.common.topic import Perm
from mqdb.errors import BrokerUnavailable, IllegalState
from mqdb.store.consumers.consumer_offsets import committed_offsets
from mqdb.store.engine import create_engine
from mqdb.store.topics.topics import TopicRoute
from mqdb_client import ConsumeConcurrentlyStatus, PushConsumer
from tests.fixtures.broker import append, dispatch_all, topic
from tests.fixtures.consumers import Gate, Inbox, Member, duplicates
from tests.fixtures.processes import wait_until
from tests.fixtures.producers import TwoBrokers
from tests.fixtures.proxy import Proxy
from tests.fixtures.threads import Doing

pytestmark = pytest.mark.usefixtures("both_kinds_of_consumers")

SOON = timedelta(milliseconds=20)


@dataclass
class Broker:
    """One of the brokers, as seen by a sender and its operator."""

    name: str
    dsn: str
    connection: Connection

    def topic(self, name: str = "orders", queues: int = 2) -> TopicRoute:
        return topic(self.connection, name, queues)

    def send(self, route: TopicRoute, count: int, label: str = "") -> list[str]:
        """Send `count` messages to the queues in turn. Returns their bodies, which contain the broker's name."""
        bodies = [f"{self.name}{label} {number}" for number in range(count)]
        for number, body in enumerate(bodies):
            append(self.connection, route, body, queue_id=number % len(route.queue_keys))
        return bodies

    def committed(self, route: TopicRoute, group: str = "readers") -> list[int]:
        """The group's offset in each queue, or 0 without an offset."""
        offsets = committed_offsets(self.connection, group, route.queue_keys)
        return [offsets.get(key, 0) for key in route.queue_keys]

    def clients(self) -> int:
        return int(self.connection.execute(text("SELECT count(*) FROM mqdb.client")).scalar_one())


@pytest.fixture
def a(two_brokers: TwoBrokers) -> Iterator[Broker]:
    yield from _broker("broker-a", two_brokers.a.dsn)


@pytest.fixture
def b(two_brokers: TwoBrokers) -> Iterator[Broker]:
    yield from _broker("broker-b", two_brokers.b.dsn)


def _broker(name: str, dsn: str) -> Iterator[Broker]:
    engine = create_engine(dsn)
    with engine.connect() as connection:
        dispatch_all(connection)
        yield Broker(name, dsn, connection)
    engine.dispose()


@pytest.fixture
def both(a: Broker, b: Broker) -> dict[str, str]:
    return {"broker-a": a.dsn, "broker-b": b.dsn}


def numbers(consumer: PushConsumer) -> list[tuple[str, int]]:
    return [(queue.broker_name, queue.queue_id) for queue in consumer.assignment]


# -- what is read -----------------------------------------------------------------------------


def test_the_messages_of_all_brokers_arrive_each_once(
    a: Broker, b: Broker, both: dict[str, str], member: Member
) -> None:
    on_a, on_b = a.topic(), b.topic(queues=3)
    sent = a.send(on_a, 30, " early") + b.send(on_b, 30, " early")
    inbox = Inbox()

    consumer = member(inbox, brokers=both)
    sent += a.send(on_a, 30) + b.send(on_b, 30)
    inbox.wait_for(120)
    consumer.shutdown()

    assert sorted(inbox.bodies) == sorted(sent)
    assert all(message.body.decode().startswith(message.queue.broker_name) for message in inbox.messages)
    assert a.committed(on_a) == [30, 30]
    assert b.committed(on_b) == [20, 20, 20]


def test_the_assignment_names_the_queues_of_all_brokers_in_order_and_each_says_which_of_its_own_may_be_read(
    a: Broker, b: Broker, both: dict[str, str], member: Member
) -> None:
    a.topic(queues=3)
    b.topic(queues=3)
    update_topic(b.connection, "orders", read_queue_nums=2, write_queue_nums=3)
    consumer = member(Inbox(), brokers=dict(reversed(both.items())), rebalance_interval=SOON)
    readable = [("broker-a", 0), ("broker-a", 1), ("broker-a", 2), ("broker-b", 0), ("broker-b", 1)]
    assert consumer.assignment == tuple(MessageQueue("orders", *each) for each in readable)

    update_topic(a.connection, "orders", read_queue_nums=3, write_queue_nums=3, perm=Perm.WRITE)

    wait_until(lambda: numbers(consumer) == [("broker-b", 0), ("broker-b", 1)])


def test_a_topic_that_comes_to_another_broker_later_is_read_there_from_its_beginning(
    a: Broker, b: Broker, both: dict[str, str], member: Member, caplog: pytest.LogCaptureFixture
) -> None:
    a.send(a.topic(), 2, " old")
    dispatch_all(a.connection)
    inbox = Inbox()
    member(inbox, brokers=both, rebalance_interval=SOON, consume_from_where=ConsumeFromWhere.LAST_OFFSET)

    sent = b.send(b.topic(), 2)
    inbox.wait_for(2)

    assert sorted(inbox.bodies) == sent
    assert "does not exist yet" not in caplog.text


def test_of_a_topic_that_no_broker_has_the_log_hears_once(
    a: Broker, both: dict[str, str], member: Member, caplog: pytest.LogCaptureFixture
) -> None:
    inbox = Inbox()
    consumer = member(inbox, brokers=both)
    assert consumer.assignment == ()

    sent = a.send(a.topic(), 2)
    inbox.wait_for(2)

    assert sorted(inbox.bodies) == sent
    assert caplog.text.count("does not exist yet") == 1


def test_calls_at_once_are_counted_for_the_consumer_and_not_for_each_broker(
    a: Broker, b: Broker, both: dict[str, str], member: Member
) -> None:
    a.send(a.topic(), 10)
    b.send(b.topic(), 10)
    inbox, calling, is_alone = Inbox(), threading.Lock(), []

    def listen(messages: list[ReceivedMessage]) -> ConsumeConcurrentlyStatus:
        has_begun = calling.acquire(blocking=False)
        # Long enough for another call to come in between.
        threading.Event().wait(0.01)
        if has_begun:
            calling.release()
        is_alone.append(has_begun)
        return inbox(messages)

    member(listen, brokers=both, consume_thread_nums=1)
    inbox.wait_for(20)

    assert all(is_alone)


# -- who reads it -----------------------------------------------------------------------------


def test_two_members_share_the_queues_of_each_broker(
    a: Broker, b: Broker, both: dict[str, str], member: Member
) -> None:
    on_a, on_b = a.topic(), b.topic()
    first, second = Inbox(), Inbox()
    members = [member(first, brokers=both), member(second, brokers=both)]
    halves = [[(name, n) for name in both] for n in range(2)]
    wait_until(lambda: sorted(map(numbers, members)) == halves)

    sent = a.send(on_a, 40) + b.send(on_b, 40)
    first.wait_for(40)
    second.wait_for(40)

    assert duplicates(first, second) == {}
    assert sorted(first.bodies + second.bodies) == sorted(sent)


def test_a_member_that_knows_one_broker_shares_only_its_queues(
    a: Broker, b: Broker, both: dict[str, str], member: Member
) -> None:
    a.topic()
    b.topic()
    wide = member(Inbox(), brokers=both)

    narrow = member(Inbox(), brokers={"broker-a": a.dsn})

    wait_until(lambda: len(narrow.assignment) == 1)
    assert [name for name, _ in numbers(wide)] == ["broker-a", "broker-b", "broker-b"]


# -- a broker that is down --------------------------------------------------------------------


def test_a_broker_that_is_down_at_the_start_joins_in_when_it_comes(
    a: Broker, b: Broker, proxy_b: Proxy, member: Member
) -> None:
    on_a, on_b = a.topic(), b.topic()
    sent_b = b.send(on_b, 20)
    inbox = Inbox()
    proxy_b.cut()

    consumer = member(inbox, brokers={"broker-a": a.dsn, "broker-b": proxy_b.dsn})
    sent_a = a.send(on_a, 20)
    inbox.wait_for(20)
    assert sorted(inbox.bodies) == sorted(sent_a)
    assert numbers(consumer) == [("broker-a", 0), ("broker-a", 1)]
    proxy_b.restore()
    inbox.wait_for(40, 20)
    consumer.shutdown()

    assert sorted(inbox.bodies) == sorted(sent_a + sent_b)
    assert b.committed(on_b) == [10, 10]


def test_without_any_broker_it_does_not_start(a: Broker, proxy: Proxy, proxy_b: Proxy, member: Member) -> None:
    proxy.cut()
    proxy_b.cut()

    with pytest.raises(BrokerUnavailable, match=r"broker-a .*broker-b .*none of them can be reached"):
        member(Inbox(), brokers={"broker-a": proxy.dsn, "broker-b": proxy_b.dsn})


def test_while_a_broker_is_cut_off_the_other_goes_on(
    a: Broker, b: Broker, proxy_b: Proxy, member: Member, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    on_a, on_b = a.topic(), b.topic()
    inbox = Inbox()
    consumer = member(
        inbox, brokers={"broker-a": a.dsn, "broker-b": proxy_b.dsn}, persist_consumer_offset_interval=SOON
    )
    sent = a.send(on_a, 10, " before") + b.send(on_b, 10, " before")
    inbox.wait_for(20)
    wait_until(lambda: b.committed(on_b) == [5, 5])

    proxy_b.cut()
    sent += b.send(on_b, 10, " meanwhile")
    sent += a.send(on_a, 10, " meanwhile")
    inbox.wait_for(30)
    wait_until(lambda: a.committed(on_a) == [10, 10])
    proxy_b.restore()
    inbox.wait_for(40, 20)
    sent += a.send(on_a, 10) + b.send(on_b, 10)
    inbox.wait_for(60)
    wait_until(lambda: "connected to the broker again" in caplog.text)
    consumer.shutdown()

    assert sorted(inbox.bodies) == sorted(sent)
    assert (a.committed(on_a), b.committed(on_b)) == ([15, 15], [15, 15])


def test_a_listener_that_holds_a_message_of_one_broker_does_not_hold_up_the_other(
    a: Broker, b: Broker, both: dict[str, str], member: Member
) -> None:
    on_a, on_b = a.topic(queues=1), b.topic(queues=1)
    gate = Gate("broker-a 0")
    consumer = member(gate, brokers=both, consume_thread_nums=2, pull_threshold_for_queue=2)
    a.send(on_a, 20)
    sent = b.send(on_b, 20)

    wait_until(lambda: set(sent) <= set(gate.bodies))
    gate.open()
    gate.wait_for(40)
    consumer.shutdown()

    assert (a.committed(on_a), b.committed(on_b)) == ([20], [20])


# -- how it ends ------------------------------------------------------------------------------


def test_shutdown_leaves_the_group_on_all_brokers(a: Broker, b: Broker, both: dict[str, str], member: Member) -> None:
    a.topic()
    b.topic()
    consumer = member(Inbox(), brokers=both)
    assert (a.clients(), b.clients()) == (1, 1)

    consumer.shutdown()

    assert (a.clients(), b.clients()) == (0, 0)
    assert consumer.assignment == ()


def test_shutdown_drops_the_queues_of_all_brokers_before_it_waits_for_a_listener(
    a: Broker, b: Broker, both: dict[str, str], member: Member
) -> None:
    """Shutdown drops the queues of all brokers before it waits for a listener.

    So another member gets the queues of the second broker while a listener of the first one runs.
    """
    on_a, on_b = a.topic(queues=1), b.topic(queues=1)
    gate, other = Gate("broker-a 0"), Inbox()
    consumer = member(gate, brokers=both)
    a.send(on_a, 1)
    wait_until(lambda: gate.waiting)

    leaving = Doing(consumer.shutdown)
    member(other, brokers={"broker-b": b.dsn}, consume_thread_nums=1)
    sent = b.send(on_b, 5)
    other.wait_for(5)
    gate.open()
    leaving.result()

    assert other.bodies == sent
    assert a.committed(on_a) == [1]


def test_shutdown_while_a_broker_is_cut_off_leaves_the_other_in_order(
    a: Broker, b: Broker, proxy_b: Proxy, member: Member
) -> None:
    on_a, on_b = a.topic(), b.topic()
    inbox = Inbox()
    consumer = member(inbox, brokers={"broker-a": a.dsn, "broker-b": proxy_b.dsn})
    a.send(on_a, 10)
    b.send(on_b, 10)
    inbox.wait_for(20)
    proxy_b.cut()

    leaving = Doing(lambda: consumer.shutdown(timeout=timedelta(seconds=1)))
    leaving.result()

    assert leaving.seconds < 5
    assert a.committed(on_a) == [5, 5]
    assert a.clients() == 0


def test_a_start_that_one_broker_refuses_leaves_nothing_behind_on_the_others(
    a: Broker, b: Broker, both: dict[str, str]
) -> None:
    a.topic()
    b.topic()
    inbox = Inbox()
    with consumer_of(inbox, f"broker-b={b.dsn}"):
        with pytest.raises(IllegalState, match="created before in this process"):
            consumer_of(inbox, ";".join(f"{name}={dsn}" for name, dsn in both.items())).start()

        assert (a.clients(), b.clients()) == (0, 1)


def consumer_of(inbox: Inbox, dsn: str) -> PushConsumer:
    consumer = PushConsumer("readers", dsn)
    consumer.subscribe("orders")
    consumer.register_listener(inbox)
    return consumer
