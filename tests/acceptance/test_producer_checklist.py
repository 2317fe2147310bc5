"""Rows 1 to 11 and 13 to 23 of the checklist of RocketMQ's behaviours: the producer, through the public API alone.

The outcome of a send is checked in the database, and the number of its attempts by a SendMessageHook.
"""

import os
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import psycopg
import pytest

from mqdb.common.compression import Compression
from mqdb.common.durability import Durability
from mqdb.embedded import EmbeddedPostgres
from mqdb.errors import (
    BY_SQLSTATE,
    BatchTooLarge,
    BodyEmpty,
    BodyInvalid,
    BodyTooLarge,
    BrokerUnavailable,
    IllegalState,
    MessageIllegal,
    MqdbError,
    NameInvalid,
    NotSupported,
    ParameterInvalid,
    PropertiesTooLarge,
    PropertyReserved,
    QueueNotFound,
    RouteNotFound,
    SendGivenUp,
    SendOutcomeUnknown,
    StorageRefused,
    TopicNotAllowed,
    TopicNotFound,
    TopicNotWritable,
    TransactionUnsuitable,
)
from mqdb.settings import load_settings
from mqdb_client import Message, MessageQueue, Producer, PushConsumer, SendResult, SendStatus
from mqdb_client.producer.queues.queue_selector import select_by_hash
from tests.fixtures.consumers import Inbox, Member
from tests.fixtures.log import create_topic
from tests.fixtures.postgres import Database, new_database
from tests.fixtures.producers import (
    TwoBrokers,
    attempts_of,
    break_connections,
    dsn_of_two,
    mend,
    on_append,
    producer_of,
    refuse_appends,
    stored_bodies,
    wait_connected,
)
from tests.fixtures.proxy import Proxy
from tests.fixtures.threads import Doing

MESSAGE_ILLEGAL = BodyTooLarge(10, 9)
NO_PERMISSION = TopicNotWritable("orders", 4)
INVALID_PARAMETER = TransactionUnsuitable("mqdb.recall", "needs another one")
DISK_FULL = None

SELECTIONS: dict[str, dict[str, Any]] = {
    "selector": {"selector": select_by_hash, "selector_argument": "order-17"},
    "queue": {"queue": MessageQueue("orders", "broker-a", 0)},
    "sharding key": {"sharding_key": "customer-4"},
}
each_selection = pytest.mark.parametrize("selection", SELECTIONS.values(), ids=SELECTIONS)


@pytest.fixture
def producer(database: Database) -> Iterator[Producer]:
    with producer_of(database.dsn) as producer:
        yield producer


@pytest.fixture(scope="module")
def shared_database(postgres: EmbeddedPostgres, template_database: str) -> Iterator[Database]:
    """One database for all tests of refusals."""
    with new_database(postgres, template_database) as database:
        yield database


@pytest.fixture(scope="module")
def shared_producer(shared_database: Database) -> Iterator[Producer]:
    """One producer for all refused messages."""
    with producer_of(shared_database.dsn, group="refused") as producer:
        yield producer


@contextmanager
def nothing_stored(database: Database) -> Iterator[None]:
    """Assert that the block stores no message; messages stored earlier do not matter."""
    before = stored_bodies(database)
    yield
    assert stored_bodies(database) == before


@pytest.fixture
def to_two(two_brokers: TwoBrokers) -> Iterator[Producer]:
    """A producer with two brokers, which both have the topic `orders` with 4 queues."""
    create_orders(two_brokers)
    with producer_of(two_brokers.dsn) as producer:
        wait_connected(producer)
        yield producer


def create_orders(brokers: TwoBrokers) -> None:
    for broker in (brokers.a, brokers.b):
        create_topic(broker.connect(), "orders", 4)


def all_bodies(brokers: TwoBrokers) -> list[str]:
    return stored_bodies(brokers.a) + stored_bodies(brokers.b)


# -- groups: rows 1 to 4 ----------------------------------------------------------------------

CLIENTS: list[Callable[..., Producer | PushConsumer]] = [Producer, PushConsumer]
each_client = pytest.mark.parametrize("client", CLIENTS)


@each_client
@pytest.mark.parametrize("group", ["a.b", "组", "a b", "a/b", "a$b", " ", "", "grüße"])
def test_row_01_a_group_with_another_character_is_refused(
    shared_database: Database, client: Callable[..., object], group: str
) -> None:
    with pytest.raises(NameInvalid):
        client(group, shared_database.dsn)


def test_row_01_a_group_of_all_allowed_characters_sends(database: Database) -> None:
    with producer_of(database.dsn, group="Az09_-%|") as producer:
        producer.send(Message("orders", "x"))

    assert stored_bodies(database) == ["x"]


@each_client
def test_row_02_a_group_has_120_characters_at_most(shared_database: Database, client: Callable[..., object]) -> None:
    client("g" * 120, shared_database.dsn)

    with pytest.raises(NameInvalid, match="121 characters"):
        client("g" * 121, shared_database.dsn)


@pytest.mark.parametrize(
    ("client", "group"), [(Producer, "DEFAULT_PRODUCER"), (PushConsumer, "DEFAULT_CONSUMER")], ids=str
)
def test_row_03_the_group_that_users_forget_to_choose_is_refused(
    shared_database: Database, client: Callable[..., object], group: str
) -> None:
    with pytest.raises(NameInvalid, match="reserved"):
        client(group, shared_database.dsn)


def test_row_04_the_same_group_twice_in_a_process_is_refused_and_the_first_works_on(
    database: Database, producer: Producer
) -> None:
    second = producer_of(database.dsn)

    with pytest.raises(IllegalState, match="created before"):
        second.start()

    producer.send(Message("orders", "from the first"))
    producer.shutdown()
    with second:
        second.send(Message("orders", "from the second, now that the group is free"))
    assert len(stored_bodies(database)) == 2


def test_row_04_under_another_instance_name_it_is_another_client(database: Database, producer: Producer) -> None:
    with producer_of(database.dsn, instance_name="blue") as other:
        producer.send(Message("orders", "x"))
        other.send(Message("orders", "y"))
        rows = database.connect().execute("SELECT client_id FROM mqdb.client WHERE group_name = 'senders'").fetchall()

    names = sorted(client_id.partition("@")[2] for (client_id,) in rows)
    assert len(names) == 2
    assert names[0].startswith(f"{os.getpid()}#")
    assert names[1] == "blue"


# -- messages: rows 5 to 10 -------------------------------------------------------------------


def test_row_05_a_topic_has_127_characters_at_most(database: Database, producer: Producer) -> None:
    producer.send(Message("t" * 127, "fits"))

    with pytest.raises(NameInvalid, match="128 characters"):
        producer.send(Message("t" * 128, "does not"))

    assert stored_bodies(database) == ["fits"]


@pytest.mark.parametrize("topic", ["a.b", "题", "a b", "", " "])
def test_row_05_a_topic_with_another_character_is_refused(
    shared_database: Database, shared_producer: Producer, topic: str
) -> None:
    with nothing_stored(shared_database), pytest.raises(NameInvalid):
        shared_producer.send(Message(topic, "x"))


BLOCKED = [
    "SCHEDULE_TOPIC_XXXX",
    "RMQ_SYS_TRANS_HALF_TOPIC",
    "RMQ_SYS_TRANS_OP_HALF_TOPIC",
    "TRANS_CHECK_MAX_TIME_TOPIC",
    "SELF_TEST_TOPIC",
    "OFFSET_MOVED_EVENT",
]


@pytest.mark.parametrize("topic", BLOCKED)
def test_row_06_nobody_may_send_to_the_broker_s_own_topics(
    shared_database: Database, shared_producer: Producer, topic: str
) -> None:
    with nothing_stored(shared_database):
        with pytest.raises(TopicNotAllowed) as refusal:
            shared_producer.send(Message(topic, "x"))
        with pytest.raises(psycopg.Error) as refusal_in_sql:
            shared_database.connect().execute("SELECT mqdb.send(%s, 'x'::text)", [topic])

    assert refusal.value.code == 16
    assert BY_SQLSTATE[refusal_in_sql.value.sqlstate or ""].code == NO_PERMISSION.code


def test_row_06_the_template_topic_takes_messages_as_in_rocketmq_5(database: Database, producer: Producer) -> None:
    producer.send(Message("TBW102", "x"))

    assert stored_bodies(database) == ["x"]


@pytest.mark.parametrize("body", [b"", ""])
def test_row_07_an_empty_body_is_refused(
    shared_database: Database, shared_producer: Producer, body: bytes | str
) -> None:
    with nothing_stored(shared_database), pytest.raises(BodyEmpty) as refusal:
        shared_producer.send(Message("orders", body))

    assert refusal.value.code == 13


def test_row_07_no_body_and_no_message_are_refused(shared_producer: Producer) -> None:
    nothing: Any = None

    with pytest.raises(BodyInvalid) as without_body:
        Message("orders", nothing)
    with pytest.raises(MessageIllegal) as without_message:
        shared_producer.send(nothing)

    assert (without_body.value.code, without_message.value.code) == (13, 13)


def test_row_08_a_body_has_4_mib_at_most(database: Database, producer: Producer) -> None:
    producer.send(Message("orders", b"x" * 4_194_304))

    with pytest.raises(BodyTooLarge) as refusal:
        producer.send(Message("orders", b"x" * 4_194_305))

    assert refusal.value.code == 13
    assert [len(body) for body in stored_bodies(database)] == [4_194_304]


def test_row_09_the_properties_have_32_767_bytes_at_most(database: Database, producer: Producer) -> None:
    # RocketMQ's encoding: name, a byte, value, a byte; and UNIQ_KEY, 8 letters and 32 digits, comes to each message.
    most = 32_767 - (len("p") + 2) - (8 + 32 + 2)
    producer.send(Message("orders", "fits", properties={"p": "x" * most}))

    with pytest.raises(PropertiesTooLarge) as refusal:
        producer.send(Message("orders", "does not", properties={"p": "x" * (most + 1)}))

    assert refusal.value.code == 13
    assert stored_bodies(database) == ["fits"]


@pytest.mark.parametrize("name", ["TAGS", "KEYS", "DELAY", "UNIQ_KEY", "TRAN_MSG", "WAIT", "1ST_POP_TIME", "__CRC32#"])
def test_row_10_a_reserved_property_is_refused(shared_database: Database, shared_producer: Producer, name: str) -> None:
    with nothing_stored(shared_database), pytest.raises(PropertyReserved, match=name):
        shared_producer.send(Message("orders", "x", properties={name: "1"}))


@pytest.mark.parametrize("name", ["__SHARDINGKEY", "__transactionId__", "TRANSACTION_CHECK_TIMES", "tags", "KEY"])
def test_row_10_a_property_that_is_not_reserved_passes(database: Database, producer: Producer, name: str) -> None:
    producer.send(Message("orders", "x", properties={name: "1"}))

    assert stored_bodies(database) == ["x"]


# -- compression: row 11 ----------------------------------------------------------------------

SYS_FLAGS = [(Compression.ZLIB, 0x301), (Compression.LZ4, 0x101), (Compression.ZSTD, 0x201)]


@pytest.mark.parametrize(("compression", "sys_flag"), SYS_FLAGS)
def test_row_11_a_body_is_compressed_from_4_096_bytes_on(
    database: Database, member: Member, compression: Compression, sys_flag: int
) -> None:
    shorter, longer = b"x" * 4_095, b"x" * 4_096
    with producer_of(database.dsn, compression=compression) as producer:
        for body in (shorter, longer):
            producer.send(Message("orders", body))
        producer.send_batch([Message("orders", longer)] * 2)
        inbox = Inbox()
        member(inbox)
        inbox.wait_for(4)

    received = sorted((len(message.body), message.sys_flag, message.body) for message in inbox.messages)
    # The messages of a batch are never compressed.
    assert received == [(4_095, 0, shorter), (4_096, 0, longer), (4_096, 0, longer), (4_096, sys_flag, longer)]


def test_row_11_without_being_told_to_a_producer_does_not_compress(database: Database, producer: Producer) -> None:
    """A producer compresses only on request, so that SQL can read bodies. RocketMQ compresses by default."""
    producer.send(Message("orders", "x" * 5_000))

    assert stored_bodies(database) == ["x" * 5_000]


# -- topics and queues: rows 13 to 15 ---------------------------------------------------------


def test_row_13_the_first_message_creates_its_topic(database: Database, producer: Producer) -> None:
    producer.send(Message("new", "x"))

    connection = database.connect()
    route = connection.execute("SELECT read_queue_nums, write_queue_nums, perm FROM mqdb.topic WHERE topic = 'new'")
    assert route.fetchall() == [(4, 4, 6)]
    assert producer.fetch_publish_queues("new") == tuple(MessageQueue("new", "broker-a", n) for n in range(4))


def test_row_14_with_automatic_topics_off_at_the_client_an_unknown_topic_is_no_route(database: Database) -> None:
    settings = load_settings(dsn=database.dsn, auto_create_topic_enable=False)
    with Producer("senders", settings=settings) as producer, pytest.raises(RouteNotFound) as refusal:
        producer.send(Message("new", "x"))

    assert refusal.value.code == 10005
    assert stored_bodies(database) == []


def test_row_14_with_automatic_topics_off_at_the_broker_an_unknown_topic_is_no_route(
    database: Database, producer: Producer
) -> None:
    database.connect().execute("UPDATE mqdb.topic SET perm = 6 WHERE topic = 'TBW102'")

    with pytest.raises(RouteNotFound) as refusal:
        producer.send(Message("new", "x"))

    assert refusal.value.code == 10005


def test_row_14_the_broker_itself_says_17(database: Database, producer: Producer) -> None:
    with database.connect(autocommit=False) as connection, pytest.raises(TopicNotFound) as refusal:
        producer.send(Message("new", "x"), connection=connection)

    assert refusal.value.code == 17


def test_row_15_8_sends_over_4_queues_are_2_each(database: Database, producer: Producer) -> None:
    create_topic(database.connect(), "orders", 4)

    queues = Counter(producer.send(Message("orders", "x")).queue.queue_id for _ in range(8))

    assert queues == {0: 2, 1: 2, 2: 2, 3: 2}


def test_row_15_the_queues_of_all_brokers_take_turns(to_two: Producer) -> None:
    queues = Counter(to_two.send(Message("orders", "x")).queue for _ in range(16))

    assert queues == {MessageQueue("orders", broker, n): 2 for broker in ("broker-a", "broker-b") for n in range(4)}


# -- retries: rows 16 to 18 -------------------------------------------------------------------


def test_row_16_a_send_that_a_broker_refuses_goes_to_the_other(two_brokers: TwoBrokers, to_two: Producer) -> None:
    attempts = attempts_of(to_two)
    refuse_appends(two_brokers.a)

    results = [to_two.send(Message("orders", str(n))) for n in range(8)]

    assert {result.queue.broker_name for result in results} == {"broker-b"}
    assert {message_id for context in attempts.begun for message_id in context.message_ids} == {
        result.message_id for result in results
    }
    assert sorted(stored_bodies(two_brokers.b)) == sorted(map(str, range(8)))
    assert "broker-a" in attempts.brokers
    assert "broker-a, broker-a" not in ", ".join(attempts.brokers)


@pytest.mark.parametrize(("error", "code"), [(DISK_FULL, 14), (NO_PERMISSION, 16)])
def test_row_16_a_send_is_tried_three_times_by_turns(
    two_brokers: TwoBrokers, to_two: Producer, error: MqdbError | None, code: int
) -> None:
    attempts = attempts_of(to_two)
    for broker in (two_brokers.a, two_brokers.b):
        refuse_appends(broker, error)

    with pytest.raises(MqdbError) as refusal:
        to_two.send(Message("orders", "x"))

    first, second, third = attempts.brokers
    assert first == third != second
    assert refusal.value.code == code
    [note] = refusal.value.__notes__
    assert re.fullmatch(rf"sent 3 times in \d+\.\d\d s, to {first}, {second}, {third}", note)


def test_row_16_with_one_broker_that_is_tried_three_times(database: Database, producer: Producer) -> None:
    attempts = attempts_of(producer)
    refuse_appends(database)

    with pytest.raises(StorageRefused):
        producer.send(Message("orders", "x"))

    assert attempts.brokers == ["broker-a"] * 3


@pytest.mark.parametrize("times", [0, 1, 5])
def test_row_16_how_often_is_a_setting(database: Database, times: int) -> None:
    refuse_appends(database)
    with producer_of(database.dsn, retry_times_when_send_failed=times) as producer:
        attempts = attempts_of(producer)
        with pytest.raises(StorageRefused):
            producer.send(Message("orders", "x"))

    assert len(attempts.begun) == 1 + times


def test_row_16_a_broker_that_cannot_be_reached_is_left_for_the_other(two_brokers: TwoBrokers, proxy: Proxy) -> None:
    create_orders(two_brokers)
    with producer_of(dsn_of_two(proxy.dsn, two_brokers.b.dsn)) as producer:
        wait_connected(producer)
        for _ in range(8):
            producer.send(Message("orders", "before"))
        attempts = attempts_of(producer)
        proxy.cut()

        sending = [Doing(partial(producer.send, Message("orders", "after"))) for _ in range(8)]

        assert {doing.result().queue.broker_name for doing in sending} == {"broker-b"}
        # Of the 30 that it may take to wait for it.
        assert max(doing.seconds for doing in sending) < 15
    assert "broker-a" in attempts.brokers
    assert Counter(all_bodies(two_brokers)) == {"before": 8, "after": 8}


def test_row_16_all_tries_share_one_timeout(two_brokers: TwoBrokers) -> None:
    create_orders(two_brokers)
    with producer_of(two_brokers.dsn, "2500ms") as producer:
        wait_connected(producer)
        producer.send(Message("orders", "first"), timeout=timedelta(seconds=30))
        attempts = attempts_of(producer)
        for broker in (two_brokers.a, two_brokers.b):
            on_append(broker, "PERFORM pg_sleep(1.5); RAISE EXCEPTION 'slowly refused';")

        sending = Doing(partial(producer.send, Message("orders", "x")))

        # With a timeout of its own the second would be refused, and so would the third.
        assert isinstance(sending.error(), SendGivenUp | SendOutcomeUnknown)
        assert 2.2 < sending.seconds < 15
    assert len(attempts.begun) == 2
    assert all_bodies(two_brokers) == ["first"]


@pytest.mark.parametrize(("error", "code"), [(MESSAGE_ILLEGAL, 13), (INVALID_PARAMETER, 29)])
def test_row_17_what_another_try_cannot_mend_is_not_tried_again(
    two_brokers: TwoBrokers, to_two: Producer, error: MqdbError | None, code: int
) -> None:
    attempts = attempts_of(to_two)
    for broker in (two_brokers.a, two_brokers.b):
        refuse_appends(broker, error)

    with pytest.raises(MqdbError) as refusal:
        to_two.send(Message("orders", "x"))

    assert refusal.value.code == code
    assert len(attempts.begun) == 1


@pytest.mark.parametrize(
    ("message", "code"),
    [(Message("orders", b""), 13), (Message("or ders", "x"), 29), (Message("SELF_TEST_TOPIC", "x"), 16)],
)
def test_row_17_what_the_client_sees_itself_is_not_tried_at_all(
    shared_producer: Producer, message: Message, code: int
) -> None:
    attempts = attempts_of(shared_producer)

    with pytest.raises(MqdbError) as refusal:
        shared_producer.send(message)

    assert refusal.value.code == code
    assert attempts.begun == []


@each_selection
def test_row_18_a_send_to_a_chosen_queue_is_not_tried_again(
    two_brokers: TwoBrokers, to_two: Producer, selection: dict[str, Any]
) -> None:
    attempts = attempts_of(to_two)
    for broker in (two_brokers.a, two_brokers.b):
        refuse_appends(broker)

    with pytest.raises(StorageRefused):
        to_two.send(Message("orders", "x"), **selection)

    assert len(attempts.begun) == 1
    for broker in (two_brokers.a, two_brokers.b):
        mend(broker)
    to_two.send(Message("orders", "later"), **selection)
    assert all_bodies(two_brokers) == ["later"]


@each_selection
def test_row_18_nor_where_the_connection_breaks(
    two_brokers: TwoBrokers, to_two: Producer, selection: dict[str, Any]
) -> None:
    attempts = attempts_of(to_two)
    for broker in (two_brokers.a, two_brokers.b):
        break_connections(broker)

    with pytest.raises(BrokerUnavailable, match="nothing was stored"):
        to_two.send(Message("orders", "x"), **selection)

    assert len(attempts.begun) == 1


# -- async and oneway: rows 19 and 20 ---------------------------------------------------------


class Callback:
    """A callback that records the outcomes of its calls."""

    def __init__(self) -> None:
        self.called = threading.Semaphore(0)
        self.outcomes: list[SendResult | BaseException] = []

    def __call__(self, future: "Future[SendResult]") -> None:
        self.outcomes.append(future.exception() or future.result())
        self.called.release()

    def outcome(self) -> SendResult | BaseException:
        assert self.called.acquire(timeout=30)
        [outcome] = self.outcomes
        return outcome


@pytest.mark.parametrize(("error", "code"), [(DISK_FULL, 14), (NO_PERMISSION, 16), (MESSAGE_ILLEGAL, 13)])
def test_row_19_an_async_send_that_a_broker_refuses_is_not_tried_again(
    two_brokers: TwoBrokers, to_two: Producer, error: MqdbError | None, code: int
) -> None:
    attempts, callback = attempts_of(to_two), Callback()
    for broker in (two_brokers.a, two_brokers.b):
        refuse_appends(broker, error)

    to_two.send_async(Message("orders", "x"), callback=callback)

    outcome = callback.outcome()
    assert isinstance(outcome, MqdbError)
    assert outcome.code == code
    assert len(attempts.begun) == 1


@pytest.mark.parametrize("selection", [{}, *SELECTIONS.values()], ids=["any queue", *SELECTIONS])
def test_row_19_an_async_send_whose_connection_breaks_is_tried_three_times(
    two_brokers: TwoBrokers, to_two: Producer, selection: dict[str, Any]
) -> None:
    attempts, callback = attempts_of(to_two), Callback()
    for broker in (two_brokers.a, two_brokers.b):
        break_connections(broker)

    to_two.send_async(Message("orders", "x"), callback=callback, **selection)

    assert isinstance(callback.outcome(), BrokerUnavailable)
    # Whether the first try has stored it only its own broker can know, so the others go there as well.
    assert len(attempts.begun) == 3
    assert len({context.queue for context in attempts.begun}) == 1
    assert all_bodies(two_brokers) == []


@pytest.mark.parametrize("times", [0, 1])
def test_row_19_how_often_is_a_setting(database: Database, times: int) -> None:
    break_connections(database)
    with producer_of(database.dsn, retry_times_when_send_async_failed=times) as producer:
        attempts = attempts_of(producer)
        assert isinstance(producer.send_async(Message("orders", "x")).exception(10), BrokerUnavailable)

    assert len(attempts.begun) == 1 + times


def test_row_19_an_async_send_to_a_broker_that_is_down_goes_to_the_other(two_brokers: TwoBrokers, proxy: Proxy) -> None:
    create_orders(two_brokers)
    with producer_of(dsn_of_two(proxy.dsn, two_brokers.b.dsn)) as producer:
        wait_connected(producer)
        for _ in range(8):
            producer.send(Message("orders", "before"))
        attempts = attempts_of(producer)
        proxy.cut()

        futures = [producer.send_async(Message("orders", "after")) for _ in range(8)]

        assert {future.result(30).queue.broker_name for future in futures} == {"broker-b"}
    assert "broker-a" in attempts.brokers
    assert Counter(all_bodies(two_brokers)) == {"before": 8, "after": 8}


def test_row_20_a_oneway_send_stores_the_message(database: Database) -> None:
    with producer_of(database.dsn) as producer:
        producer.send_oneway(Message("orders", "x"))

    assert stored_bodies(database) == ["x"]


def test_row_20_of_a_oneway_send_that_a_broker_refuses_nothing_surfaces(
    two_brokers: TwoBrokers, to_two: Producer
) -> None:
    attempts = attempts_of(to_two)
    for broker in (two_brokers.a, two_brokers.b):
        refuse_appends(broker)

    to_two.send_oneway(Message("orders", "x"))
    to_two.shutdown()

    assert len(attempts.begun) == 1
    assert all_bodies(two_brokers) == []


def test_row_20_of_a_oneway_send_while_no_broker_answers_nothing_surfaces(database: Database, proxy: Proxy) -> None:
    with producer_of(proxy.dsn, "600ms") as producer:
        producer.send(Message("orders", "before"), timeout=timedelta(seconds=30))
        proxy.cut()
        producer.send_oneway(Message("orders", "lost"))

    assert stored_bodies(database) == ["before"]


def test_row_20_a_oneway_send_is_tried_once(two_brokers: TwoBrokers, proxy: Proxy) -> None:
    create_orders(two_brokers)
    with producer_of(dsn_of_two(proxy.dsn, two_brokers.b.dsn), "2s") as producer:
        wait_connected(producer)
        for _ in range(8):
            producer.send(Message("orders", "before"), timeout=timedelta(seconds=30))
        attempts = attempts_of(producer)
        proxy.cut()
        for _ in range(8):
            producer.send_oneway(Message("orders", "after"))

    assert Counter(attempts.brokers) == {"broker-a": 4, "broker-b": 4}
    assert Counter(all_bodies(two_brokers)) == {"before": 8, "after": 4}


def test_row_20_of_a_oneway_send_to_a_topic_that_is_not_there_nothing_surfaces(database: Database) -> None:
    """RocketMQ's client raises an error if it has to look up the route, but not if it has an old one."""
    settings = load_settings(dsn=database.dsn, auto_create_topic_enable=False)
    with Producer("senders", settings=settings) as producer:
        producer.send_oneway(Message("new", "x"))

    assert stored_bodies(database) == []


def test_row_20_a_message_that_nobody_may_send_is_refused_at_once(database: Database, producer: Producer) -> None:
    """RocketMQ's client also checks before sending since 5.x; the 4.x client left the check to the broker."""
    with pytest.raises(TopicNotAllowed):
        producer.send_oneway(Message("SCHEDULE_TOPIC_XXXX", "x"))
    with pytest.raises(BodyEmpty):
        producer.send_oneway(Message("orders", b""))

    assert stored_bodies(database) == []


# -- what is stored, and not as was asked: row 21 ---------------------------------------------


def test_row_21_a_result_that_is_not_ok_is_returned_and_not_tried_again(two_brokers: TwoBrokers) -> None:
    create_orders(two_brokers)
    with producer_of(two_brokers.dsn, durability=Durability.SYNC_MASTER) as producer:
        wait_connected(producer)
        attempts = attempts_of(producer)
        result = producer.send(Message("orders", "x"))

    assert result.status is SendStatus.SLAVE_NOT_AVAILABLE
    assert attempts.brokers == [result.queue.broker_name]
    assert all_bodies(two_brokers) == ["x"]


def test_row_21_it_is_sent_to_another_broker_as_well_where_the_producer_is_told_so(two_brokers: TwoBrokers) -> None:
    create_orders(two_brokers)
    options: dict[str, Any] = {"retry_another_broker_when_not_store_ok": True, "retry_times_when_send_failed": 1}
    with producer_of(two_brokers.dsn, durability=Durability.SYNC_MASTER, **options) as producer:
        wait_connected(producer)
        attempts = attempts_of(producer)
        result = producer.send(Message("orders", "x"))

    assert result.status is SendStatus.SLAVE_NOT_AVAILABLE
    assert sorted(attempts.brokers) == ["broker-a", "broker-b"]
    assert attempts.brokers[-1] == result.queue.broker_name
    assert stored_bodies(two_brokers.a) == stored_bodies(two_brokers.b) == ["x"]


def test_row_21_what_is_stored_is_a_result_even_where_the_other_broker_refuses(two_brokers: TwoBrokers) -> None:
    create_orders(two_brokers)
    refuse_appends(two_brokers.b)
    options: dict[str, Any] = {"retry_another_broker_when_not_store_ok": True}
    with producer_of(two_brokers.dsn, durability=Durability.SYNC_MASTER, **options) as producer:
        wait_connected(producer)
        results = [producer.send(Message("orders", str(n))) for n in range(8)]

    assert {(result.status, result.queue.broker_name) for result in results} == {
        (SendStatus.SLAVE_NOT_AVAILABLE, "broker-a")
    }


# -- batches and queue numbers: rows 22 and 23 ------------------------------------------------


def test_row_22_a_batch_has_consecutive_offsets_in_one_queue(database: Database, producer: Producer) -> None:
    create_topic(database.connect(), "orders", 4)
    producer.send_batch([Message("orders", "earlier")] * 3, queue=MessageQueue("orders", "broker-a", 2))

    results = producer.send_batch(
        [Message("orders", str(n)) for n in range(5)], queue=MessageQueue("orders", "broker-a", 2)
    )

    assert {result.queue.queue_id for result in results} == {2}
    assert [result.queue_offset for result in results] == [3, 4, 5, 6, 7]


@pytest.mark.parametrize(
    ("messages", "error"),
    [
        ([Message("orders", "x"), Message("other", "x")], ParameterInvalid),
        ([Message("%RETRY%readers", "x")] * 2, NotSupported),
        ([Message("orders", "x"), Message("orders", "x", properties={"DELAY": "3"})], PropertyReserved),
        ([Message("orders", b"x" * 2_097_152)] * 2, BatchTooLarge),
        ([], ParameterInvalid),
    ],
    ids=["two topics", "retry topic", "delay", "over 4 MiB", "no message"],
)
def test_row_22_a_list_that_is_no_batch_is_refused_as_a_whole(
    shared_database: Database, shared_producer: Producer, messages: list[Message], error: type[MqdbError]
) -> None:
    with nothing_stored(shared_database), pytest.raises(error):
        shared_producer.send_batch(messages)


@pytest.mark.parametrize("queue_id", [99, 4, -1])
def test_row_23_a_queue_that_the_topic_has_not_is_refused(
    database: Database, producer: Producer, queue_id: int
) -> None:
    create_topic(database.connect(), "orders", 4)
    attempts = attempts_of(producer)

    with pytest.raises(QueueNotFound) as refusal:
        producer.send(Message("orders", "x"), queue=MessageQueue("orders", "broker-a", queue_id))

    assert refusal.value.code == 29
    assert attempts.begun == []
    assert stored_bodies(database) == []


def test_row_23_in_the_caller_s_transaction_too(database: Database, producer: Producer) -> None:
    create_topic(database.connect(), "orders", 4)

    with database.connect(autocommit=False) as connection, pytest.raises(QueueNotFound) as refusal:
        producer.send(Message("orders", "x"), queue=MessageQueue("orders", "broker-a", 99), connection=connection)

    assert refusal.value.code == 29
