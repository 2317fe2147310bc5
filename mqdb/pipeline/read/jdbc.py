"""Reads a topic with Spark's own JDBC reader, for ad-hoc SQL: filters run in PostgreSQL.

Spark's JDBC tasks share one table expression, and each adds a condition. So the expression is a UNION ALL of the
planner's statements for the tasks, distinguished by a constant. PostgreSQL plans only the arm with the constant in a
task's condition. The statements name partitions, so a read blocks nothing. If a partition has been dropped, the read
fails; a read of the parent table would silently return fewer messages.
"""

from collections.abc import Iterator
from functools import reduce
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mqdb.common.dsn import redact
from mqdb.pipeline import broker_wait
from mqdb.pipeline.broker_urls import listed_brokers
from mqdb.pipeline.errors import OptionInvalid, OptionUnknown
from mqdb.pipeline.read.jdbc_driver import DRIVER, ensure_driver
from mqdb.pipeline.read.jdbc_url import JdbcTarget, jdbc_target
from mqdb.pipeline.read.planning import batch_tasks
from mqdb.pipeline.read.schema import RowFormat, ddl
from mqdb.pipeline.read.source_options import parse_source
from mqdb.pipeline.read.tasks import Task
from mqdb.store.session_settings import SESSION_SETTINGS, startup_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: The options of format("mqdb") that determine what is read, and how it is split into tasks.
OPTIONS: Final = (
    "assign",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "subExpression",
    "selector",
    "keys",
    "columns",
    "splitBy",
    "minPartitions",
    "maxRecordsPerPartition",
    "recordsPerTask",
    broker_wait.OPTION,
)

#: The number of tasks that share an expression. Each of their statements locks the partitions of all these tasks while
#: it runs.
_TASKS_PER_TABLE: Final = 32

#: Like -1 for psycopg: values are binary from the first row on.
_ALWAYS_PREPARE: Final = "-1"

_SETTINGS: Final = {
    "default_transaction_read_only": "on",
    "jit": "off",
    "max_parallel_workers_per_gather": "0",
    "work_mem": "32MB",
}
#: Without statistics the planner might look up each record of a segment separately.
_SLICE_SETTINGS: Final = _SETTINGS | {"enable_nestloop": "off"}


def read_jdbc(
    spark: "SparkSession",
    dsn: str,
    topic: str | None,
    *,
    fetch_size: int = 1000,
    jar: str | Path | None = None,
    **options: str,
) -> "DataFrame":
    """The messages of a topic, with the columns of `format("mqdb")`, as of now: later actions read the same messages.

    `options` are those in OPTIONS, for example `startingTimestamp="2026-07-14T09:30Z"`; `topic` is None if `assign`
    names the queues. Bodies are returned as stored: bit 0 of sys_flag is set for a compressed body. `fetch_size` rows
    of each task are in memory at a time. `jar` is the JDBC driver, by default found by `jdbc_driver.find_jar`. Raises
    OptionUnknown, OptionInvalid, JarNotFound, TopicNotFound and other errors of the planner.
    """
    if fetch_size < 1:
        raise OptionInvalid("fetch_size", fetch_size, "write a whole number above 0")
    for name in options:
        if name.lower() not in {known.lower() for known in OPTIONS}:
            raise OptionUnknown(name, OPTIONS)
    subscription = {} if topic is None else {"subscribe": topic}
    if len(listed_brokers({"url": dsn})) > 1:
        reason = "read_jdbc reads one broker; use format('mqdb'), or call it for each broker and union the frames"
        raise OptionInvalid("url", redact(dsn), reason)
    source = parse_source({"url": dsn, **subscription, **options}, is_stream=False)
    target = jdbc_target(source.url)
    tasks = batch_tasks(source)
    if not tasks:
        return spark.createDataFrame([], ddl(RowFormat.MQDB, source.columns))
    ensure_driver(spark, jar)
    frames = [_read(spark, target, group, fetch_size) for group in _groups(tasks)]
    return reduce(lambda one, other: one.unionAll(other), frames).select(*source.columns)


def _groups(tasks: list[Task]) -> Iterator[list[Task]]:
    """Group tasks that share an expression: either all are slices of segments, or none is."""
    for _, of_a_kind in groupby(tasks, key=_is_slice):
        while group := list(islice(of_a_kind, _TASKS_PER_TABLE)):
            yield group


def _is_slice(task: Task) -> bool:
    return any(read.is_slice for read in task.reads)


def _read(spark: "SparkSession", target: JdbcTarget, tasks: list[Task], fetch_size: int) -> "DataFrame":
    settings = startup_options(_SLICE_SETTINGS if _is_slice(tasks[0]) else _SETTINGS)
    properties = {
        "ApplicationName": "mqdb-spark",
        **target.properties,
        "options": f"{settings} {target.properties.get('options', '')} {startup_options(SESSION_SETTINGS)}",
        # Without this, Spark looks for a driver where jars added later are not found.
        "driver": DRIVER,
        "fetchsize": str(fetch_size),
        "prepareThreshold": _ALWAYS_PREPARE,
    }
    conditions = [f"task = {number}" for number in range(len(tasks))]
    return spark.read.jdbc(target.url, table_of(tasks), predicates=conditions, properties=properties)


def table_of(tasks: list[Task]) -> str:
    """The table expression for FROM: the messages of all these tasks, each message with the number of its task."""
    arms = [
        f"SELECT {number} AS task, part.* FROM ({read.statement}) AS part"
        for number, task in enumerate(tasks)
        for read in task.reads
    ]
    return f"({' UNION ALL '.join(arms)}) AS message"
