"""Requests that wait for replies: the end of one request does not end the others."""

from concurrent.futures import Future
from datetime import timedelta

import pytest

from mqdb.common.received_message import ReceivedMessage
from mqdb.errors import RequestTimeout
from mqdb_client.producer.requests.request_futures import RequestFutures, WaitingRequest

SECONDS = 30.0


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, ValueError])
def test_what_a_callback_raises_ends_no_other_request(kind: type[BaseException]) -> None:
    def leave(_future: "Future[ReceivedMessage]") -> None:
        raise kind("by a callback")

    futures = RequestFutures()
    first, second = (WaitingRequest("orders", timedelta(hours=1), is_async=True) for _ in range(2))
    first.future.add_done_callback(leave)
    for request in (first, second):
        futures.add(request)

    for request in (first, second):
        futures.end(request.correlation_id, request.late())

    assert isinstance(first.future.exception(SECONDS), RequestTimeout)
    assert isinstance(second.future.exception(SECONDS), RequestTimeout)
    futures.close()
    futures.join()
