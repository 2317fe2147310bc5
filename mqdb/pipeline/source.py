"""The data source `mqdb` of Spark: format("mqdb") for reads and writes, in batches and streams.

    spark.read.format("mqdb").option("url", "postgresql://...").option("subscribe", "orders").load()

It needs no jar. Filters of Spark's are not pushed down: Spark keeps one planned read for all queries over a DataFrame,
and gives the rows of the first filter to all of them; options prune instead. For the same reason a DataFrame
is a snapshot: it reads what was there at its first action. Spark's Python workers import this module.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from mqdb.errors import MqdbError
from mqdb.pipeline.errors import ColumnInvalid
from mqdb.pipeline.read.offsets import StreamOffset
from mqdb.pipeline.read.schema import HEADERS, check_columns, columns_of
from mqdb.pipeline.read.source_options import (
    SourceOptions,
    check_source,
    parse_source,
    source_columns,
    source_decoding,
)
from mqdb.pipeline.read.tasks import Task

if TYPE_CHECKING:
    import pyarrow as pa

    from mqdb.pipeline.read.planning import StreamPlanner

_TYPES: Final[dict[str, DataType]] = {
    "string": StringType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "binary": BinaryType(),
    "timestamp": TimestampType(),
    HEADERS: ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
}


class MqdbDataSource(DataSource):
    """Topics of one broker."""

    @classmethod
    def name(cls) -> str:
        """What `format` takes."""
        return "mqdb"

    def schema(self) -> StructType:
        """All columns of the row format, or those that the option `columns` names, and those of the option `schema`.

        Spark asks for them at `load`, so all options are checked here, unless the user gives a schema.
        """
        check_source(self.options)
        row_format, columns = source_columns(self.options)
        types = columns_of(row_format)
        decoding = source_decoding(self.options)
        of_bodies = [] if decoding is None else decoding.columns.fields
        return StructType([*(StructField(name, _TYPES[types[name]]) for name in columns), *of_bodies])

    def reader(self, schema: StructType) -> DataSourceReader:
        """For spark.read."""
        return MqdbReader(_options(self.options, schema, is_stream=False))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """For spark.readStream."""
        try:
            return MqdbStreamReader(_options(self.options, schema, is_stream=True))
        except MqdbError as error:
            return _RefusedStream(error)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """For DataFrame.write."""
        from mqdb.pipeline.write.sink import batch_writer

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """For DataFrame.writeStream."""
        from mqdb.pipeline.write.sink import stream_writer

        return stream_writer(self.options, schema, overwrite)


def _options(options: Mapping[str, str], schema: StructType, *, is_stream: bool) -> SourceOptions:
    """The options, with the columns of a schema that the user may have given."""
    parsed = parse_source(options, is_stream=is_stream)
    of_bodies = {field.name: field for field in parsed.reading.decoding.columns} if parsed.reading.decoding else {}
    decoded = [field for field in schema.fields if field.name in of_bodies]
    own = {field.name: field.dataType.simpleString() for field in schema.fields if field.name not in of_bodies}
    if own or not decoded:
        check_columns(parsed.reading.row_format, own)
    for field in decoded:
        if field.dataType != of_bodies[field.name].dataType:
            wanted = of_bodies[field.name].dataType.simpleString()
            raise ColumnInvalid(field.name, f"is {wanted} in the option schema, not {field.dataType.simpleString()}")
    decoding = replace(parsed.reading.decoding, columns=StructType(decoded)) if parsed.reading.decoding else None
    reading = replace(parsed.reading, decoding=decoding if decoded else None)
    return replace(parsed, columns=tuple(schema.names), reading=reading)


class TaskPartition(InputPartition):
    """What Spark sends to one task."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.task = task


class MqdbReader(DataSourceReader):
    """A batch read. Planned on the driver, where Spark calls `partitions` once for each DataFrame."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options

    def partitions(self) -> list[InputPartition]:
        """One for each task."""
        from mqdb.pipeline.read.planning import batch_tasks

        return _partitions(batch_tasks(self.options))

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """On a worker."""
        return _read(partition, self.options)


class MqdbStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream. One of these lives on the driver as long as the query, copies of it read on workers."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self._planner: StreamPlanner | None = None
        self._reported: dict[str, Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self.options, "_planner": None, "_reported": None}

    def initialOffset(self) -> dict[str, Any]:
        """Where a query without a checkpoint starts."""
        return self._plan().initial().to_dict()

    def getDefaultReadLimit(self) -> ReadLimit:
        """From maxOffsetsPerTrigger or minOffsetsPerTrigger. Spark takes one limit; `latestOffset` knows the other."""
        if self.options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self.options.max_offsets_per_trigger)
        if self.options.min_offsets_per_trigger is not None:
            return ReadMinRows(self.options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next batch."""
        at_most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        at_least = None if isinstance(limit, ReadAllAvailable) else self.options.min_offsets_per_trigger
        offset, whole = self._plan().latest(StreamOffset.from_dict(start), at_most=at_most, at_least=at_least)
        self._reported = whole.to_dict()
        return offset.to_dict()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """How far a batch could go without a limit, for the progress of the query."""
        return self._reported

    def prepareForTriggerAvailableNow(self) -> None:
        """From now on nothing new is read."""
        self._plan().set_target()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The tasks of a batch."""
        return _partitions(self._plan().tasks(StreamOffset.from_dict(start), StreamOffset.from_dict(end)))

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """On a worker."""
        return _read(partition, self.options)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: the checkpoint knows. Spark never calls it for the last batch of a query that ends by itself."""

    def stop(self) -> None:
        """The query has ended."""
        if self._planner is not None:
            self._planner.close()
            self._planner = None

    def _plan(self) -> "StreamPlanner":
        if self._planner is None:
            from mqdb.pipeline.read.planning import StreamPlanner

            self._planner = StreamPlanner(self.options)
        return self._planner


class _RefusedStream(DataSourceStreamReader):
    """A stream with wrong options. Spark would hide an error of `streamReader` itself behind one of its own."""

    def __init__(self, error: MqdbError) -> None:
        self._error = error

    def initialOffset(self) -> dict[str, Any]:
        """Raises the error. Spark begins with this method if there is no checkpoint."""
        raise self._error.with_traceback(None)

    def latestOffset(self, *_: object) -> dict[str, Any]:
        """Raises the error. Spark begins with this method after a restart."""
        raise self._error.with_traceback(None)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Raises the error. Spark begins with this method after a restart in the middle of a batch."""
        raise self._error.with_traceback(None)

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Raises the error, and is never called: there are no partitions."""
        raise self._error.with_traceback(None)


def _partitions(tasks: list[Task]) -> list[InputPartition]:
    return [TaskPartition(task) for task in tasks]


def _read(partition: InputPartition, options: SourceOptions) -> "Iterator[pa.RecordBatch]":
    if not isinstance(partition, TaskPartition):  # Spark's own, in place of none at all
        return iter(())
    from mqdb.pipeline.read.reader import read

    return read(partition.task, options.reading, options.columns)
