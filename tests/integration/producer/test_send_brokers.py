"""Several brokers: which of them get messages, which may be down at the start, and how long a bad one is avoided."""

from collections import Counter
from datetime import timedelta
from functools import partial

import pytest

from mqdb.errors import (
    AuthenticationFailed,
    BrokerMisnamed,
    BrokerUnavailable,
    RouteNotFound,
    SendGivenUp,
    StorageRefused,
    TopicNotWritable,
)
from mqdb.settings import load_settings
from mqdb_client import Message, Producer
from tests.fixtures.log import create_topic
from tests.fixtures.postgres import Database, with_parts
from tests.fixtures.processes import wait_until
from tests.fixtures.producers import (
    TwoBrokers,
    attempts_of,
    dsn_of_two,
    mend,
    on_append,
    producer_of,
    refuse_appends,
    stall,
    stored_bodies,
)
from tests.fixtures.proxy import Proxy
from tests.fixtures.sends import ON_A, queues_of, sent_to
from tests.fixtures.threads import Doing

# One of two brokers that takes 0.3 s to connect to would be passed by.
pytestmark = pytest.mark.usefixtures("both_kinds", "patient")


@pytest.fixture
def orders(orders_on_both: TwoBrokers) -> TwoBrokers:
    return orders_on_both


# -- several brokers --------------------------------------------------------------------------


def test_the_queues_that_take_messages_are_those_of_all_brokers(to_two: Producer) -> None:
    assert to_two.fetch_publish_queues("orders") == queues_of("broker-a", "broker-b")


def test_asking_for_the_queues_of_a_topic_creates_it_on_all_brokers_as_a_send_would(
    two_brokers: TwoBrokers,
) -> None:
    with producer_of(two_brokers.dsn) as producer:
        assert producer.fetch_publish_queues("new") == queues_of("broker-a", "broker-b", topic="new")
        assert set(sent_to(producer, 8, "new")) == set(queues_of("broker-a", "broker-b", topic="new"))


def test_asking_for_the_queues_of_an_unknown_topic_is_an_error_where_none_is_created(two_brokers: TwoBrokers) -> None:
    settings = load_settings(dsn=two_brokers.dsn, send_message_timeout="30s", auto_create_topic_enable=False)
    with Producer("senders", settings=settings) as producer, pytest.raises(RouteNotFound):
        producer.fetch_publish_queues("new")


def test_a_broker_that_has_not_the_topic_gets_none_of_its_messages(two_brokers: TwoBrokers) -> None:
    create_topic(two_brokers.b.connect(), "orders", 4)
    with producer_of(two_brokers.dsn) as producer:
        assert producer.fetch_publish_queues("orders") == queues_of("broker-b")
        assert set(sent_to(producer, 8)) == set(queues_of("broker-b"))

    topics = two_brokers.a.connect().execute("SELECT 1 FROM mqdb.topic WHERE topic = 'orders'").fetchall()
    assert topics == []


def test_a_broker_whose_topic_lacks_w_gets_none_of_its_messages(orders: TwoBrokers) -> None:
    orders.a.connect().execute("UPDATE mqdb.topic SET perm = 4 WHERE topic = 'orders'")
    with producer_of(orders.dsn) as producer:
        assert producer.fetch_publish_queues("orders") == queues_of("broker-b")
        assert set(sent_to(producer, 8)) == set(queues_of("broker-b"))
        with pytest.raises(TopicNotWritable):
            producer.send(Message("orders", "x"), queue=ON_A)


def test_a_topic_that_lacks_w_everywhere_takes_no_messages(orders: TwoBrokers) -> None:
    for broker in (orders.a, orders.b):
        broker.connect().execute("UPDATE mqdb.topic SET perm = 4 WHERE topic = 'orders'")
    with producer_of(orders.dsn) as producer:
        with pytest.raises(TopicNotWritable):
            producer.fetch_publish_queues("orders")
        with pytest.raises(TopicNotWritable):
            producer.send(Message("orders", "x"))


def test_each_broker_has_its_own_number_of_write_queues(orders: TwoBrokers) -> None:
    orders.a.connect().execute("UPDATE mqdb.topic SET write_queue_nums = 1 WHERE topic = 'orders'")
    with producer_of(orders.dsn) as producer:
        expected = queues_of("broker-a", queue_nums=1) + queues_of("broker-b")

        assert producer.fetch_publish_queues("orders") == expected
        assert Counter(sent_to(producer, 10)) == dict.fromkeys(expected, 2)


def test_a_batch_that_a_broker_refuses_goes_to_the_other_as_a_whole(orders: TwoBrokers, to_two: Producer) -> None:
    refuse_appends(orders.a)

    batches = [to_two.send_batch([Message("orders", f"{b}.{n}") for n in range(3)]) for b in range(8)]

    assert {result.queue.broker_name for batch in batches for result in batch} == {"broker-b"}
    assert {len({result.queue for result in batch}) for batch in batches} == {1}
    assert stored_bodies(orders.b) == [f"{b}.{n}" for b in range(8) for n in range(3)]


def test_a_broker_that_is_down_at_the_start_joins_in_when_it_comes(orders: TwoBrokers, proxy_b: Proxy) -> None:
    proxy_b.cut()
    with producer_of(dsn_of_two(orders.a.dsn, proxy_b.dsn)) as producer:
        assert set(sent_to(producer, 8)) == set(queues_of("broker-a"))

        proxy_b.restore()

        wait_until(lambda: set(sent_to(producer, 8)) == set(queues_of("broker-a", "broker-b")))
        wait_until(lambda: is_registered(orders.b, "senders"))
    assert is_registered(orders.b, "senders") is False


def is_registered(broker: Database, group: str) -> bool:
    return broker.rows("SELECT FROM mqdb.client WHERE group_name = %s", group) != []


def test_a_topic_that_is_created_while_a_broker_is_down_is_not_created_there_later(
    two_brokers: TwoBrokers, proxy_b: Proxy
) -> None:
    """A topic created while a broker is down is not created there later.

    In RocketMQ, too, the first message creates a topic on its broker, which then provides the route.
    """
    proxy_b.cut()
    with producer_of(dsn_of_two(two_brokers.a.dsn, proxy_b.dsn)) as producer:
        sent_to(producer, 1, "new")
        proxy_b.restore()
        wait_until(lambda: is_registered(two_brokers.b, "senders"))

        assert set(sent_to(producer, 8, "new")) == set(queues_of("broker-a", topic="new"))


def test_all_brokers_down_at_the_start_is_an_error(two_brokers: TwoBrokers, proxy: Proxy, proxy_b: Proxy) -> None:
    proxy.cut()
    proxy_b.cut()

    with pytest.raises(BrokerUnavailable, match="none of them can be reached"):
        producer_of(dsn_of_two(proxy.dsn, proxy_b.dsn)).start()


def test_a_mistake_about_one_broker_is_an_error_at_the_start(two_brokers: TwoBrokers) -> None:
    with pytest.raises(AuthenticationFailed):
        producer_of(dsn_of_two(two_brokers.a.dsn, with_parts(two_brokers.b.dsn, password="wrong"))).start()
    with pytest.raises(BrokerMisnamed, match="'broker-b', not 'broker-a'"):
        producer_of(dsn_of_two(two_brokers.b.dsn, two_brokers.a.dsn)).start()


# -- latency fault tolerance ------------------------------------------------------------------


def test_a_broker_that_refused_is_left_alone_for_a_while(orders: TwoBrokers) -> None:
    refuse_appends(orders.a)
    with producer_of(orders.dsn, send_latency_fault_enable=True) as producer:
        attempts = attempts_of(producer)
        wait_until(lambda: bool(sent_to(producer, 1)) and "broker-a" in attempts.brokers)
        mend(orders.a)
        attempts.begun.clear()

        sent_to(producer, 40)

    assert set(attempts.brokers) == {"broker-b"}


def test_without_latency_fault_tolerance_it_gets_its_share_again_at_once(orders: TwoBrokers) -> None:
    refuse_appends(orders.a)
    with producer_of(orders.dsn) as producer:
        attempts = attempts_of(producer)
        wait_until(lambda: bool(sent_to(producer, 1)) and "broker-a" in attempts.brokers)
        mend(orders.a)

        assert {queue.broker_name for queue in sent_to(producer, 8)} == {"broker-a", "broker-b"}


def test_a_broker_that_was_slow_is_left_alone_and_used_again_later(
    orders: TwoBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    with producer_of(orders.dsn, send_latency_fault_enable=True) as producer:
        now = [0.0]
        monkeypatch.setattr(producer._work().sending._faults, "_clock", lambda: now[0])
        sent_to(producer, 8)
        on_append(orders.a, "PERFORM pg_sleep(1.5);")  # so that it is the slower one, whatever happens to the other
        producer.send(Message("orders", "slow"), queue=ON_A)
        mend(orders.a)

        now[0] += 1.9  # of 2 s alone
        assert {queue.broker_name for queue in sent_to(producer, 40)} == {"broker-b"}
        now[0] += 60
        wait_until(lambda: sent_to(producer, 1)[0].broker_name == "broker-a")


@pytest.mark.usefixtures("cancelled_early")
def test_a_broker_that_did_not_answer_in_time_is_left_alone(orders: TwoBrokers) -> None:
    with producer_of(orders.dsn, send_latency_fault_enable=True) as producer:
        sent_to(producer, 8)
        locker = stall(orders.a)
        late = partial(producer.send, Message("orders", "late"), queue=ON_A, timeout=timedelta(seconds=2))
        assert isinstance(Doing(late).error(), SendGivenUp)
        try:
            assert {queue.broker_name for queue in sent_to(producer, 40)} == {"broker-b"}
        finally:
            locker.rollback()


def test_while_no_broker_is_available_messages_are_sent_all_the_same(orders: TwoBrokers) -> None:
    for broker in (orders.a, orders.b):
        refuse_appends(broker)
    with producer_of(orders.dsn, send_latency_fault_enable=True) as producer:
        with pytest.raises(StorageRefused):
            producer.send(Message("orders", "x"))
        for broker in (orders.a, orders.b):
            mend(broker)

        assert len(sent_to(producer, 8)) == 8
