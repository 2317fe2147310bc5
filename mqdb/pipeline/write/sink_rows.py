"""Turns rows of a DataFrame into rows of the stage: the records that a producer would make from these messages.

This code runs in Spark's Python workers, for each row. This module is imported only when a task has rows to write,
because it imports most of mqdb.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from itertools import count, repeat
from json.encoder import encode_basestring as quoted
from random import randrange
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from uuid import UUID

from mqdb.common.delivery_schedule import DelayLevel, DeliverAt, schedule_of
from mqdb.common.kafka_record import (
    NO_VALUE,
    Header,
    KafkaProperty,
    MissingValue,
    bytes_of,
    header_properties,
    index_words,
    key_property,
    key_text,
    sharding_text,
)
from mqdb.common.message import Message, check_message, stored_properties
from mqdb.common.property import JSONB_VERSION, KEY_SEPARATOR, RESERVED_PROPERTIES, split_keys
from mqdb.common.unique_id import UniqueIdGenerator, local_address
from mqdb.errors import BodyEmpty, MqdbError, PropertyInvalid, QueueNotFound
from mqdb.pipeline.errors import ColumnInvalid
from mqdb.pipeline.write.sink_columns import ColumnPart, Columns, Kind
from mqdb.pipeline.write.sink_options import ReservedProperties
from mqdb.selector.tags import java_string_hash, tag_code

if TYPE_CHECKING:
    from pyarrow import Array, RecordBatch

StageRow: TypeAlias = tuple[Any, ...]


class RowMaker:
    """Makes the rows of one attempt of a task, and notes their number, their `topics` and whether any `waits`.

    Messages with a sharding key, or otherwise a Kafka key, go to the queue chosen by its hash, like
    SelectMessageQueueByHash; other messages go to the queues in turn.
    """

    def __init__(
        self,
        columns: Columns,
        topic: str | None,
        reserved_properties: ReservedProperties | None,
        find_queues: Callable[[str], tuple[Any, ...]],
        write_id: UUID,
    ) -> None:
        self.messages = 0
        self.waits = False
        self._columns = columns
        self._topic = topic
        self._drops_reserved = reserved_properties is ReservedProperties.DROP or (
            reserved_properties is None and columns.was_read
        )
        self._drops_headers = reserved_properties is ReservedProperties.DROP
        self._find_queues = find_queues
        self._write_id = write_id
        self._queues: dict[str, tuple[Any, ...]] = {}
        self._refused: dict[str, MqdbError] = {}
        self._turns = count(randrange(1 << 16))
        self._ids = UniqueIdGenerator()
        self._born_host = local_address() or "127.0.0.1"

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics to which the messages go."""
        return tuple(self._queues)

    def rows(self, batch: "RecordBatch") -> list[StageRow]:
        """One row for each row of a non-empty batch, with the columns of `mqdb.sink_stage` in order.

        Raises the errors of `check_message` and `find_queues`; QueueNotFound; ColumnInvalid for a row without a topic.
        After an error no row of the batch is counted. A row contains the result of `find_queues` for its queue instead
        of the queue's key.
        """
        now = datetime.now(UTC)
        ids = self._ids.take(batch.num_rows, now)
        numbers = range(self.messages, self.messages + batch.num_rows)
        parts = self._parts(batch, now)
        rows = [self._row(number, id_, *part) for number, id_, part in zip(numbers, ids, parts, strict=True)]
        self.messages += batch.num_rows
        return rows

    def row(
        self, topic: str, body: bytes | None, key: bytes | None, properties: Mapping[str, str], now: datetime
    ) -> StageRow:
        """The next row, with exactly these parts. Raises the errors of `rows`."""
        (id_,) = self._ids.take(1, now)
        row = self._row(self.messages, id_, now, topic, body, None, key, None, properties, *[None] * 6)
        self.messages += 1
        return row

    def _parts(self, batch: "RecordBatch", now: datetime) -> Iterator[tuple[Any, ...]]:
        """The parts of each message, in the order of the parameters of `_row`."""
        columns = self._columns
        topics = repeat(self._topic) if self._topic is not None else _values(batch, columns.topic)
        others = (
            columns.body,
            columns.tags,
            columns.key,
            columns.keys,
            columns.properties,
            columns.headers,
            columns.sharding_key,
            columns.queue_id,
            columns.broker,
            columns.delay_level,
            columns.deliver_at,
        )
        born = repeat(now) if columns.born_timestamp is None else _times(batch, columns.born_timestamp, now)
        return zip(born, topics, *(_values(batch, part) for part in others), strict=False)

    def _row(
        self,
        number: int,
        unique_id: UUID,
        born_time: datetime,
        topic: str | None,
        body: bytes | str | None,
        tag: str | None,
        key: bytes | str | None,
        keys: str | tuple[str, ...] | None,
        properties: Mapping[str, str] | None,
        headers: Sequence[Header] | None,
        sharding_key: str | None,
        queue_id: int | None,
        broker: str | None,
        delay_level: int | None,
        deliver_ms: int | None,
    ) -> StageRow:
        if topic is None:
            raise ColumnInvalid("topic", "is null in a row; give the topic in each row, or in the option topic")
        if properties and self._drops_reserved:
            properties = {name: text for name, text in properties.items() if name not in RESERVED_PROPERTIES}
        if headers is not None:
            properties = self._with_headers(headers, properties or {})
        if not body or (properties and _VALUE in properties):
            body, properties = self._with_value(body, properties or {})
        if key is not None:
            text = key_text(key)
            is_word = text and text.isprintable() and KEY_SEPARATOR not in text
            if is_word and not keys and not (properties and _KEY in properties):
                keys = text
            else:
                keys, properties = _with_key(key, text, keys, properties or {})
            if sharding_key is None:
                sharding_key = sharding_text(key) if text is None else text
        message = Message(
            topic, body, tag, keys or (), properties or {}, delay_level=delay_level or 0, deliver_at=deliver_ms
        )
        check_message(message)
        queues = self._queues.get(topic)
        if queues is None:
            queues = self._queues[topic] = self._find(topic)
        level: int | None = None
        time: int | None = None
        if message.system_properties:
            match schedule_of(message.system_properties):
                case DelayLevel() as schedule:
                    level = schedule.level
                case DeliverAt() as schedule:
                    time = schedule.milliseconds
            self.waits = True
        return (
            self._write_id,
            born_time,
            tag_code(message.tag),
            time,
            unique_id,
            number,
            self._choose(message, queues, sharding_key, queue_id, broker),
            level,
            self._born_host,
            message.tag,
            KEY_SEPARATOR.join(message.keys) or None,
            _jsonb(stored_properties(message)),
            message.body,
        )

    def _find(self, topic: str) -> tuple[Any, ...]:
        if (refused := self._refused.get(topic)) is not None:
            raise type(refused)(*refused.args)
        try:
            return self._find_queues(topic)
        except MqdbError as error:  # more rows may use it
            self._refused[topic] = error
            raise

    def _with_headers(self, headers: Sequence[Header], properties: Mapping[str, str]) -> Mapping[str, str]:
        """The properties including those of the headers, which replace earlier headers kept in the properties."""
        if self._drops_headers:
            headers = [header for header in headers if header[0] not in RESERVED_PROPERTIES]
        others = {name: text for name, text in properties.items() if name != _HEADERS}
        return {**others, **header_properties(headers)}

    def _with_value(
        self, body: bytes | str | None, properties: Mapping[str, str]
    ) -> tuple[bytes | str, Mapping[str, str]]:
        """Body and properties of a row with an empty body, or with a property for its original value."""
        if not body:
            if not self._columns.may_lack_value and _VALUE not in properties:
                raise BodyEmpty()
            missing = MissingValue.NULL if body is None else MissingValue.EMPTY
            return NO_VALUE, {**properties, _VALUE: missing.value}
        if bytes_of(body) == NO_VALUE:
            return body, properties
        # The row has got a body since it was read.
        return body, {name: text for name, text in properties.items() if name != _VALUE}

    def _choose(
        self,
        message: Message,
        queues: tuple[Any, ...],
        sharding_key: str | None,
        queue_id: int | None,
        _broker: str | None,
    ) -> Any:
        """Choose one of `queues`, the queues of the topic."""
        if queue_id is not None:
            if not 0 <= queue_id < len(queues):
                raise QueueNotFound(message.topic, queue_id, len(queues))
        elif sharding_key is not None:
            queue_id = by_hash(sharding_key, len(queues))
        else:
            queue_id = next(self._turns) % len(queues)
        return queues[queue_id]


def by_hash(sharding_key: str, queue_nums: int) -> int:
    """The number of the queue of a key, as producers choose it."""
    # Java's remainder has the sign of the hash and is made positive afterwards.
    return abs(_hash(sharding_key)) % queue_nums


def _with_key(
    key: bytes | str, text: str | None, keys: str | tuple[str, ...] | None, properties: Mapping[str, str]
) -> tuple[tuple[str, ...], Mapping[str, str]]:
    """The words of a key for the key index, and properties, which store the key if the words are not enough."""
    words = split_keys(keys) if isinstance(keys, str) else ()
    words = words or index_words(text or "")
    kept = key_property(bytes_of(key), text, words)
    others = {name: value for name, value in properties.items() if name != _KEY}
    return words, others if kept is None else {**others, _KEY: kept}


_VALUE: Final = KafkaProperty.VALUE.value
_KEY: Final = KafkaProperty.KEY.value
_HEADERS: Final = KafkaProperty.HEADERS.value

# The keys of a partition repeat.
_hash = lru_cache(maxsize=65_536)(java_string_hash)

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def _jsonb(texts: Mapping[str, str]) -> bytes:
    return (
        JSONB_VERSION
        + ("{" + ", ".join([f"{quoted(name)}: {quoted(text)}" for name, text in texts.items()]) + "}").encode()
    )


# -- values of a column -------------------------------------------------------------------------


def _values(batch: "RecordBatch", part: ColumnPart | None) -> Iterator[Any]:
    """The values of a part as Python types; None if there is no value or no column."""
    if part is None:
        return repeat(None)
    column = batch.column(part.column)
    match part.kind:
        case Kind.UTF8:
            return map(partial(_text, batch.schema.names[part.column]), column.to_pylist())
        case Kind.JSON:
            return map(_object, column.to_pylist())
        case Kind.HEADERS:
            return map(partial(_headers, batch.schema.names[part.column]), column.to_pylist())
        case Kind.MAP:
            return (None if pairs is None else dict(pairs) for pairs in column.to_pylist())
        case Kind.MICROSECONDS | Kind.MILLISECONDS:
            # Rounded up, because messages are never delivered early.
            return (None if us is None else -(-us // 1_000) for us in _microseconds(column, part.kind))
        case _:
            return iter(column.to_pylist())


def _microseconds(column: "Array", kind: Kind) -> Iterator[int | None]:
    """Microseconds since 1970, whatever the column's time zone."""
    factor = 1 if kind is Kind.MICROSECONDS else 1_000
    return (None if value is None else value * factor for value in column.cast("int64").to_pylist())


def _times(batch: "RecordBatch", part: ColumnPart, default: datetime) -> Iterator[datetime]:
    for value in _microseconds(batch.column(part.column), part.kind):
        try:
            yield default if value is None else _EPOCH + timedelta(microseconds=value)
        except OverflowError:
            column = batch.schema.names[part.column]
            reason = f"{value:,} microseconds since 1970 are beyond the years 1 to 9999; a bigint is in milliseconds"
            raise ColumnInvalid(column, reason) from None


def _text(column: str, value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError as error:
        raise ColumnInvalid(
            column, f"contains {value!r}, which is not UTF-8: {error.reason} at {error.start}"
        ) from None


def _headers(column: str, rows: list[dict[str, Any] | None] | None) -> list[Header] | None:
    if rows is None:
        return None
    headers: list[Header] = [(row["key"], row["value"]) for row in rows if row is not None]
    if len(headers) != len(rows) or any(name is None for name, _ in headers):
        raise ColumnInvalid(column, "contains a header that is null, or whose key is null")
    return headers


def _object(text: str | None) -> dict[str, str] | None:
    if text is None:
        return None
    try:
        properties = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PropertyInvalid("properties", f"they are not JSON: {error}") from None
    if not isinstance(properties, dict):
        raise PropertyInvalid("properties", f"they are a JSON {type(properties).__name__}, not an object")
    return properties
