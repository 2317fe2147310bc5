"""Reading a task of one of several brokers: its messages, with columns that name their origin."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mqdb.errors import MqdbError
from mqdb.pipeline.read.cluster_options import BROKER, SourceCluster
from mqdb.pipeline.read.reader import read
from mqdb.pipeline.read.schema import RowFormat
from mqdb.pipeline.read.tasks import Task

if TYPE_CHECKING:
    import pyarrow as pa


def read_broker(task: Task, cluster: SourceCluster, broker: str) -> "Iterator[pa.RecordBatch]":
    """The messages of a task, with exactly the columns of the cluster. Raises the errors of `read`."""
    options = cluster.brokers[broker]
    try:
        for batch in read(task, options.reading, options.columns):
            yield _marked(batch, cluster, broker, options.reading.row_format)
    except MqdbError as error:
        error.add_note(f"while broker {broker!r} was read")
        raise


def _marked(batch: "pa.RecordBatch", cluster: SourceCluster, broker: str, row_format: RowFormat) -> "pa.RecordBatch":
    import pyarrow as pa
    import pyarrow.compute as pc

    if row_format is RowFormat.KAFKA:
        if "partition" not in batch.schema.names:
            return batch
        first = pa.scalar(cluster.first_partition(broker), pa.int32())
        numbers = pc.add(batch.column("partition"), first)
        return batch.set_column(batch.schema.names.index("partition"), "partition", numbers)
    arrays = [
        pa.repeat(pa.scalar(broker, pa.string()), batch.num_rows) if name == BROKER else batch.column(name)
        for name in cluster.columns
    ]
    return pa.RecordBatch.from_arrays(arrays, names=list(cluster.columns))
