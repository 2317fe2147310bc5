"""A streaming query as a job: it reads the stored messages, reports its progress, and ends or runs until it is stopped.

The checkpoint remembers the offsets of the query, so a job that was killed continues from them.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

#: Messages that are done, messages of all as far as they are known, and a note.
OnProgress: TypeAlias = Callable[[int, int, str], None]

_POLL_SECONDS: Final = 1


def quiet(_done: int, _total: int, _note: str) -> None:
    """An OnProgress that reports nothing."""


def catch_up(writer: "DataStreamWriter", *, follow: bool, on_progress: OnProgress) -> int:
    """Run a stream until it has read what was there at its start; with `follow` until its thread is interrupted.

    Returns how many messages it has read. Raises what Spark raises.
    """
    query = (writer if follow else writer.trigger(availableNow=True)).start()
    batches: dict[int, int] = {}
    try:
        while not query.awaitTermination(_POLL_SECONDS):
            _report(query, batches, on_progress)
    finally:
        # The batch that is interrupted comes again, because the checkpoint does not have it.
        query.stop()
    _report(query, batches, on_progress)
    return sum(batches.values())


def _report(query: "StreamingQuery", batches: dict[int, int], on_progress: OnProgress) -> None:
    behind = 0
    for each in query.recentProgress:
        progress = json.loads(each.json)
        batches[progress["batchId"]] = progress["numInputRows"]
        [source] = progress["sources"]
        behind = total_of(source["latestOffset"]) - total_of(source["endOffset"])
    done = sum(batches.values())
    on_progress(done, done + max(0, behind), f"batch {max(batches)}" if batches else "")


def total_of(offset: Any) -> int:
    """The sum of the offsets in the JSON of a source: of all its queues or partitions."""
    if isinstance(offset, str):
        offset = json.loads(offset)
    if not isinstance(offset, dict):
        return 0
    brokers = offset.get("brokers", {"": {"topics": offset}})
    return sum(
        position
        for of_broker in brokers.values()
        for positions in of_broker["topics"].values()
        if isinstance(positions, dict)
        for position in positions.values()
        if isinstance(position, int)
    )


def count_left(reader: Any, spark: "SparkSession", checkpoint: str) -> int:
    """Number of messages that a query with this checkpoint would read now, by the batch reader of its source."""
    offsets = committed_offsets(spark, checkpoint)
    starting = "earliest" if offsets is None else json.dumps(offsets)
    frame: DataFrame = reader.option("startingOffsets", starting).load()
    return int(frame.count())


def committed_offsets(spark: "SparkSession", checkpoint: str) -> Mapping[str, Any] | None:
    """The offsets from which a query with this checkpoint continues; None before its first commit."""
    context: Any = spark.sparkContext
    hadoop = context._jvm.org.apache.hadoop.fs.Path
    commits = hadoop(f"{checkpoint}/commits")
    system = commits.getFileSystem(context._jsc.hadoopConfiguration())
    if not system.exists(commits):
        return None
    names = [status.getPath().getName() for status in system.listStatus(commits)]
    batches = [int(name) for name in names if re.fullmatch(r"\d+", name)]
    if not batches:
        return None
    # A version, the metadata of the batch, and a line for each source.
    lines = spark.read.text(f"{checkpoint}/offsets/{max(batches)}", wholetext=True).collect()[0][0].splitlines()
    offsets: dict[str, Any] = json.loads(lines[2])
    if "brokers" not in offsets:
        return offsets
    topics = {name: of_broker["topics"] for name, of_broker in offsets["brokers"].items()}
    return next(iter(topics.values())) if len(topics) == 1 else topics
