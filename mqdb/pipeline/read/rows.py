"""Turns rows of the database into batches for Spark: bodies decompressed, columns in order, types exactly Spark's.

Spark accepts a batch only if its types are exactly Spark's: string and binary, not large_string; timestamp[us, tz=UTC].
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from mqdb.common.compression import COMPRESSED_FLAG, decompress
from mqdb.common.kafka_record import read_headers, read_key
from mqdb.common.property import read_properties
from mqdb.pipeline.read.schema import KEPT_KEY, SOURCE_COLUMNS, RowFormat
from mqdb.pipeline.read.source_options import ReadOptions

if TYPE_CHECKING:
    from mqdb.pipeline.read.body_columns import BodyDecoder

_TYPES = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}


def arrow_types(columns: Sequence[str]) -> list[tuple[str, pa.DataType]]:
    """Message columns with Spark's types for them in Arrow."""
    return [(name, _TYPES[SOURCE_COLUMNS[name]]) for name in columns]


def finished(
    batch: pa.RecordBatch, reading: ReadOptions, columns: tuple[str, ...], decoder: "BodyDecoder | None" = None
) -> Iterator[pa.RecordBatch]:
    """The rows of a batch with these columns, bodies decompressed. `decoder` makes the columns from bodies.

    The rows are split into several batches if plain bodies exceed `batch_size_bytes`: these may be a thousand times as
    large as compressed bodies, and an Arrow column holds at most 2 GiB.
    """
    is_with_bodies = "body" in batch.schema.names
    for part in _with_plain_bodies(batch, reading.batch_size_bytes) if is_with_bodies else (batch,):
        if decoder is None:
            yield _of_format(part, reading, columns)
            continue
        good, decoded = decoder.decode(part)
        if good.num_rows:
            own = _of_format(good, reading, reading.own_columns(columns))
            arrays = dict(zip(own.schema.names, own.columns, strict=True)) | decoded
            yield pa.RecordBatch.from_arrays([arrays[name] for name in columns], names=list(columns))


def _of_format(batch: pa.RecordBatch, reading: ReadOptions, columns: tuple[str, ...]) -> pa.RecordBatch:
    if reading.row_format is RowFormat.KAFKA:
        return _to_kafka(batch, columns, with_reserved=reading.reserved_headers)
    schema = pa.schema(arrow_types(columns))
    arrays = [batch.column(name) for name in columns]
    if [array.type for array in arrays] != schema.types:
        arrays = [array.cast(type_) for array, type_ in zip(arrays, schema.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _with_plain_bodies(batch: pa.RecordBatch, size: int) -> Iterator[pa.RecordBatch]:
    flags = batch.column("sys_flag")
    if not pc.max(pc.bit_wise_and(flags, COMPRESSED_FLAG)).as_py():
        yield batch
        return
    first, held = 0, 0
    bodies: list[bytes | None] = []
    for stored, flag in zip(batch.column("body").to_pylist(), flags.to_pylist(), strict=True):
        body = None if stored is None else decompress(stored, flag)
        body_bytes = len(body or b"")
        if bodies and held + body_bytes > size:
            yield _with_bodies(batch.slice(first, len(bodies)), bodies)
            first, held, bodies = first + len(bodies), 0, []
        bodies.append(body)
        held += body_bytes
    yield _with_bodies(batch.slice(first), bodies)


def _with_bodies(batch: pa.RecordBatch, bodies: list[bytes | None]) -> pa.RecordBatch:
    return batch.set_column(batch.schema.names.index("body"), "body", pa.array(bodies, pa.binary()))


# -- rows in the form of Spark's Kafka source, for queries that were written for it. The timestamp is the time at which
# the broker stored a message; `mqdb.common.kafka_record` defines its key and headers.

#: The timestampType of a record whose timestamp was set by the broker. Source: Kafka's TimestampType.LOG_APPEND_TIME.
_LOG_APPEND_TIME: Final = 1

_HEADERS: Final = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))


def _to_kafka(batch: pa.RecordBatch, columns: tuple[str, ...], *, with_reserved: bool) -> pa.RecordBatch:
    """A batch of messages with these columns of Kafka."""
    arrays = [
        _headers(batch, with_reserved=with_reserved) if name == "headers" else _COLUMNS[name](batch) for name in columns
    ]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def _column(name: str, type_: pa.DataType) -> Callable[[pa.RecordBatch], pa.Array]:
    return lambda batch: batch.column(name).cast(type_)


def _timestamp_type(batch: pa.RecordBatch) -> pa.Array:
    return pa.array([_LOG_APPEND_TIME] * batch.num_rows, pa.int32())


def _key(batch: pa.RecordBatch) -> pa.Array:
    keys, kept = batch.column("keys"), batch.column(KEPT_KEY)
    if kept.null_count == batch.num_rows:
        return keys.cast(pa.binary())
    return pa.array(map(read_key, keys.to_pylist(), kept.to_pylist()), pa.binary())


def _headers(batch: pa.RecordBatch, *, with_reserved: bool) -> pa.Array:
    """The headers; null for a message without headers, as in Spark's Kafka source."""
    rows = []
    for text in batch.column("properties").to_pylist():
        headers = read_headers(read_properties(text), with_reserved=with_reserved)
        rows.append([{"key": name, "value": value} for name, value in headers] or None)
    return pa.array(rows, _HEADERS)


_COLUMNS: Final[dict[str, Callable[[pa.RecordBatch], pa.Array]]] = {
    "key": _key,
    "value": _column("body", pa.binary()),
    "topic": _column("topic", pa.string()),
    "partition": _column("queue_id", pa.int32()),
    "offset": _column("queue_offset", pa.int64()),
    "timestamp": _column("store_timestamp", pa.timestamp("us", tz="UTC")),
    "timestampType": _timestamp_type,
}
