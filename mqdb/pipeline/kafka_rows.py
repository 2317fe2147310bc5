"""Rows as Spark's Kafka source gives them, for queries that were written for it.

A message's keys are the key, its properties the headers, and the time at which the broker stored it the timestamp.
"""

from collections.abc import Callable
from typing import Final

import pyarrow as pa

from mqdb.common.property import read_properties

#: timestampType of a record that the broker has stamped. Source: Kafka's TimestampType.LOG_APPEND_TIME.
LOG_APPEND_TIME: Final = 1

_HEADERS: Final = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))


def to_kafka(batch: pa.RecordBatch, columns: tuple[str, ...]) -> pa.RecordBatch:
    """A batch of messages with these columns of Kafka's."""
    arrays = [_COLUMNS[name](batch) for name in columns]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def _column(name: str, type_: pa.DataType) -> Callable[[pa.RecordBatch], pa.Array]:
    return lambda batch: batch.column(name).cast(type_)


def _timestamp_type(batch: pa.RecordBatch) -> pa.Array:
    return pa.array([LOG_APPEND_TIME] * batch.num_rows, pa.int32())


def _headers(batch: pa.RecordBatch) -> pa.Array:
    """In the order of their names: jsonb keeps none of its own that would mean anything."""
    rows = []
    for text in batch.column("properties").to_pylist():
        properties = read_properties(text)
        rows.append([{"key": name, "value": properties[name].encode()} for name in sorted(properties)])
    return pa.array(rows, _HEADERS)


_COLUMNS: Final[dict[str, Callable[[pa.RecordBatch], pa.Array]]] = {
    "key": _column("keys", pa.binary()),
    "value": _column("body", pa.binary()),
    "topic": _column("topic", pa.string()),
    "partition": _column("queue_id", pa.int32()),
    "offset": _column("queue_offset", pa.int64()),
    "timestamp": _column("store_timestamp", pa.timestamp("us", tz="UTC")),
    "timestampType": _timestamp_type,
    "headers": _headers,
}
