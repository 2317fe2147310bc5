"""The ways to send: chosen queues, timeouts, hooks, several brokers, and the question what became of a message."""

import os
import re
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import pytest

from mqdb.errors import (
    AuthenticationFailed,
    BatchTooLarge,
    BrokerMisnamed,
    BrokerUnavailable,
    NameInvalid,
    ParameterInvalid,
    RouteNotFound,
    SendGivenUp,
    SendOutcomeUnknown,
    StorageRefused,
    TopicNotWritable,
)
from mqdb.settings import load_settings
from mqdb_client import Message, MessageQueue, Producer, SendResult, SendStatus
from mqdb_client.durability import Durability
from mqdb_client.producer_hooks import SendMessageContext, SendMode
from mqdb_client.queue_selector import select_by_hash, select_random
from tests.fixtures.log import create_topic
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.producers import (
    TwoBrokers,
    attempts_of,
    break_connections,
    dsn_of_two,
    is_blocked,
    link_of,
    mend,
    on_append,
    pid_of,
    producer_of,
    refuse_appends,
    settled_outcome,
    stall,
    stored_bodies,
)
from tests.fixtures.proxy import Proxy
from tests.fixtures.threads import Doing

# One of two brokers that takes 0.3 s to connect to would be passed by.
pytestmark = pytest.mark.usefixtures("patient")

ON_A = MessageQueue("orders", "broker-a", 2)
ON_B = MessageQueue("orders", "broker-b", 2)
LONG = timedelta(seconds=30)


@pytest.fixture
def producer(database: Database) -> Iterator[Producer]:
    """A producer to one broker, which has the topic `orders` with 4 queues."""
    create_topic(database.connect(), "orders", 4)
    with producer_of(database.dsn) as producer:
        yield producer


@pytest.fixture
def orders(two_brokers: TwoBrokers) -> TwoBrokers:
    """Two brokers that both have the topic `orders` with 4 queues."""
    for broker in (two_brokers.a, two_brokers.b):
        create_topic(broker.connect(), "orders", 4)
    return two_brokers


@pytest.fixture
def to_two(orders: TwoBrokers) -> Iterator[Producer]:
    """A producer to both."""
    with producer_of(orders.dsn) as producer:
        yield producer


def queues_of(*brokers: str, topic: str = "orders", queue_nums: int = 4) -> tuple[MessageQueue, ...]:
    return tuple(MessageQueue(topic, broker, n) for broker in brokers for n in range(queue_nums))


def sent_to(producer: Producer, count: int, topic: str = "orders", **target: Any) -> list[MessageQueue]:
    return [producer.send(Message(topic, "x"), **target).queue for _ in range(count)]


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """A backend that does nothing at all."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


# -- chosen queues ----------------------------------------------------------------------------


@pytest.mark.parametrize("queue", [ON_A, ON_B])
def test_a_message_goes_to_the_queue_that_the_caller_names(
    orders: TwoBrokers, to_two: Producer, queue: MessageQueue
) -> None:
    result = to_two.send(Message("orders", "x"), queue=queue)
    batch = to_two.send_batch([Message("orders", "x")] * 2, queue=queue)
    later = to_two.send_async(Message("orders", "x"), queue=queue).result(10)
    to_two.send_oneway(Message("orders", "x"), queue=queue)

    assert {each.queue for each in (result, *batch, later)} == {queue}
    assert later.queue_offset == 3
    to_two.shutdown()
    broker = orders.a if queue is ON_A else orders.b
    rows = broker.connect().execute("SELECT queue_id FROM mqdb.commit_log JOIN mqdb.queue USING (queue_key)")
    assert rows.fetchall() == [(2,)] * 5


def test_a_queue_that_is_read_only_takes_what_is_sent_to_it_by_name(database: Database, producer: Producer) -> None:
    """As in RocketMQ: a number below the larger of the two counts will do."""
    database.connect().execute("UPDATE mqdb.topic SET write_queue_nums = 2 WHERE topic = 'orders'")

    assert set(sent_to(producer, 8)) == set(queues_of("broker-a", queue_nums=2))
    assert producer.send(Message("orders", "x"), queue=MessageQueue("orders", "broker-a", 3)).queue.queue_id == 3


def test_a_queue_of_a_broker_that_is_not_of_the_cluster_is_refused(to_two: Producer) -> None:
    with pytest.raises(ParameterInvalid, match="but broker-a"):
        to_two.send(Message("orders", "x"), queue=MessageQueue("orders", "broker-c", 0))


def test_a_queue_of_another_topic_is_refused(producer: Producer) -> None:
    with pytest.raises(ParameterInvalid, match="topic 'other'"):
        producer.send(Message("other", "x"), queue=ON_A)


@pytest.mark.parametrize(
    "target",
    [
        {"sharding_key": "k", "queue": ON_A},
        {"sharding_key": "k", "selector": select_random},
        {"queue": ON_A, "selector": select_random},
    ],
    ids=" and ".join,
)
def test_only_one_may_choose_the_queue(producer: Producer, target: dict[str, Any]) -> None:
    for send in (producer.send, producer.send_async, producer.send_oneway):
        with pytest.raises(ParameterInvalid, match="already"):
            send(Message("orders", "x"), **target)


def test_a_selector_gets_the_write_queues_of_all_brokers_the_message_and_the_argument(to_two: Producer) -> None:
    message, argument = Message("orders", "x"), object()
    asked: list[tuple[object, ...]] = []

    def select(queues: Sequence[MessageQueue], *rest: object) -> MessageQueue:
        asked.append((tuple(queues), *rest))
        return queues[-1]

    result = to_two.send(message, selector=select, selector_argument=argument)

    assert result.queue == MessageQueue("orders", "broker-b", 3)
    assert asked == [(queues_of("broker-a", "broker-b"), message, argument)]


def test_a_selector_by_hash_chooses_what_a_sharding_key_chooses(to_two: Producer) -> None:
    for key in map(str, range(20)):
        [by_selector] = sent_to(to_two, 1, selector=select_by_hash, selector_argument=key)
        assert sent_to(to_two, 2, sharding_key=key) == [by_selector] * 2


def test_sharding_keys_spread_over_the_queues_of_all_brokers(to_two: Producer) -> None:
    queues = {key: set(sent_to(to_two, 2, sharding_key=key)) for key in map(str, range(50))}

    assert all(len(of_key) == 1 for of_key in queues.values())
    assert set.union(*queues.values()) == set(queues_of("broker-a", "broker-b"))


def test_a_random_selector_spreads_over_the_queues_of_all_brokers(to_two: Producer) -> None:
    assert set(sent_to(to_two, 400, selector=select_random)) == set(queues_of("broker-a", "broker-b"))


@pytest.mark.parametrize("choice", [None, 2, MessageQueue("orders", "broker-a", 99), MessageQueue("x", "broker-a", 0)])
def test_a_selector_that_returns_none_of_the_queues_is_refused(producer: Producer, choice: object) -> None:
    selector: Any = lambda *_: choice  # noqa: E731

    with pytest.raises(ParameterInvalid, match="selector"):
        producer.send(Message("orders", "x"), selector=selector)


def test_what_a_selector_raises_reaches_the_caller_as_it_is(database: Database, producer: Producer) -> None:
    calls: list[object] = []

    def select(*_: object) -> MessageQueue:
        calls.append(1)
        raise LookupError("nowhere")

    with pytest.raises(LookupError, match="nowhere"):
        producer.send(Message("orders", "x"), selector=select)

    assert len(calls) == 1
    assert stored_bodies(database) == []


# -- timeouts ---------------------------------------------------------------------------------


@pytest.mark.usefixtures("cancelled_early")
def test_a_timeout_of_the_call_wins_over_the_setting(database: Database) -> None:
    create_topic(database.connect(), "orders", 4)
    with producer_of(database.dsn, "100s") as producer:
        producer.send(Message("orders", "first"))
        locker = stall(database)
        soon = timedelta(seconds=2)
        sends: list[Callable[[], object]] = [
            partial(producer.send, Message("orders", "late"), timeout=soon),
            partial(producer.send_batch, [Message("orders", "late")] * 2, timeout=soon),
        ]

        for send in sends:
            sending = Doing(send)
            assert isinstance(sending.error(), SendGivenUp)
            assert 0.4 < sending.seconds < 20
        locker.rollback()
        producer.send(Message("orders", "second"))

    assert stored_bodies(database) == ["first", "second"]


def test_what_is_no_name_is_refused(database: Database, producer: Producer) -> None:
    given: Any = 5
    with pytest.raises(NameInvalid, match="topic name '5': is int"):
        producer.fetch_publish_queues(given)
    with pytest.raises(ParameterInvalid, match="instance_name = 5"):
        producer_of(database.dsn, instance_name=given)


def test_a_message_is_no_batch(producer: Producer) -> None:
    given: Any = Message("orders", "x")
    with pytest.raises(ParameterInvalid, match="is one message; give a list"):
        producer.send_batch(given)


@pytest.mark.parametrize("timeout", [timedelta(0), timedelta(seconds=-1), 3000])
def test_a_timeout_that_is_none_is_refused(producer: Producer, timeout: Any) -> None:
    with pytest.raises(ParameterInvalid, match="more than 0"):
        producer.send(Message("orders", "x"), timeout=timeout)
    with pytest.raises(ParameterInvalid, match="more than 0"):
        producer.send_batch([Message("orders", "x")], timeout=timeout)


# -- hooks ------------------------------------------------------------------------------------


class Forbidden(Exception):
    pass


class Recorder:
    """A hook of both kinds: writes down what it is asked, and raises where it is told to."""

    def __init__(self, calls: list[str], name: str, fails_at: str = "", from_call: int = 1) -> None:
        self.hook_name = name
        self._calls = calls
        self._fails_at = fails_at
        self._from_call = from_call

    def check_forbidden(self, context: SendMessageContext) -> None:
        self._record("check")

    def send_message_before(self, context: SendMessageContext) -> None:
        self._record("before")

    def send_message_after(self, context: SendMessageContext) -> None:
        self._record("after")

    def _record(self, moment: str) -> None:
        call = f"{self.hook_name} {moment}"
        self._calls.append(call)
        if moment == self._fails_at and self._calls.count(call) >= self._from_call:
            raise Forbidden(call)


def test_hooks_are_called_in_the_order_of_their_registration(producer: Producer) -> None:
    calls: list[str] = []
    for name in ("one", "two"):
        hook = Recorder(calls, name)
        producer.register_send_message_hook(hook)
        producer.register_check_forbidden_hook(hook)

    producer.send(Message("orders", "x"))

    assert calls == ["one check", "two check", "one before", "two before", "one after", "two after"]


@pytest.mark.parametrize("moment", ["before", "after"])
def test_what_a_send_message_hook_raises_is_logged_and_stops_nobody(
    database: Database, producer: Producer, moment: str, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[str] = []
    producer.register_send_message_hook(Recorder(calls, "one", fails_at=moment))
    producer.register_send_message_hook(Recorder(calls, "two"))

    assert producer.send(Message("orders", "x")).status is SendStatus.SEND_OK

    assert calls == ["one before", "two before", "one after", "two after"]
    assert "a send message hook failed" in caplog.text
    assert stored_bodies(database) == ["x"]


def test_a_check_forbidden_hook_stops_each_way_to_send(database: Database, producer: Producer) -> None:
    calls: list[str] = []
    producer.register_check_forbidden_hook(Recorder(calls, "police", fails_at="check"))
    producer.register_send_message_hook(Recorder(calls, "witness"))

    with pytest.raises(Forbidden):
        producer.send(Message("orders", "x"))
    with pytest.raises(Forbidden):
        producer.send_batch([Message("orders", "x")] * 2)
    with pytest.raises(Forbidden):
        producer.send_async(Message("orders", "x")).result(10)
    producer.send_oneway(Message("orders", "x"))
    producer.shutdown()

    assert calls == ["police check"] * 4
    assert stored_bodies(database) == []


def test_hooks_see_every_attempt_and_what_became_of_it(orders: TwoBrokers, to_two: Producer) -> None:
    attempts = attempts_of(to_two)
    refuse_appends(orders.a)

    results = [to_two.send(Message("orders", str(n))) for n in range(8)]

    assert attempts.ended == attempts.begun
    for context in attempts.ended:
        if context.broker_name == "broker-a":
            assert isinstance(context.error, StorageRefused)
            assert context.result is None
        else:
            assert context.error is None
            assert context.result in results


def test_a_hook_sees_a_batch_as_a_whole(producer: Producer) -> None:
    attempts = attempts_of(producer)
    messages = [Message("orders", str(n)) for n in range(3)]

    results = producer.send_batch(messages)

    [context] = attempts.ended
    assert list(context.messages) == messages
    assert list(context.message_ids) == [result.message_id for result in results]
    assert list(context.results) == results
    assert (context.producer_group, context.mode, context.queue) == ("senders", SendMode.SYNC, results[0].queue)


def test_a_hook_knows_how_the_caller_waits(producer: Producer) -> None:
    attempts = attempts_of(producer)

    producer.send_async(Message("orders", "x")).result(10)
    producer.send_oneway(Message("orders", "x"))
    producer.shutdown()

    assert [context.mode for context in attempts.ended] == [SendMode.ASYNC, SendMode.ONEWAY]


def test_what_begins_for_a_hook_ends_for_it_too_where_a_batch_is_too_large(producer: Producer) -> None:
    attempts = attempts_of(producer)

    with pytest.raises(BatchTooLarge):
        producer.send_batch([Message("orders", b"x" * 2_097_152)] * 2)

    assert attempts.begun == attempts.ended


def test_a_hook_that_is_none_is_refused(producer: Producer) -> None:
    no_hook: Any = object()
    with pytest.raises(ParameterInvalid):
        producer.register_send_message_hook(no_hook)
    with pytest.raises(ParameterInvalid):
        producer.register_check_forbidden_hook(no_hook)


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
    """As in RocketMQ, whose first message creates a topic where it goes, and its route is found there from then on."""
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


def with_wrong_password(dsn: str) -> str:
    parts = urlsplit(dsn)
    return parts._replace(netloc=f"{parts.username}:wrong@{parts.hostname}:{parts.port}").geturl()


def test_a_mistake_about_one_broker_is_an_error_at_the_start(two_brokers: TwoBrokers) -> None:
    with pytest.raises(AuthenticationFailed):
        producer_of(dsn_of_two(two_brokers.a.dsn, with_wrong_password(two_brokers.b.dsn))).start()
    with pytest.raises(BrokerMisnamed, match="'broker-b', not 'broker-a'"):
        producer_of(dsn_of_two(two_brokers.b.dsn, two_brokers.a.dsn)).start()


# -- retries ----------------------------------------------------------------------------------


def test_the_error_of_a_send_that_was_tried_again_tells_where_it_went(orders: TwoBrokers, to_two: Producer) -> None:
    for broker in (orders.a, orders.b):
        refuse_appends(broker)

    error = Doing(partial(to_two.send, Message("orders", "x"))).error()

    [note] = error.__notes__
    story, brokers = note.split(", to ")
    assert re.fullmatch(r"sent 3 times in \d+\.\d\d s", story)
    assert sorted(set(brokers.split(", "))) == ["broker-a", "broker-b"]


def test_the_error_of_a_send_that_was_tried_once_has_no_story(database: Database, producer: Producer) -> None:
    refuse_appends(database)

    error = Doing(partial(producer.send, Message("orders", "x"), sharding_key="k")).error()

    assert not hasattr(error, "__notes__")


def test_a_send_whose_connection_breaks_is_tried_again_on_the_same_broker(orders: TwoBrokers, to_two: Producer) -> None:
    """Another broker cannot know whether it is stored."""
    attempts = attempts_of(to_two)
    for broker in (orders.a, orders.b):
        break_connections(broker)

    error = Doing(partial(to_two.send, Message("orders", "x"))).error()

    assert isinstance(error, BrokerUnavailable)
    assert "nothing was stored" in str(error)
    assert len(attempts.begun) == 3
    assert len(set(attempts.brokers)) == 1


def test_a_send_whose_connection_breaks_is_stored_once_though_the_next_one_breaks_too(
    database: Database, proxy: Proxy
) -> None:
    with producer_of(proxy.dsn, "20s") as producer:
        producer.send(Message("orders", "first"))
        pid, locker = pid_of(producer), stall(database)
        questions = link_of(producer)._questions
        first_way = questions._link
        sending = Doing(partial(producer.send, Message("orders", "second")))
        wait_until(lambda: is_blocked(database, pid))
        with stopped(pid):
            # Given a send that asks whether its backend has ended, over and over
            proxy.cut()
            proxy.restore()
            wait_until(lambda: questions._link not in (None, first_way))
            # when this connection breaks while it waits for an answer
            proxy.freeze()
            wait_until(lambda: questions._current is not None)
            proxy.cut()
            proxy.restore()
        locker.rollback()

        # then it asks again on another one.
        assert sending.result().status is SendStatus.SEND_OK
    assert stored_bodies(database) == ["first", "second"]


def test_what_is_stored_stays_a_result_where_the_next_try_is_forbidden(orders: TwoBrokers) -> None:
    calls: list[str] = []
    options: dict[str, Any] = {"durability": Durability.SYNC_MASTER, "retry_another_broker_when_not_store_ok": True}
    with producer_of(orders.dsn, **options) as producer:
        producer.register_check_forbidden_hook(Recorder(calls, "police", fails_at="check", from_call=2))

        result = producer.send(Message("orders", "x"))

    assert result.status is SendStatus.SLAVE_NOT_AVAILABLE
    assert calls == ["police check"] * 2
    assert stored_bodies(orders.a) + stored_bodies(orders.b) == ["x"]


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


# -- what became of a message -----------------------------------------------------------------


@pytest.mark.parametrize("queue", [ON_A, ON_B])
def test_the_outcome_of_a_message_that_is_stored_is_its_result(to_two: Producer, queue: MessageQueue) -> None:
    sent = to_two.send_batch([Message("orders", "x"), Message("orders", "y")], queue=queue)[1]

    found = to_two.outcome(sent.message_id)

    assert found is not None
    assert place_of(found) == place_of(sent)
    assert found.queue_offset == 1


def place_of(result: SendResult) -> tuple[object, ...]:
    return result.status, result.message_id, result.queue, result.log_pos


def test_another_producer_finds_it_as_well(database: Database, producer: Producer) -> None:
    sent = producer.send(Message("orders", "x"))
    with producer_of(database.dsn, group="others") as other:
        found = other.outcome(sent.message_id)

    assert found is not None
    assert place_of(found) == place_of(sent)


def test_the_outcome_of_an_id_that_nobody_has_sent_is_none(to_two: Producer) -> None:
    to_two.send(Message("orders", "x"))

    assert to_two.outcome("0" * 32) is None


def test_the_outcome_of_a_message_whose_topic_is_gone_is_none(database: Database, producer: Producer) -> None:
    sent = producer.send(Message("orders", "x"))
    database.connect().execute("DELETE FROM mqdb.topic WHERE topic = 'orders'")

    assert producer.outcome(sent.message_id) is None


@pytest.mark.parametrize("text", ["", "17", "G" * 32, "0" * 33, None])
def test_what_is_no_id_is_refused(producer: Producer, text: Any) -> None:
    with pytest.raises(ParameterInvalid, match="32 hexadecimal digits"):
        producer.outcome(text)


def unknown_error(sending: "Doing[Any]") -> SendOutcomeUnknown:
    error = sending.error()
    assert isinstance(error, SendOutcomeUnknown)
    return error


def test_the_outcome_is_open_as_long_as_the_backend_may_still_store_the_message(database: Database) -> None:
    with producer_of(database.dsn, "1s") as producer:
        producer.send(Message("orders", "first"), timeout=LONG)
        with stopped(pid_of(producer)):
            error = unknown_error(Doing(partial(producer.send, Message("orders", "perhaps"))))
            [message_id] = error.message_ids

            with pytest.raises(BrokerUnavailable):
                producer.outcome(message_id)

        found = settled_outcome(producer, message_id)

    stored = stored_bodies(database)
    assert stored == (["first", "perhaps"] if found else ["first"])


def test_the_outcome_of_a_message_that_never_reached_the_broker_is_none(database: Database, proxy: Proxy) -> None:
    with producer_of(proxy.dsn, "1s") as producer:
        producer.send(Message("orders", "first"), timeout=LONG)
        proxy.freeze()
        error = unknown_error(Doing(partial(producer.send, Message("orders", "never"))))
        proxy.cut()
        proxy.restore()

        assert [settled_outcome(producer, message_id) for message_id in error.message_ids] == [None]
    assert stored_bodies(database) == ["first"]


def test_the_outcome_of_messages_whose_answer_was_lost_is_where_they_are(database: Database, proxy: Proxy) -> None:
    with producer_of(proxy.dsn) as producer:
        # The server has to know the statement already: else it waits for the lock before it has seen the messages.
        producer.send_batch([Message("orders", "first")] * 2)
        pid = pid_of(producer)
        locker = stall(database)
        messages = [Message("orders", "x"), Message("orders", "y")]
        sending = Doing(partial(producer.send_batch, messages, timeout=timedelta(seconds=3)))
        wait_until(lambda: is_blocked(database, pid))
        proxy.freeze()
        locker.rollback()
        error = unknown_error(sending)
        proxy.cut()
        proxy.restore()
        found = [settled_outcome(producer, message_id) for message_id in error.message_ids]

    positions = database.connect().execute("SELECT log_pos FROM mqdb.commit_log ORDER BY log_pos").fetchall()
    assert [result and result.log_pos for result in found] == [position for (position,) in positions[2:]]
    assert [result and result.message_id for result in found] == list(error.message_ids)
    assert stored_bodies(database) == ["first", "first", "x", "y"]


def test_what_another_broker_has_is_found_while_one_is_down(orders: TwoBrokers, proxy: Proxy) -> None:
    with producer_of(dsn_of_two(proxy.dsn, orders.b.dsn)) as producer:
        sent = producer.send(Message("orders", "x"), queue=ON_B)
        proxy.cut()

        found = producer.outcome(sent.message_id)
        with pytest.raises(BrokerUnavailable):  # for that broker may have it
            producer.outcome("0" * 32)

    assert found is not None
    assert found.log_pos == sent.log_pos
