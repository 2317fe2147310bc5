"""Spark's data source `mqdb`: format("mqdb") for reads and writes, in batches and streams.

    spark.read.format("mqdb").option("url", "postgresql://...").option("subscribe", "orders").load()

The data source needs no jar. Spark's filters are not pushed down: Spark keeps one planned read for all queries over a
DataFrame, and would give the rows of the first filter to all of them; options prune instead. For the same reason a
DataFrame is a snapshot: it reads the messages that existed at its first action. Spark's Python workers import this
module, and so does the process in which Spark looks up data sources, which needs only the name. So methods import the
modules that they use.
"""

from collections.abc import Iterator, Mapping
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

from mqdb.pipeline.read.schema import HEADERS

if TYPE_CHECKING:
    import pyarrow as pa

    from mqdb.errors import MqdbError
    from mqdb.pipeline.read.cluster_options import SourceCluster
    from mqdb.pipeline.read.cluster_planning import ClusterPlanner
    from mqdb.pipeline.read.tasks import Task

_TYPES: Final[dict[str, DataType]] = {
    "string": StringType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "binary": BinaryType(),
    "timestamp": TimestampType(),
    HEADERS: ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
}


class MqdbDataSource(DataSource):
    """Topics of one broker, or of several."""

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return "mqdb"

    def schema(self) -> StructType:
        """All columns of the row format, or those in the option `columns`, and those of the option `schema`.

        Spark calls this at `load`, so all options are checked here, unless the user gives a schema.
        """
        from mqdb.pipeline.read.cluster_options import check_cluster, cluster_columns, cluster_decoding
        from mqdb.pipeline.read.created_tables import column_options, is_created_table

        options: Mapping[str, str] = self.options
        if is_created_table(options):
            options = column_options(options)
        else:
            check_cluster(options)
        own = [StructField(name, _TYPES[type_]) for name, type_ in cluster_columns(options).items()]
        decoding = cluster_decoding(options)
        return StructType([*own, *([] if decoding is None else decoding.columns.fields)])

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader for spark.read."""
        return MqdbReader(_cluster(self.options, schema, is_stream=False))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """The reader for spark.readStream."""
        from mqdb.errors import MqdbError

        try:
            return MqdbStreamReader(_cluster(self.options, schema, is_stream=True))
        except MqdbError as error:
            return _RefusedStream(error)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """The writer for DataFrame.write."""
        from mqdb.pipeline.write.writers import batch_writer

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """The writer for DataFrame.writeStream."""
        from mqdb.pipeline.write.writers import stream_writer

        return stream_writer(self.options, schema, overwrite)


def _cluster(options: Mapping[str, str], schema: StructType, *, is_stream: bool) -> "SourceCluster":
    """The options by broker, with the columns of the user's schema, if one was given."""
    from mqdb.pipeline.read.cluster_options import parse_cluster

    return parse_cluster(options, is_stream=is_stream).with_columns(schema)


class TaskPartition(InputPartition):
    """The work of one task, as Spark sends it, and the broker to read from."""

    def __init__(self, broker: str, task: "Task") -> None:
        super().__init__(task)
        self.broker = broker
        self.task = task


class MqdbReader(DataSourceReader):
    """A batch read, planned on the driver, where Spark calls `partitions` once per DataFrame."""

    def __init__(self, cluster: "SourceCluster") -> None:
        self.cluster = cluster

    def partitions(self) -> list[InputPartition]:
        """One partition per task."""
        from mqdb.pipeline.read.cluster_planning import cluster_tasks

        return _partitions(cluster_tasks(self.cluster))

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Read a partition, on a worker."""
        return _read(partition, self.cluster)


class MqdbStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream. One instance lives on the driver as long as the query; copies of it read on workers."""

    def __init__(self, cluster: "SourceCluster") -> None:
        self.cluster = cluster
        self.options = cluster.any_options
        self._planner: ClusterPlanner | None = None
        self._reported: dict[str, Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"cluster": self.cluster, "options": self.options, "_planner": None, "_reported": None}

    def initialOffset(self) -> dict[str, Any]:
        """The offset at which a query without a checkpoint starts."""
        return self._plan().initial().to_dict()

    def getDefaultReadLimit(self) -> ReadLimit:
        """The limit given by maxOffsetsPerTrigger or minOffsetsPerTrigger.

        Spark accepts only one limit; `latestOffset` applies the other.
        """
        if self.options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self.options.max_offsets_per_trigger)
        if self.options.min_offsets_per_trigger is not None:
            return ReadMinRows(self.options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next batch."""
        from mqdb.pipeline.read.offsets import ClusterOffset

        at_most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        at_least = None if isinstance(limit, ReadAllAvailable) else self.options.min_offsets_per_trigger
        offset, whole = self._plan().latest(ClusterOffset.from_dict(start), at_most=at_most, at_least=at_least)
        self._reported = whole.to_dict()
        return offset.to_dict()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The end of a batch without a limit, for the progress of the query."""
        return self._reported

    def prepareForTriggerAvailableNow(self) -> None:
        """Limit the query to the messages that exist now."""
        self._plan().set_target()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The tasks of a batch."""
        from mqdb.pipeline.read.offsets import ClusterOffset

        return _partitions(self._plan().tasks(ClusterOffset.from_dict(start), ClusterOffset.from_dict(end)))

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Read a partition, on a worker."""
        return _read(partition, self.cluster)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing, because the checkpoint stores the offsets.

        Spark never calls it for the last batch of a query that ends by itself.
        """

    def stop(self) -> None:
        """Close the connection when the query has ended."""
        if self._planner is not None:
            self._planner.close()
            self._planner = None

    def _plan(self) -> "ClusterPlanner":
        if self._planner is None:
            from mqdb.pipeline.read.cluster_planning import ClusterPlanner

            self._planner = ClusterPlanner(self.cluster)
        return self._planner


class _RefusedStream(DataSourceStreamReader):
    """A stream with invalid options. Spark would hide an error raised by `streamReader` itself behind its own."""

    def __init__(self, error: "MqdbError") -> None:
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


def _partitions(tasks: "list[tuple[str, Task]]") -> list[InputPartition]:
    return [TaskPartition(broker, task) for broker, task in tasks]


def _read(partition: InputPartition, cluster: "SourceCluster") -> "Iterator[pa.RecordBatch]":
    if not isinstance(partition, TaskPartition):  # Spark's own type instead of no type
        return iter(())
    if cluster.names:
        from mqdb.pipeline.read.cluster_reader import read_broker

        return read_broker(partition.task, cluster, partition.broker)
    from mqdb.pipeline.read.reader import read

    options = cluster.any_options
    return read(partition.task, options.reading, options.columns)
