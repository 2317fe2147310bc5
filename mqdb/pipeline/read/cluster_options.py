"""A read of several brokers as one read per broker: its options, and how rows distinguish brokers.

Every broker numbers its topics and queues separately. So rows of a list of brokers have a column `broker`, and with
rowFormat=kafka partition numbers that are unique across brokers. An option that names queues applies to each broker, or
first names the broker: `{"broker-a": {"orders": {"0": 5}}}`. This module is small on purpose: workers import it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from pyspark.sql.types import StructField, StructType

from mqdb.errors import MqdbError
from mqdb.pipeline.broker_urls import PARTITIONS_OF_BROKER, listed_brokers
from mqdb.pipeline.errors import ColumnInvalid, OptionInvalid
from mqdb.pipeline.kafka_options import warn_of_ignored
from mqdb.pipeline.read.body_schema import SCHEMA, BodyDecoding, check_names
from mqdb.pipeline.read.schema import RowFormat, check_columns, columns_of
from mqdb.pipeline.read.source_options import (
    SourceOptions,
    check_source,
    parse_source,
    source_columns,
    source_decoding,
)

#: The broker's column for a list of brokers, and its type. It comes after the topic, as in RocketMQ's MessageQueue.
BROKER: Final = "broker"
BROKER_TYPE: Final = "string"

_ASSIGN: Final = "assign"
_BY_QUEUE: Final = (
    _ASSIGN,
    "startingOffsets",
    "endingOffsets",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
)

#: Offsets that do not name queues.
_NOTHING: Final = '{"": {}}'

#: Read instead of no column at all, because an Arrow batch gets its number of rows from its columns.
_ANY_COLUMN: Final = {RowFormat.MQDB: "queue_offset", RowFormat.KAFKA: "offset"}


@dataclass(frozen=True)
class SourceCluster:
    """The brokers of a read. `names` are those in the list; for a single broker without a name, "", `names` is empty.

    `columns` are the columns for Spark, and each broker's options contain the columns to read there. A broker that is
    not in `assign` is not in `brokers`.
    """

    brokers: Mapping[str, SourceOptions]
    names: tuple[str, ...]
    columns: tuple[str, ...]

    @property
    def any_options(self) -> SourceOptions:
        """The options of any broker, for values that are the same for all."""
        return next(iter(self.brokers.values()))

    def first_partition(self, broker: str) -> int:
        """The number of a broker's queue 0 as a Kafka partition."""
        return self.names.index(broker) * PARTITIONS_OF_BROKER if self.names else 0

    def with_columns(self, schema: StructType) -> "SourceCluster":
        """The cluster with the columns of a schema. Raises ColumnInvalid, OptionInvalid."""
        row_format, decoding = self.any_options.reading.row_format, self.any_options.reading.decoding
        decoded = [] if decoding is None else _decoded(schema, decoding)
        names = {field.name for field in decoded}
        of_brokers = {field.name: field.dataType.simpleString() for field in schema.fields if field.name not in names}
        if self.names and row_format is RowFormat.MQDB and (type_ := of_brokers.pop(BROKER, None)) is not None:
            if type_ != BROKER_TYPE:
                raise ColumnInvalid(BROKER, f"is {BROKER_TYPE}, not {type_}; cast it after the read")
            if not of_brokers and not decoded:
                of_brokers = {_ANY_COLUMN[row_format]: columns_of(row_format)[_ANY_COLUMN[row_format]]}
        if of_brokers or not decoded:
            check_columns(row_format, of_brokers)
        columns = tuple(name for name in schema.names if name in names or name in of_brokers) or tuple(of_brokers)
        left = replace(decoding, columns=StructType(decoded)) if decoding is not None and decoded else None
        brokers = {
            name: replace(options, columns=columns, reading=replace(options.reading, decoding=left))
            for name, options in self.brokers.items()
        }
        return replace(self, brokers=brokers, columns=tuple(schema.names))


def cluster_columns(options: Mapping[str, str]) -> dict[str, str]:
    """Only the columns of a read, with their types."""
    names = tuple(listed_brokers(options))
    row_format, columns = source_columns(_of_any_broker(options) if names else options)
    types = columns_of(row_format) | {BROKER: BROKER_TYPE}
    return {name: types[name] for name in (_with_broker(options, row_format, columns) if names else columns)}


def _decoded(schema: StructType, decoding: BodyDecoding) -> list[StructField]:
    """The columns of a schema that are made from bodies. Raises ColumnInvalid for a column of another type."""
    of_bodies = {field.name: field for field in decoding.columns}
    decoded = [field for field in schema.fields if field.name in of_bodies]
    for field in decoded:
        if field.dataType != of_bodies[field.name].dataType:
            wanted = of_bodies[field.name].dataType.simpleString()
            raise ColumnInvalid(field.name, f"is {wanted} in the option schema, not {field.dataType.simpleString()}")
    return decoded


def cluster_decoding(options: Mapping[str, str]) -> BodyDecoding | None:
    """The columns that a read makes from bodies. Raises OptionInvalid."""
    names = tuple(listed_brokers(options))
    decoding = source_decoding(_of_any_broker(options) if names else options)
    if names and decoding is not None:
        check_names(_text(options, SCHEMA) or "", decoding.columns, (BROKER,))
    return decoding


def check_cluster(options: Mapping[str, str]) -> None:
    """Check the options at `load`, as `check_source` does."""
    if not listed_brokers(options):
        check_source(options)
        return
    try:
        parse_cluster(options, is_stream=False)
    except MqdbError as error:
        try:
            parse_cluster(options, is_stream=True)
        except MqdbError:
            raise error.with_traceback(None) from None
    warn_of_ignored(options)


def parse_cluster(options: Mapping[str, str], *, is_stream: bool) -> SourceCluster:
    """The options of a read by broker. Raises the errors of `parse_source`."""
    urls = listed_brokers(options)
    if not urls:
        lone = parse_source(options, is_stream=is_stream)
        return SourceCluster({"": lone}, (), lone.columns)
    read_urls = _read_urls(options, urls)
    shared = {name: text for name, text in _of_any_broker(options).items() if name.lower() not in ("url", "readurl")}
    by_queue = {name: _by_broker(name, text, tuple(urls)) for name, text in shared.items() if _is_by_queue(name)}
    assigned = next((name for name in shared if name.lower() == _ASSIGN), None)
    brokers: dict[str, SourceOptions] = {}
    for broker, url in urls.items():
        own = {name: texts.get(broker, _NOTHING) for name, texts in by_queue.items()}
        if assigned is not None and broker not in by_queue[assigned]:
            continue
        own |= {"url": url} | ({"readUrl": read_urls[broker]} if read_urls else {})
        parsed = parse_source({**shared, **own}, is_stream=is_stream)
        if assigned is None or by_queue[assigned][broker] == shared[assigned]:
            # A topic may be on only some of the brokers.
            parsed = replace(parsed, subscription=replace(parsed.subscription, is_partial=True))
        brokers[broker] = parsed
    any_options = next(iter(brokers.values()))
    columns = _with_broker(options, any_options.reading.row_format, any_options.columns)
    return SourceCluster(brokers, tuple(urls), columns)


def _read_urls(options: Mapping[str, str], urls: Mapping[str, str]) -> Mapping[str, str]:
    """The replica of each broker, or nothing if the option is not given. Raises OptionInvalid for other names."""
    text = _text(options, "readUrl")
    if text is None:
        return {}
    read_urls = listed_brokers(options, "readUrl")
    if not read_urls and len(urls) == 1:
        return dict.fromkeys(urls, text)
    if read_urls.keys() != urls.keys():
        given = ", ".join(read_urls) or "no broker"
        reason = f"names {given}; give a replica of each broker of the url, which are {', '.join(urls)}"
        raise OptionInvalid("readUrl", None, reason)
    return read_urls


def _text(options: Mapping[str, str], name: str) -> str | None:
    return next((text for each, text in options.items() if each.lower() == name.lower()), None)


# -- columns --------------------------------------------------------------------------------------


def _column_names(options: Mapping[str, str]) -> list[str] | None:
    text = _text(options, "columns")
    return None if text is None else [part.strip() for part in text.split(",")]


def _is_mqdb(options: Mapping[str, str]) -> bool:
    return (_text(options, "rowFormat") or RowFormat.MQDB).lower() == RowFormat.MQDB


def _of_any_broker(options: Mapping[str, str]) -> dict[str, str]:
    """The options without the broker's column, which is not read from brokers."""
    names = _column_names(options)
    if names is None or BROKER not in names or not _is_mqdb(options):
        return dict(options)
    others = [name for name in names if name != BROKER] or [_ANY_COLUMN[RowFormat.MQDB]]
    return {name: ",".join(others) if name.lower() == "columns" else text for name, text in options.items()}


def _with_broker(options: Mapping[str, str], row_format: RowFormat, columns: tuple[str, ...]) -> tuple[str, ...]:
    """The columns for Spark: those in the option, or all of the row format."""
    if row_format is not RowFormat.MQDB:
        return columns
    names = _column_names(options)
    if names is not None:
        return tuple(dict.fromkeys(names))
    return tuple(each for name in columns for each in ((name, BROKER) if name == "topic" else (name,)))


# -- options that name queues ---------------------------------------------------------------------


def _is_by_queue(name: str) -> bool:
    return name.lower() in {each.lower() for each in _BY_QUEUE}


def _by_broker(name: str, text: str, brokers: tuple[str, ...]) -> dict[str, str]:
    """The option's text for each broker: one text for all, unless it names brokers first."""
    value = _json(text)
    if not _names_brokers(value, is_assign=name.lower() == _ASSIGN):
        return dict.fromkeys(brokers, text)
    for broker in value:
        if broker not in brokers:
            raise OptionInvalid(
                name, text, f"there is no broker {broker!r} in the url, which names {', '.join(brokers)}"
            )
    return {broker: json.dumps(part) if part else _NOTHING for broker, part in value.items()}


def _json(text: str) -> dict[str, Any]:
    """A JSON object, or {} for other text, for which the options of a single broker raise the error."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _names_brokers(value: Mapping[str, Any], *, is_assign: bool) -> bool:
    """Whether a value is one level deeper than Kafka's form, in which topics have objects or lists."""
    parts = [part for part in value.values() if isinstance(part, dict)]
    return bool(parts) and (is_assign or any(isinstance(queues, dict) for part in parts for queues in part.values()))
