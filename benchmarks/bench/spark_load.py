"""Spark's side of `do.py bench spark`: it reads, writes and follows a topic.

This is a separate module because it imports pyspark. `spark` decides which work is timed, and which sides are compared.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from mqdb.pipeline.local_session import session
from mqdb.pipeline.read.jdbc import read_jdbc

_TIME: Final = "yyyy-MM-dd'T'HH:mm:ssX"
_COLUMNS: Final = ("body", "tags", "keys", "properties")


class Follower:
    """A running query, and the durations of its micro-batches."""

    def __init__(self, query: StreamingQuery) -> None:
        self._query = query
        self._seen = self._newest()

    def batch_ms(self) -> float:
        """The duration of the batch that reads the messages sent since the last call.

        Waits until the batch is done.
        """
        self._query.processAllAvailable()
        took = [
            each["durationMs"]["triggerExecution"]
            for each in self._query.recentProgress
            if each["batchId"] > self._seen and each["numInputRows"]
        ]
        self._seen = self._newest()
        return float(sum(took))

    def _newest(self) -> int:
        progress = self._query.lastProgress
        return -1 if progress is None else int(progress["batchId"])


class SparkLoad:
    """A Spark session that works on one broker."""

    def __init__(self, spark: SparkSession, dsn: str) -> None:
        self._spark = spark
        self._dsn = dsn

    @property
    def jvm_pid(self) -> int:
        """The pid of the driver, which also runs the executors."""
        jvm = self._spark.sparkContext._jvm
        assert jvm is not None
        return int(jvm.java.lang.ProcessHandle.current().pid())

    @property
    def master(self) -> str:
        """The master that runs the tasks, such as local[2]."""
        return str(self._spark.sparkContext.master)

    def prepare(self, flights: Path, messages: int, into: Path) -> None:
        """Write this many messages to Parquet in the form that the sink accepts, repeating the flights."""
        once = self._spark.read.parquet(str(flights))
        copies, rest = divmod(messages, once.count())
        parts = [once] * copies + ([once.limit(rest)] if rest else [])
        reduce(DataFrame.union, parts).select(*_message_columns()).write.parquet(str(into))

    def write(self, messages: Path, topic: str) -> None:
        """Send the messages that `prepare` has written; all are stored when this returns."""
        rows = self._spark.read.parquet(str(messages))
        rows.write.format("mqdb").mode("append").option("url", self._dsn).option("topic", topic).save()

    def count(self, topic: str) -> int:
        """The number of messages that a read finds."""
        return self._load(topic).count()

    def read(self, topic: str) -> None:
        """Read all columns of all messages through the data source, and discard them."""
        self._load(topic).write.format("noop").mode("overwrite").save()

    def read_by_jdbc(self, topic: str) -> None:
        """Read all columns of all messages through JDBC, and discard them."""
        read_jdbc(self._spark, self._dsn, topic).write.format("noop").mode("overwrite").save()

    def _load(self, topic: str) -> DataFrame:
        # A new one each time: a loaded DataFrame keeps its plan, and with it its bounds.
        return self._spark.read.format("mqdb").option("url", self._dsn).option("subscribe", topic).load()

    @contextmanager
    def following(self, topic: str, checkpoint: Path, into: str | None = None) -> Iterator[Follower]:
        """A query that reads new messages as they arrive, and writes them to a topic or discards them."""
        stream = self._spark.readStream.format("mqdb").option("url", self._dsn).option("subscribe", topic)
        rows = stream.option("startingOffsets", "latest").load()
        if into is None:
            writer = rows.writeStream.format("noop")
        else:
            writer = rows.select(*_COLUMNS).writeStream.format("mqdb").option("url", self._dsn).option("topic", into)
            writer = writer.option("reservedProperties", "drop")
        writer = writer.option("checkpointLocation", str(checkpoint)).trigger(processingTime="0 seconds")
        query = writer.start()
        try:
            query.processAllAvailable()
            yield Follower(query)
        finally:
            query.stop()


@contextmanager
def spark_load(dsn: str) -> Iterator[SparkLoad]:
    """A separate session on this machine, until the end of the block."""
    # Streams do without adaptive execution, and would say so each time.
    spark = session("mqdb bench", config={"spark.sql.adaptive.enabled": "false"})
    try:
        yield SparkLoad(spark, dsn)
    finally:
        spark.stop()


def _message_columns() -> list[Column]:
    numbers = [f.col(name).cast("string").alias(name) for name in ("arr_delay", "distance")]
    return [
        f.to_json(f.struct("*"), {"timestampFormat": _TIME}).alias("body"),
        f.col("carrier").alias("tags"),
        f.concat_ws(" ", f.concat("carrier", "flight"), "tailnum").alias("keys"),
        f.to_json(f.struct("origin", "dest", *numbers)).alias("properties"),
    ]
