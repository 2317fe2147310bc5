"""Replay: messages of the archive or of a topic are sent to a topic again, exactly once per write id.

Each copy has the property REPLAY_OF, topic:queue:offset, which names its original. Copies get new ids and are sent
immediately, even if the original had to wait. The messages of a queue go to one queue, in order: one task gets them
all, sorts them by offset and stages them, and the sink appends a task's staged rows in order.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Final

from sqlalchemy import Connection

from mqdb.broker.log import sink
from mqdb.errors import ParameterInvalid
from mqdb.pipeline.errors import ArchiveIncomplete
from mqdb.pipeline.jobs import archive_files
from mqdb.store.engine import connected, driver, translates
from mqdb.store.log import sink as statements
from mqdb.store.segments import segments
from mqdb.store.segments.archived_segments import ArchivedSegment, find_archived
from mqdb.store.server_choice import ServerRole

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: The property of a copy that names the original.
REPLAY_OF: Final = "REPLAY_OF"


@dataclass(frozen=True, slots=True)
class Origin:
    """The messages of a topic to replay: stored from `since` to before `until`, in these queues and offsets.

    Times are moments, or durations before now by the broker's clock. `offsets` has for each queue id the first offset
    and the offset after the last; without it all queues are read. With `is_archived` the messages come from the
    archive, which also contains those of deleted topics and dropped segments; `allow_gaps` allows missing messages
    there.
    """

    topic: str
    since: datetime | timedelta | None = None
    until: datetime | timedelta | None = None
    offsets: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    is_archived: bool = False
    allow_gaps: bool = False

    def __post_init__(self) -> None:
        for queue_id, (first, past) in self.offsets.items():
            if not 0 <= first < past:
                reason = f"queue {queue_id}: write the first offset and the one past the last, which is larger"
                raise ParameterInvalid("offsets", f"{first}-{past}", reason)


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """The number of messages sent by the write with this id. If `is_repeated`, an earlier run sent them."""

    messages: int
    is_repeated: bool = False


def replay(spark: "SparkSession", dsn: str, source: Origin, topic: str, *, write_id: str) -> ReplayResult:
    """Send the messages of `source` to a topic of the same broker, unless a write with this id has already done so.

    All copies are stored in one transaction. `write_id` identifies one replay: a second run with the same id, after a
    crash or by mistake, sends nothing, whatever its `source` is. Raises TopicNotFound, TopicNotWritable,
    ParameterInvalid, ArchiveIncomplete, and errors of Spark.
    """
    with connected(dsn, "mqdb replay") as connection:
        before = _find_write(connection, write_id)
        if before is not None:
            return ReplayResult(before, is_repeated=True)
        queue_nums = _write_queue_nums(connection, topic)
        messages = _messages(spark, dsn, connection, source)
    writer = _copies(messages, queue_nums).write.format("mqdb").mode("append").option("url", dsn).option("topic", topic)
    writer.option("writeId", write_id).option("reservedProperties", "drop").save()
    with connected(dsn, "mqdb replay") as connection:
        return ReplayResult(_find_write(connection, write_id) or 0)


def count_replay(spark: "SparkSession", dsn: str, source: Origin) -> int:
    """The number of messages that `replay` would send now."""
    with connected(dsn, "mqdb replay", ServerRole.ANY) as connection:
        messages = _messages(spark, dsn, connection, source)
    return messages.select("queue_offset").count()


# -- messages to replay ---------------------------------------------------------------------------


def _messages(spark: "SparkSession", dsn: str, connection: "Connection", source: Origin) -> "DataFrame":
    now = segments.log(connection).now
    since, until = (now - time if isinstance(time, timedelta) else time for time in (source.since, source.until))
    if since is not None and until is not None and since >= until:
        raise ParameterInvalid("until", until.isoformat(), f"is not after since, {since.isoformat()}")
    messages = (
        _archived(spark, find_archived(connection, source.topic), source, since, until)
        if source.is_archived
        else _stored(spark, dsn, source, since, until)
    )
    if since is not None:
        messages = messages.where(messages.store_timestamp >= since)
    if until is not None:
        messages = messages.where(messages.store_timestamp < until)
    return messages


def _stored(
    spark: "SparkSession", dsn: str, source: Origin, since: datetime | None, until: datetime | None
) -> "DataFrame":
    """The stored messages of the topic within the given offsets or times."""
    reader = spark.read.format("mqdb").option("url", dsn).option("splitBy", "queue")
    if source.offsets:
        reader = reader.option("assign", json.dumps({source.topic: list(source.offsets)}))
        for name, which in (("startingOffsets", 0), ("endingOffsets", 1)):
            offsets = {str(queue_id): ends[which] for queue_id, ends in source.offsets.items()}
            reader = reader.option(name, json.dumps({source.topic: offsets}))
        return reader.load()
    reader = reader.option("subscribe", source.topic).option("startingOffsetsByTimestampStrategy", "latest")
    for name, time in (("startingTimestamp", since), ("endingTimestamp", until)):
        if time is not None:
            reader = reader.option(name, time.astimezone(UTC).isoformat())
    return reader.load()


def _archived(
    spark: "SparkSession",
    archived: Sequence[ArchivedSegment],
    source: Origin,
    since: datetime | None,
    until: datetime | None,
) -> "DataFrame":
    """The archived messages of the topic. Only folders that can contain matching messages are opened."""
    from pyspark.sql import functions as F

    if not archived:
        raise ParameterInvalid("topic", source.topic, "no archived segment has messages of it")
    paths = [each.path for each in chosen(archived, source, since, until) if each.path is not None]
    if not paths:
        return spark.createDataFrame([], archive_files.SCHEMA)
    messages = archive_files.read(spark, *paths).where(F.col("topic") == source.topic)
    # By folder first: folders outside the time range are not opened.
    if since is not None:
        messages = messages.where(F.col("hour") >= archive_files.hour_name(since))
    if until is not None:
        messages = messages.where(F.col("hour") <= archive_files.hour_name(until))
    if source.offsets:
        offset, queue_id = F.col("queue_offset"), F.col("queue_id")
        ranges = [
            (queue_id == wanted) & (offset >= first) & (offset < past)
            for wanted, (first, past) in source.offsets.items()
        ]
        messages = messages.where(reduce(or_, ranges))
    return messages


def chosen(
    archived: Sequence[ArchivedSegment], source: Origin, since: datetime | None, until: datetime | None
) -> list[ArchivedSegment]:
    """The segments that can contain messages of the origin, out of all with its topic, oldest first.

    Raises ArchiveIncomplete if requested offsets, or offsets in between, are missing: their segments were dropped
    before they were archived, or the topic was deleted and created again.
    """
    found = [
        each
        for each in archived
        if (since is None or (each.last_stored_at is not None and each.last_stored_at >= since))
        and (until is None or (each.first_stored_at is not None and each.first_stored_at < until))
        and (not source.offsets or _has_any(each.offsets[source.topic], source.offsets))
    ]
    if not source.allow_gaps:
        between = [each for each in archived if found and found[0].segment <= each.segment <= found[-1].segment]
        _check(source.topic, between, source.offsets)
    return found


def _has_any(held: Mapping[int, tuple[int, int]], wanted: Mapping[int, tuple[int, int]]) -> bool:
    return any(
        held[queue_id][0] < past and first < held[queue_id][1]
        for queue_id, (first, past) in wanted.items()
        if queue_id in held
    )


def _check(topic: str, archived: Sequence[ArchivedSegment], wanted: Mapping[int, tuple[int, int]]) -> None:
    """Raise ArchiveIncomplete unless the ranges of each queue are contiguous and cover the requested offsets."""
    held: dict[int, list[tuple[int, int]]] = {queue_id: [] for queue_id in wanted}
    for each in archived:
        for queue_id, (first, past) in each.offsets[topic].items():
            lowest, highest = wanted.get(queue_id, (first, past) if not wanted else (0, 0))
            first, past = max(first, lowest), min(past, highest)
            if first < past:
                held.setdefault(queue_id, []).append((first, past))
    for queue_id, ranges in sorted(held.items()):
        reached, end = wanted.get(queue_id) or (ranges[0][0], ranges[-1][1])
        for first, past in ranges:
            if first != reached:
                # A lower offset: the topic was created again, and its old queue ended here.
                raise ArchiveIncomplete(topic, queue_id, reached, max(first, reached + 1))
            reached = past
        if reached < end:
            raise ArchiveIncomplete(topic, queue_id, reached, end)


# -- sent messages --------------------------------------------------------------------------------


def _copies(messages: "DataFrame", queue_nums: int) -> "DataFrame":
    """The rows for the sink: all rows of a queue in one task, sorted by offset."""
    from pyspark.sql import functions as F

    origin = F.concat_ws(":", "topic", "queue_id", "queue_offset")
    kept = F.map_filter(F.from_json("properties", "map<string,string>"), lambda name, _: name != REPLAY_OF)
    tasks = messages.sparkSession.sparkContext.defaultParallelism
    return (
        messages.repartition(tasks, "queue_id")
        .sortWithinPartitions("queue_id", "queue_offset")
        .select(
            "body",
            "keys",
            "tags",
            F.map_concat(kept, F.create_map(F.lit(REPLAY_OF), origin)).alias("properties"),
            (F.col("queue_id") % queue_nums).alias("queue_id"),
            "born_timestamp",
        )
    )


@translates
def _find_write(connection: Connection, write_id: str) -> int | None:
    """The number of messages written by the batch job with this writeId; None if it does not exist or has not ended."""
    named = {"sink_id": f"batch:{write_id}", "query_id": None}
    row = driver(connection).execute(statements.FIND_NEWEST, named).fetchone()
    return None if row is None else int(row[2])


@translates
def _write_queue_nums(connection: Connection, topic: str) -> int:
    """The number of a topic's write queues. Raises TopicNotFound, TopicNotWritable."""
    return len(sink.write_queue_keys(driver(connection), topic))
