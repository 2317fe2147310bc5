"""The columns of a DataFrame for the parts of a message, found on the driver before any job starts."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from mqdb.pipeline.errors import ColumnInvalid


class Kind(Enum):
    """The way to read the values of a column."""

    BYTES = "binary"
    TEXT = "string"
    UTF8 = "binary, read as UTF-8"
    JSON = "string, read as JSON"
    MAP = "map<string,string>"
    HEADERS = "array<struct<key:string,value:binary>>"
    NUMBER = "int"
    MICROSECONDS = "timestamp"
    MILLISECONDS = "bigint, in milliseconds since 1970"


class ColumnPart(NamedTuple):
    """The column of a part of a message: its number, and the way to read it."""

    column: int
    kind: Kind


@dataclass(frozen=True)
class Columns:
    """The columns for the parts of a message; None for parts without a column.

    `may_lack_value` means that the body is Kafka's value, which may be null or empty; `was_read`, that the rows were
    read from a topic and so include the broker's own properties; `is_numbered`, that the queue is Kafka's partition,
    which also identifies the broker if there are several.
    """

    body: ColumnPart
    topic: ColumnPart | None = None
    key: ColumnPart | None = None
    keys: ColumnPart | None = None
    tags: ColumnPart | None = None
    properties: ColumnPart | None = None
    headers: ColumnPart | None = None
    sharding_key: ColumnPart | None = None
    queue_id: ColumnPart | None = None
    broker: ColumnPart | None = None
    born_timestamp: ColumnPart | None = None
    delay_level: ColumnPart | None = None
    deliver_at: ColumnPart | None = None
    may_lack_value: bool = False
    was_read: bool = False
    is_numbered: bool = False


_Kinds: TypeAlias = Mapping[type[DataType], Kind]

#: Kafka's names, as in Spark's Kafka sink.
_ALIASES: Final = {"value": "body", "partition": "queue_id"}

#: Columns of rows that were read from a topic of mqdb or Kafka, whose values the broker assigns again.
_PASSED_OVER: Final = frozenset(
    {"queue_offset", "msg_id", "sys_flag", "store_timestamp", "offset", "timestamp", "timestamptype"}
)

_BYTES: Final[_Kinds] = {BinaryType: Kind.BYTES, StringType: Kind.TEXT}
_TEXT: Final[_Kinds] = {StringType: Kind.TEXT}
_WORDS: Final[_Kinds] = {StringType: Kind.TEXT, BinaryType: Kind.UTF8}
_NUMBER: Final[_Kinds] = {IntegerType: Kind.NUMBER, ShortType: Kind.NUMBER, ByteType: Kind.NUMBER}
_TIME: Final[_Kinds] = {TimestampType: Kind.MICROSECONDS, LongType: Kind.MILLISECONDS}

_KINDS: Final[Mapping[str, _Kinds]] = {
    "body": _BYTES,
    "topic": _TEXT,
    "key": _BYTES,
    "keys": _WORDS,
    "tags": _TEXT,
    "properties": {StringType: Kind.JSON, MapType: Kind.MAP},
    "headers": {ArrayType: Kind.HEADERS},
    "sharding_key": _TEXT,
    "queue_id": _NUMBER,
    "broker": _TEXT,
    "born_timestamp": _TIME,
    "delay_level": _NUMBER,
    "deliver_at": _TIME,
}


def find_columns(schema: StructType, topic_option: str | None, *, is_list: bool = False) -> Columns:
    """The parts of a message in a DataFrame. Names are compared without regard to case, as Spark does.

    A column `broker` is used if the rows go to a list of brokers, because a queue id alone does not name a queue there.
    Raises ColumnInvalid if a column is not part of a message, a type is wrong, a part is given twice, the body is
    missing, or neither a column nor the option gives the topic.
    """
    parts: dict[str, ColumnPart] = {}
    names = {field.name.lower() for field in schema.fields}
    for number, field in enumerate(schema.fields):
        if field.name.lower() in _PASSED_OVER or (field.name.lower() == "broker" and not is_list):
            continue
        name = _ALIASES.get(field.name.lower(), field.name.lower())
        if name not in _KINDS:
            raise ColumnInvalid(
                field.name, f"no message has this column; there are {_known()}. Remove it, or put it in properties"
            )
        if name in parts:
            raise ColumnInvalid(
                field.name, f"is the same as {schema.fields[parts[name].column].name!r}; remove one of them"
            )
        parts[name] = ColumnPart(number, _kind(field.name, name, field.dataType))
    if "body" not in parts:
        raise ColumnInvalid("body", f"is missing, and so is value; the columns are {', '.join(schema.names)}")
    if topic_option is None and "topic" not in parts:
        raise ColumnInvalid("topic", "is missing, and so is the option topic; give one of them")
    is_numbered = "partition" in names
    if is_list and "queue_id" in parts and not is_numbered and "broker" not in parts:
        reason = "names no queue, because each broker in the url has such queues; add a column broker, or remove it"
        raise ColumnInvalid(schema.fields[parts["queue_id"].column].name, reason)
    return Columns(**parts, may_lack_value="value" in names, was_read="msg_id" in names, is_numbered=is_numbered)


def _kind(column: str, name: str, type_: DataType) -> Kind:
    for accepted, kind in _KINDS[name].items():
        if isinstance(type_, accepted) and (accepted not in (ArrayType, MapType) or type_.simpleString() == kind.value):
            return kind
    accepted_kinds = " or ".join(dict.fromkeys(kind.value for kind in _KINDS[name].values()))
    raise ColumnInvalid(column, f"is {type_.simpleString()}; {name} is {accepted_kinds}: cast it")


def _known() -> str:
    return ", ".join(_KINDS) + f" ({', '.join(f'{alias} for {name}' for alias, name in _ALIASES.items())})"
