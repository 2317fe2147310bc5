"""Statistics of messages: number, size and time to dispatch, by topic, tag and hour.

PostgreSQL counts each segment, and Spark adds up the segments: only counts are transferred, and no jar is needed. The
percentiles are exact to a tenth of a millisecond: they are computed from a count for each distinct time.
"""

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from os import fspath
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple
from weakref import WeakSet

from mqdb.common.topic import is_group_topic, is_system_topic
from mqdb.errors import ParameterInvalid, TopicNotFound
from mqdb.store.engine import connected
from mqdb.store.log.message_statistics import TICKS_PER_SECOND
from mqdb.store.segments import segments
from mqdb.store.server_choice import ServerRole
from mqdb.store.topics import topics as stored_topics

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_TICKS_PER_MS: Final = TICKS_PER_SECOND / 1_000

#: Sessions with which the source is registered.
_registered: "WeakSet[SparkSession]" = WeakSet()


class TopicTotal(NamedTuple):
    """The totals of all rows of a topic. The hours are the first and the last hour with messages."""

    topic: str
    rows: int
    messages: int
    bytes: int
    first_hour: datetime
    last_hour: datetime


def stats(
    spark: "SparkSession",
    dsn: str,
    topics: Sequence[str] | None = None,
    *,
    since: datetime | timedelta | None = None,
    until: datetime | timedelta | None = None,
    parquet: Path | str | None = None,
) -> "DataFrame":
    """Count the messages of topics. The default is all topics, except those of the broker and of groups.

    Returns one row per topic, tag and hour, with these columns:
        topic, tag                          tag is NULL for messages without one
        hour                                timestamp; the hour of the store time, in UTC
        messages, bytes                     bytes of the bodies as stored
        timed                               the number of messages with a known time to dispatch
        p50_dispatch_ms, p99_dispatch_ms    percentiles of these times, NULL where `timed` is 0

    The time to dispatch lasts from the store time of a message to the checkpoint of the batch that assigned its offset:
    from then on the message can be consumed. If the sender's transaction continues after the send, that time is
    included. The time to dispatch is known for the newest 1,000 batches, whose checkpoints are kept, and not across a
    restore of the database. Messages that are dispatched before the first action on the DataFrame are counted. `since`
    and `until` are store times by the broker's clock: moments, or durations before now. With `parquet` the rows are
    written to this directory, which must not exist, and the DataFrame reads them from there. Raises TopicNotFound and
    ParameterInvalid, and SegmentDropped inside an error of Spark's if retention drops a segment before it is counted.
    """
    options = _checked(dsn, topics, since, until)
    counted = _summed(spark, dsn, options)
    if parquet is None:
        return counted
    _write(counted, fspath(parquet))
    return spark.read.parquet(fspath(parquet)).orderBy("topic", "tag", "hour")


def topic_totals(counted: "DataFrame") -> list[TopicTotal]:
    """The rows of `stats`, added up by topic."""
    from pyspark.sql import functions as F

    totals = counted.groupBy("topic").agg(
        F.count("*").alias("rows"),
        F.sum("messages").alias("messages"),
        F.sum("bytes").alias("bytes"),
        F.min("hour").alias("first_hour"),
        F.max("hour").alias("last_hour"),
    )
    return [TopicTotal(*row) for row in totals.orderBy("topic").collect()]


def _checked(
    dsn: str, topics: Sequence[str] | None, since: datetime | timedelta | None, until: datetime | timedelta | None
) -> dict[str, str]:
    """The options of the source, with checked names and times."""
    with connected(dsn, "mqdb stats", ServerRole.ANY) as connection:
        names = [route.config.name for route in stored_topics.list_topics(connection)]
        now = segments.log(connection).now
    for name in topics or ():
        if name not in names:
            raise TopicNotFound(name)
    if topics is None:
        topics = [name for name in names if not (is_system_topic(name) or is_group_topic(name))]
    options = {"topics": json.dumps(list(topics))}
    for name, time in (("since", since), ("until", until)):
        if time is not None:
            moment = now - time if isinstance(time, timedelta) else time
            options[name] = moment.astimezone(UTC).isoformat()
    return options


def _summed(spark: "SparkSession", dsn: str, options: dict[str, str]) -> "DataFrame":
    from pyspark.sql import functions as F

    from mqdb.pipeline.jobs.statistics_source import NAME, StatisticsSource

    if spark not in _registered:  # otherwise Spark warns about it
        spark.dataSource.register(StatisticsSource)
        _registered.add(spark)
    parts = spark.read.format(NAME).option("url", dsn).options(**options).load()

    def percentile(share: float) -> "Column":
        return F.percentile("ticks", F.lit(share), F.col("messages")) / _TICKS_PER_MS

    by = ("topic", "tag", "hour")
    counted = parts.groupBy(*by).agg(
        F.sum("messages").alias("messages"),
        F.sum("bytes").alias("bytes"),
        F.sum(F.when(F.col("ticks").isNotNull(), F.col("messages")).otherwise(0)).alias("timed"),
        percentile(0.5).alias("p50_dispatch_ms"),
        percentile(0.99).alias("p99_dispatch_ms"),
    )
    return counted.orderBy(*by)


def _write(counted: "DataFrame", path: str) -> None:
    from pyspark.errors import AnalysisException

    try:
        counted.write.parquet(path)
    except AnalysisException as error:
        if error.getCondition() != "PATH_ALREADY_EXISTS":
            raise
        raise ParameterInvalid("parquet", path, "already exists; name a directory that does not exist") from error
