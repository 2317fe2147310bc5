"""The writers of format("mqdb") that Spark calls, on one broker or several.

Spark starts a Python process to plan each batch of a stream and another one to commit it, and requests the writer in
both. So this module imports little.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    DataSourceStreamWriter,
    DataSourceWriter,
    WriterCommitMessage,
)

from mqdb.broker.log.sink import SinkBatch
from mqdb.errors import BrokerUnavailable, IllegalState
from mqdb.pipeline.broker_urls import listed_brokers
from mqdb.pipeline.broker_wait import patiently
from mqdb.pipeline.errors import ModeNotSupported
from mqdb.pipeline.write.sink import Staged, Writing
from mqdb.pipeline.write.sink_columns import find_columns
from mqdb.pipeline.write.sink_options import SinkOptions, parse_sink

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyarrow import RecordBatch
    from pyspark.sql.types import StructType

    from mqdb.pipeline.write.cluster_sink import ClusterWriting

# The properties through which Spark informs its tasks. Source: StreamExecution.QUERY_ID_KEY,
# MicroBatchExecution.BATCH_ID_KEY.
_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"


def batch_writer(options: "Mapping[str, str]", schema: "StructType", overwrite: bool) -> DataSourceWriter:
    """The writer of `df.write`. Runs on the driver, before any task.

    Raises the errors of the options, the columns and the mode, BrokerUnavailable and SchemaMismatch; and if the option
    gives the topic, TopicNotFound and TopicNotWritable.
    """
    if overwrite:
        raise ModeNotSupported("overwrite", "a log can only be appended to; write with .mode('append')")
    writing, parsed = _writing(options, schema, is_stream=False)
    patiently(writing.check, "look at the topic of a write", parsed.broker_wait_seconds)
    name = parsed.given_id or str(uuid4())
    return BatchWriter(writing, SinkBatch(f"batch:{name}", 0), is_named=parsed.given_id is not None)


def stream_writer(options: "Mapping[str, str]", schema: "StructType", overwrite: bool) -> DataSourceStreamWriter:
    """The writer of `df.writeStream`; raises the errors of `batch_writer`, except BrokerUnavailable."""
    if overwrite:
        reason = (
            "a log can only be appended to; use outputMode('append'), or foreachBatch, and write each batch with a "
            "writeId made of its number"
        )
        raise ModeNotSupported("complete", reason)
    writing, _ = _writing(options, schema, is_stream=True)
    # Spark asks for a new writer for each commit. Tasks and commits wait while the database is unavailable.
    with suppress(BrokerUnavailable):
        writing.check()
    return StreamWriter(writing)


def _writing(
    options: "Mapping[str, str]", schema: "StructType", *, is_stream: bool
) -> "tuple[Writing | ClusterWriting, SinkOptions]":
    """The object that writes to the brokers of the url, and the options of the first broker."""
    urls = listed_brokers(options)
    if not urls:
        parsed = parse_sink(options, is_stream=is_stream)
        return Writing(parsed, find_columns(schema, parsed.topic)), parsed
    from mqdb.pipeline.write.cluster_sink import ClusterWriting

    others = {name: text for name, text in options.items() if name.lower() != "url"}
    parsed = parse_sink(others | {"url": next(iter(urls.values()))}, is_stream=is_stream)
    columns = find_columns(schema, parsed.topic, is_list=True)
    writings = tuple(Writing(replace(parsed, url=url), columns) for url in urls.values())
    return ClusterWriting(tuple(urls), writings), parsed


class BatchWriter(DataSourceArrowWriter):
    """Writes a batch job, completely or not at all."""

    def __init__(self, writing: "Writing | ClusterWriting", batch: SinkBatch, *, is_named: bool) -> None:
        self._writing = writing
        self._batch = batch
        self._is_named = is_named

    def write(self, iterator: "Iterator[RecordBatch]") -> Staged:
        """Stage the rows; called in a task."""
        return self._writing.stage(self._batch, iterator)

    def commit(self, messages: "Sequence[WriterCommitMessage | None]") -> None:
        """Commit on the driver, when all tasks have succeeded. Raises the errors of `Writing.append`."""
        # A job without a writeId cannot be identified again.
        forgotten = None if self._is_named else self._batch.sink_id
        self._writing.append(self._batch, _staged(messages), forgotten)

    def abort(self, messages: "Sequence[WriterCommitMessage | None]") -> None:
        """Clean up on the driver, when a task or the commit has finally failed."""
        self._writing.give_up(_staged(messages))


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a streaming query."""

    def __init__(self, writing: "Writing | ClusterWriting") -> None:
        self._writing = writing

    def write(self, iterator: "Iterator[RecordBatch]") -> Staged:
        """Stage the rows; called in a task, which gets the query and the batch from Spark."""
        query_id = _told(_QUERY_ID)
        sink_id = self._writing.options.given_id or query_id
        return self._writing.stage(SinkBatch(f"stream:{sink_id}", int(_told(_BATCH_ID)), query_id), iterator)

    def commit(self, messages: "Sequence[WriterCommitMessage | None]", batchId: int) -> None:
        """Commit on the driver, when all tasks have succeeded. Raises the errors of `Writing.append`."""
        staged = _staged(messages)
        # Only the tasks know the query. A batch without tasks has nothing that could be duplicated.
        if staged:
            self._writing.append(staged[0].batch._replace(batch_id=batchId), staged)

    def abort(self, messages: "Sequence[WriterCommitMessage | None]", batchId: int) -> None:
        """Clean up on the driver, when a task or the commit has finally failed."""
        self._writing.give_up(_staged(messages))


def _staged(messages: "Sequence[WriterCommitMessage | None]") -> list[Staged]:
    """The messages of the successful tasks, in order. None stands for a failed task."""
    return [message for message in messages if isinstance(message, Staged)]


def _told(name: str) -> str:
    context = TaskContext.get()
    value = None if context is None else context.getLocalProperty(name)
    if value is None:
        raise IllegalState("a stream's writer", f"given no {name} by Spark; it needs Spark 4.1 or newer, and a query")
    return value
