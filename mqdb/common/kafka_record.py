"""Kafka records as messages: key, headers and value become properties and a body, and can be restored byte for byte.

| of the record | is in | and, if that would not come back as it was, in |
|---|---|---|
| key | KEYS, its words | MQDB_KAFKA_KEY |
| headers | properties | MQDB_KAFKA_HEADERS |
| value | the body | MQDB_KAFKA_VALUE, if it is null or empty |

These properties are not private to the sink: any producer may set them, and all consumers see them. A value in another
form is ignored. This module is small on purpose: Spark's Python workers import it.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final, TypeAlias

from mqdb.common.property import BLANKS, KEY_SEPARATOR, RESERVED_PROPERTIES, split_keys, storable

#: A header: its name, which may be repeated, and its value.
Header: TypeAlias = tuple[str, bytes | None]

#: The body of a message whose value is null or empty, because RocketMQ does not allow empty bodies.
NO_VALUE: Final = b"\x00"


class KafkaProperty(StrEnum):
    """The properties for parts of a record that have no other place in a message."""

    #: `text:` and the key, or `base64:` and its bytes.
    KEY = "MQDB_KAFKA_KEY"

    #: A JSON list in the order of the headers: the name of a property, or [name, base64 of the value or null].
    HEADERS = "MQDB_KAFKA_HEADERS"

    #: A `MissingValue`. In this case the body is NO_VALUE.
    VALUE = "MQDB_KAFKA_VALUE"


class MissingValue(StrEnum):
    """The values of a record that a body cannot hold."""

    NULL = "null"  #: a tombstone
    EMPTY = "empty"


_OWN: Final = frozenset(each.value for each in KafkaProperty)

#: Property names that are never used for a header.
_NO_HEADERS: Final = RESERVED_PROPERTIES | _OWN

_TEXT: Final = "text:"
_BASE64: Final = "base64:"


# -- keys ---------------------------------------------------------------------------------------


def key_text(key: bytes | str) -> str | None:
    """The text of a key, or None if it is not UTF-8."""
    if isinstance(key, str):
        return key
    try:
        return key.decode()
    except UnicodeDecodeError:
        return None


def sharding_text(key: bytes | str) -> str:
    """The text whose hash chooses the queue of a key: the text of the key, or one character per byte."""
    text = key_text(key)
    return text if text is not None else bytes_of(key).decode("latin-1")


def bytes_of(part: bytes | str) -> bytes:
    """The bytes of a key or value that may be given as a string."""
    return part.encode() if isinstance(part, str) else part


def index_words(text: str) -> tuple[str, ...]:
    """The words of a key that the key index can hold: those without characters that properties must not contain."""
    return tuple(word for word in split_keys(text) if storable(word) == word)


def key_property(key: bytes, text: str | None, keys: Iterable[str]) -> str | None:
    """The value of MQDB_KAFKA_KEY for a key with these KEYS; None if the KEYS alone are enough to restore the key."""
    if text is None or storable(text) != text:
        return _BASE64 + b64encode(key).decode()
    return None if text and KEY_SEPARATOR.join(keys) == text else _TEXT + text


def read_key(keys: str | None, kept: str | None) -> bytes | None:
    """The key of a record, from KEYS and MQDB_KAFKA_KEY."""
    if kept is not None:
        if kept.startswith(_TEXT):
            return kept.removeprefix(_TEXT).encode()
        if kept.startswith(_BASE64) and (key := _from_base64(kept.removeprefix(_BASE64))) is not None:
            return key
    return None if keys is None else keys.encode()


# -- headers ------------------------------------------------------------------------------------


def header_properties(headers: Iterable[Header]) -> dict[str, str]:
    """The properties of these headers.

    If several have the same name, the last one is the property, as in Kafka's lookup.
    Names and values that properties must not have are only in MQDB_KAFKA_HEADERS.
    """
    given = list(headers)
    last = dict(given)
    texts = {name: text for name, value in last.items() if (text := _property_text(name, value)) is not None}
    if [name for name, _ in given] == sorted(texts):
        return texts
    left = dict(texts)
    entries: list[object] = []
    for name, value in reversed(given):
        # From the end: the last header with a name becomes the property.
        entries.append(name if left.pop(name, None) is not None else [name, _to_base64(value)])
    entries.reverse()
    return {**texts, KafkaProperty.HEADERS.value: json.dumps(entries, separators=(",", ":"))}


def read_headers(properties: Mapping[str, str], *, with_reserved: bool = False) -> list[Header]:
    """The headers of a message with these properties; `with_reserved` adds those that belong to the broker.

    Headers are in the order of MQDB_KAFKA_HEADERS; properties not listed there follow in the order of their names. A
    listed property that no longer exists gives no header.
    """
    headers: list[Header] = []
    if (kept := properties.get(KafkaProperty.HEADERS)) is not None:
        headers = _kept_headers(kept, properties)
    listed = {name for name, _ in headers}
    headers += ((name, properties[name].encode()) for name in sorted(properties.keys() - listed - _NO_HEADERS))
    if with_reserved:
        headers += ((name, properties[name].encode()) for name in sorted(properties.keys() & RESERVED_PROPERTIES))
    return headers


def _property_text(name: str, value: bytes | None) -> str | None:
    """The value of a header as the value of a property, or None if properties cannot hold it."""
    if value is None or name in _NO_HEADERS or not name.strip(BLANKS) or storable(name) != name:
        return None
    text = key_text(value)
    return text if text is not None and text.strip(BLANKS) and storable(text) == text else None


def _kept_headers(kept: str, properties: Mapping[str, str]) -> list[Header]:
    try:
        entries = json.loads(kept)
    except (ValueError, RecursionError):
        return []
    headers: list[Header] = []
    for entry in entries if isinstance(entries, list) else ():
        match entry:
            case str() if entry in properties and entry not in _NO_HEADERS:
                headers.append((entry, properties[entry].encode()))
            case [str() as name, None]:
                headers.append((name, None))
            case [str() as name, str() as text] if (value := _from_base64(text)) is not None:
                headers.append((name, value))
    return headers


def _to_base64(value: bytes | None) -> str | None:
    return None if value is None else b64encode(value).decode()


def _from_base64(text: str) -> bytes | None:
    try:
        return b64decode(text, validate=True)
    except ValueError:
        return None
