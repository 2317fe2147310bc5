"""Properties of a message: the names that belong to the broker, and what a user may store.

All properties of a message, including the tag and the keys, form one map of strings, as RocketMQ users see them.
RocketMQ: MessageConst, MessageDecoder.messageProperties2String.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Final

from mqdb.errors import PropertiesBroken, PropertiesTooLarge, PropertyInvalid, PropertyReserved, shown

#: The limit for the encoded length of all properties together, including the broker's own.
MAX_PROPERTIES_BYTES: Final = 32_767

#: The separator of a message's keys in the property KEYS. Other white space may be part of a key.
KEY_SEPARATOR: Final = " "

#: The characters that Java's String.trim removes; a string of only these counts as empty.
BLANKS: Final = "".join(map(chr, range(0x21)))


class Property(StrEnum):
    """The reserved properties, exactly those of RocketMQ. Source: MessageConst.STRING_HASH_SET."""

    KEYS = "KEYS"
    TAGS = "TAGS"
    UNIQ_KEY = "UNIQ_KEY"
    WAIT = "WAIT"
    DELAY = "DELAY"
    RETRY_TOPIC = "RETRY_TOPIC"
    REAL_TOPIC = "REAL_TOPIC"
    REAL_QID = "REAL_QID"
    ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
    RECONSUME_TIME = "RECONSUME_TIME"
    MAX_RECONSUME_TIMES = "MAX_RECONSUME_TIMES"
    CONSUME_START_TIME = "CONSUME_START_TIME"
    DLQ_ORIGIN_TOPIC = "DLQ_ORIGIN_TOPIC"
    DLQ_ORIGIN_MESSAGE_ID = "DLQ_ORIGIN_MESSAGE_ID"
    MIN_OFFSET = "MIN_OFFSET"
    MAX_OFFSET = "MAX_OFFSET"

    TRAN_MSG = "TRAN_MSG"
    PGROUP = "PGROUP"
    TRAN_PREPARED_QUEUE_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"

    TIMER_DELAY_MS = "TIMER_DELAY_MS"
    TIMER_DELAY_SEC = "TIMER_DELAY_SEC"
    TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
    TIMER_ENQUEUE_MS = "TIMER_ENQUEUE_MS"
    TIMER_DEQUEUE_MS = "TIMER_DEQUEUE_MS"
    TIMER_ROLL_TIMES = "TIMER_ROLL_TIMES"
    TIMER_OUT_MS = "TIMER_OUT_MS"
    TIMER_DEL_UNIQKEY = "TIMER_DEL_UNIQKEY"
    TIMER_DELAY_LEVEL = "TIMER_DELAY_LEVEL"

    CORRELATION_ID = "CORRELATION_ID"
    REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
    TTL = "TTL"
    ARRIVE_TIME = "ARRIVE_TIME"
    PUSH_REPLY_TIME = "PUSH_REPLY_TIME"
    MSG_TYPE = "MSG_TYPE"
    CLUSTER = "CLUSTER"

    POP_CK = "POP_CK"
    POP_CK_OFFSET = "POP_CK_OFFSET"
    FIRST_POP_TIME = "1ST_POP_TIME"

    TRACE_ON = "TRACE_ON"
    MSG_REGION = "MSG_REGION"
    BORNHOST = "__BORNHOST"
    BORN_TIMESTAMP = "BORN_TIMESTAMP"
    BUYER_ID = "BUYER_ID"
    TRANSFER_FLAG = "TRANSFER_FLAG"
    CORRECTION_FLAG = "CORRECTION_FLAG"
    MQ2_FLAG = "MQ2_FLAG"
    DUP_INFO = "DUP_INFO"
    EXTEND_UNIQ_INFO = "EXTEND_UNIQ_INFO"
    INSTANCE_ID = "INSTANCE_ID"
    INNER_MULTI_QUEUE_OFFSET = "INNER_MULTI_QUEUE_OFFSET"
    CRC32 = "__CRC32#"


class FailureProperty(StrEnum):
    """Properties of a message that was sent back. The first six describe the latest failure."""

    EXCEPTION = "MQDB_FAILURE_EXCEPTION"
    MESSAGE = "MQDB_FAILURE_MESSAGE"
    TRACEBACK = "MQDB_FAILURE_TRACEBACK"
    #: The client id of the consumer.
    HOST = "MQDB_FAILURE_HOST"
    #: The number of deliveries so far, from 1.
    ATTEMPT = "MQDB_FAILURE_ATTEMPT"
    #: ISO 8601 in UTC, by the consumer's clock.
    TIME = "MQDB_FAILURE_TIME"

    #: The queue and the offset of the message at its first failure; its topic is in the property RETRY_TOPIC.
    ORIGIN_QUEUE_ID = "MQDB_ORIGIN_QUEUE_ID"
    ORIGIN_QUEUE_OFFSET = "MQDB_ORIGIN_QUEUE_OFFSET"


#: The tag code of a waiting message, whose tags_code holds its time of delivery. The delivered copy has it in tags_code
#: again, and no longer has this property.
TAGS_CODE: Final = "MQDB_TAGS_CODE"

#: Only the broker sets these: it would overwrite a user's value at a retry and remove it at a redrive.
RESERVED_PROPERTIES: Final = frozenset(
    {TAGS_CODE, *(name.value for kind in (Property, FailureProperty) for name in kind)}
)


def check_properties(properties: Mapping[str, str], tag: str | None, keys: Sequence[str]) -> None:
    """Raise an error unless a user may send these properties; `check_stored_properties` checks characters and size.

    PropertyReserved: `properties` contains a reserved name. PropertyInvalid: a name or value is blank or not a string,
    or a key contains a blank. Source: Message.putUserProperty.
    """
    if not RESERVED_PROPERTIES.isdisjoint(properties):
        raise PropertyReserved(min(RESERVED_PROPERTIES.intersection(properties)))
    for name, value in properties.items():
        if not (_is_word(name) and _is_word(value)):
            raise PropertyInvalid(str(name), _word_fault("name", name) or _word_fault("value", value))
    _check_tag(tag)
    _check_keys(keys)


def check_stored_properties(stored: Mapping[str, str]) -> None:
    """Raise an error unless all properties of a message, apart from the unique id, can be stored.

    PropertyInvalid: a character that cannot be stored. PropertiesTooLarge: over 32,767 bytes, counted as RocketMQ
    encodes them, with the unique id that each message gets. Source: MessageExtEncoder.
    """
    # One search in a joined text instead of one per name and value.
    text = "".join(stored) + "".join(stored.values())
    if _FORBIDDEN.search(text):
        raise next(_forbidden_characters(stored))
    text_bytes = len(text) if text.isascii() else len(text.encode())
    size = text_bytes + _SEPARATORS_BYTES * len(stored) + _UNIQUE_ID_BYTES
    if size > MAX_PROPERTIES_BYTES:
        raise PropertiesTooLarge(size, MAX_PROPERTIES_BYTES)


def split_keys(text: str) -> tuple[str, ...]:
    """Split a string of keys that are separated by blanks."""
    return tuple(word for word in text.split(KEY_SEPARATOR) if word)


def find_unstorable(text: str) -> re.Match[str] | None:
    """The first character that the database cannot store in text: U+0000, or half of a surrogate pair."""
    return _UNSTORABLE.search(text)


def storable(text: str) -> str:
    """`text` with U+FFFD for each character that properties cannot hold."""
    return _FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", text)


# PostgreSQL has no NUL in text, and UTF-8 has no half of a surrogate pair.
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")

# RocketMQ encodes `name U+0001 value U+0002`.
_FORBIDDEN = re.compile("[\x00-\x02\ud800-\udfff]")

_SEPARATORS_BYTES: Final = 2
_UNIQUE_ID_BYTES: Final = len(Property.UNIQ_KEY) + 32 + _SEPARATORS_BYTES


def _is_word(text: object) -> bool:
    return isinstance(text, str) and text.strip(BLANKS) != ""


def _word_fault(what: str, text: object) -> str:
    if _is_word(text):
        return ""
    return f"the {what} is blank" if isinstance(text, str) else f"the {what} is {_type(text)}, not text; use str()"


def _check_tag(tag: object) -> None:
    if not isinstance(tag, str | None):
        raise PropertyInvalid(Property.TAGS.value, f"the tag is {_type(tag)}, not text; use str()")


def _check_keys(keys: Sequence[object]) -> None:
    for key in keys:
        if not isinstance(key, str):
            raise PropertyInvalid(Property.KEYS.value, f"key {shown(key)} is {_type(key)}, not text; use str()")
        if not key or KEY_SEPARATOR in key:
            raise PropertyInvalid(
                Property.KEYS.value, f"key {shown(key)} is empty or contains a blank, which separates keys"
            )


def _forbidden_characters(stored: Mapping[str, str]) -> Iterator[PropertyInvalid]:
    for name, value in stored.items():
        for what, text in (("name", name), ("value", value)):
            if found := _FORBIDDEN.search(text):
                yield PropertyInvalid(name, f"the {what} contains U+{ord(found[0]):04X}, which cannot be stored")


def _type(value: object) -> str:
    return type(value).__name__


_read_json = json.JSONDecoder().decode

#: A jsonb value in binary form is this byte and then its text.
JSONB_VERSION: Final = b"\x01"


def read_properties(stored: str | bytes) -> dict[str, str]:
    """The properties of a stored message: JSON text, or a jsonb value in binary form.

    A value that is not a string, which producers never write, counts as its JSON text.
    Raises PropertiesBroken for JSON that Python cannot read: nested thousands deep, or numbers of thousands of digits.
    """
    try:
        # json.loads would guess the encoding of bytes, which takes half as long again.
        found: dict[str, object] = _read_json(
            stored if isinstance(stored, str) else stored.removeprefix(JSONB_VERSION).decode()
        )
        return {name: value if type(value) is str else json.dumps(value) for name, value in found.items()}
    except (RecursionError, ValueError) as error:
        raise PropertiesBroken(str(error)) from error
