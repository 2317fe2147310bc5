"""A front forgets names that clients send, so new names in each request do not fill its memory."""

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import Future

import pytest
from sqlalchemy import Connection

from mqdb.remoting.wire.codes import RequestCode
from mqdb.remoting.wire.frame import Frame
from tests.fixtures.broker import topic
from tests.fixtures.remoting_client import PATIENCE_SECONDS, Fronts, RemotingClient
from tests.fixtures.variants import usually
from tests.integration.remoting.test_sends import header, properties

#: Together 1.2 MB; none is too long for the properties of a message.
NAMES = [f"{number:05}" + "x" * 20_000 for number in range(60)]
MOST_BYTES = 500_000

Ask = Callable[[RemotingClient, str], "Future[Frame]"]


def pull(client: RemotingClient, name: str) -> "Future[Frame]":
    fields = {"consumerGroup": name, "topic": "orders", "queueId": 0, "queueOffset": 0, "subscription": "*"}
    return client.begin(RequestCode.PULL_MESSAGE, fields | {"sysFlag": 4, "maxMsgNums": 1})


def request(client: RemotingClient, name: str) -> "Future[Frame]":
    return client.begin(310, header(i=properties(REPLY_TO_CLIENT=name, CORRELATION_ID="c")), b"a")


def half(client: RemotingClient, name: str) -> "Future[Frame]":
    return client.begin(310, header(a=name, f=4, i=properties(TRAN_MSG="true", PGROUP="shop")), b"a")


def beat(client: RemotingClient, name: str) -> "Future[Frame]":
    said = {"clientID": "1.2.3.4@1", "producerDataSet": [{"groupName": name}]}
    return client.begin(RequestCode.HEART_BEAT, body=said)


def half_after_a_heartbeat(client: RemotingClient, name: str) -> "Future[Frame]":
    beat(client, "shop").result(PATIENCE_SECONDS)
    return half(client, name)


ASKS: tuple[Ask, ...] = (pull, request, half, beat, half_after_a_heartbeat)


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.parametrize("ask", usually(pull, request, half_after_a_heartbeat, of=ASKS))
def test_names_of_a_client_are_forgotten(broker: Connection, fronts: Fronts, traced: None, ask: Ask) -> None:
    topic(broker)
    client = fronts.connect()
    assert ask(client, "first").result(PATIENCE_SECONDS).code in (0, 19)
    before = held_bytes()

    for name in NAMES:
        ask(client, name).result(PATIENCE_SECONDS)

    assert held_bytes() - before < MOST_BYTES


def held_bytes() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]
