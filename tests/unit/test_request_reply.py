"""Replies built from requests, and the requests that wait for them."""

import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import Future
from datetime import timedelta

import pytest

from mqdb.common.message import MessageQueue, check_message, stored_properties
from mqdb.common.received_message import ReceivedMessage
from mqdb.common.topic import reply_topic
from mqdb.errors import IllegalState, MqdbError, ReplyImpossible, RequestTimeout, ResponseCode
from mqdb_client import create_reply_message
from mqdb_client.producer.requests.request_futures import RequestFutures, WaitingRequest
from tests.fixtures.processes import wait_until
from tests.fixtures.threads import Doing

LONG = timedelta(minutes=5)
SHORT = timedelta(milliseconds=30)

REQUEST = {
    "CLUSTER": "DefaultCluster",
    "CORRELATION_ID": "c-1",
    "REPLY_TO_CLIENT": "10.0.0.1@17#42",
    "TTL": "3000",
    "UNIQ_KEY": "0A",
    "colour": "red",
}


def received(properties: dict[str, str], body: bytes = b"ping") -> ReceivedMessage:
    queue = MessageQueue("orders", "broker-a", 0)
    unique_id = uuid.UUID(int=10)
    return ReceivedMessage(queue, 0, 1, unique_id, None, None, properties, body, 0, 0, "10.0.0.1", 0, 0, 0, 0, 1)


# -- replies ----------------------------------------------------------------------------------


def test_a_reply_goes_to_the_requester_through_the_reply_topic() -> None:
    reply = create_reply_message(received(REQUEST), "pong", keys="order-17", properties={"mood": "good"})

    assert (reply.topic, reply.body, reply.tag) == ("DefaultCluster_REPLY_TOPIC", b"pong", "10.0.0.1@17#42")
    assert reply.keys == ("order-17",)
    assert stored_properties(reply) == {
        "MSG_TYPE": "reply",
        "CORRELATION_ID": "c-1",
        "REPLY_TO_CLIENT": "10.0.0.1@17#42",
        "TTL": "3000",
        "mood": "good",
    }


def test_a_reply_may_be_sent() -> None:
    check_message(create_reply_message(received(REQUEST), b"pong"))


def test_a_request_without_a_ttl_gets_a_reply_without_one() -> None:
    request = {name: value for name, value in REQUEST.items() if name != "TTL"}

    assert "TTL" not in create_reply_message(received(request), b"pong").system_properties


@pytest.mark.parametrize("missing", ["CLUSTER", "CORRELATION_ID", "REPLY_TO_CLIENT"])
def test_what_is_no_request_cannot_be_replied_to(missing: str) -> None:
    properties = {name: value for name, value in REQUEST.items() if name != missing}

    with pytest.raises(ReplyImpossible, match=missing) as caught:
        create_reply_message(received(properties), b"pong")

    assert caught.value.code is ResponseCode.CREATE_REPLY_MESSAGE


def test_a_list_of_messages_cannot_be_replied_to() -> None:
    with pytest.raises(ReplyImpossible, match="list is not a received message"):
        create_reply_message([received(REQUEST)], b"pong")  # type: ignore[arg-type]


def test_a_reply_cannot_be_replied_to() -> None:
    reply = create_reply_message(received(REQUEST), b"pong")

    with pytest.raises(ReplyImpossible, match="CLUSTER"):
        create_reply_message(received(stored_properties(reply)), b"again")


@pytest.mark.parametrize(
    ("cluster", "topic"),
    [("DefaultCluster", "DefaultCluster_REPLY_TOPIC"), ("eu.west-1", "eu_west-1_REPLY_TOPIC")],
)
def test_each_cluster_has_a_reply_topic_whose_name_is_legal(cluster: str, topic: str) -> None:
    assert reply_topic(cluster) == topic


# -- requests that wait -----------------------------------------------------------------------


@pytest.fixture
def futures() -> Iterator[RequestFutures]:
    futures = RequestFutures()
    yield futures
    futures.close()
    futures.join()


def waiting(futures: RequestFutures, timeout: timedelta = LONG, *, is_async: bool = False) -> WaitingRequest:
    request = WaitingRequest("orders", timeout, is_async=is_async)
    futures.add(request)
    return request


def error_of(future: "Future[ReceivedMessage]") -> MqdbError:
    error = future.exception(10)
    assert isinstance(error, MqdbError)
    return error


@pytest.mark.parametrize("is_async", [False, True])
def test_a_request_ends_with_the_reply_that_has_its_correlation_id(futures: RequestFutures, is_async: bool) -> None:
    first, second = (waiting(futures, is_async=is_async) for _ in range(2))
    replies = [received({}, body) for body in (b"first", b"second")]

    assert futures.end(second.correlation_id, replies[1])
    assert futures.end(first.correlation_id, replies[0])

    assert [first.future.result(10), second.future.result(10)] == replies
    assert len(futures) == 0


def test_a_second_reply_is_for_nobody(futures: RequestFutures) -> None:
    request = waiting(futures)
    futures.end(request.correlation_id, received({}, b"first"))

    assert not futures.end(request.correlation_id, received({}, b"second"))
    assert request.result().body == b"first"


def test_a_discarded_request_does_not_wait(futures: RequestFutures) -> None:
    request = waiting(futures)

    futures.discard(request)
    futures.discard(request)

    assert not futures.end(request.correlation_id, received({}))
    assert len(futures) == 0


def test_a_sync_request_watches_its_time_itself(futures: RequestFutures) -> None:
    request = waiting(futures, SHORT)

    with pytest.raises(RequestTimeout, match="orders") as caught:
        request.result()

    assert caught.value.code is ResponseCode.REQUEST_TIMEOUT
    assert caught.value.correlation_id == request.correlation_id
    assert caught.value.timeout_seconds == SHORT.total_seconds()


def test_async_requests_end_when_their_time_is_over_whatever_their_order(futures: RequestFutures) -> None:
    ended: list[str] = []
    requests = {}
    for name, timeout in (("patient", LONG), ("second", 3 * SHORT), ("first", SHORT)):
        requests[name] = waiting(futures, timeout, is_async=True)
        requests[name].future.add_done_callback(lambda _, name=name: ended.append(name))  # type: ignore[misc]

    wait_until(lambda: len(ended) == 2)

    assert ended == ["first", "second"]
    assert isinstance(error_of(requests["first"].future), RequestTimeout)
    assert len(futures) == 1


def test_a_request_can_wait_longer_than_a_thread_can(futures: RequestFutures) -> None:
    request = waiting(futures, timedelta.max, is_async=True)
    futures.end(request.correlation_id, received({}))

    assert request.result().body == b"ping"


def test_a_callback_holds_up_neither_replies_nor_sync_requests(futures: RequestFutures) -> None:
    opened = threading.Event()
    blocking = waiting(futures, is_async=True)
    blocking.future.add_done_callback(lambda _: opened.wait(60))
    futures.end(blocking.correlation_id, received({}))
    sync = waiting(futures)

    replied = Doing(lambda: futures.end(sync.correlation_id, received({}, b"pong")))

    assert sync.result().body == b"pong"
    assert replied.result()
    opened.set()


def test_ended_requests_leave_nothing_behind(futures: RequestFutures) -> None:
    for _ in range(5_000):
        request = waiting(futures, is_async=True)
        futures.end(request.correlation_id, received({}))

    assert len(futures) == 0
    assert len(futures._deadlines) <= 1_001


def test_after_a_shutdown_nothing_waits(futures: RequestFutures) -> None:
    requests = [waiting(futures, is_async=is_async) for is_async in (False, True)]

    futures.close()
    futures.close()
    futures.join()

    for request in requests:
        assert isinstance(error_of(request.future), IllegalState)
        assert not futures.end(request.correlation_id, received({}))
    with pytest.raises(IllegalState, match="shut down"):
        waiting(futures)
    with pytest.raises(IllegalState):
        futures.check_open()


def test_a_callback_may_shut_down(futures: RequestFutures) -> None:
    request = waiting(futures, is_async=True)
    done = threading.Event()

    def shut_down(_: object) -> None:
        futures.close()
        futures.join()
        done.set()

    request.future.add_done_callback(shut_down)
    futures.end(request.correlation_id, received({}))

    assert done.wait(10)
