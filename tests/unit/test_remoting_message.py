"""Messages on the wire are written as RocketMQ's library writes them.

Batches, properties and ids are read the same way.
"""

import hashlib
import json
import struct
import uuid
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqdb.common.message import MessageQueue
from mqdb.common.received_message import ReceivedMessage
from mqdb.common.unique_id import format_unique_id, unique_id_of
from mqdb.remoting.wire.frame import FrameInvalid
from mqdb.remoting.wire.messages import (
    BatchMessage,
    decode_batch,
    decode_offset_id,
    decode_properties,
    encode_message,
    encode_properties,
    offset_id,
)
from tests.fixtures.remoting_vectors import bytes_of, each

ID = "0A0000011F9000C0FFEE001122334455"
EPOCH_MS = 946_684_800_000
FRONT = ("192.168.250.1", 9876)
NUMBERS = struct.Struct(">IIIiiqqiq4siq4siiqi")


def received(topic: str = "orders", **changes: Any) -> ReceivedMessage:
    row: dict[str, Any] = {
        "queue": MessageQueue(topic, "broker-a", 3),
        "queue_offset": 17,
        "log_pos": 42,
        "msg_id": uuid.UUID(ID),
        "tag": None,
        "keys": None,
        "properties": {},
        "body": b"hello",
        "born_time": 1_000_123_999,
        "store_time": 2_000_456_000,
        "born_host": "10.1.2.3:51234",
        "reconsume_times": 0,
        "flag": 0,
        "sys_flag": 0,
        "min_offset": 0,
        "max_offset": 18,
    }
    return ReceivedMessage(**{**row, **changes})


def read(encoded: bytes, length_of_topic: str = ">B") -> tuple[tuple[Any, ...], bytes, str, dict[str, str]]:
    """Numbers, body, topic and properties of one message; checks that all bytes are used."""
    numbers = NUMBERS.unpack_from(encoded)
    at = NUMBERS.size + numbers[-1]
    body = encoded[NUMBERS.size : at]
    (topic_bytes,) = struct.unpack_from(length_of_topic, encoded, at)
    at += struct.calcsize(length_of_topic)
    topic = encoded[at : at + topic_bytes].decode()
    at += topic_bytes
    (properties_bytes,) = struct.unpack_from(">h", encoded, at)
    assert numbers[0] == len(encoded) == at + 2 + properties_bytes
    return numbers, body, topic, decode_properties(encoded[at + 2 :].decode())


# -- messages for consumers -----------------------------------------------------------------------


@pytest.mark.parametrize("line", each("message"))
def test_a_message_is_encoded_as_rocketmq_does(line: dict[str, Any]) -> None:
    columns = {"TAGS": "tag", "KEYS": "keys"}
    properties: dict[str, str] = line["properties"]
    message = received(
        line["topic"],
        queue=MessageQueue(line["topic"], "broker-a", line["queue_id"]),
        queue_offset=line["queue_offset"],
        log_pos=line["log_pos"],
        msg_id=unique_id_of(properties["UNIQ_KEY"]),
        **{column: properties.get(name) for name, column in columns.items()},
        properties=json.dumps({name: text for name, text in properties.items() if name not in columns}),
        body=bytes_of(line["body"]),
        born_time=(line["born_ms"] - EPOCH_MS) * 1_000,
        store_time=(line["store_ms"] - EPOCH_MS) * 1_000 + 999,
        born_host=line["born_host"],
        reconsume_times=line["reconsume_times"],
        flag=line["flag"],
        sys_flag=line["sys_flag"],
    )

    encoded, theirs = encode_message(message, (line["store_host"], line["store_port"])), bytes_of(line["bytes"])

    (total, *numbers), *rest = read(encoded)
    (their_total, *their_numbers), *their_rest = read(theirs)
    assert numbers == their_numbers
    assert their_rest == [bytes_of(line["body"]), line["topic"], properties]
    assert rest == [bytes_of(line["body"]), line["topic"], properties | OF_ALL]
    # 4.9.8 leaves out the last separator.
    assert total - their_total == (line["release"] == "4.9.8") + len(encode_properties(OF_ALL))


#: What RocketMQ's broker adds to each message, and so do we.
OF_ALL = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}


def test_topic_and_queue_can_be_others_than_where_the_message_was_read() -> None:
    numbers, _, topic, _ = read(encode_message(received("RMQ_SYS_X"), FRONT, topic="orders", queue_id=0))

    assert topic == "orders"
    assert numbers[3] == 0


@pytest.mark.parametrize(
    ("born_host", "ip", "port"),
    [
        ("10.1.2.3:51234", "0A010203", 51234),
        ("10.1.2.3", "0A010203", 0),
        ("10.1.2.3:65536", "0A010203", 0),
        ("10.1.2.3:-1", "0A010203", 0),
        ("10.1.2.3:\u0661", "0A010203", 0),
        ("::1", "00000000", 0),
        ("[fe80::1]:51234", "00000000", 0),
        ("local", "00000000", 0),
        ("", "00000000", 0),
        ("10.1:80", "00000000", 0),
        ("a\0b", "00000000", 0),
    ],
)
def test_a_host_that_is_no_ipv4_address_is_zeros(born_host: str, ip: str, port: int) -> None:
    numbers, *_ = read(encode_message(received(born_host=born_host, sys_flag=1 << 4 | 1 << 5 | 8), FRONT))

    assert numbers[9:11] == (bytes.fromhex(ip), port)
    assert numbers[7] == 8  # no bit says that hosts have 16 bytes


def test_an_id_that_is_no_uuid_goes_before_its_hash() -> None:
    text = "FE80" * 14
    message = received(properties={"UNIQ_KEY": text}, msg_id=unique_id_of(text))

    assert read(encode_message(message, FRONT))[3] == {"UNIQ_KEY": text} | OF_ALL
    assert message.properties == {"UNIQ_KEY": text}


def test_a_topic_of_many_bytes_has_another_magic() -> None:
    short, long = "x" * 127, "%RETRY%" + "界" * 100

    assert read(encode_message(received(short), FRONT))[0][1] == 0xDAA320A7
    numbers, _, topic, _ = read(encode_message(received(long), FRONT), ">h")
    assert (numbers[1], topic) == (0xDAA320AB, long)
    with pytest.raises(FrameInvalid):
        encode_message(received("x" * 32_768), FRONT)


def test_properties_that_have_become_too_many_lose_the_failure_and_then_the_longest() -> None:
    usual = {"RETRY_TOPIC": "orders", "a": "界" * 5_000, "b": "y" * 15_000}
    failure = {"MQDB_FAILURE_TRACEBACK": "z" * 8_000, "MQDB_FAILURE_TIME": "now"}

    assert read(encode_message(received(properties=usual | failure), FRONT))[3] == {**usual, "UNIQ_KEY": ID} | OF_ALL
    more = usual | failure | {"c": "w" * 10_000}
    assert read(encode_message(received(properties=more), FRONT))[3].keys() == {
        "RETRY_TOPIC",
        "a",
        "c",
        "UNIQ_KEY",
        *OF_ALL,
    }


def test_a_message_tells_the_crc_of_its_body() -> None:
    body = b"123456789"

    assert read(encode_message(received(body=body), FRONT))[0][2] == crc32(body) & 0x7FFFFFFF == 0x4BF43926


# -- properties -----------------------------------------------------------------------------------


@pytest.mark.parametrize("line", each("properties"))
def test_properties_are_read_as_rocketmq_does(line: dict[str, Any]) -> None:
    assert decode_properties(line["why"]) == line["properties"]


words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), min_size=1)


@given(st.dictionaries(words, words))
def test_properties_come_back_as_they_were(properties: dict[str, str]) -> None:
    assert decode_properties(encode_properties(properties)) == properties


# -- batches --------------------------------------------------------------------------------------

batch_messages = st.builds(
    BatchMessage, st.integers(-(2**31), 2**31 - 1), st.binary(), st.dictionaries(words, words, max_size=3)
)


def encode_batch(messages: list[BatchMessage]) -> bytes:
    encoded = b""
    for flag, body, properties in messages:
        text = encode_properties(properties).encode()
        encoded += struct.pack(">iiiii", 22 + len(body) + len(text), 0, 0, flag, len(body)) + body
        encoded += struct.pack(">h", len(text)) + text
    return encoded


@pytest.mark.parametrize("line", each("batch"))
def test_a_batch_of_rocketmq_is_read(line: dict[str, Any]) -> None:
    messages = [BatchMessage(each["flag"], bytes_of(each["body"]), each["properties"]) for each in line["messages"]]

    assert decode_batch(bytes_of(line["bytes"])) == messages


@given(st.lists(batch_messages, max_size=4))
def test_a_batch_comes_back_as_it_was(messages: list[BatchMessage]) -> None:
    assert decode_batch(encode_batch(messages)) == messages


@given(st.lists(batch_messages, min_size=1, max_size=2), st.data())
def test_a_batch_that_ends_early_is_refused(messages: list[BatchMessage], data: st.DataObject) -> None:
    encoded = encode_batch(messages)
    end = data.draw(st.integers(len(encode_batch(messages[:-1])) + 1, len(encoded) - 1))

    with pytest.raises(FrameInvalid):
        decode_batch(encoded[:end])


@pytest.mark.parametrize(
    "body",
    [
        struct.pack(">iiiiih", 22, 0, 0, 0, -1, 0),
        struct.pack(">iiiiih", 22, 0, 0, 0, 2**31 - 1, 0),
        struct.pack(">iiiiih", 22, 0, 0, 0, 0, -1),
        struct.pack(">iiiiih", 22, 0, 0, 0, 0, -22),  # leads back to the beginning
        struct.pack(">iiiiih", 22, 0, 0, 0, 0, 1),
        struct.pack(">iiiiih", 22, 0, 0, 0, 0, 1) + b"\xff",
    ],
)
def test_a_batch_with_lengths_or_texts_that_are_none_is_refused(body: bytes) -> None:
    with pytest.raises(FrameInvalid):
        decode_batch(body)


# -- ids ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("line", each("offset_id"))
def test_an_offset_id_is_that_of_rocketmq(line: dict[str, Any]) -> None:
    assert offset_id(line["why"], line["port"], line["log_pos"]) == line["text"]
    assert decode_offset_id(line["text"]) == (line["why"], line["port"], line["log_pos"])


@given(st.ip_addresses(v=4), st.integers(0, 65535), st.integers(0, 2**63 - 1))
def test_an_offset_id_comes_back_as_it_was(ip: object, port: int, log_pos: int) -> None:
    assert decode_offset_id(offset_id(str(ip), port, log_pos)) == (str(ip), port, log_pos)


@pytest.mark.parametrize(
    "text",
    [
        "",
        ID[:-1],
        ID + "0",
        ID,  # a unique id: its port would be 529,531,118
        "7F0000010000269400000000000000 A",
        "7F00000100002694000000000000000G",
        "7F0000010000269400000000000000\u0661A",
        "7F00000100002694FFFFFFFFFFFFFFFF",
        "7F000001FFFFFFFF0000000000000000",
        "7F00000100010000000000000000002A",
    ],
)
def test_an_offset_id_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(FrameInvalid):
        decode_offset_id(text)


def test_a_unique_id_is_a_uuid_or_has_a_hash() -> None:
    of_ipv6 = "FE80" * 14

    assert format_unique_id(unique_id_of(ID)) == format_unique_id(unique_id_of(ID.lower())) == ID
    for text in (of_ipv6, "", "order-17", "grüße", ID[:-1] + "\u0661", f"{{{ID}}}", str(uuid.UUID(ID))):
        assert unique_id_of(text).hex == hashlib.md5(text.encode()).hexdigest()
