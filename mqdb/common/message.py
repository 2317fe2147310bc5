"""Messages: what a user sends, what a broker delivers, and the rules for the first.

`Message` goes in, `SendStatus` tells what became of it, `ReceivedMessage` comes out of a
`MessageQueue`. RocketMQ: Message, MessageExt, MessageQueue, SendStatus, Validators.
"""

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import FrozenInstanceError, dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from typing import Final

from mqdb.common.compression import COMPRESSED_FLAG, decompress
from mqdb.common.property import (
    KEY_SEPARATOR,
    RESERVED_PROPERTIES,
    Property,
    check_properties,
    check_stored_properties,
    read_properties,
)
from mqdb.common.schedule import schedule_of, schedule_properties
from mqdb.common.topic import RETRY_PREFIX, check_send_topic
from mqdb.common.unique_id import format_unique_id
from mqdb.errors import BodyEmpty, BodyInvalid, BodyTooLarge, NoMessage, ParameterInvalid, shown

#: 4 MiB; a body of exactly this size passes. The limit of a broker may be another one.
MAX_BODY_BYTES: Final = 4_194_304

#: As many as all properties of a message together; SQL writes the number.
MAX_SHARDING_KEY_BYTES: Final = 32_767

_NO_PROPERTIES: Final[Mapping[str, str]] = {}


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Message:
    """A message to send.

    A body given as text is sent as UTF-8. `tag` is one tag, by which consumers choose; `keys` are
    words by which people find the message again: a sequence, or one text with blanks between the
    words. An empty tag is no tag. `flag` is a number of the user's own, delivered as it is.
    To be delivered later it has one of these: `delay_level`, a line of the broker's table, counted from 1; `delay`; or
    `deliver_at`, an aware datetime or milliseconds since 1970. Level 0, a negative one, and a time that has passed mean
    at once.
    Nothing else is checked here but what the body is made of: `check_message` does that.
    `system_properties` have reserved names; they are for the library, and nobody checks them.
    """

    topic: str
    body: bytes
    tag: str | None
    keys: tuple[str, ...]
    properties: Mapping[str, str] = field(hash=False)
    flag: int
    system_properties: Mapping[str, str] = field(hash=False)

    def __init__(
        self,
        topic: str,
        body: bytes | str,
        tag: str | None = None,
        keys: Iterable[str] | str = (),
        properties: Mapping[str, str] = _NO_PROPERTIES,
        flag: int = 0,
        system_properties: Mapping[str, str] = _NO_PROPERTIES,
        delay_level: int = 0,
        delay: timedelta | None = None,
        deliver_at: datetime | int | None = None,
    ) -> None:
        """Raises BodyInvalid, ScheduleInvalid, ParameterInvalid for keys or properties that are none."""
        if delay_level or delay is not None or deliver_at is not None:
            system_properties = {**system_properties, **schedule_properties(delay_level, delay, deliver_at)}
        assign = object.__setattr__
        assign(self, "topic", topic)
        assign(self, "body", _bytes_of(body))
        assign(self, "tag", None if tag == "" else tag)
        assign(self, "keys", _words(keys) if isinstance(keys, str) else _sequence(keys))
        assign(self, "properties", _dict(properties))
        assign(self, "flag", flag)
        assign(self, "system_properties", system_properties)

    def with_properties(self, properties: Mapping[str, str]) -> "Message":
        """The same message with more of them; those that it has stay as they are."""
        return self._with({**properties, **self.properties}, self.system_properties)

    def with_system_properties(self, properties: Mapping[str, str]) -> "Message":
        """The same message with more of them."""
        return self._with(self.properties, {**self.system_properties, **properties})

    def _with(self, properties: Mapping[str, str], system_properties: Mapping[str, str]) -> "Message":
        # Not of the same class: one of a user's may be made of other arguments.
        return Message(self.topic, self.body, self.tag, self.keys, properties, self.flag, system_properties)

    def __repr__(self) -> str:
        return (
            f"Message(topic={self.topic!r}, tag={self.tag!r}, keys={self.keys!r}, "
            f"properties={self.properties!r}, flag={self.flag!r}, body of {len(self.body):,} bytes)"
        )


def _set_attribute(message: Message, name: str, value: object) -> None:
    """Messages stay as they are; those of a class of a user's may have more attributes.

    What dataclass makes of `frozen` with `slots` knows only the class without slots, and fails here with a TypeError.
    """
    if type(message) is Message or name in Message.__slots__:
        raise FrozenInstanceError(f"cannot set {name!r} of a message; give it to Message(), or use dataclasses.replace")
    object.__setattr__(message, name, value)


Message.__setattr__ = _set_attribute  # type: ignore[method-assign, assignment]


def check_message(message: object, max_body_bytes: int = MAX_BODY_BYTES) -> None:
    """Raise unless a user may send this message; returns None if so.

    NoMessage: it is none. NameInvalid, TopicNotAllowed: the topic. BodyEmpty, BodyTooLarge, PropertyReserved,
    PropertyInvalid, PropertiesTooLarge, ScheduleInvalid: the content. ParameterInvalid: the flag.
    Source: Validators.checkMessage.
    """
    if not isinstance(message, Message):
        raise NoMessage(type(message).__name__)
    # A topic that is no text may have no hash.
    check_topic = _check_topic_once if type(message.topic) is str else check_send_topic
    check_topic(message.topic)
    if not message.body:
        raise BodyEmpty()
    if len(message.body) > max_body_bytes:
        raise BodyTooLarge(len(message.body), max_body_bytes)
    if message.system_properties or not _is_plain(message):
        check_properties(message.properties, message.tag, message.keys)
        check_stored_properties(_all_properties(message))
        schedule_of(message)
    flag: object = message.flag
    # bool is a kind of int, but not for the driver: one among the flags of others would spoil their statement.
    if not isinstance(flag, int) or isinstance(flag, bool) or not -(2**31) <= flag < 2**31:
        raise ParameterInvalid("flag", flag, "must be a whole number of 32 bits, -2,147,483,648 to 2,147,483,647")


# A producer has few topics and many messages.
_check_topic_once = lru_cache(maxsize=4096)(check_send_topic)


#: So many characters cannot be too large, whatever they are and however many names and values they make.
_SURELY_FITTING: Final = 4_096


def _is_plain(message: Message) -> bool:
    """Whether one quick look finds nothing wrong with the properties, as in nearly all messages."""
    texts = [*message.properties, *message.properties.values(), *message.keys]
    if message.tag is not None:
        texts.append(message.tag)
    try:
        text = "".join(texts)
    except TypeError:
        return False
    return (
        all(texts)
        and len(text) <= _SURELY_FITTING
        and text.isprintable()
        and " " not in text
        and RESERVED_PROPERTIES.isdisjoint(message.properties)
    )


def stored_properties(message: Message) -> dict[str, str]:
    """The properties as the log holds them: the user's and the library's. TAGS, KEYS and UNIQ_KEY have columns."""
    return {**message.properties, **message.system_properties}


def _all_properties(message: Message) -> dict[str, str]:
    """The properties of a message that has no unique id yet."""
    stored = stored_properties(message)
    if message.tag is not None:
        stored[_TAGS] = message.tag
    if message.keys:
        stored[_KEYS] = KEY_SEPARATOR.join(message.keys)
    return stored


_TAGS: Final = Property.TAGS.value
_KEYS: Final = Property.KEYS.value
_UNIQ_KEY: Final = Property.UNIQ_KEY.value
_RETRY_TOPIC: Final = Property.RETRY_TOPIC.value


def _bytes_of(body: object) -> bytes:
    if isinstance(body, bytes):
        return body
    if isinstance(body, str):
        try:
            return body.encode()
        except UnicodeEncodeError as exc:
            fault = f"holds U+{ord(body[exc.start]):04X} at {exc.start:,}, half of a surrogate pair; it is no UTF-8"
            raise BodyInvalid(fault) from None
    if isinstance(body, bytearray | memoryview):
        return bytes(body)
    raise BodyInvalid(f"is {type(body).__name__}; give bytes, or text, which is sent as UTF-8")


def _words(text: str) -> tuple[str, ...]:
    return tuple(word for word in text.split(KEY_SEPARATOR) if word)


def _sequence(keys: Iterable[str]) -> tuple[str, ...]:
    try:
        return tuple(keys)
    except TypeError:
        raise ParameterInvalid("keys", keys, "give a sequence of words, or one text with blanks between them") from None


@dataclass(frozen=True, slots=True, order=True)
class MessageQueue:
    """One queue of a topic. The order (topic, broker, queue) is the one rebalance relies on."""

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        # As `shown`: a number of more than 4,300 digits cannot be printed, not even in a refusal.
        return f"{self.topic}@{self.broker_name}:{shown(self.queue_id)}"


class SendStatus(StrEnum):
    """What became of a message. All four mean that it is stored; three, that a promise of durability is late.

    FLUSH_DISK_TIMEOUT is never given: PostgreSQL cannot cancel a commit that waits for the disk.
    """

    SEND_OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


class ReceivedMessage:
    """A message from a queue.

    Made for each row of each pull, so it keeps what the row holds and works out the rest when
    asked: `msg_id` is the uuid or its 16 bytes, `keys` the words with blanks between them,
    `properties` those in the log, as a dict, JSON text or a jsonb value in binary form, and the times are PostgreSQL's
    microseconds since 2000. `min_offset` and `max_offset` are the queue's at the time of the pull.
    `stored_body` is the body as the log holds it, compressed where `sys_flag` says so: what flow
    control counts, for it is what lies in memory.
    A consumer needs its queue, offset, position and failures after the listener has returned: nobody can set these.
    """

    __slots__ = (
        "_all_properties",
        "_born_time",
        "_keys",
        "_log_pos",
        "_msg_id",
        "_plain_body",
        "_properties",
        "_queue",
        "_queue_offset",
        "_reconsume_times",
        "_store_time",
        "born_host",
        "flag",
        "max_offset",
        "min_offset",
        "stored_body",
        "sys_flag",
        "tag",
    )

    _plain_body: bytes  # set when a compressed body is first read
    _all_properties: dict[str, str]  # set when they are first read

    def __init__(
        self,
        queue: MessageQueue,
        queue_offset: int,
        log_pos: int,
        msg_id: uuid.UUID | bytes,
        tag: str | None,
        keys: str | None,
        properties: dict[str, str] | str | bytes,
        body: bytes,
        born_time: int,
        store_time: int,
        born_host: str,
        reconsume_times: int,
        flag: int,
        sys_flag: int,
        min_offset: int,
        max_offset: int,
    ) -> None:
        self._queue = queue
        self._queue_offset = queue_offset
        self._log_pos = log_pos
        self._msg_id = msg_id
        self.tag = tag
        self._keys = keys
        self._properties = properties
        self.stored_body = body
        self._born_time = born_time
        self._store_time = store_time
        self.born_host = born_host
        self._reconsume_times = reconsume_times
        self.flag = flag
        self.sys_flag = sys_flag
        self.min_offset = min_offset
        self.max_offset = max_offset

    @property
    def queue(self) -> MessageQueue:
        """The queue that it was read from."""
        return self._queue

    @property
    def queue_offset(self) -> int:
        """Its offset in this queue."""
        return self._queue_offset

    @property
    def log_pos(self) -> int:
        """Its position in the commit log."""
        return self._log_pos

    @property
    def reconsume_times(self) -> int:
        """How often it has failed before."""
        return self._reconsume_times

    def count_failure(self) -> None:
        """Count one more failure. The message comes again in this process."""
        self._reconsume_times += 1

    @property
    def topic(self) -> str:
        """The topic that it was sent to. For one that comes again that is not the topic of its queue.

        Source: DefaultMQPushConsumerImpl.resetRetryAndNamespace.
        """
        topic = self._queue.topic
        return self.properties.get(_RETRY_TOPIC, topic) if topic.startswith(RETRY_PREFIX) else topic

    @property
    def message_id(self) -> str:
        """The unique id that the sender gave it: 32 upper-case hexadecimal digits, the same over all retries."""
        return self._msg_id.hex().upper() if isinstance(self._msg_id, bytes) else format_unique_id(self._msg_id)

    @property
    def keys(self) -> tuple[str, ...]:
        """The words by which it can be found."""
        return _words(self._keys) if self._keys else ()

    @property
    def body(self) -> bytes:
        """The body that was sent; a compressed one is decompressed when it is first read.

        Raises CompressedBodyBroken, and CompressionUnavailable where the library is missing.
        """
        if not self.sys_flag & COMPRESSED_FLAG:
            return self.stored_body
        try:
            return self._plain_body
        except AttributeError:
            self._plain_body = decompress(self.stored_body, self.sys_flag)
        return self._plain_body

    @property
    def properties(self) -> dict[str, str]:
        """All properties, those of the broker included. Raises PropertiesBroken."""
        # Nearly each message is asked once, if at all; an AttributeError caught here would take twice as long.
        known: dict[str, str] | None = getattr(self, "_all_properties", None)
        if known is not None:
            return known
        stored = self._properties
        properties = dict(stored) if isinstance(stored, dict) else read_properties(stored)
        if self.tag is not None:
            properties[_TAGS] = self.tag
        if self._keys:
            properties[_KEYS] = self._keys
        # An id that is no uuid is stored as a property; the column has its hash.
        properties.setdefault(_UNIQ_KEY, self.message_id)
        self._all_properties = properties
        return properties

    @property
    def born_time(self) -> datetime:
        """When the sender made it, by the sender's clock; aware, in UTC."""
        return _POSTGRESQL_EPOCH + timedelta(microseconds=self._born_time)

    @property
    def store_time(self) -> datetime:
        """When the broker stored it, by the broker's clock; aware, in UTC."""
        return _POSTGRESQL_EPOCH + timedelta(microseconds=self._store_time)

    @property
    def born_ms(self) -> int:
        """`born_time` in whole milliseconds since 1970, as other clients of RocketMQ are told."""
        return self._born_time // 1_000 + _POSTGRESQL_EPOCH_MS

    @property
    def store_ms(self) -> int:
        """`store_time` in whole milliseconds since 1970."""
        return self._store_time // 1_000 + _POSTGRESQL_EPOCH_MS

    def __repr__(self) -> str:
        return (
            f"ReceivedMessage({self.message_id} at {self.queue} offset {self.queue_offset}, tag={self.tag!r}, "
            f"keys={self.keys!r}, reconsume_times={self.reconsume_times}, body of {len(self.stored_body):,} bytes)"
        )


_POSTGRESQL_EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)
_POSTGRESQL_EPOCH_MS: Final = 946_684_800_000


def _dict(properties: Mapping[str, str]) -> dict[str, str]:
    if type(properties) is not dict and not isinstance(properties, Mapping):
        raise ParameterInvalid("properties", properties, f"is {type(properties).__name__}, not a dict of texts by name")
    return dict(properties)
