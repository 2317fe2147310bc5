"""The columns of a read, in both row formats, and their sources.

This module is small on purpose: Spark's Python workers import it.
"""

from enum import StrEnum
from typing import Final

from mqdb.pipeline.errors import ColumnInvalid, OptionInvalid


class RowFormat(StrEnum):
    """MQDB means a message in RocketMQ's terms, KAFKA the row of Spark's Kafka source."""

    MQDB = "mqdb"
    KAFKA = "kafka"


#: Message columns and their Spark types, in the order of `SELECT *`.
MESSAGE_COLUMNS: Final = {
    "topic": "string",
    "queue_id": "int",
    "queue_offset": "bigint",
    "msg_id": "string",
    "keys": "string",
    "tags": "string",
    "sys_flag": "int",
    "properties": "string",
    "body": "binary",
    "born_timestamp": "timestamp",
    "store_timestamp": "timestamp",
}

#: Another column that readers need from the database: the parts of a Kafka key that a message keeps in properties.
KEPT_KEY: Final = "kafka_key"
SOURCE_COLUMNS: Final = MESSAGE_COLUMNS | {KEPT_KEY: "string"}

HEADERS: Final = "array<struct<key:string,value:binary>>"

#: Headers are included only with includeHeaders. Source: Spark's KafkaRecordToRowConverter.
KAFKA_COLUMNS: Final = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": HEADERS,
}

#: The message columns from which Kafka's columns are made; timestampType is a constant.
KAFKA_SOURCES: Final = {
    "key": "keys",
    "value": "body",
    "topic": "topic",
    "partition": "queue_id",
    "offset": "queue_offset",
    "timestamp": "store_timestamp",
    "headers": "properties",
}

_COLUMNS: Final = {RowFormat.MQDB: MESSAGE_COLUMNS, RowFormat.KAFKA: KAFKA_COLUMNS}


def columns_of(row_format: RowFormat) -> dict[str, str]:
    """All columns of a row format with their types."""
    return _COLUMNS[row_format]


def ddl(row_format: RowFormat, names: tuple[str, ...]) -> str:
    """The schema of a read with these columns, in a form that Spark parses."""
    types = columns_of(row_format)
    return ", ".join(f"`{name}` {types[name]}" for name in names)


def check_columns(row_format: RowFormat, wanted: dict[str, str]) -> None:
    """Raise ColumnInvalid if a column is unknown or has another type, and OptionInvalid if there is no column.

    An Arrow batch gets its number of rows from its columns, so rows without columns would be lost.
    """
    types = columns_of(row_format)
    if not wanted:
        raise OptionInvalid("columns", None, f"the schema has no columns; name one of {', '.join(types)}")
    for name, type_ in wanted.items():
        if name not in types:
            raise ColumnInvalid(name, f"rowFormat {row_format} has the columns {', '.join(types)}")
        if type_ != types[name]:
            raise ColumnInvalid(name, f"is {types[name]}, not {type_}; cast it after the read")


def sources_of(row_format: RowFormat, names: tuple[str, ...], *, with_bodies: bool = False) -> tuple[str, ...]:
    """The message columns that have to be read from the database for these columns, in a fixed order.

    `with_bodies` adds the body and its position, for reads that make columns from bodies.
    """
    sources = {KAFKA_SOURCES.get(name, "queue_offset") for name in names} if row_format is RowFormat.KAFKA else {*names}
    if with_bodies:
        sources |= {"topic", "queue_id", "queue_offset", "body"}
    if "body" in sources:
        sources.add("sys_flag")  # says how the body is compressed
    if row_format is RowFormat.KAFKA and "keys" in sources:
        sources.add(KEPT_KEY)
    return tuple(name for name in SOURCE_COLUMNS if name in (sources or {"queue_offset"}))
