"""The wire format of messages: pulled messages, batches, and both kinds of ids.

A message that is pulled, looked up or checked consists of 88 bytes of numbers, then body, topic and properties:

    total, magic, crc32 of the body, queue id, flag, queue offset, position, sys_flag, born ms, born host, store ms,
    store host, reconsume times, prepared offset, body length | body | int8 length, topic | int16 length, properties

A host is an IPv4 address and a port. Clients build the offset id from the store host and the position, and look a
message up at that address. RocketMQ: MessageDecoder, MessageExtEncoder, MessageExt, MessageId.
"""

import re
import struct
from collections.abc import Mapping
from functools import lru_cache
from socket import AF_INET, inet_ntop, inet_pton
from typing import Final, NamedTuple
from zlib import crc32

from mqdb.common.property import MAX_PROPERTIES_BYTES, FailureProperty, Property
from mqdb.common.received_message import ReceivedMessage
from mqdb.remoting.wire.frame import FrameInvalid

# -- properties ---------------------------------------------------------------------------------

_VALUE, _NEXT = "\x01", "\x02"


def encode_properties(properties: Mapping[str, str]) -> str:
    """Properties in RocketMQ's format: `name U+0001 value U+0002` for each property."""
    return "".join([f"{name}{_VALUE}{value}{_NEXT}" for name, value in properties.items()])


def decode_properties(text: str) -> dict[str, str]:
    """Parse properties from any text; a pair without a name or a value is ignored.

    A value may contain U+0001, and U+0000 may occur anywhere. Source: MessageDecoder.string2messageProperties.
    """
    properties: dict[str, str] = {}
    for item in text.split(_NEXT):
        name, _, value = item.partition(_VALUE)
        if name and value:
            properties[name] = value
    return properties


# -- messages for consumers ---------------------------------------------------------------------

_NUMBERS = struct.Struct(">IIIiiqqiq8sq8siqi")
_properties_length = struct.Struct(">h").pack

#: Properties that RocketMQ's brokers add to each message and that mqdb does not store. Without a region, Java's client
#: writes no traces.
_OF_ALL: Final = f"{Property.MSG_REGION}{_VALUE}DefaultRegion{_NEXT}{Property.TRACE_ON}{_VALUE}true{_NEXT}".encode()
_NONE_ADDED: Final[Mapping[str, str]] = {}

#: The magic number tells a client the size of the topic's length field. Clients before 5.0 know only the first of these
#: numbers.
_MAGIC, _MAGIC_LONG_TOPIC = 0xDAA320A7, 0xDAA320AB
_MOST_SHORT_TOPIC_BYTES, _MOST_TOPIC_BYTES = 127, 32_767

#: Flag in sys_flag for hosts with IPv6 addresses, which do not occur here. Source: MessageSysFlag.BORNHOST_V6_FLAG.
_ALL_BUT_IPV6: Final = ~(1 << 4 | 1 << 5)

_NOT_SIGNED: Final = 0x7FFF_FFFF


def encode_message(
    message: ReceivedMessage,
    store_host: tuple[str, int],
    *,
    topic: str | None = None,
    queue_id: int | None = None,
    reconsume_times: int | None = None,
    added: Mapping[str, str] = _NONE_ADDED,
) -> bytes:
    """Encode a message for a client that can reach us at `store_host`, an IPv4 address and a port.

    Topic, queue and number of failures are those of the message, unless they are given. `added` are additional
    properties. The body stays compressed as `sys_flag` says. Raises PropertiesBroken, and FrameInvalid for a topic of
    more than 32,767 bytes.
    """
    queue, body = message.queue, message.stored_body
    magic, topic_bytes = _encoded_topic(queue.topic if topic is None else topic)
    properties = encode_properties(message.properties).encode()
    ours = encode_properties(added).encode() + _OF_ALL if added else _OF_ALL
    if len(properties) + len(ours) > MAX_PROPERTIES_BYTES:
        properties = _fitting(message.properties, MAX_PROPERTIES_BYTES - len(ours))
    properties += ours
    numbers = _NUMBERS.pack(
        _NUMBERS.size + len(body) + len(topic_bytes) + 2 + len(properties),
        magic,
        crc32(body) & _NOT_SIGNED,
        queue.queue_id if queue_id is None else queue_id,
        message.flag,
        message.queue_offset,
        message.log_pos,
        message.sys_flag & _ALL_BUT_IPV6,
        message.born_ms,
        _encoded_address(message.born_host),
        message.store_ms,
        _encoded_host(*store_host),
        message.reconsume_times if reconsume_times is None else reconsume_times,
        0,
        len(body),
    )
    return b"".join((numbers, body, topic_bytes, _properties_length(len(properties)), properties))


def _fitting(properties: Mapping[str, str], most_bytes: int) -> bytes:
    """Encode properties without those that exceed the limit.

    A message that was sent back has more properties than when it was sent.

    The properties about the failure, which RocketMQ's clients do not use, are removed first, and then the longest ones.
    """
    failure = frozenset(FailureProperty)
    fitting = {name: value for name, value in properties.items() if name not in failure}
    while len(encoded := encode_properties(fitting).encode()) > most_bytes:
        del fitting[max(fitting, key=lambda name: len(name) + len(fitting[name]))]
    return encoded


# Cached, because a front has few topics and peers, but many messages.
@lru_cache(maxsize=4_096)
def _encoded_topic(topic: str) -> tuple[int, bytes]:
    """The magic number, and the topic preceded by its length."""
    encoded = topic.encode()
    if len(encoded) <= _MOST_SHORT_TOPIC_BYTES:
        return _MAGIC, len(encoded).to_bytes(1) + encoded
    if len(encoded) > _MOST_TOPIC_BYTES:
        raise FrameInvalid(f"a topic of {len(encoded):,} bytes; the limit is {_MOST_TOPIC_BYTES:,}")
    return _MAGIC_LONG_TOPIC, len(encoded).to_bytes(2) + encoded


@lru_cache(maxsize=4_096)
def _encoded_address(text: str) -> bytes:
    """The bytes of `ip:port` or `ip`; zeros for anything else, such as `local`, the host of messages sent by SQL."""
    ip, _, port = text.partition(":")
    return _encoded_host(ip, int(port) if re.fullmatch(r"[0-9]{1,5}", port) else 0)


@lru_cache(maxsize=4_096)
def _encoded_host(ip: str, port: int) -> bytes:
    try:
        address = inet_pton(AF_INET, ip)
    except (OSError, ValueError):
        return bytes(8)
    return address + (port if port <= 0xFFFF else 0).to_bytes(4)


# -- the body of a batch ------------------------------------------------------------------------


class BatchMessage(NamedTuple):
    """A message of a batch; its topic, queue and other values are those of the request."""

    flag: int
    body: bytes
    properties: dict[str, str]


#: Total length, magic number, CRC, flag, length of the body. As in RocketMQ, the first three are ignored.
_BATCH_NUMBERS = struct.Struct(">iiiii")
_BATCH_PROPERTIES_LENGTH = struct.Struct(">h")


def decode_batch(body: bytes) -> list[BatchMessage]:
    """Decode the messages in the body of code 320, in order. Raises FrameInvalid; an empty body has no messages."""
    messages: list[BatchMessage] = []
    at = 0
    try:
        while at < len(body):
            _, _, _, flag, body_length = _BATCH_NUMBERS.unpack_from(body, at)
            body_at = at + _BATCH_NUMBERS.size
            body_end = body_at + body_length
            if body_length < 0:
                raise FrameInvalid(f"message {len(messages)} has a body of {body_length:,} bytes")
            (properties_length,) = _BATCH_PROPERTIES_LENGTH.unpack_from(body, body_end)
            properties_at = body_end + _BATCH_PROPERTIES_LENGTH.size
            at = properties_at + properties_length
            if properties_length < 0 or at > len(body):
                raise FrameInvalid(f"message {len(messages)} has properties of {properties_length:,} bytes")
            properties = decode_properties(body[properties_at:at].decode())
            messages.append(BatchMessage(flag, body[body_at:body_end], properties))
    except (struct.error, UnicodeDecodeError) as error:
        raise FrameInvalid(f"message {len(messages)} cannot be read: {error}") from error
    return messages


# -- ids ----------------------------------------------------------------------------------------

_OFFSET_ID = struct.Struct(">4siq")
_32_DIGITS = re.compile("[0-9A-Fa-f]{32}")


def offset_id(host: str, port: int, log_pos: int) -> str:
    """The id with which a client finds a message at this address: 32 upper-case hexadecimal digits.

    `host` is an IPv4 address; for any other name, the id contains 0.0.0.0:0.
    """
    return f"{_host_digits(host, port)}{log_pos:016X}"


@lru_cache(maxsize=16)
def _host_digits(host: str, port: int) -> str:
    return _encoded_host(host, port).hex().upper()


def decode_offset_id(text: str) -> tuple[str, int, int]:
    """The IPv4 address, port and position in an offset id.

    Raises FrameInvalid, even for most unique ids, which also have 32 digits.
    """
    if not _32_DIGITS.fullmatch(text):
        raise FrameInvalid(f"an offset id has 32 hexadecimal digits, not {text[:50]!r}")
    ip, port, log_pos = _OFFSET_ID.unpack(bytes.fromhex(text))
    if not 0 <= port <= 0xFFFF or log_pos < 0:
        raise FrameInvalid(f"{text} is not an offset id: it has port {port} and position {log_pos}")
    return inet_ntop(AF_INET, ip), port, log_pos
