"""Loads a topic into a PostgreSQL table: one row per key, or one row per message.

    stream ─▶ rows (JSON bodies, or the columns of a message) ─▶ stage ─▶ MERGE or INSERT, with the batch in a ledger

JSON values reach PostgreSQL as text and are parsed by its own types: numbers keep their digits, and times their zone.
Messages with the same key have to be in one queue, which is the case if a `key` or sharding key has chosen the queue.
"""

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from mqdb.common.dsn import parse_brokers, redact
from mqdb.pipeline import broker_wait
from mqdb.pipeline.errors import OptionInvalid, TableUnusable
from mqdb.pipeline.jobs import target_table
from mqdb.pipeline.jobs.catching_up import OnProgress, catch_up, count_left, quiet
from mqdb.pipeline.jobs.target_table import POSITION, PROBLEM, TargetTable
from mqdb.pipeline.read.schema import MESSAGE_COLUMNS
from mqdb.store.engine import translated

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

logger = logging.getLogger(__name__)

#: The default maximum of messages in a batch: one transaction of a few seconds.
DEFAULT_BATCH: Final = 100_000

_UNPARSED: Final = "mqdb_unparsed"


@dataclass(frozen=True, slots=True)
class TableLoad:
    """Source and target of a load: a topic of the broker at `dsn`, and a table in this database or in `target`.

    Bodies are JSON objects whose fields are named like columns. With `messages` the columns are named like those of
    `format("mqdb")` and get the parts of each message. `key` replaces the primary key; `append` only adds rows.
    `skip_bad` leaves out messages that cannot become a row. `batch` is the maximum number of messages in a transaction.
    """

    dsn: str
    topic: str
    table: str
    target: str | None = None
    columns: "Sequence[str] | None" = None
    key: "Sequence[str] | None" = None
    append: bool = False
    messages: bool = False
    skip_bad: bool = False
    batch: int = DEFAULT_BATCH


@dataclass(frozen=True, slots=True)
class LoadResult:
    """The number of messages read, and of messages left out."""

    messages: int
    skipped: int


def to_table(
    spark: "SparkSession",
    load: TableLoad,
    checkpoint: str,
    *,
    follow: bool = False,
    on_progress: OnProgress = quiet,
) -> LoadResult:
    """Load the messages of a topic into a table, starting at the first message or at the checkpoint.

    Each message takes effect once, even if the job is killed and rerun with its checkpoint. A message with a null value
    deletes the row with its key. Raises TableUnusable, MessageUnusable (inside an error of Spark), TableBatchesMissing,
    TopicNotFound.
    """
    table = plan_table(load)
    writing = _TableWriting(table, load)
    stream = _source(spark.readStream, load, table).option("maxOffsetsPerTrigger", load.batch)
    rows = _rows(stream.option("startingOffsets", "earliest").load(), load, table)
    writer = rows.writeStream.foreachBatch(writing.write).option("checkpointLocation", checkpoint)
    messages = catch_up(writer, follow=follow, on_progress=on_progress)
    return LoadResult(messages, writing.skipped)


def plan_table(load: TableLoad) -> TargetTable:
    """The table that `to_table` would write. Needs no Spark. Raises TableUnusable, OptionInvalid."""
    dsn = _one_dsn(load.target or load.dsn)
    with translated(redact(dsn)):
        table = target_table.find_table(dsn, load.table, columns=load.columns, key=load.key, append=load.append)
    if load.messages and (strange := [name for name in table.columns if name not in MESSAGE_COLUMNS]):
        raise TableUnusable(load.table, f"a message has no column {strange[0]!r}; name the columns to write")
    return table


def _one_dsn(text: str) -> str:
    try:
        [broker, *others] = parse_brokers(text, "")
    except ValueError as error:
        raise OptionInvalid("target", redact(text), str(error)) from None
    if others:
        raise OptionInvalid("target", redact(text), "names several databases; name only one")
    return broker.dsn


def count_to_table(spark: "SparkSession", load: TableLoad, checkpoint: str) -> int:
    """The number of messages that `to_table` would read now."""
    reader = spark.read.format("mqdb").options(url=load.dsn, subscribe=load.topic, columns="queue_id")
    return count_left(reader, spark, checkpoint)


class _TableWriting:
    """The Spark callback that writes each batch to the table."""

    def __init__(self, table: TargetTable, load: TableLoad) -> None:
        self._table = table
        self._load = load
        self.skipped = 0

    def write(self, rows: "DataFrame", batch_id: int) -> None:
        """Stage and commit a batch."""
        query_id = rows.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        assert query_id is not None
        if not self._patiently(lambda: target_table.begin_batch(self._table, query_id, batch_id)):
            return
        stage = target_table.staging(self._table, query_id, self._load.topic, skip=self._load.skip_bad)
        # Not mapInArrow, which needs pandas.
        staged = rows.rdd.mapPartitions(stage).collect()
        attempts = [attempt for attempt, _ in staged]
        self._patiently(lambda: target_table.commit_batch(self._table, query_id, batch_id, attempts))
        if skipped := sum(number for _, number in staged):
            self.skipped += skipped
            fields = {"topic": self._load.topic, "batch": batch_id, "count": skipped}
            sentence = "left out %(count)s messages of topic %(topic)s in batch %(batch)s, which cannot become rows"
            logger.warning(sentence, fields, extra=fields)

    def _patiently(self, work: Any) -> Any:
        def translating() -> Any:
            with translated(redact(self._table.dsn)):
                return work()

        return broker_wait.patiently(translating, "write a batch to a table", broker_wait.DEFAULT_SECONDS)


# -- from messages to rows ------------------------------------------------------------------------


def _source(reader: Any, load: TableLoad, table: TargetTable) -> Any:
    chosen = reader.format("mqdb").option("url", load.dsn).option("subscribe", load.topic)
    if not load.messages:
        return chosen.option("rowFormat", "kafka")
    read = {"queue_id", "queue_offset", "body", *table.columns}
    return chosen.option("columns", ",".join(name for name in MESSAGE_COLUMNS if name in read))


def _rows(messages: "DataFrame", load: TableLoad, table: TargetTable) -> "DataFrame":
    """The columns PROBLEM and POSITION, and those of the table."""
    from pyspark.sql import functions as F

    if load.messages:
        columns = {name: _part(name, type_) for name, type_ in table.columns.items()}
        position = F.col("queue_id"), F.col("queue_offset"), F.col("body").isNull()
        problem = F.lit(None).cast("string")
    else:
        parsed = _parsed(messages, table)
        messages, columns = parsed, {name: F.col(f"mqdb_body.`{_quoted(name)}`") for name in table.columns}
        for name in table.key:
            columns[name] = F.coalesce(columns[name], _of_key(name, table.key))
        position = F.col("partition"), F.col("offset"), F.col("value").isNull()
        is_bad = F.col("value").isNotNull() & (
            F.col("mqdb_body").isNull() | F.col(f"mqdb_body.{_UNPARSED}").isNotNull()
        )
        problem = F.when(is_bad, F.lit("its body is not a JSON object"))
    for name in table.key:
        problem = F.coalesce(
            problem, F.when(columns[name].isNull(), F.lit(f"it has no {name!r}, which is part of the key"))
        )
    named = [column.alias(name) for name, column in zip(POSITION, position, strict=True)]
    # By number: a table may have a column with one of these names.
    return messages.select(problem.alias(PROBLEM), *named, *(columns[name].alias(name) for name in table.columns))


def _parsed(messages: "DataFrame", table: TargetTable) -> "DataFrame":
    """Add the fields of body and key as text columns."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import StringType, StructField, StructType

    fields = StructType([StructField(name, StringType()) for name in [*table.columns, _UNPARSED]])
    body = F.from_json(F.col("value").cast("string"), fields, {"columnNameOfCorruptRecord": _UNPARSED})
    keys = StructType([StructField(name, StringType()) for name in table.key])
    key = F.from_json(F.col("key").cast("string"), keys) if table.key else F.lit(None)
    return messages.withColumns({"mqdb_body": body, "mqdb_key": key})


def _of_key(name: str, key: "Sequence[str]") -> "Column":
    """The value of a key column from the key of the message: a field of its JSON object, otherwise the key itself."""
    from pyspark.sql import functions as F

    field = F.col(f"mqdb_key.`{_quoted(name)}`")
    if len(key) > 1:
        return field
    text = F.col("key").cast("string")
    return F.coalesce(field, F.when(~F.ltrim(text).startswith("{"), text))


def _part(name: str, type_: str) -> "Column":
    from pyspark.sql import functions as F

    if MESSAGE_COLUMNS[name] == "timestamp":
        # In Python the time would lose its zone.
        return F.date_format(name, "yyyy-MM-dd HH:mm:ss.SSSSSSXXX")
    return F.col(name).cast("string") if name == "body" and type_ != "bytea" else F.col(name)


def _quoted(name: str) -> str:
    return name.replace("`", "``")
