"""Request and reply with a real PostgreSQL: the receivers of replies, missing replies, and lost brokers."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import pytest

from mqdb.broker.consumers.pull import pull
from mqdb.broker.log import replies
from mqdb.common.message import Message
from mqdb.common.received_message import ReceivedMessage
from mqdb.common.topic import reply_topic
from mqdb.errors import (
    BodyEmpty,
    BrokerUnavailable,
    IllegalState,
    NameInvalid,
    ParameterInvalid,
    RequestTimeout,
    StorageRefused,
)
from mqdb.selector.tags import tag_code
from mqdb.settings import load_settings
from mqdb_client import Producer, create_reply_message, outage
from mqdb_client.producer.requests import reply_reader
from mqdb_client.producer.requests.reply_reader import LOOK_BACK
from tests.fixtures.consumers import SUCCESS, Member
from tests.fixtures.leaders import pretend_to_lead
from tests.fixtures.log import Connection, append, create_topic, dispatch
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.producers import TwoBrokers, dsn_of_two, pid_of, producer_of, refuse_appends, wait_connected
from tests.fixtures.proxy import Proxy
from tests.fixtures.requests import request_of, stored_requests
from tests.fixtures.threads import Doing, at_once
from tests.fixtures.variants import case, usually

REPLIES = reply_topic("DefaultCluster")
LONG = timedelta(seconds=30)
SHORT = timedelta(seconds=1.5)  # the request has to be sent in it
QUEUE_KEY = "SELECT queue_key FROM mqdb.queue JOIN mqdb.topic USING (topic_id) WHERE topic = %s"
DROPPED = "dropped a reply without a waiting request"

Start = Callable[..., Producer]


@pytest.fixture
def start(database: Database) -> Iterator[Start]:
    """Starts requesters, by default on the test's database: another name makes another client."""
    started: list[Producer] = []

    def start(name: str = "asker", dsn: str = database.dsn, group: str = "askers", **options: Any) -> Producer:
        started.append(Producer(group, settings=load_settings(dsn=dsn, **options), instance_name=name))
        started[-1].start()
        return started[-1]

    yield start
    for requester in started:
        requester.shutdown()


@pytest.fixture
def requester(log: Connection, start: Start) -> Producer:
    create_topic(log, "orders", 1)
    return start()


@pytest.fixture
def replier(database: Database) -> Iterator[Producer]:
    with producer_of(database.dsn, group="repliers", instance_name="replier") as producer:
        yield producer


class Answering:
    """A listener that replies to each message with the body in upper case."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer

    def __call__(self, messages: list[ReceivedMessage]) -> object:
        for message in messages:
            reply = create_reply_message(message, message.body.upper(), keys="k-1", properties={"mood": "good"})
            self._producer.send(reply)
        return SUCCESS


def client_id_of(requester: Producer) -> str:
    assert requester._running is not None
    return requester._running.cluster.instances[0].client_id


def dispatch_by_hand(connection: Connection) -> None:
    """Dispatch until nothing is left, even while another session dispatches."""
    wait_until(lambda: dispatch(connection, 50_000).outcome == "IDLE")


def wait_idle(requester: Producer) -> None:
    """Wait until the requester neither reads nor dispatches."""
    assert requester._running is not None
    instances = requester._running.cluster.instances
    wait_until(lambda: not any(instance._waiting_for_arrivals for instance in instances))


def end_connections(database: Database, requester: Producer) -> None:
    """Terminate all sessions of a requester."""
    statement = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name LIKE %s"
    [(count,)] = database.rows(statement, f"%{client_id_of(requester)}%")
    assert count > 0


# -- a reply ------------------------------------------------------------------------------------


def test_a_listener_replies_to_a_request(requester: Producer, replier: Producer, member: Member) -> None:
    member(Answering(replier))
    before_ms = time.time() * 1000

    reply = requester.request(Message("orders", "ping", tag="paid"), LONG)

    assert (reply.body, reply.topic, reply.tag, reply.keys) == (b"PING", REPLIES, client_id_of(requester), ("k-1",))
    assert reply.properties["mood"] == "good"
    assert reply.properties["MSG_TYPE"] == "reply"
    assert before_ms - 1 <= int(reply.properties["ARRIVE_TIME"]) <= time.time() * 1000 + 1


def test_a_request_says_who_waits_for_the_reply_and_how_long(
    database: Database, requester: Producer, replier: Producer
) -> None:
    future = requester.request_async(Message("orders", "ping", tag="paid", properties={"colour": "red"}), LONG)
    request = request_of(database)

    properties = dict(request.properties)
    correlation_id = properties.pop("CORRELATION_ID")
    assert len(correlation_id) == 36
    assert properties == {
        "REPLY_TO_CLIENT": client_id_of(requester),
        "TTL": "30000",
        "CLUSTER": "DefaultCluster",
        "TAGS": "paid",
        "colour": "red",
        "UNIQ_KEY": request.message_id,
    }
    replier.send(create_reply_message(request, "pong"))
    assert future.result(10).properties["CORRELATION_ID"] == correlation_id


def test_each_of_many_requests_gets_its_own_reply(requester: Producer, replier: Producer, member: Member) -> None:
    member(Answering(replier))

    def ask(thread: int) -> list[bytes]:
        return [requester.request(Message("orders", f"{thread}-{number}-x"), LONG).body for number in range(5)]

    answers = at_once(*(lambda thread=thread: ask(thread) for thread in range(8)))
    futures = [requester.request_async(Message("orders", f"async-{number}"), LONG) for number in range(20)]

    assert answers == [[f"{thread}-{number}-X".encode() for number in range(5)] for thread in range(8)]
    assert [future.result(30).body for future in futures] == [f"ASYNC-{number}".encode() for number in range(20)]


def test_a_callback_may_request_and_wait(requester: Producer, replier: Producer, member: Member) -> None:
    member(Answering(replier))
    replies: list[bytes] = []

    def ask_again(first: "Future[ReceivedMessage]") -> None:
        replies.append(first.result().body)
        replies.append(requester.request(Message("orders", "second"), LONG).body)

    requester.request_async(Message("orders", "first"), LONG, callback=ask_again)

    wait_until(lambda: len(replies) == 2, 20)
    assert replies == [b"FIRST", b"SECOND"]


def test_the_reply_topic_is_made_where_topics_are_not_made_automatically(
    database: Database, log: Connection, replier: Producer, start: Start
) -> None:
    create_topic(log, "orders", 1)
    log.execute("DELETE FROM mqdb.topic WHERE topic = 'TBW102'")
    requester = start(auto_create_topic_enable=False)

    future = requester.request_async(Message("orders", "ping"), LONG)
    replier.send(create_reply_message(request_of(database), "pong"))

    assert future.result(10).body == b"pong"
    config = "SELECT read_queue_nums, write_queue_nums, perm FROM mqdb.topic WHERE topic = %s"
    assert database.rows(config, REPLIES) == [(1, 1, 6)]


def test_requesters_that_begin_at_once_share_one_reply_topic(
    database: Database, log: Connection, replier: Producer, member: Member, start: Start
) -> None:
    create_topic(log, "orders", 1)
    member(Answering(replier))
    requesters = [start(f"asker-{number}") for number in range(3)]

    replies = at_once(*(lambda each=each: each.request(Message("orders", "ping"), LONG).body for each in requesters))

    assert replies == [b"PING"] * 3


# -- whose reply --------------------------------------------------------------------------------


def test_a_requester_reads_its_own_replies_only(
    database: Database,
    log: Connection,
    replier: Producer,
    member: Member,
    start: Start,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "mqdb_client")
    create_topic(log, "orders", 1)
    member(Answering(replier))
    first, second = start("first"), start("second")

    futures = [
        requester.request_async(Message("orders", f"{number}"), LONG)
        for number in range(5)
        for requester in (first, second)
    ]

    replies = [future.result(20) for future in futures]
    assert [reply.tag for reply in replies] == [client_id_of(first), client_id_of(second)] * 5
    assert DROPPED not in caplog.text


def test_requesters_whose_client_ids_have_the_same_code_read_their_own_replies_only(
    database: Database, log: Connection, replier: Producer, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "mqdb_client")
    create_topic(log, "orders", 1)
    first, second = start("Aa"), start("BB")
    assert tag_code(client_id_of(first)) == tag_code(client_id_of(second))
    futures = [requester.request_async(Message("orders", "ping"), LONG) for requester in (first, second)]

    for number in (1, 0):
        request = request_of(database, number)
        replier.send(create_reply_message(request, request.properties["REPLY_TO_CLIENT"]))

    assert [future.result(10).body.decode() for future in futures] == [client_id_of(first), client_id_of(second)]
    assert DROPPED not in caplog.text


def test_two_producers_of_one_client_keep_their_own_replies(
    database: Database, requester: Producer, replier: Producer, start: Start
) -> None:
    sibling = start(group="siblings")
    assert client_id_of(sibling) == client_id_of(requester)
    futures = [each.request_async(Message("orders", name), LONG) for each, name in ((requester, "x"), (sibling, "y"))]

    for number in (1, 0):
        request = request_of(database, number)
        replier.send(create_reply_message(request, request.body.upper()))

    assert [future.result(10).body for future in futures] == [b"X", b"Y"]


# -- no reply -----------------------------------------------------------------------------------


def test_without_a_reply_a_request_ends_at_its_timeout(requester: Producer) -> None:
    begin = time.monotonic()

    with pytest.raises(RequestTimeout, match="orders"):
        requester.request(Message("orders", "ping"), SHORT)

    assert SHORT.total_seconds() <= time.monotonic() - begin < 20


def test_without_a_reply_an_async_request_ends_at_its_timeout(requester: Producer) -> None:
    ended = threading.Event()
    future = requester.request_async(Message("orders", "ping"), SHORT)
    future.add_done_callback(lambda _: ended.set())

    assert ended.wait(10)
    assert isinstance(future.exception(), RequestTimeout)


def test_a_late_reply_is_dropped_and_later_ones_are_not(
    database: Database, requester: Producer, replier: Producer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "mqdb_client")
    with pytest.raises(RequestTimeout):
        requester.request(Message("orders", "first"), SHORT)
    future = requester.request_async(Message("orders", "second"), LONG)

    replier.send(create_reply_message(request_of(database, 0), "too late"))
    replier.send(create_reply_message(request_of(database, 1), "in time"))

    assert future.result(10).body == b"in time"
    assert caplog.text.count(DROPPED) == 1


def test_the_first_of_two_replies_counts(database: Database, requester: Producer, replier: Producer) -> None:
    future = requester.request_async(Message("orders", "ping"), LONG)
    request = request_of(database)

    replier.send_batch([create_reply_message(request, "first"), create_reply_message(request, "second")])

    assert future.result(10).body == b"first"


def test_a_request_that_cannot_be_sent_does_not_wait(requester: Producer) -> None:
    begin = time.monotonic()

    with pytest.raises(BodyEmpty):
        requester.request(Message("orders", b""), LONG)
    with pytest.raises(BodyEmpty):
        requester.request_async(Message("orders", b""), LONG)

    assert time.monotonic() - begin < 10
    wait_idle(requester)


def test_an_async_request_ends_with_the_error_of_its_send(database: Database, requester: Producer) -> None:
    refuse_appends(database)

    future = requester.request_async(Message("orders", "ping"), LONG)

    assert isinstance(future.exception(10), StorageRefused)
    wait_idle(requester)


def test_a_timeout_has_to_be_one(requester: Producer) -> None:
    timeouts: list[Any] = [timedelta(0), timedelta(seconds=-1), 3, None]
    for timeout in timeouts:
        with case(timeout), pytest.raises(ParameterInvalid, match="timeout"):
            requester.request(Message("orders", "ping"), timeout)


def test_a_request_is_not_sent_while_no_broker_can_bring_the_reply_and_a_later_one_is(
    database: Database, log: Connection, proxy: Proxy, replier: Producer, start: Start
) -> None:
    create_topic(log, "orders", 1)
    requester = start("asker", proxy.dsn)
    proxy.cut()
    begin = time.monotonic()

    with pytest.raises(BrokerUnavailable):
        requester.request(Message("orders", "ping"), LONG)

    assert 3 <= time.monotonic() - begin < 10
    wait_idle(requester)
    proxy.restore()
    asking = Doing(lambda: requester.request(Message("orders", "ping"), LONG).body)
    replier.send(create_reply_message(request_of(database), "pong"))
    assert asking.result() == b"pong"


def test_a_first_request_waits_for_a_broker_that_is_away_for_a_moment(
    database: Database,
    log: Connection,
    proxy: Proxy,
    replier: Producer,
    start: Start,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reply_reader, "_PATIENCE_SECONDS", 60.0)
    create_topic(log, "orders", 1)
    requester = start("asker", proxy.dsn)
    proxy.cut()
    asking = Doing(lambda: requester.request(Message("orders", "ping"), LONG).body)
    wait_until(lambda: "lost the connection to the broker" in caplog.text)

    proxy.restore()

    replier.send(create_reply_message(request_of(database), "pong"))
    assert asking.result() == b"pong"


def test_a_request_is_not_sent_where_no_reply_can_come(database: Database, log: Connection, start: Start) -> None:
    log.execute("UPDATE mqdb.broker SET cluster_name = repeat('c', 127)")
    requester = start()

    for ask in (requester.request, requester.request_async):
        with pytest.raises(NameInvalid, match="REPLY_TOPIC"):
            ask(Message("orders", "ping"), LONG)

    assert stored_requests(database) == []


# -- shutdown -----------------------------------------------------------------------------------


def test_a_shutdown_ends_the_requests_that_wait(database: Database, requester: Producer) -> None:
    sync = Doing(lambda: requester.request(Message("orders", "sync"), LONG))
    future = requester.request_async(Message("orders", "async"), LONG)
    request_of(database, 1)

    requester.shutdown()

    assert isinstance(sync.error(), IllegalState)
    assert isinstance(future.exception(10), IllegalState)
    for ask in (requester.request, requester.request_async):
        with pytest.raises(IllegalState, match="shut down"):
            ask(Message("orders", "ping"), LONG)


def test_a_shutdown_ends_a_request_whose_broker_does_not_answer(
    proxy: Proxy, start: Start, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reply_reader, "_PATIENCE_SECONDS", 60.0)
    requester = start("asker", proxy.dsn)
    pid_of(requester)  # it has taken the connection that the start has left, on which the reader would wait for long
    proxy.freeze()
    asking = Doing(lambda: requester.request(Message("orders", "ping"), LONG))
    wait_until(lambda: "lost the connection to the broker" in caplog.text)

    closing = Doing(requester.shutdown)

    error = asking.outcome()
    proxy.restore()
    closing.result()
    assert isinstance(error, IllegalState)
    assert asking.seconds < 15


# -- dispatch -----------------------------------------------------------------------------------


def test_where_nobody_dispatches_a_requester_does_while_it_waits(
    database: Database, requester: Producer, replier: Producer
) -> None:
    for number in range(3):
        future = requester.request_async(Message("orders", "ping"), LONG)
        replier.send(create_reply_message(request_of(database, number), "pong"))
        assert future.result(10).body == b"pong"


def test_where_a_leader_lives_a_requester_leaves_dispatch_to_it(
    database: Database, requester: Producer, replier: Producer
) -> None:
    leader = database.connect()
    pretend_to_lead(leader)
    future = requester.request_async(Message("orders", "ping"), LONG)
    replier.send(create_reply_message(request_of(database), "pong"))
    # It has asked several times by now.
    begin = time.monotonic()
    wait_until(lambda: time.monotonic() - begin > 0.6)
    assert database.rows("SELECT count(*) FROM mqdb.consume_queue") == [(0,)]

    dispatch_by_hand(leader)

    assert future.result(10).body == b"pong"


def test_a_reply_whose_arrival_nobody_hears_is_found(
    database: Database, log: Connection, proxy: Proxy, replier: Producer, start: Start
) -> None:
    create_topic(log, "orders", 1)
    requester = start("asker", proxy.dsn, pool_dsn=database.dsn)
    future = requester.request_async(Message("orders", "ping"), LONG)
    request = request_of(database)
    proxy.cut()  # what listens goes through it, and nothing else

    replier.send(create_reply_message(request, "pong"))
    dispatch_by_hand(log)

    assert future.result(10).body == b"pong"


def test_many_replies_at_once_do_not_wait_for_polls(database: Database, requester: Producer, replier: Producer) -> None:
    futures = [requester.request_async(Message("orders", f"{number}"), LONG) for number in range(600)]
    request_of(database, 599)

    replier.send_batch([create_reply_message(request, "pong") for request in stored_requests(database)])

    begin = time.monotonic()
    assert {future.result(30).body for future in futures} == {b"pong"}
    assert time.monotonic() - begin < 10  # 18 s with a poll for each pull


# -- where it reads -----------------------------------------------------------------------------


def test_others_replies_are_passed_by_inside_the_database(
    database: Database,
    log: Connection,
    requester: Producer,
    replier: Producer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pulled: list[str | None] = []

    def watched(*arguments: Any, **options: Any) -> Any:
        results, horizon = pull(*arguments, **options)
        pulled.extend(message.tag for result in results for message in result.messages)
        return results, horizon

    monkeypatch.setattr(replies, "pull", watched)
    monkeypatch.setattr(reply_reader, "SCAN_LIMIT", 1_000)
    [key] = create_topic(log, REPLIES, 1)
    future = requester.request_async(Message("orders", "ping"), LONG)
    request = request_of(database)

    append(log, key, 1_001, tag="somebody else")
    replier.send(create_reply_message(request, "pong"))

    assert future.result(20).body == b"pong"
    assert pulled == [client_id_of(requester)]


def test_replies_to_an_earlier_process_of_the_same_name_are_not_read(
    database: Database, requester: Producer, replier: Producer, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "mqdb_client")
    future = requester.request_async(Message("orders", "first"), LONG)
    replier.send(create_reply_message(request_of(database), "pong"))
    future.result(10)
    client_id = client_id_of(requester)
    requester.shutdown()
    # The server ends its session, and with it the hold on its name, a moment later.
    listening = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s"
    wait_until(lambda: database.rows(listening, f"mqdb {client_id} listener") == [(0,)])
    successor = start()
    assert client_id_of(successor) == client_id

    future = successor.request_async(Message("orders", "second"), LONG)
    replier.send(create_reply_message(request_of(database, 1), "pong again"))

    assert future.result(10).body == b"pong again"
    assert DROPPED not in caplog.text


@pytest.mark.parametrize("queue_nums", usually(4, of=[1, 4]))
def test_a_reply_topic_that_was_made_anew_is_read(
    database: Database, log: Connection, requester: Producer, replier: Producer, queue_nums: int
) -> None:
    future = requester.request_async(Message("orders", "first"), LONG)
    replier.send(create_reply_message(request_of(database), "pong"))
    future.result(10)
    second, third = (requester.request_async(Message("orders", "again"), LONG) for _ in range(2))
    requests = [request_of(database, number) for number in (1, 2)]

    with log.transaction():
        log.execute("DELETE FROM mqdb.topic WHERE topic = %s", [REPLIES])
        create_topic(log, REPLIES, queue_nums)
    for request in requests:
        replier.send(create_reply_message(request, "pong"))

    assert [each.result(10).body for each in (second, third)] == [b"pong"] * 2


def test_a_reply_behind_what_retention_has_taken_is_found(
    database: Database, log: Connection, requester: Producer, replier: Producer
) -> None:
    future = requester.request_async(Message("orders", "first"), LONG)
    replier.send(create_reply_message(request_of(database), "pong"))
    future.result(10)
    [(key,)] = database.rows(QUEUE_KEY, REPLIES)
    wait_idle(requester)
    append(log, key, 10, tag="somebody else")
    dispatch_by_hand(log)
    log.execute("UPDATE mqdb.queue SET base_offset = 10 WHERE queue_key = %s", [key])

    future = requester.request_async(Message("orders", "second"), LONG)
    replier.send(create_reply_message(request_of(database, 1), "pong again"))

    assert future.result(10).body == b"pong again"


def test_a_reply_is_found_after_the_broker_has_lost_its_newest_messages(
    database: Database, log: Connection, requester: Producer, replier: Producer
) -> None:
    for number in range(2):
        future = requester.request_async(Message("orders", "before"), LONG)
        replier.send(create_reply_message(request_of(database, number), "pong"))
        future.result(10)
    future = requester.request_async(Message("orders", "after"), LONG)
    request = request_of(database, 2)

    log.execute("DELETE FROM mqdb.queue_run")
    replier.send(create_reply_message(request, "pong again"))

    assert future.result(10).body == b"pong again"


# -- lost brokers -------------------------------------------------------------------------------


def test_a_request_outlives_the_connections_of_its_requester(
    database: Database, requester: Producer, replier: Producer
) -> None:
    future = requester.request_async(Message("orders", "ping"), LONG)
    request = request_of(database)

    end_connections(database, requester)
    replier.send(create_reply_message(request, "pong"))

    assert future.result(20).body == b"pong"


def test_a_reply_that_came_while_the_broker_was_out_of_reach_is_found(
    database: Database, log: Connection, proxy: Proxy, replier: Producer, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mqdb_client")
    create_topic(log, "orders", 1)
    requester = start("asker", proxy.dsn)
    wait_connected(requester)
    future = requester.request_async(Message("orders", "ping"), LONG)
    request = request_of(database)
    proxy.cut()
    wait_until(lambda: "lost the connection to the broker" in caplog.text)

    replier.send(create_reply_message(request, "pong"))
    dispatch_by_hand(log)
    proxy.restore()

    assert future.result(20).body == b"pong"
    wait_until(lambda: "connected to the broker again" in caplog.text)
    assert [record.msg for record in caplog.records] == [outage.BEGINS, outage.OVER]


def test_a_reply_may_come_through_another_broker(two_brokers: TwoBrokers, log: Connection, start: Start) -> None:
    create_topic(log, "orders", 1)
    requester = start("asker", two_brokers.dsn)
    wait_connected(requester)
    future = requester.request_async(Message("orders", "ping"), LONG)
    request = request_of(two_brokers.a)

    with producer_of(f"broker-b={two_brokers.b.dsn}", group="repliers-b") as replier:
        replier.send(create_reply_message(request, "pong"))

    reply = future.result(10)
    assert (reply.body, reply.queue.broker_name) == (b"pong", "broker-b")


@pytest.mark.parametrize("fault", usually("freeze", of=["cut", "freeze"]))
def test_a_broker_that_is_lost_does_not_stop_replies_from_others(
    two_brokers: TwoBrokers, proxy: Proxy, log: Connection, start: Start, fault: str
) -> None:
    create_topic(two_brokers.b.connect(), "orders", 1)
    requester = start("asker", dsn_of_two(proxy.dsn, two_brokers.b.dsn))
    wait_connected(requester)
    future = requester.request_async(Message("orders", "ping"), LONG)

    getattr(proxy, fault)()

    with producer_of(f"broker-b={two_brokers.b.dsn}", group="repliers-b", instance_name="replier") as replier:
        for number in range(3):
            replier.send(create_reply_message(request_of(two_brokers.b, number), "pong"))
            assert future.result(10).body == b"pong"
            future = requester.request_async(Message("orders", "ping"), LONG)
    proxy.restore()


@pytest.mark.usefixtures("patient")
def test_a_broker_that_comes_back_late_is_read_from_before_its_return(
    two_brokers: TwoBrokers, proxy_b: Proxy, log: Connection, start: Start
) -> None:
    create_topic(log, "orders", 1)
    proxy_b.cut()
    requester = start("asker", dsn_of_two(two_brokers.a.dsn, proxy_b.dsn))
    future = requester.request_async(Message("orders", "ping"), LONG)
    request = request_of(two_brokers.a)
    connection = two_brokers.b.connect()
    [key] = create_topic(connection, REPLIES, 1)
    append(connection, key, 5, tag="somebody else")
    with producer_of(f"broker-b={two_brokers.b.dsn}", group="repliers-b", instance_name="replier") as replier:
        replier.send(create_reply_message(request, "pong"))
    append(connection, key, LOOK_BACK - 1, tag="somebody else")
    dispatch_by_hand(connection)

    proxy_b.restore()

    assert future.result(20).body == b"pong"
