"""Messages: conversion between SDK messages and log records.

Fields of the SDKs become properties in the log, with RocketMQ's names, so that clients of any protocol, including those
in Python, can read each other's messages. RocketMQ: SendMessageActivity, GrpcConverter.
"""

import zlib
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from hashlib import md5
from typing import Final, NamedTuple

from mqdb.common.delivery_schedule import MAX_MILLISECONDS
from mqdb.common.message import MAX_BODY_BYTES
from mqdb.common.property import KEY_SEPARATOR, RESERVED_PROPERTIES, Property
from mqdb.common.received_message import ReceivedMessage
from mqdb.common.topic import DLQ_PREFIX
from mqdb.errors import BodyEmpty, BodyTooLarge, PropertyInvalid, PropertyReserved
from mqdb.grpc.wire.rocketmq_pb2 import (
    Code,
    DeadLetterQueue,
    Digest,
    DigestType,
    Encoding,
    FilterExpression,
    FilterType,
    Message,
    MessageType,
    Resource,
    SystemProperties,
)
from mqdb.grpc.wire.status import CallRefused
from mqdb.grpc.wire.times import time_of, timestamp
from mqdb.selector.selector import compile_selector
from mqdb.selector.subscription import MessageFilter
from mqdb.selector.tags import parse_tag_expression

#: The message group: messages of the same group go to one queue. Source: MessageConst.PROPERTY_SHARDING_KEY.
SHARDING_KEY: Final = "__SHARDINGKEY"

#: A half message carries its own transaction id. Source: MessageConst.PROPERTY_TRANSACTION_ID.
TRANSACTION_ID: Final = "__transactionId__"

#: Source: ProxyConfig.userPropertyMaxNum, maxUserPropertySize, maxMessageGroupSize.
_MOST_PROPERTIES: Final = 128
_MOST_PROPERTY_BYTES: Final = 16 * 1024
_MOST_GROUP_BYTES: Final = 64

#: Properties that have their own fields, or that are of no use to a program.
_NOT_OF_USERS: Final = RESERVED_PROPERTIES | {SHARDING_KEY, TRANSACTION_ID, "MQDB_PRODUCER_CLIENT"}

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
#: End of the times that the database accepts: the domain `message_time`.
_PAST_TIMES: Final = datetime(9999, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


def full_name(resource: Resource, namespace: str) -> str:
    """The broker's name for a topic or a group, which includes the namespace, if any.

    `namespace` is the namespace of the call, for SDKs that do not repeat it. Source: NamespaceUtil.wrapNamespace.
    """
    namespace = resource.resource_namespace or namespace
    return f"{namespace}%{resource.name}" if namespace else resource.name


def resource_of(name: str, namespace: str) -> Resource:
    """A topic in the form for a client in this namespace."""
    prefix = f"{namespace}%"
    if namespace and name.startswith(prefix):
        return Resource(resource_namespace=namespace, name=name.removeprefix(prefix))
    return Resource(name=name)


def filter_of(expression: FilterExpression) -> MessageFilter:
    """The filter of a subscription. Raises TagExpressionInvalid, SelectorSyntaxError."""
    text = expression.expression
    return compile_selector(text) if expression.type == FilterType.SQL else parse_tag_expression(text or None)


# -- from SDKs ----------------------------------------------------------------------------------


class SdkMessage(NamedTuple):
    """A message of an SDK, in the form for the log."""

    message_id: str
    kind: MessageType
    tag: str | None
    keys: str | None
    #: All other properties.
    properties: dict[str, str]
    body: bytes
    born_time: datetime
    message_group: str | None


def sent(message: Message) -> SdkMessage:
    """Check a message that an SDK sends, and extract its parts.

    Raises CallRefused, BodyEmpty, BodyTooLarge, PropertyInvalid or PropertyReserved if an SDK may not send the message.
    """
    system = message.system_properties
    if not system.message_id:
        raise CallRefused(Code.ILLEGAL_MESSAGE_ID, "message_id is missing")
    properties = dict(message.user_properties)
    _check_user_properties(properties)
    tag = _checked_tag(system.tag) if system.tag else None
    group = system.message_group if system.HasField("message_group") else None
    if group is not None:
        if not 0 < len(group.encode()) < _MOST_GROUP_BYTES:
            size = len(group.encode())
            reason = f"message_group has {size} bytes; it must have 1 to {_MOST_GROUP_BYTES - 1}"
            raise CallRefused(Code.ILLEGAL_MESSAGE_GROUP, reason)
        properties[SHARDING_KEY] = group
    if system.HasField("delivery_timestamp"):
        due = system.delivery_timestamp
        properties[Property.TIMER_DELIVER_MS] = str(max(due.seconds * 1_000 + due.nanos // 1_000_000, 0))
    if system.born_host:
        properties[Property.BORNHOST] = system.born_host
    properties[Property.UNIQ_KEY] = system.message_id
    for name, value in properties.items():
        if "\0" in name or "\0" in value:
            raise PropertyInvalid(name, "contains U+0000, which PostgreSQL cannot store")
    return SdkMessage(
        system.message_id,
        _kind_of(system),
        tag,
        _checked_keys(system.keys),
        properties,
        _plain_body(message),
        _born_time(system),
        group,
    )


def _born_time(system: SystemProperties) -> datetime:
    """The time at which a message was created: the given time, or now."""
    if not system.HasField("born_timestamp"):
        return datetime.now(UTC)
    born = time_of(system.born_timestamp, "born_timestamp")
    if not _EPOCH <= born < _PAST_TIMES:
        raise CallRefused(Code.BAD_REQUEST, f"born_timestamp is {born}; it must be from 1970 to before 9999")
    return born


def _kind_of(system: SystemProperties) -> MessageType:
    """The type of a message: the given type, or the one that its fields imply.

    Raises CallRefused if the two disagree.
    """
    is_fifo, is_delayed = system.HasField("message_group"), system.HasField("delivery_timestamp")
    said = system.message_type
    found = MessageType.FIFO if is_fifo else MessageType.DELAY if is_delayed else MessageType.NORMAL
    if said not in MessageType.values():  # LITE and PRIORITY in the protocol are among these
        reason = f"topics accept no messages of type {said}"
        raise CallRefused(Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, reason)
    if said not in (MessageType.MESSAGE_TYPE_UNSPECIFIED, MessageType.TRANSACTION):
        if said != found:
            names = f"the type is {MessageType.Name(said)}, but the fields are those of {MessageType.Name(found)}"
            raise CallRefused(Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, names)
    elif said == MessageType.TRANSACTION:
        if is_fifo or is_delayed:
            reason = "a message of a transaction can have neither message_group nor delivery_timestamp"
            raise CallRefused(Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, reason)
        return MessageType.TRANSACTION
    return found


def _check_user_properties(properties: dict[str, str]) -> None:
    size = sum(len(name.encode()) + len(value.encode()) for name, value in properties.items())
    if len(properties) > _MOST_PROPERTIES or size > _MOST_PROPERTY_BYTES:
        reason = (
            f"the message has {len(properties):,} properties of {size:,} bytes; "
            f"the limits are {_MOST_PROPERTIES} and {_MOST_PROPERTY_BYTES:,}"
        )
        raise CallRefused(Code.MESSAGE_PROPERTIES_TOO_LARGE, reason)
    for name, value in properties.items():
        if name in _NOT_OF_USERS:
            raise PropertyReserved(name)
        if not name.isprintable() or not name.strip() or any(ord(each) < 0x20 for each in value):
            raise PropertyInvalid(name, "is blank, or contains control characters")


def _checked_tag(tag: str) -> str:
    if not tag.strip() or "|" in tag or not tag.isprintable():
        raise CallRefused(Code.ILLEGAL_MESSAGE_TAG, f"tag {tag!r} is blank, or contains | or control characters")
    return tag


def _checked_keys(keys: Iterable[str]) -> str | None:
    for key in keys:
        if not key or KEY_SEPARATOR in key or not key.isprintable():
            raise CallRefused(
                Code.ILLEGAL_MESSAGE_KEY, f"key {key!r} is empty, or contains blanks or control characters"
            )
    return KEY_SEPARATOR.join(keys) or None


def _plain_body(message: Message) -> bytes:
    body = message.body
    if message.system_properties.body_encoding == Encoding.GZIP:
        inflating = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        try:
            body = inflating.decompress(body, MAX_BODY_BYTES + 1)
        except zlib.error as error:
            raise CallRefused(Code.MESSAGE_CORRUPTED, f"the body is not valid GZIP data: {error}") from error
    if not body:
        raise BodyEmpty
    if len(body) > MAX_BODY_BYTES:
        raise BodyTooLarge(len(body), MAX_BODY_BYTES)
    return body


# -- for SDKs -----------------------------------------------------------------------------------


def message_for(message: ReceivedMessage, namespace: str, store_host: str) -> Message:
    """A message in the form that an SDK reads.

    Some SDKs drop messages without an upper-case digest or without an encoding.
    """
    properties, body = message.properties, message.body
    group = properties.get(SHARDING_KEY)
    system = SystemProperties(
        tag=message.tag,
        keys=message.keys,
        message_id=properties[Property.UNIQ_KEY],
        body_digest=Digest(type=DigestType.MD5, checksum=md5(body, usedforsecurity=False).hexdigest().upper()),
        body_encoding=Encoding.IDENTITY,
        message_type=_type_of(properties),
        born_timestamp=timestamp(message.born_time),
        born_host=properties.get(Property.BORNHOST) or message.born_host,
        store_timestamp=timestamp(message.store_time),
        store_host=store_host,
        receipt_handle=message.receipt_handle,
        queue_id=message.queue.queue_id,
        queue_offset=message.queue_offset,
        delivery_attempt=message.delivery_attempt,
        message_group=group,
    )
    due = properties.get(Property.TIMER_DELIVER_MS) or properties.get(Property.TIMER_OUT_MS)
    if due is not None and due.isdecimal() and int(due) <= MAX_MILLISECONDS:
        system.delivery_timestamp.CopyFrom(timestamp(_EPOCH + int(due) * _MILLISECOND))
    if message.queue.topic.startswith(DLQ_PREFIX):
        origin = properties.get(Property.DLQ_ORIGIN_TOPIC) or properties.get(Property.RETRY_TOPIC, "")
        origin_id = properties.get(Property.DLQ_ORIGIN_MESSAGE_ID) or system.message_id
        system.dead_letter_queue.CopyFrom(DeadLetterQueue(topic=origin, message_id=origin_id))
    users = {name: value for name, value in properties.items() if name not in _NOT_OF_USERS}
    topic = resource_of(message.topic, namespace)
    return Message(topic=topic, user_properties=users, system_properties=system, body=body)


def _type_of(properties: dict[str, str]) -> MessageType:
    if Property.TRAN_MSG in properties:
        return MessageType.TRANSACTION
    if SHARDING_KEY in properties:
        return MessageType.FIFO
    is_delayed = Property.TIMER_DELIVER_MS in properties or Property.TIMER_OUT_MS in properties
    return MessageType.DELAY if is_delayed or Property.DELAY in properties else MessageType.NORMAL
