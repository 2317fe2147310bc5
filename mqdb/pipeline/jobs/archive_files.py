"""The files of the archive: their folders, their rows, and the file system that Spark writes them to.

    <path>/broker=broker-a/segment=12/run=<id>/topic=orders/hour=2026-07-14-09/part-....zstd.parquet

A row is a message as returned by the data source. Bodies are stored uncompressed, and `sys_flag` says so: Parquet
compresses them together, which is better than one by one, and any Parquet reader can read them. Hours are those of the
store time, in UTC.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from mqdb.common.compression import COMPRESSED_FLAG
from mqdb.pipeline.read.schema import MESSAGE_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_COLUMNS: Final = MESSAGE_COLUMNS | {"hour": "string"}

#: The schema of the rows that `read` returns.
SCHEMA: Final = ", ".join(f"`{name}` {type_}" for name, type_ in _COLUMNS.items())

#: Below it all folders have the same structure. Spark would guess the types and take a topic named 0012 for a number.
_BASE: Final = re.compile(r"/segment=\d+/run=\w+$")
_FOLDERS: Final = "segment int, run string"

#: The compression of a body: the flag, and the type in bits 8 to 10.
_COMPRESSION_BITS: Final = COMPRESSED_FLAG | 7 << 8

#: INT96, Spark's default, has no statistics, and other systems no longer write it.
_TIMESTAMPS: Final = ("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")


def hour_name(time: datetime) -> str:
    """The hour of a time, in the form used for folder names."""
    return f"{time.astimezone(UTC):%Y-%m-%d-%H}"


def write(messages: "DataFrame", path: str) -> None:
    """Write messages to a new folder; each file is sorted by queue and offset."""
    from pyspark.sql import functions as F

    # With numbers: Spark's own functions work in the session's time zone, in which some hours occur twice.
    seconds = F.unix_seconds("store_timestamp")
    day = F.date_add(F.lit("1970-01-01").cast("date"), F.floor(seconds / 86_400).cast("int"))
    hour = F.lpad((F.floor(seconds / 3_600) % 24).cast("string"), 2, "0")
    rows = messages.withColumn("hour", F.concat(day.cast("string"), F.lit("-"), hour))
    rows = rows.withColumn("sys_flag", F.col("sys_flag").bitwiseAND(F.lit(~_COMPRESSION_BITS)))
    with _configured(messages.sparkSession, *_TIMESTAMPS):
        ordered = rows.sortWithinPartitions("topic", "hour", "queue_id", "queue_offset")
        ordered.write.partitionBy("topic", "hour").option("compression", "zstd").parquet(path)


def read(spark: "SparkSession", *paths: str) -> "DataFrame":
    """The messages in these folders (at least one), with their `hour`."""
    by_base: dict[str, list[str]] = {}
    for path in paths:
        by_base.setdefault(_BASE.sub("", path), []).append(path)
    reader = spark.read.schema(f"{SCHEMA}, {_FOLDERS}")
    frames = [reader.option("basePath", base).parquet(*below).select(*_COLUMNS) for base, below in by_base.items()]
    return reduce(lambda left, right: left.unionByName(right), frames)


class FileSystem:
    """The file system of a path, as Spark sees it: a disk, HDFS, or an object store."""

    def __init__(self, spark: "SparkSession") -> None:
        context: Any = spark.sparkContext
        self._path = context._jvm.org.apache.hadoop.fs.Path
        self._configuration = context._jsc.hadoopConfiguration()

    def qualified(self, path: str) -> str:
        """The path with its scheme, such as `file:/data`, so that driver and executors interpret it in the same way."""
        at = self._path(path)
        return str(at.getFileSystem(self._configuration).makeQualified(at).toString())

    def size(self, path: str) -> int:
        """The size in bytes of all files below a folder."""
        at = self._path(path)
        return int(at.getFileSystem(self._configuration).getContentSummary(at).getLength())

    def remove(self, path: str) -> None:
        """Remove a folder and its contents. A folder that does not exist is ignored."""
        at = self._path(path)
        at.getFileSystem(self._configuration).delete(at, True)


@contextmanager
def _configured(spark: "SparkSession", name: str, value: str) -> Iterator[None]:
    """Set a setting of the session temporarily."""
    before = spark.conf.get(name, None)
    spark.conf.set(name, value)
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, before)
