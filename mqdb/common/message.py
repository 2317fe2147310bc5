"""Messages: what a user sends, and the rules for it.

A `Message` goes into a `MessageQueue`, and `SendStatus` is the outcome; consumers get a `ReceivedMessage`
(`received_message.py`). RocketMQ: Message, MessageQueue, SendStatus, Validators.
"""

from collections.abc import Iterable, Mapping
from dataclasses import FrozenInstanceError, dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from typing import Final

from mqdb.common.delivery_schedule import schedule_of, schedule_properties
from mqdb.common.property import (
    KEY_SEPARATOR,
    RESERVED_PROPERTIES,
    Property,
    check_properties,
    check_stored_properties,
    split_keys,
)
from mqdb.common.topic import check_send_topic
from mqdb.errors import BodyEmpty, BodyInvalid, BodyTooLarge, NoMessage, ParameterInvalid, shown

#: 4 MiB; a body of exactly this size is allowed. The limit of a broker may differ.
MAX_BODY_BYTES: Final = 4_194_304

#: As many bytes as all properties of a message together; SQL repeats the number.
MAX_SHARDING_KEY_BYTES: Final = 32_767

_NO_PROPERTIES: Final[Mapping[str, str]] = {}


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Message:
    """A message to send.

    A body given as a string is sent as UTF-8. `tag` is a single tag, by which consumers filter; `keys` are words by
    which people find the message: a sequence, or one string with blanks between the words. An empty tag counts as a
    missing tag. `flag` is a number chosen by the user, which is delivered unchanged. For later delivery, give one of
    these: `delay_level`, a line of the broker's table, counted from 1; `delay`; or `deliver_at`, an aware datetime or
    milliseconds since 1970. Level 0, a negative level, and a time in the past mean immediate delivery. Only the type of
    the body is checked here; `check_message` checks the rest.
    `system_properties` have reserved names; they are for internal use and are not checked.
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
        """Raises BodyInvalid, ScheduleInvalid, and ParameterInvalid for keys or properties of a wrong type."""
        if delay_level or delay is not None or deliver_at is not None:
            system_properties = {**system_properties, **schedule_properties(delay_level, delay, deliver_at)}
        assign = object.__setattr__
        assign(self, "topic", topic)
        assign(self, "body", _bytes_of(body))
        assign(self, "tag", None if tag == "" else tag)
        assign(self, "keys", split_keys(keys) if isinstance(keys, str) else _sequence(keys))
        assign(self, "properties", _dict(properties))
        assign(self, "flag", flag)
        assign(self, "system_properties", system_properties)

    def with_properties(self, properties: Mapping[str, str]) -> "Message":
        """The same message with additional properties; existing ones are not changed."""
        return self._with({**properties, **self.properties}, self.system_properties)

    def with_system_properties(self, properties: Mapping[str, str]) -> "Message":
        """The same message with additional system properties."""
        return self._with(self.properties, {**self.system_properties, **properties})

    def _with(self, properties: Mapping[str, str], system_properties: Mapping[str, str]) -> "Message":
        # Not of the same class: a user's subclass may take other arguments.
        return Message(self.topic, self.body, self.tag, self.keys, properties, self.flag, system_properties)

    def __repr__(self) -> str:
        return (
            f"Message(topic={self.topic!r}, tag={self.tag!r}, keys={self.keys!r}, "
            f"properties={self.properties!r}, flag={self.flag!r}, body of {len(self.body):,} bytes)"
        )


def _set_attribute(message: Message, name: str, value: object) -> None:
    """Refuse to change a message. User-defined subclasses may have further attributes, which can be set.

    The method that dataclass generates for `frozen` with `slots` refers to the class without slots, and would fail here
    with a TypeError.
    """
    if type(message) is Message or name in Message.__slots__:
        raise FrozenInstanceError(f"cannot set {name!r} of a message; give it to Message(), or use dataclasses.replace")
    object.__setattr__(message, name, value)


Message.__setattr__ = _set_attribute  # type: ignore[method-assign, assignment]


def check_message(message: object, max_body_bytes: int = MAX_BODY_BYTES) -> None:
    """Raise an error unless a user may send this message.

    NoMessage: the argument is not a message. NameInvalid, TopicNotAllowed: the topic. BodyEmpty, BodyTooLarge,
    PropertyReserved, PropertyInvalid, PropertiesTooLarge, ScheduleInvalid: the content. ParameterInvalid: the flag.
    Source: Validators.checkMessage.
    """
    if not isinstance(message, Message):
        raise NoMessage(type(message).__name__)
    # A topic that is not a string may be unhashable.
    check_topic = _check_topic_once if type(message.topic) is str else check_send_topic
    check_topic(message.topic)
    if not message.body:
        raise BodyEmpty()
    if len(message.body) > max_body_bytes:
        raise BodyTooLarge(len(message.body), max_body_bytes)
    if message.system_properties or not _is_plain(message):
        check_properties(message.properties, message.tag, message.keys)
        check_stored_properties(_all_properties(message))
        schedule_of(message.system_properties)
    flag: object = message.flag
    # bool is a kind of int, but not for the driver: a bool among other messages' flags would make their statement fail.
    if not isinstance(flag, int) or isinstance(flag, bool) or not -(2**31) <= flag < 2**31:
        raise ParameterInvalid("flag", flag, "must be a whole number of 32 bits, -2,147,483,648 to 2,147,483,647")


# A producer has few topics and many messages.
_check_topic_once = lru_cache(maxsize=4096)(check_send_topic)


#: This many characters are never too large, whatever they are and however many names and values they form.
_SURELY_FITTING: Final = 4_096


def _is_plain(message: Message) -> bool:
    """Whether a quick check finds nothing wrong with the properties, as for nearly all messages."""
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
    """The properties as stored in the log: the user's and the library's.

    TAGS, KEYS and UNIQ_KEY have their own columns.
    """
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


def _bytes_of(body: object) -> bytes:
    if isinstance(body, bytes):
        return body
    if isinstance(body, str):
        try:
            return body.encode()
        except UnicodeEncodeError as exc:
            fault = f"holds U+{ord(body[exc.start]):04X} at {exc.start:,}, half of a surrogate pair; it is not UTF-8"
            raise BodyInvalid(fault) from None
    if isinstance(body, bytearray | memoryview):
        return bytes(body)
    raise BodyInvalid(f"is {type(body).__name__}; give bytes, or text, which is sent as UTF-8")


def _sequence(keys: Iterable[str]) -> tuple[str, ...]:
    try:
        return tuple(keys)
    except TypeError:
        raise ParameterInvalid("keys", keys, "give a sequence of words, or one text with blanks between them") from None


@dataclass(frozen=True, slots=True, order=True)
class MessageQueue:
    """One queue of a topic. Rebalance relies on the order (topic, broker, queue)."""

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        # As `shown`: a number of more than 4,300 digits cannot be printed, not even in an error.
        return f"{self.topic}@{self.broker_name}:{shown(self.queue_id)}"


class SendStatus(StrEnum):
    """The status of a sent message.

    All four mean that the message is stored; three of them, that its durability is not confirmed. FLUSH_DISK_TIMEOUT
    never occurs: PostgreSQL cannot cancel a commit that waits for the disk.
    """

    SEND_OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


def _dict(properties: Mapping[str, str]) -> dict[str, str]:
    if type(properties) is not dict and not isinstance(properties, Mapping):
        raise ParameterInvalid("properties", properties, f"is {type(properties).__name__}, not a dict of texts by name")
    return dict(properties)
