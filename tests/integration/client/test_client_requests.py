"""Requests to running clients are sent through the database, and answered by a thread of the client."""

import json
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, text

import mqdb
from mqdb.broker.clients import client_requests
from mqdb.broker.clients.client_requests import MAX_REQUESTS, RequestKind
from mqdb.broker.log.messages import find_copies, read_copy
from mqdb.common.dsn import BrokerDsn
from mqdb.common.received_message import ReceivedMessage
from mqdb.errors import ClientOffline, ClientRequestFailed, ClientRequestTimeout, ParameterInvalid
from mqdb.store.clients.clients import ClientKind, Registration
from mqdb.store.topics.topics import TopicRoute
from mqdb_client.consumer.listeners.direct_consumption import ConsumeMessageDirectlyResult, judge
from mqdb_client.consumer.request_answers import RequestAnswers
from mqdb_client.instance import ClientInstance
from tests.fixtures.broker import append, dispatch_all, topic
from tests.fixtures.consumers import SUCCESS
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.threads import Doing, refuse_threads

SHORT = timedelta(milliseconds=200)


class Consumer:
    """Answers like a consumer; `held` messages are in hand until they are released."""

    def __init__(self) -> None:
        self.given: list[ReceivedMessage] = []
        self.released = threading.Event()
        self.is_stuck = False

    def describe(self) -> dict[str, Any]:
        if self.is_stuck:
            raise RuntimeError("no idea")
        return {"state": "running", "queues": [], "listeners": []}

    def consume_directly(self, message: ReceivedMessage) -> ConsumeMessageDirectlyResult:
        self.given.append(message)
        if self.is_stuck:
            assert self.released.wait(30)
        return judge("readers", message, lambda: SUCCESS)


@pytest.fixture
def instance(database: Database) -> Iterator[ClientInstance]:
    """A client registered as a consumer of group `readers`."""
    instance = ClientInstance(BrokerDsn("broker-a", database.dsn))
    instance.open()
    instance.register(Registration(instance.client_id, ClientKind.CONSUMER, "readers", mqdb.__version__))
    yield instance
    instance.close()


@pytest.fixture
def consumer(instance: ClientInstance) -> Iterator[Consumer]:
    """The client's consumer, which answers requests."""
    consumer = Consumer()
    answers = RequestAnswers(instance, "readers", consumer)
    answers.start()
    yield consumer
    consumer.released.set()
    answers.stop()


def asked(broker: Connection, client_id: str, kind: str = RequestKind.STATUS, **arguments: Any) -> dict[str, Any]:
    request_id = client_requests.ask(broker, client_id, kind, {"group": "readers"} | arguments)
    return client_requests.wait_for_answer(broker, request_id, timedelta(seconds=30))


def test_a_client_answers(broker: Connection, instance: ClientInstance, consumer: Consumer) -> None:
    assert asked(broker, instance.client_id) == {"state": "running", "queues": [], "listeners": []}


def test_what_was_asked_before_is_answered_at_the_start(broker: Connection, instance: ClientInstance) -> None:
    request_id = client_requests.ask(broker, instance.client_id, RequestKind.STATUS, {"group": "readers"})
    answers = RequestAnswers(instance, "readers", Consumer())

    answers.start()
    result = client_requests.wait_for_answer(broker, request_id)
    answers.stop()

    assert result["state"] == "running"


def test_a_request_for_which_there_was_no_thread_is_answered_when_there_is_one(
    broker: Connection,
    instance: ClientInstance,
    consumer: Consumer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with monkeypatch.context() as meanwhile:
        refuse_threads(meanwhile, "readers-request-")
        request_id = client_requests.ask(broker, instance.client_id, RequestKind.STATUS, {"group": "readers"})
        wait_until(lambda: "could not read requests to group readers; will retry" in caplog.text)

    assert client_requests.wait_for_answer(broker, request_id)["state"] == "running"


def test_a_client_that_is_not_there_is_offline(broker: Connection) -> None:
    """A client that does not exist is reported as offline: RocketMQ's code 1."""
    with pytest.raises(ClientOffline, match="nobody") as caught:
        asked(broker, "nobody")

    assert caught.value.code == 1


def test_a_client_that_goes_meanwhile_is_offline(broker: Connection, instance: ClientInstance, engine: Engine) -> None:
    request_id = client_requests.ask(broker, instance.client_id, RequestKind.STATUS, {"group": "readers"})
    with engine.connect() as waiting:
        doing = Doing(lambda: client_requests.wait_for_answer(waiting, request_id))
        instance.close()

        assert isinstance(doing.error(), ClientOffline)


def test_who_does_not_answer_in_time_is_not_asked_any_more(broker: Connection, instance: ClientInstance) -> None:
    """A client that does not answer in time is no longer asked: RocketMQ's code 207.

    A request that has not begun by then never begins, because its caller no longer waits.
    """
    request_id = client_requests.ask(broker, instance.client_id, RequestKind.CONSUME_DIRECTLY, {"group": "readers"})

    with pytest.raises(ClientRequestTimeout, match=r"0\.2 s") as caught:
        client_requests.wait_for_answer(broker, request_id, SHORT)

    assert caught.value.code == 207
    assert client_requests.open_requests(broker, instance.client_id, "readers") == []
    assert not client_requests.answer(broker, request_id, {})


def test_a_request_of_a_kind_that_nobody_knows_is_refused(
    broker: Connection, instance: ClientInstance, consumer: Consumer
) -> None:
    with pytest.raises(ClientRequestFailed, match=r"DANCE.*not supported"):
        asked(broker, instance.client_id, "DANCE")


def test_a_consumer_that_fails_at_its_answer_says_so(
    broker: Connection, instance: ClientInstance, consumer: Consumer
) -> None:
    consumer.is_stuck = True

    with pytest.raises(ClientRequestFailed, match="RuntimeError: no idea"):
        asked(broker, instance.client_id)


def test_a_request_for_another_group_of_the_client_is_left_to_its_consumer(
    broker: Connection, instance: ClientInstance, consumer: Consumer
) -> None:
    other = client_requests.ask(broker, instance.client_id, RequestKind.STATUS, {"group": "others"})
    asked(broker, instance.client_id)

    (still_open,) = client_requests.open_requests(broker, instance.client_id, "others")
    assert still_open.request_id == other


def test_requests_of_yesterday_are_removed_by_whoever_asks_next(broker: Connection, instance: ClientInstance) -> None:
    old = client_requests.ask(broker, instance.client_id, RequestKind.STATUS, {"group": "readers"})
    broker.execute(text("SET mqdb.clock_offset = '25 h'"))

    client_requests.ask(broker, instance.client_id, RequestKind.STATUS, {"group": "readers"})

    with pytest.raises(ParameterInvalid, match="no such request"):
        client_requests.wait_for_answer(broker, old)


def test_a_client_that_has_lost_its_connection_sees_what_it_was_asked_when_it_is_back(
    broker: Connection, instance: ClientInstance, consumer: Consumer
) -> None:
    asked(broker, instance.client_id)
    broker.execute(
        text("INSERT INTO mqdb.client_request (client_id, kind, arguments) VALUES (:client_id, 'STATUS', :arguments)"),
        {"client_id": instance.client_id, "arguments": '{"group": "readers"}'},
    )
    broker.execute(
        text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = left(:name, 63)"),
        {"name": f"mqdb {instance.client_id} listener"},
    )

    unanswered = text("SELECT count(*) FROM mqdb.client_request WHERE answered_at IS NULL")
    wait_until(lambda: broker.scalar(unanswered) == 0)


# -- one message now ----------------------------------------------------------------------------


@pytest.fixture
def route(broker: Connection) -> TopicRoute:
    """A topic with two queues, and two messages in the second."""
    route = topic(broker, queues=2)
    append(broker, route, "a", "b", queue_id=1)
    dispatch_all(broker)
    return route


def test_a_message_is_consumed_by_its_offset_or_by_its_position(
    broker: Connection, instance: ClientInstance, consumer: Consumer, route: TopicRoute
) -> None:
    by_offset: dict[str, Any] = {"topic": "orders", "queue_id": 1, "queue_offset": 0}
    position = broker.scalar(text("SELECT max(log_pos) FROM mqdb.commit_log"))

    results = [
        asked(broker, instance.client_id, RequestKind.CONSUME_DIRECTLY, **by_offset),
        asked(broker, instance.client_id, RequestKind.CONSUME_DIRECTLY, log_pos=position),
    ]

    assert [message.body for message in consumer.given] == [b"a", b"b"]
    assert {result["result"] for result in results} == {"CR_SUCCESS"}
    assert broker.scalar(text("SELECT count(*) FROM mqdb.consumer_offset")) == 0


def test_a_message_that_is_not_there_cannot_be_consumed(
    broker: Connection, instance: ClientInstance, consumer: Consumer, route: TopicRoute
) -> None:
    nowhere: list[dict[str, Any]] = [
        {"topic": "orders", "queue_id": 1, "queue_offset": 2},
        {"topic": "orders", "queue_id": 2, "queue_offset": 0},
        {"topic": "nothing", "queue_id": 0, "queue_offset": 0},
        {"log_pos": 4_711},
    ]
    for arguments in nowhere:
        with pytest.raises(ClientRequestFailed):
            asked(broker, instance.client_id, RequestKind.CONSUME_DIRECTLY, **arguments)

        assert consumer.given == [], arguments


def test_a_listener_that_hangs_in_it_does_not_keep_the_client_from_other_answers(
    broker: Connection, instance: ClientInstance, consumer: Consumer, route: TopicRoute
) -> None:
    consumer.is_stuck = True
    message = {"group": "readers", "topic": "orders", "queue_id": 1, "queue_offset": 0}
    request_id = client_requests.ask(broker, instance.client_id, RequestKind.CONSUME_DIRECTLY, message)
    wait_until(lambda: consumer.given)
    with pytest.raises(ClientRequestTimeout):
        client_requests.wait_for_answer(broker, request_id, SHORT)
    consumer.is_stuck = False

    assert asked(broker, instance.client_id)["state"] == "running"
    assert len(consumer.given) == 1


def test_a_client_answers_so_many_at_a_time_and_the_others_wait_as_rows(
    broker: Connection, instance: ClientInstance, consumer: Consumer, route: TopicRoute, database: Database
) -> None:
    """A client answers a limited number of requests at a time; the others wait as rows.

    So a row does not cost a thread and a connection each.
    """
    consumer.is_stuck = True
    arguments = {"group": "readers", "topic": "orders", "queue_id": 1, "queue_offset": 0}
    flood = text(
        "INSERT INTO mqdb.client_request (client_id, kind, arguments)"
        " SELECT :client_id, 'CONSUME_DIRECTLY', :arguments FROM generate_series(1, 100)"
    )
    broker.execute(flood, {"client_id": instance.client_id, "arguments": json.dumps(arguments)})
    client_requests.ask(broker, instance.client_id, RequestKind.STATUS, {"group": "readers"})
    wait_until(lambda: len(consumer.given) == MAX_REQUESTS)

    (connections,) = database.rows(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = left(%s, 63)", f"mqdb {instance.client_id}"
    )[0]
    answering = [thread for thread in threading.enumerate() if "readers-request-" in thread.name]

    assert len(answering) == len(consumer.given) == MAX_REQUESTS
    assert connections <= 2
    consumer.is_stuck = False
    consumer.released.set()
    unanswered = text("SELECT count(*) FROM mqdb.client_request WHERE answered_at IS NULL")
    wait_until(lambda: broker.scalar(unanswered) == 0)


def test_consumers_of_one_client_share_the_slots(
    broker: Connection, instance: ClientInstance, consumer: Consumer, route: TopicRoute
) -> None:
    """Consumers of one client share the slots. The second consumer gets no signal when the first one frees a slot."""
    consumer.is_stuck = True
    message = {"group": "readers", "topic": "orders", "queue_id": 1, "queue_offset": 0}
    for _ in range(MAX_REQUESTS):
        client_requests.ask(broker, instance.client_id, RequestKind.CONSUME_DIRECTLY, message)
    wait_until(lambda: len(consumer.given) == MAX_REQUESTS)
    others = RequestAnswers(instance, "others", Consumer())
    others.start()
    request_id = client_requests.ask(broker, instance.client_id, RequestKind.STATUS, {"group": "others"})
    with pytest.raises(ClientRequestTimeout):
        client_requests.wait_for_answer(broker, request_id, SHORT)

    request_id = client_requests.ask(broker, instance.client_id, RequestKind.STATUS, {"group": "others"})
    consumer.released.set()

    assert client_requests.wait_for_answer(broker, request_id)["state"] == "running"
    others.stop()


def test_arguments_that_make_no_sense_are_refused(
    broker: Connection, instance: ClientInstance, consumer: Consumer, caplog: pytest.LogCaptureFixture
) -> None:
    senseless: list[dict[str, Any]] = [
        {},
        {"log_pos": "x"},
        {"log_pos": 10**30},
        {"topic": 5, "queue_id": [], "queue_offset": {}},
    ]
    for arguments in senseless:
        with pytest.raises(ClientRequestFailed):
            asked(broker, instance.client_id, RequestKind.CONSUME_DIRECTLY, **arguments)

        assert "to group readers failed" not in caplog.text, arguments


def test_the_copies_of_a_message_are_found_by_its_id(broker: Connection, route: TopicRoute) -> None:
    unique_id = broker.scalar(text("SELECT msg_id FROM mqdb.commit_log ORDER BY log_pos LIMIT 1"))

    (copy,) = find_copies(broker, unique_id)

    assert (copy.topic, copy.queue_id) == ("orders", 1)
    assert read_copy(broker, "broker-a", copy).body == b"a"
