"""Rows that no broker would store: they end the query, are left out, or go to a separate topic.

An Arrow batch is converted as a whole, because nearly all are good. If one of its rows is bad, the batch is halved
until the bad rows are isolated. A row for the topic of bad rows is staged with the good rows, so all rows are in the
same commit.
"""

import json
import logging
from base64 import b64encode
from contextlib import suppress
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from mqdb.common.kafka_record import KafkaProperty, MissingValue, key_text
from mqdb.common.message import MAX_BODY_BYTES
from mqdb.common.property import Property, storable
from mqdb.errors import (
    BodyEmpty,
    BodyTooLarge,
    MqdbError,
    NameInvalid,
    PropertyInvalid,
    PropertyReserved,
    QueueNotFound,
    ScheduleInvalid,
    TopicNotAllowed,
    TopicNotFound,
    TopicNotWritable,
)
from mqdb.pipeline.errors import ColumnInvalid, SinkRowInvalid
from mqdb.pipeline.write.sink_options import OnBadRow, SinkOptions

if TYPE_CHECKING:
    from pyarrow import Array, RecordBatch

    from mqdb.pipeline.write.sink_columns import Columns
    from mqdb.pipeline.write.sink_rows import RowMaker, StageRow

logger = logging.getLogger(__name__)

#: The number of bad rows of a task that are logged individually.
_LOGGED: Final = 10

#: The limits for the JSON with the columns of a bad row, and for the reason. All properties of a message together have
#: at most 32,767 bytes.
_COLUMNS_BYTES: Final = 16_000
_REASON_CHARACTERS: Final = 1_000
_KEY_BYTES: Final = 1_000

#: Errors in the contents of a row, with the parts of a message that may be at fault.
_PARTS: Final[tuple[tuple[tuple[type[MqdbError], ...], tuple[str, ...]], ...]] = (
    ((BodyEmpty, BodyTooLarge), ("body",)),
    ((NameInvalid, TopicNotAllowed, TopicNotFound, TopicNotWritable), ("topic",)),
    ((QueueNotFound,), ("queue_id",)),
    ((ScheduleInvalid,), ("delay_level", "deliver_at")),
    ((PropertyReserved,), ("properties",)),
    ((MqdbError,), ("properties", "headers", "key", "keys", "tags")),
)


class BadRowProperty(StrEnum):
    """The properties of a message in the topic of bad rows. The body of the message is the body of the row."""

    REASON = "MQDB_BAD_ROW_REASON"
    COLUMN = "MQDB_BAD_ROW_COLUMN"
    TASK = "MQDB_BAD_ROW_TASK"
    NUMBER = "MQDB_BAD_ROW_NUMBER"

    #: The other columns of the row as a JSON object: bytes in base64, times in microseconds since 1970.
    COLUMNS = "MQDB_BAD_ROW_COLUMNS"

    #: A JSON list of the columns that are too long for the message, including the body's column if it is cut at 4 MiB.
    LEFT_OUT = "MQDB_BAD_ROW_LEFT_OUT"


class TaskRows:
    """The rows of one attempt of a task for the stage; `bad` is the number of bad rows so far."""

    def __init__(self, maker: "RowMaker", columns: "Columns", options: SinkOptions, task: int) -> None:
        self.bad = 0
        self._maker = maker
        self._columns = columns
        self._options = options
        self._task = task
        self._seen = 0

    def make(self, batch: "RecordBatch") -> "list[StageRow]":
        """The rows of a batch. Raises SinkRowInvalid for a bad row if the option says so, and for lost topics."""
        rows = self._make(batch, self._seen + 1)
        self._seen += batch.num_rows
        return rows

    def _make(self, batch: "RecordBatch", number: int) -> "list[StageRow]":
        try:
            return self._maker.rows(batch)
        except (MqdbError, UnicodeDecodeError) as error:
            if self._options.topic is not None and isinstance(error, TopicNotFound | TopicNotWritable):
                raise  # rows do not give the topic
            if batch.num_rows == 1:
                return self._bad(batch, number, error)
        half = batch.num_rows // 2
        return self._make(batch.slice(0, half), number) + self._make(batch.slice(half), number + half)

    def _bad(self, batch: "RecordBatch", number: int, error: MqdbError | UnicodeDecodeError) -> "list[StageRow]":
        fault = error if isinstance(error, MqdbError) else _not_utf8(batch, error)
        reason = fault.reason if isinstance(fault, ColumnInvalid) else str(fault)
        invalid = SinkRowInvalid(number, self._task, self._key(batch), self._column(batch, fault), reason)
        if self._options.on_bad_row is OnBadRow.FAIL:
            raise invalid from fault
        self.bad += 1
        if self.bad <= _LOGGED:
            logger.warning("found a bad row: %s", invalid)
        topic = self._options.bad_row_topic
        return [] if topic is None else [self._message(topic, batch, invalid)]

    def _column(self, batch: "RecordBatch", fault: MqdbError) -> str:
        """The name of the faulty column, or the names of those that may be faulty."""
        if isinstance(fault, ColumnInvalid):
            return fault.column
        parts = next(parts for errors, parts in _PARTS if isinstance(fault, errors))
        if isinstance(fault, PropertyInvalid):
            # A key and headers that are invalid as properties are kept in another form.
            parts = ({Property.KEYS.value: "keys", Property.TAGS.value: "tags"}.get(fault.name, "properties"),)
        found = [self._name(batch, part) for part in parts if getattr(self._columns, part) is not None]
        return " or ".join(found) or parts[0]

    def _name(self, batch: "RecordBatch", part: str) -> str:
        return str(batch.schema.names[getattr(self._columns, part).column])

    def _key(self, batch: "RecordBatch") -> bytes | str | None:
        """The key by which people can find the row."""
        for part in ("key", "keys", "sharding_key"):
            if getattr(self._columns, part) is not None:
                key = _bytes(batch.column(getattr(self._columns, part).column))
                text = None if key is None else key_text(key)
                return key if text is None else text
        return None

    def _message(self, topic: str, batch: "RecordBatch", invalid: SinkRowInvalid) -> "StageRow":
        body_column = self._columns.body.column
        body = _bytes(batch.column(body_column))
        values = {name: _value(batch.column(number)) for number, name in enumerate(batch.schema.names)}
        body_name = batch.schema.names[body_column]
        del values[body_name]
        left_out = [body_name] if body is not None and len(body) > MAX_BODY_BYTES else []
        while len(text := json.dumps(values)) > _COLUMNS_BYTES:
            largest = max(values, key=lambda name: len(json.dumps(values[name])))
            del values[largest]
            left_out.append(largest)
        properties = {
            BadRowProperty.REASON.value: storable(invalid.reason[:_REASON_CHARACTERS]),
            BadRowProperty.COLUMN.value: invalid.column,
            BadRowProperty.TASK.value: str(invalid.task),
            BadRowProperty.NUMBER.value: str(invalid.row),
            BadRowProperty.COLUMNS.value: text,
        }
        if left_out:
            properties[BadRowProperty.LEFT_OUT.value] = json.dumps(left_out)
        if not body:
            missing = MissingValue.NULL if body is None else MissingValue.EMPTY
            properties[KafkaProperty.VALUE.value] = missing.value
        key = _bytes(batch.column(self._columns.key.column)) if self._columns.key is not None else None
        if key is not None and len(key) > _KEY_BYTES:
            key = None
        return self._maker.row(topic, body and body[:MAX_BODY_BYTES], key, properties, datetime.now(UTC))


def _not_utf8(batch: "RecordBatch", error: UnicodeDecodeError) -> ColumnInvalid:
    for number, name in enumerate(batch.schema.names):
        try:
            batch.column(number).to_pylist()
        except UnicodeDecodeError:
            return ColumnInvalid(name, f"holds text that is not UTF-8: {error.reason} at {error.start}")
    raise error


def _bytes(column: "Array") -> bytes | None:
    """The value of a one-row column of text or bytes."""
    value: bytes | None = column.cast("binary").to_pylist()[0]
    return value


def _value(column: "Array") -> Any:
    """The value of a one-row column, for JSON: bytes as base64, times as microseconds since 1970."""
    from pyarrow import types

    with suppress(UnicodeDecodeError):
        return _plain((column.cast("int64") if types.is_timestamp(column.type) else column).to_pylist()[0])
    return _plain(_bytes(column))


def _plain(value: Any) -> Any:
    match value:
        case bytes():
            return b64encode(value).decode()
        case list() | tuple():
            return [_plain(each) for each in value]
        case dict():
            return {name: _plain(each) for name, each in value.items()}
        case None | bool() | int() | float() | str():
            return value
        case _:
            return str(value)
