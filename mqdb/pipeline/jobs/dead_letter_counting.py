"""Causes of death: the dead letters of consumer groups, counted by cause.

The letters are read by format("mqdb") from the topics %DLQ%group, which needs no jar, and the data are in their
properties (`mqdb.common.failure`). Errors that differ only in their values count as one cause (`failure_text`). Spark
reads the letters once, into one row per cause, number of attempts and hour; all figures are sums of these rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mqdb.common.property import FailureProperty, Property
from mqdb.common.topic import DLQ_PREFIX, dlq_topic
from mqdb.errors import GroupNotFound
from mqdb.pipeline.jobs.dead_letter_report import Cause, Count, DeadLetterReport, HourCount
from mqdb.pipeline.jobs.failure_text import folded, folded_exception
from mqdb.store.consumers import groups as stored_groups
from mqdb.store.engine import connected
from mqdb.store.segments import segments
from mqdb.store.server_choice import ServerRole
from mqdb.store.topics import topics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession
    from sqlalchemy import Connection

#: The number of causes that a report lists; the others are only in its counts.
MOST_CAUSES: Final = 200

#: The data read from a letter, and their properties.
_TOLD: Final = {
    "topic": Property.RETRY_TOPIC.value,
    "exception": FailureProperty.EXCEPTION.value,
    "error": FailureProperty.MESSAGE.value,
    "attempts": FailureProperty.ATTEMPT.value,
}
_CAUSE: Final = ("group", "topic", "exception", "error")
_COUNTED: Final = ("group", "topic", "exception", "attempts", "hour")
_HOUR_SECONDS: Final = 3_600


def dlq_report(
    spark: "SparkSession",
    dsn: str,
    *,
    groups: Sequence[str] | None = None,
    since: datetime | timedelta | None = None,
    html: Path | str | None = None,
) -> DeadLetterReport:
    """Count the dead letters of a broker by cause, of all groups or of those in `groups`.

    `since` is the earliest time of death, which is the store time of the copy in the DLQ: a moment, or a duration
    before now, by the broker's clock. `html` is a file for the report as a page that needs no network; an existing file
    is replaced.
    Raises GroupNotFound for a group that neither exists nor has dead letters, and ParameterInvalid for an unwritable
    file.
    """
    plan = _plan(dsn, groups, since)
    report = DeadLetterReport(None if groups is None else tuple(groups), plan.since, plan.now)
    if plan.topics:
        report = _counted(report, _letters(spark, dsn, plan))
    if html is not None:
        # Only a page needs Jinja2.
        from mqdb.pipeline.jobs.dead_letter_page import write_page

        write_page(report, Path(html))
    return report


@dataclass(frozen=True, slots=True)
class _Plan:
    topics: tuple[str, ...]
    since: datetime | None
    now: datetime


def _plan(dsn: str, groups: Sequence[str] | None, since: datetime | timedelta | None) -> _Plan:
    with connected(dsn, "mqdb dlq-report", ServerRole.ANY) as connection:
        now = segments.log(connection).now.astimezone(UTC)
        begin = now - since if isinstance(since, timedelta) else since
        return _Plan(tuple(_dead_letter_topics(connection, groups)), begin and begin.astimezone(UTC), now)


def _dead_letter_topics(connection: "Connection", groups: Sequence[str] | None) -> list[str]:
    """The existing DLQs. A group's DLQ is created for its first dead letter."""
    found = [route.config.name for route in topics.list_topics(connection) if route.config.name.startswith(DLQ_PREFIX)]
    if groups is None:
        return found
    for group in groups:
        if dlq_topic(group) not in found and stored_groups.find(connection, group) is None:
            raise GroupNotFound(group)
    return [name for name in found if name in map(dlq_topic, groups)]


def _letters(spark: "SparkSession", dsn: str, plan: _Plan) -> "DataFrame":
    """One row per dead letter: its group, its origin, the reason, and the time of its death."""
    from pyspark.sql import functions as F

    reader = spark.read.format("mqdb").option("url", dsn).option("subscribe", ",".join(plan.topics))
    reader = reader.option("columns", "topic,msg_id,properties,store_timestamp")
    if plan.since is not None:
        reader = reader.option("startingTimestamp", plan.since.isoformat())
        # A DLQ without letters since then adds nothing to the report, and this is not an error.
        reader = reader.option("startingOffsetsByTimestampStrategy", "latest")
    loaded = reader.load()
    if plan.since is not None:
        # Offsets are not strictly in order of time: a long transaction is stored before its neighbours.
        loaded = loaded.where(F.col("store_timestamp") >= F.lit(plan.since))
    told = F.from_json("properties", ", ".join(f"{name} string" for name in _TOLD.values()))
    letters = loaded.select("msg_id", "store_timestamp", F.col("topic").alias("dlq"), told.alias("told"))
    return letters.select(
        F.col("dlq").substr(len(DLQ_PREFIX) + 1, 1_000).alias("group"),
        *(F.nullif(F.col("told")[key], F.lit("")).alias(name) for name, key in _TOLD.items()),
        "msg_id",
        "store_timestamp",
    )


def _counted(report: DeadLetterReport, letters: "DataFrame") -> DeadLetterReport:
    cells = _cells(letters).persist()
    try:
        causes = _causes(cells)
        order = ("messages", *_CAUSE)
        rows = causes.orderBy(*order, ascending=[False, True, True, True, True]).limit(MOST_CAUSES).collect()
        report = replace(report, causes_found=causes.count(), causes=tuple(_cause(row) for row in rows))
        return _with_counts(report, cells)
    finally:
        cells.unpersist()


def _cells(letters: "DataFrame") -> "DataFrame":
    """The letters, counted by cause, attempts and hour."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import StringType

    # Arrow would require pandas.
    fold, fold_name = (F.udf(rule, StringType(), useArrow=False) for rule in (folded, folded_exception))
    second = F.unix_seconds("store_timestamp")
    normalised = letters.select(
        "group",
        "topic",
        fold_name("exception").alias("exception"),
        fold("error").alias("error"),
        # A property may hold any text.
        F.col("attempts").try_cast("int").alias("attempts"),
        # Hours in UTC: those of the session's time zone may start at another minute.
        F.timestamp_seconds(second - F.pmod(second, F.lit(_HOUR_SECONDS))).alias("hour"),
        F.struct("store_timestamp", "msg_id", F.col("error").alias("text")).alias("letter"),
    )
    return normalised.groupBy(*_CAUSE, "attempts", "hour").agg(
        F.count("*").alias("messages"),
        F.min("letter.store_timestamp").alias("first_died"),
        F.max("letter").alias("last"),
    )


def _causes(cells: "DataFrame") -> "DataFrame":
    from pyspark.sql import functions as F

    return cells.groupBy(*_CAUSE).agg(
        F.sum("messages").alias("messages"),
        F.min("attempts").alias("fewest_attempts"),
        F.max("attempts").alias("most_attempts"),
        F.min("first_died").alias("first_died"),
        F.max("last").alias("last"),
    )


def _cause(row: "Row") -> Cause:
    last = row["last"]
    return Cause(
        **{name: row[name] for name in (*_CAUSE, "messages", "fewest_attempts", "most_attempts")},
        first_died=_in_utc(row["first_died"]),
        last_died=_in_utc(last["store_timestamp"]),
        example=last["text"],
        example_id=last["msg_id"],
    )


def _with_counts(report: DeadLetterReport, cells: "DataFrame") -> DeadLetterReport:
    """Add all counts in one pass, with one grouping set per dimension."""
    from pyspark.sql import functions as F

    respects = [("group",), ("topic",), ("exception",), ("attempts",), ("hour", "exception")]
    grouped = cells.groupingSets([[F.col(name) for name in names] for names in respects], *_COUNTED)
    rows = grouped.agg(F.grouping_id().alias("respect"), F.sum("messages").alias("messages")).collect()

    def counts(*names: str) -> list["Row"]:
        # One bit per column that is not grouped by; the first column has the highest bit.
        respect = int("".join("0" if name in names else "1" for name in _COUNTED), 2)
        return [row for row in rows if row["respect"] == respect]

    def by(name: str) -> tuple[Count, ...]:
        largest_first = sorted(counts(name), key=lambda row: (-row["messages"], row[name] or ""))
        return tuple(Count(row[name], row["messages"]) for row in largest_first)

    attempts = sorted(counts("attempts"), key=lambda row: (row["attempts"] is None, row["attempts"]))
    hours = [HourCount(_in_utc(row["hour"]), row["exception"], row["messages"]) for row in counts("hour", "exception")]
    return replace(
        report,
        by_group=by("group"),
        by_topic=by("topic"),
        by_exception=by("exception"),
        by_attempts=tuple(Count(row["attempts"], row["messages"]) for row in attempts),
        by_hour=tuple(sorted(hours, key=lambda count: (count.hour, count.exception or ""))),
    )


def _in_utc(time: datetime) -> datetime:
    """Convert a timestamp as Spark collects it: without a zone, in this machine's time zone."""
    return time.astimezone(UTC)
