"""A topic becomes Parquet files, each message once: Spark's own file sink, with its list of the valid files.

The sink keeps that list in `_spark_metadata` beside the files, and batches that are written twice count once. Read the
folder by Spark, or take the paths from the list: a job that was killed may leave files that are not in it.
"""

from typing import TYPE_CHECKING, Final

from mqdb.pipeline.jobs.catching_up import OnProgress, catch_up, count_left, quiet

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: A file for each task of a batch: small batches make many files.
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
    """Append the messages of a topic to Parquet files in `path`; returns their number.

    The files have the columns of `format("mqdb")`, and with `schema`, fields as Spark's DDL names them, a column
    `value` with these fields of a JSON body (null if the body is something else). It begins with the first message, or
    at the checkpoint. Raises errors of Spark.
    """
    from pyspark.sql import functions as F

    reader = spark.readStream.format("mqdb").options(url=dsn, subscribe=topic, startingOffsets="earliest")
    messages = reader.option("maxOffsetsPerTrigger", batch).load()
    if schema is not None:
        messages = messages.withColumn("value", F.from_json(F.col("body").cast("string"), schema))
    writer = messages.writeStream.format("parquet").option("path", path).option("compression", "zstd")
    return catch_up(writer.option("checkpointLocation", checkpoint), follow=follow, on_progress=on_progress)


def count_to_parquet(spark: "SparkSession", dsn: str, topic: str, checkpoint: str) -> int:
    """Number of messages that `to_parquet` would read now."""
    reader = spark.read.format("mqdb").options(url=dsn, subscribe=topic, columns="queue_id")
    return count_left(reader, spark, checkpoint)
