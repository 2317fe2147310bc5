"""A front that receives garbage: requests of every code with faulty fields and bodies, and arbitrary bytes.

The test sends ten requests for each of MQDB_FUZZ_CASES, next to a well-behaved client that must be served all the time.
"""

import gc
import json
import logging
import random
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import Connection

from mqdb.common.http_address import HttpAddress
from mqdb.remoting.wire.codes import RequestCode
from mqdb.remoting.wire.frame import Frame, Serializer, decode_frame, encode_frame
from mqdb.remoting.wire.messages import encode_properties, offset_id
from tests.fixtures.broker import topic
from tests.fixtures.fuzz import fuzz_cases, fuzz_random
from tests.fixtures.remoting_client import PATIENCE_SECONDS, Fronts, Pulled, RemotingClient, consumer
from tests.fixtures.remoting_groups import NO_NEW
from tests.fixtures.remoting_vectors import bytes_of, remoting_vectors
from tests.integration.remoting.test_sends import send

logger = logging.getLogger(__name__)

CASES = 10 * fuzz_cases()
ON_ONE_CONNECTION = 50
LAST = 2**31 - 1

PROPERTIES = encode_properties({"TAGS": "new", "KEYS": "a b", "UNIQ_KEY": "7F0000010000854D0000000000000010"})

#: What the handlers read, of all codes together; the letters are a send's.
FIELDS: Mapping[str, object] = {
    "a": "shop", "b": "orders", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0, "i": PROPERTIES, "j": 0,
    "k": "false", "m": "false", "topic": "orders", "consumerGroup": "readers", "producerGroup": "shop",
    "group": "readers", "groupName": "readers", "queueId": 0, "queueOffset": 0, "offset": 1, "commitOffset": 0,
    "maxMsgNums": 32, "maxMsgBytes": 1_000, "sysFlag": 4, "suspendTimeoutMillis": 100, "subscription": "new",
    "expressionType": "TAG", "subVersion": 0, "timestamp": 1, "beginTimestamp": 0, "endTimestamp": 2**62,
    "key": "a", "maxNum": 32, "clientID": "1.2.3.4@1", "clientId": "1.2.3.4@1", "jstackEnable": "false",
    "fromTransactionCheck": "false", "transactionId": "7F0000010000854D0000000000000010", "commitOrRollback": 8,
    "tranStateTableOffset": 1, "commitLogOffset": 1, "recallHandle": "djEgYnJva2VyLWEgb3JkZXJzIDEgYQ",
    "msgId": offset_id("127.0.0.1", 9876, 1), "originMsgId": "a", "originTopic": "orders", "delayLevel": 3,
    "maxReconsumeTimes": 16, "statsName": "TOPIC_PUT_NUMS", "statsKey": "orders", "namespace": "ORDER_TOPIC_CONFIG",
    "defaultTopic": "TBW102", "defaultTopicQueueNums": 4, "bornTimestamp": 1, "flag": 0, "properties": PROPERTIES,
    "readQueueNums": 4, "writeQueueNums": 4, "perm": 6, "order": "false", "attributes": "+message.type=NORMAL",
    "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "isForce": "true", "cleanOffset": "true",
    "brokerName": "broker-a", "invisibleTime": 1, "pollTime": 100, "initMode": 0, "expType": "TAG", "exp": "new",
    "extraInfo": f"0 1 1 0 0 broker-a 0 0 {'0' * 80}",
}  # fmt: skip

QUEUE = {"topic": "orders", "brokerName": "broker-a", "queueId": 0}
SUBSCRIPTION = {"topic": "orders", "subString": "a > 1", "expressionType": "SQL92"}
LOCKS = {"consumerGroup": "readers", "clientId": "1.2.3.4@1", "mqSet": [QUEUE]}
#: By code; a body of another code comes as well.
BODIES: Mapping[int, object] = {
    RequestCode.HEART_BEAT: {
        "clientID": "1.2.3.4@1",
        "producerDataSet": [{"groupName": "shop"}],
        "consumerDataSet": [consumer(orders="*"), consumer("others", orders="sql:a > 1", model="BROADCASTING")],
    },
    RequestCode.LOCK_BATCH_MQ: LOCKS,
    RequestCode.UNLOCK_BATCH_MQ: LOCKS,
    RequestCode.CHECK_CLIENT_CONFIG: {"clientId": "1.2.3.4@1", "group": "readers", "subscriptionData": SUBSCRIPTION},
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: {
        "groupName": "readers",
        "consumeEnable": True,
        "retryQueueNums": 1,
        "retryMaxTimes": 16,
    },
    RequestCode.QUERY_ASSIGNMENT: {
        "topic": "orders",
        "consumerGroup": "readers",
        "clientId": "1.2.3.4@1",
        "strategyName": "AVG",
        "messageModel": "CLUSTERING",
    },
    RequestCode.SET_MESSAGE_REQUEST_MODE: {
        "topic": "orders",
        "consumerGroup": "readers",
        "mode": "POP",
        "popShareQueueNum": 0,
    },
    RequestCode.SEND_BATCH_MESSAGE: next(
        bytes_of(one["bytes"]) for one in remoting_vectors() if one["kind"] == "batch"
    ),
}

#: In the place of a value, as a text in a field.
ODD: tuple[object, ...] = (
    "", " ", "a\0b", "\ud7ff\U0001f600", "x" * 300, "%RETRY%readers", "%DLQ%readers", "TBW102", "*", "a||b", "a > ",
    "NaN", "1e9", "0x10", "+1", "1_0", -1, 2**31 - 1, 2**31, -(2**63), 2**63 - 1, 2**63, 10**40, 0, 3, 9_999, 1.5,
    True, None, [], {}, [1], "SQL92", "\x01\x02\x01", "٣", "broker-b",
)  # fmt: skip


def faulty(chance: random.Random, number: int) -> bytes:
    """A faulty request with some code."""
    fields = {name: str(value) for name, value in FIELDS.items() if chance.random() > 0.02}
    for _ in range(chance.randint(0, 3)):
        fields[chance.choice(list(FIELDS))] = str(chance.choice(ODD))
    code = chance.choice(list(RequestCode)) if number % 50 else chance.randrange(-(2**15), 2**15)
    serializer = Serializer.JSON if code >= 2**15 else chance.choice(list(Serializer))
    flag = chance.choice((0, 0, 0, 0, 0, 2, 1, 7))
    return encode_frame(Frame(code, fields, faulty_body(chance, code), number, flag, None, "JAVA", 409, serializer))


def no_request(chance: random.Random) -> bytes:
    """Bytes that may or may not form a frame, or that are the beginning of one."""
    if chance.random() < 0.2:
        return chance.randbytes(60)
    data = bytearray(faulty(chance, 0))
    for _ in range(chance.randint(1, 4)):
        data[chance.randrange(len(data))] = chance.randrange(256)
    return bytes(data)


def faulty_body(chance: random.Random, code: int) -> bytes:
    said = BODIES.get(code) or chance.choice(list(BODIES.values()))
    body = bytearray(said if isinstance(said, bytes) else json.dumps(said).encode())
    match chance.randrange(4):
        case 0:
            return chance.randbytes(chance.randrange(200))
        case 1 if not isinstance(said, bytes):
            return json.dumps(_changed(chance, said)).encode()
        case 2:
            body[chance.randrange(len(body))] = chance.randrange(256)
    return bytes(body)


def _changed(chance: random.Random, said: Any) -> Any:
    """The value with one part changed."""
    if not said or not isinstance(said, dict | list) or chance.random() < 0.2:
        return chance.choice((*ODD, "\ud800"))  # which no field of a header may hold
    if isinstance(said, list):
        return [_changed(chance, said[0]), *said[1:]]
    name = chance.choice(list(said))
    return {**said, name: _changed(chance, said[name])}


class Behaving:
    """A client that constantly sends to and reads from its own topic, in its own group."""

    def __init__(self, client: RemotingClient) -> None:
        self._client = client
        self._ending = threading.Event()
        self._failure: BaseException | None = None
        self.served = 0
        self.longest_seconds = 0.0
        self.beat()
        assert client.query_offset("steady-readers", "steady") == 0
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        try:
            while not self._ending.is_set():
                began = time.monotonic()
                self._once()
                self.served += 1
                self.longest_seconds = max(self.longest_seconds, time.monotonic() - began)
        except BaseException as failure:  # noqa: BLE001 - the test is told
            self._failure = failure

    def _once(self) -> None:
        if self.served % 20 == 0:
            self.beat()
        body = str(self.served)
        assert send(self._client, body.encode(), b="steady").code == 0
        until = time.monotonic() + PATIENCE_SECONDS
        found = self._pull()
        while found.code == NO_NEW and time.monotonic() < until:  # as clients do that are told to come again
            found = self._pull()
        assert (found.code, found.bodies) == (0, [body])
        self._client.commit("steady-readers", "steady", found.next_offset)

    def _pull(self) -> Pulled:
        return self._client.pull("steady-readers", "steady", self.served, hold_ms=20_000)

    def beat(self) -> None:
        """Send a heartbeat, as clients do every 30 s: a client without heartbeats is given up."""
        assert self._client.heartbeat("5.6.7.8@1", consumer("steady-readers", steady="*")).code == 0

    def end(self) -> None:
        """Stop the client; raises its error."""
        self._ending.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure


@pytest.mark.timeout(1_800)
def test_rubbish_costs_nobody_else(broker: Connection, fronts: Fronts, caplog: pytest.LogCaptureFixture) -> None:
    gc.collect()  # tasks of other tests tell of their errors when they go
    caplog.clear()
    topic(broker)
    topic(broker, "steady")
    behaving = Behaving(fronts.connect())
    address = fronts.start().address
    chance = fuzz_random()
    try:
        for first in range(0, CASES, ON_ONE_CONNECTION):
            exchange(address, chance, first)
    finally:
        behaving.end()
    logger.warning("%d served, the slowest in %.2f s", behaving.served, behaving.longest_seconds)
    assert behaving.served
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def exchange(address: HttpAddress, chance: random.Random, first: int) -> None:
    """Send requests on a separate connection, and at the end one whose answer is awaited, or broken bytes."""
    requests = [request(RequestCode.UPDATE_AND_CREATE_TOPIC, 0)]  # the topic, which one of them may have deleted
    requests += [faulty(chance, number) for number in range(first, first + ON_ONE_CONNECTION)]
    is_broken = chance.random() < 0.5
    requests.append(no_request(chance) if is_broken else request(RequestCode.GET_TOPIC_CONFIG, LAST))
    with socket.create_connection((address.host, address.port), PATIENCE_SECONDS) as client:
        client.sendall(b"".join(requests))
        if is_broken:
            client.shutdown(socket.SHUT_WR)
        with client.makefile("rb") as stream, suppress(ConnectionResetError):
            while size := stream.read(4):
                if decode_frame(stream.read(int.from_bytes(size))).opaque == LAST:
                    return
    assert is_broken, "the front has closed a connection whose requests are frames"


def request(code: RequestCode, opaque: int) -> bytes:
    """A request without a fault."""
    fields = {"topic": "orders", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6"}
    return encode_frame(Frame(code, fields, opaque=opaque))
