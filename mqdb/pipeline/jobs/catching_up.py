"""A streaming query as a job: it reads the stored messages, reports progress, and ends or runs until it is stopped.

The checkpoint stores the offsets of the query, so a killed job continues from them.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

#: Called with the number of done messages, the known total, and a note.
OnProgress: TypeAlias = Callable[[int, int, str], None]

_POLL_SECONDS: Final = 1


def quiet(_done: int, _total: int, _note: str) -> None:
    """An OnProgress that does nothing."""


def catch_up(writer: "DataStreamWriter", *, follow: bool, on_progress: OnProgress) -> int:
    """Run a stream until it has read all messages from before its start; with `follow`, until it is interrupted.

    Returns the number of messages read. Raises Spark's errors.
    """
    query = (writer if follow else writer.trigger(availableNow=True)).start()
    batches: dict[int, int] = {}
    try:
        while not query.awaitTermination(_POLL_SECONDS):
            _report(query, batches, on_progress)
    finally:
        # An interrupted batch is repeated, because it is not in the checkpoint.
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
    """The sum of all offsets in the JSON of a source, over its queues or partitions."""
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
    """The number of messages that a query with this checkpoint would read now, counted by its source's batch reader."""
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
    # A version, the metadata of the batch, and one line per source.
    lines = spark.read.text(f"{checkpoint}/offsets/{max(batches)}", wholetext=True).collect()[0][0].splitlines()
    offsets: dict[str, Any] = json.loads(lines[2])
    if "brokers" not in offsets:
        return offsets
    topics = {name: of_broker["topics"] for name, of_broker in offsets["brokers"].items()}
    return next(iter(topics.values())) if len(topics) == 1 else topics
