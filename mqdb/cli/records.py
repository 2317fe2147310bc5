"""Makes the messages of `mqdb send` from records in text, JSON lines and CSV. This module sends nothing.

`Columns` says which columns of a record become tag, keys, properties, sharding key and body; `Fixed` has the parts that
all messages share. A missing value adds no tag, key or property.
"""

import csv
import json
import sys
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from mqdb.common.message import Message
from mqdb.errors import MqdbError, ParameterInvalid, ResponseCode


class InputFormat(StrEnum):
    """The format of the input, which says how to split it into messages."""

    TEXT = "text"
    JSONL = "jsonl"
    CSV = "csv"
    RAW = "raw"


class InputInvalid(MqdbError, code=ResponseCode.INVALID_PARAMETER):
    """A line of the input is not a valid message."""

    source: str
    line: int
    reason: str
    sentence = "{source}, line {line:,}: {reason}"


@dataclass(frozen=True)
class RecordColumns:
    """The columns that become parts of a message. If `body` is None, the body is the whole record as JSON."""

    tag: str | None = None
    keys: tuple[str, ...] = ()
    properties: tuple[str, ...] = ()
    sharding_key: str | None = None
    body: str | None = None

    @property
    def names(self) -> list[str]:
        """All columns that are used."""
        single = (self.tag, self.sharding_key, self.body)
        return [*(name for name in single if name is not None), *self.keys, *self.properties]


@dataclass(frozen=True)
class Fixed:
    """The parts of every message; a column overrides `tag`, `sharding_key` and a property of the same name."""

    topic: str
    tag: str | None = None
    keys: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    sharding_key: str | None = None
    schedule: Mapping[str, str] = field(default_factory=dict)


class Outgoing(NamedTuple):
    """A message to send, with the number of its input line."""

    message: Message
    sharding_key: str | None
    line: int


def suffix_format(name: str) -> InputFormat:
    """The input format for the suffix of a file name."""
    suffixes = {".csv": InputFormat.CSV, ".jsonl": InputFormat.JSONL, ".ndjson": InputFormat.JSONL}
    return next((form for suffix, form in suffixes.items() if name.lower().endswith(suffix)), InputFormat.TEXT)


def parse_property(text: str) -> tuple[str, str]:
    """Parse `name=value`; the value may contain further equals signs."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ParameterInvalid("property", text, "must be written NAME=VALUE")
    return name, value


def text_message(body: bytes, fixed: Fixed, line: int = 0) -> Outgoing:
    """A message with the given body."""
    message = Message(fixed.topic, body, fixed.tag, fixed.keys, fixed.properties, system_properties=fixed.schedule)
    return Outgoing(message, fixed.sharding_key, line)


def from_text(lines: Iterable[bytes], fixed: Fixed) -> Iterator[Outgoing]:
    """Make a message from each line that is not empty."""
    for number, line in enumerate(lines, 1):
        if line:
            yield text_message(line, fixed, number)


def from_jsonl(
    lines: Iterable[bytes], fixed: Fixed, columns: RecordColumns, nulls: frozenset[str], source: str
) -> Generator[Outgoing, None, list[str]]:
    """Make a message from each line, a JSON object that becomes the body unless a column does. Raises InputInvalid.

    A record may lack a column. Returns the columns that no record has, which may be misspelled.
    """
    unseen = columns.names
    is_empty = True
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as exc:
            raise InputInvalid(source, number, f"is not JSON: {exc}") from None
        if not isinstance(record, dict):
            raise InputInvalid(source, number, f"is not a JSON object but {type(record).__name__}")
        is_empty = False
        unseen = [name for name in unseen if name not in record]
        yield _message(record, line, fixed, columns, nulls, number)
    return [] if is_empty else unseen


def from_csv(
    lines: Iterable[bytes], fixed: Fixed, columns: RecordColumns, nulls: frozenset[str], source: str
) -> Iterator[Outgoing]:
    """Make a message from each row; the first line names the columns.

    Raises InputInvalid, or ParameterInvalid if a column does not exist.
    """
    # The default limit is 128 KiB, but a body may have 4 MiB; a body that is too large is refused later, with its
    # limit.
    csv.field_size_limit(sys.maxsize)
    reader = csv.reader(_decoded(lines, source), strict=True)
    header: list[str] | None = None
    try:
        for row in reader:
            if not row:
                continue
            if header is None:
                header = row
                _check_columns(columns, header)
                continue
            if len(row) != len(header):
                raise InputInvalid(source, reader.line_num, f"has {len(row)} fields, the header has {len(header)}")
            record = {name: None if value in nulls else value for name, value in zip(header, row, strict=True)}
            whole = json.dumps(record, ensure_ascii=False).encode()
            yield _message(record, whole, fixed, columns, nulls, reader.line_num)
    except csv.Error as exc:
        raise InputInvalid(source, reader.line_num, f"is not CSV: {exc}") from exc


def _decoded(lines: Iterable[bytes], source: str) -> Iterator[str]:
    encoding = "utf-8-sig"  # a byte order mark may precede the header
    for number, line in enumerate(lines, 1):
        try:
            # The reader needs the line ends within quoted texts.
            yield line.decode(encoding) + "\n"
        except UnicodeDecodeError as exc:
            raise InputInvalid(source, number, f"is not UTF-8: {exc.reason} at byte {exc.start:,}") from exc
        encoding = "utf-8"


def _check_columns(columns: RecordColumns, header: list[str]) -> None:
    for name in columns.names:
        if name not in header:
            raise ParameterInvalid("column", name, f"the columns are {', '.join(header)}")


def _message(
    record: Mapping[str, Any], whole: bytes, fixed: Fixed, columns: RecordColumns, nulls: frozenset[str], line: int
) -> Outgoing:
    def value(column: str | None) -> str | None:
        return None if column is None else _as_text(record.get(column), nulls)

    keys = [key for column in columns.keys for key in _words(record.get(column), nulls)]
    found = {name: text for name in columns.properties if (text := value(name)) is not None}
    message = Message(
        fixed.topic,
        whole if columns.body is None else value(columns.body) or "",
        value(columns.tag) or fixed.tag,
        (*fixed.keys, *keys),
        {**fixed.properties, **found},
        system_properties=fixed.schedule,
    )
    return Outgoing(message, value(columns.sharding_key) or fixed.sharding_key, line)


def _words(value: object, nulls: frozenset[str]) -> list[str]:
    """The keys in a value: each item of a list, or the one text.

    A text with blanks is refused later, by the check of the message.
    """
    values = value if isinstance(value, list) else [value]
    return [text for each in values if (text := _as_text(each, nulls)) is not None]


def _as_text(value: object, nulls: frozenset[str]) -> str | None:
    """The value as text, or None if it is missing: null, empty, or one of `nulls`."""
    if value is None or value == "":
        return None
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return None if text in nulls else text
