"""Archive: sealed segments become Parquet files, each once, and count as archived only after they were read back.

    begin ─▶ write a folder ─▶ read it back ─▶ compare with the broker ─▶ record, in one transaction

A crash leaves a folder that is recorded as begun; the next run removes it. Only folders begun by this database are ever
removed. Readers take paths from `mqdb.archived_segment`, so such a folder is ignored in the meantime.
"""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from os import PathLike, fspath
from typing import TYPE_CHECKING, NamedTuple, TypeAlias
from uuid import uuid4

from mqdb.broker import archive as verbs
from mqdb.broker.archive import SegmentContents
from mqdb.pipeline.errors import ArchiveBusy, ArchiveMismatch
from mqdb.pipeline.jobs import archive_files
from mqdb.pipeline.jobs.archive_files import FileSystem
from mqdb.pipeline.read.offsets import Queue
from mqdb.store.engine import connected
from mqdb.store.segments.archived_segments import ArchivedSegment, begin_run, forget_run, is_sealed, unfinished_runs
from mqdb.store.server_choice import ServerRole
from mqdb.store.topics.topic_ranges import broker_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from sqlalchemy import Connection

logger = logging.getLogger(__name__)

#: Called with the number of done messages, the total, and the current step.
OnProgress: TypeAlias = Callable[[int, int, str], None]


@dataclass(frozen=True)
class ArchiveResult:
    """The result of a run. `dropped` are the segments that retention removed before they were read."""

    archived: tuple[ArchivedSegment, ...] = ()
    dropped: tuple[int, ...] = ()
    #: Folders that earlier runs began but did not finish.
    removed: tuple[str, ...] = ()


class QueueFound(NamedTuple):
    """The messages of a queue that were read back from the archive."""

    messages: int
    offsets: int
    first: int
    last: int


def archive(
    spark: "SparkSession",
    dsn: str,
    path: str | PathLike[str],
    *,
    topics: Sequence[str] | None = None,
    limit: int | None = None,
    on_progress: OnProgress = lambda done, total, note: None,
) -> ArchiveResult:
    """Archive a broker's sealed segments that are not archived yet, oldest first, at most `limit` of them.

    Without `topics` the messages of all topics are archived, except those waiting in system topics, which are copied to
    their own topic when they are due. Retention waits only for such archives of whole segments. With `topics` a segment
    is archived for those topics that its archive lacks; it can be archived again as a whole later. `path` is a folder
    that driver and executors see, on any of Spark's file systems. A copy of a database needs its own path.

    Messages of a deleted topic are not archived. Raises ArchiveBusy while another process archives this broker,
    ArchiveMismatch, TopicNotFound, and Spark's errors.
    """
    with connected(dsn, "mqdb archive") as connection, verbs.sole_archiver(connection) as is_sole:
        if not is_sole:
            raise ArchiveBusy
        files = FileSystem(spark)
        removed = _remove_unfinished(connection, files)
        planned = verbs.plan(connection, topics)[:limit]
        root = f"{files.qualified(fspath(path))}/broker={broker_name(connection)}"
        archived, dropped, done, total = [], [], 0, sum(contents.messages for contents in planned)
        for contents in planned:
            on_progress(done, total, f"segment {contents.segment}")
            folder = f"{root}/segment={contents.segment}/run={uuid4().hex}"
            segment = _archived(spark, dsn, connection, files, contents, folder)
            if segment is None:
                dropped.append(contents.segment)
                fields = {"segment": contents.segment}
                logger.warning("segment %(segment)s was dropped before it was archived", fields, extra=fields)
            else:
                if not verbs.record(connection, segment):
                    raise ArchiveBusy
                archived.append(segment)
                logger.info("archived a segment", extra={"segment": segment.segment, "messages": segment.messages})
            done += contents.messages
        on_progress(done, total, "")
        return ArchiveResult(tuple(archived), tuple(dropped), removed)


def plan_archive(dsn: str, *, topics: Sequence[str] | None = None) -> list[SegmentContents]:
    """The segments that `archive` would archive now. Needs no Spark."""
    with connected(dsn, "mqdb archive", ServerRole.ANY) as connection:
        return verbs.plan(connection, topics)


def check_found(contents: SegmentContents, found: Mapping[Queue, QueueFound]) -> None:
    """Raise ArchiveMismatch unless exactly the messages of the segment were read back, each once."""
    held = {
        Queue(topic, queue_id): QueueFound(past - first, past - first, first, past - 1)
        for topic, queues in contents.offsets.items()
        for queue_id, (first, past) in queues.items()
    }
    for queue in sorted(held.keys() | found):
        if held.get(queue) != found.get(queue):
            raise ArchiveMismatch(contents.segment, *queue, _told(held.get(queue)), _told(found.get(queue)))


def _told(found: QueueFound | None) -> str:
    if found is None:
        return "nothing"
    return f"{found.messages:,} messages of {found.offsets:,} offsets from {found.first:,} to {found.last:,}"


def _remove_unfinished(connection: "Connection", files: FileSystem) -> tuple[str, ...]:
    unfinished = unfinished_runs(connection)
    for folder in unfinished:
        files.remove(folder)
        forget_run(connection, folder)
        logger.info("removed the unfinished folder of a run", extra={"path": folder})
    return tuple(unfinished)


def _archived(
    spark: "SparkSession",
    dsn: str,
    connection: "Connection",
    files: FileSystem,
    contents: SegmentContents,
    folder: str,
) -> ArchivedSegment | None:
    """The segment, with its files written and read back; None if retention has dropped it."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    if not contents.messages:
        return ArchivedSegment(contents.segment, None, contents.topics, {}, 0, 0, None, None)
    begin_run(connection, contents.segment, folder)
    try:
        archive_files.write(_messages(spark, dsn, contents), folder)
    except (PySparkException, Py4JError):
        if is_sealed(connection, contents.segment):
            raise
        return None
    found, first, last = _read_back(archive_files.read(spark, folder))
    check_found(contents, found)
    size = files.size(folder)
    held = contents.offsets, contents.messages
    return ArchivedSegment(contents.segment, folder, contents.topics, *held, size, first, last)


def _messages(spark: "SparkSession", dsn: str, contents: SegmentContents) -> "DataFrame":
    """The messages of the segment, with the offsets of its plan. A missing message is an error."""
    reader = spark.read.format("mqdb").option("url", dsn).option("splitBy", "segment")
    reader = reader.option("assign", json.dumps({topic: list(queues) for topic, queues in contents.offsets.items()}))
    for name, which in (("startingOffsets", 0), ("endingOffsets", 1)):
        offsets = {
            topic: {str(queue_id): ends[which] for queue_id, ends in queues.items()}
            for topic, queues in contents.offsets.items()
        }
        reader = reader.option(name, json.dumps(offsets))
    return reader.option("minPartitions", spark.sparkContext.defaultParallelism).load()


def _read_back(messages: "DataFrame") -> tuple[dict[Queue, QueueFound], datetime, datetime]:
    """The messages in the files by queue, and the store times of the oldest and the newest message."""
    from pyspark.sql import functions as F

    stored = F.unix_micros("store_timestamp")
    rows = (
        messages.groupBy("topic", "queue_id")
        .agg(
            F.count("queue_offset"),
            F.count_distinct("queue_offset"),
            F.min("queue_offset"),
            F.max("queue_offset"),
            F.min(stored),
            F.max(stored),
            # Not for the sums, but so that every page of every relevant column is read and decompressed.
            F.sum(F.octet_length("body") + F.octet_length("properties")),
        )
        .collect()
    )
    found = {Queue(*row[:2]): QueueFound(*row[2:6]) for row in rows}
    times = [row[6:8] for row in rows]
    first, last = min((time for time, _ in times), default=0), max((time for _, time in times), default=0)
    return found, _EPOCH + timedelta(microseconds=first), _EPOCH + timedelta(microseconds=last)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
