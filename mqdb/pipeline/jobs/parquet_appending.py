"""Writes a topic to Parquet files, each message once, by Spark's own file sink with its list of valid files.

The sink keeps this list in `_spark_metadata` beside the files, and a batch that is written twice counts once. Read the
folder with Spark, or take the paths from the list: a killed job may leave files that are not in it.
"""

from typing import TYPE_CHECKING, Final

from mqdb.pipeline.jobs.catching_up import OnProgress, catch_up, count_left, quiet

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Each task of a batch writes a file, so small batches make many files.
DEFAULT_BATCH: Final = 1_000_000


def to_parquet(
    spark: "SparkSession",
    dsn: str,
    topic: str,
    path: str,
    checkpoint: str,
    *,
    schema: str | None = None,
    batch: int = DEFAULT_BATCH,
    follow: bool = False,
    on_progress: OnProgress = quiet,
) -> int:
    """Append the messages of a topic to Parquet files in `path`; returns the number of messages.

    The files have the columns of `format("mqdb")`. With `schema`, fields in Spark's DDL, they also have a column
    `value` with these fields of a JSON body (null for any other body). The job starts at the first message or at the
    checkpoint. Raises Spark's errors.
    """
    from pyspark.sql import functions as F

    reader = spark.readStream.format("mqdb").options(url=dsn, subscribe=topic, startingOffsets="earliest")
    messages = reader.option("maxOffsetsPerTrigger", batch).load()
    if schema is not None:
        messages = messages.withColumn("value", F.from_json(F.col("body").cast("string"), schema))
    writer = messages.writeStream.format("parquet").option("path", path).option("compression", "zstd")
    return catch_up(writer.option("checkpointLocation", checkpoint), follow=follow, on_progress=on_progress)


def count_to_parquet(spark: "SparkSession", dsn: str, topic: str, checkpoint: str) -> int:
    """The number of messages that `to_parquet` would read now."""
    reader = spark.read.format("mqdb").options(url=dsn, subscribe=topic, columns="queue_id")
    return count_left(reader, spark, checkpoint)
