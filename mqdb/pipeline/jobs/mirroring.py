"""Copies a Kafka topic to an mqdb topic, and back, by Spark's own Kafka connector.

In mqdb each record is stored once. In Kafka it is stored at least once: Spark's Kafka sink repeats an interrupted
batch. `from_records` and `to_records` are the jobs without Kafka: they read and return rows in the form of its
connector.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from mqdb.pipeline.jobs.catching_up import OnProgress, catch_up, count_left, quiet

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

#: The default maximum of records in a batch.
DEFAULT_BATCH: Final = 100_000

_RECORD: Final = ("key", "value", "headers")


@dataclass(frozen=True, slots=True)
class Mirror:
    """A topic of the broker at `dsn`, and a Kafka topic at `servers`, `host:port,host:port`.

    With `keep_partitions` partition 3 becomes queue 3 and back, so both topics need the same number; otherwise keys
    choose. `options` are those of Spark's connector, such as `kafka.security.protocol`.
    """

    dsn: str
    topic: str
    servers: str
    kafka_topic: str
    keep_partitions: bool = False
    batch: int = DEFAULT_BATCH
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def kafka(self) -> dict[str, str]:
        """The options of Kafka's reader and writer."""
        return {"kafka.bootstrap.servers": self.servers, **self.options}


def package() -> str:
    """Spark's Kafka connector for this version of Spark, in the form for spark.jars.packages."""
    import pyspark

    return f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}"


def mirror_from_kafka(
    spark: "SparkSession", mirror: Mirror, checkpoint: str, *, follow: bool = False, on_progress: OnProgress = quiet
) -> int:
    """Copy the records of the Kafka topic, from the first or from the checkpoint on; returns their number.

    The session needs `package()`. Raises Spark's errors.
    """
    reader = spark.readStream.format("kafka").options(**mirror.kafka, subscribe=mirror.kafka_topic)
    reader = reader.option("startingOffsets", "earliest").option("includeHeaders", "true")
    records = reader.option("maxOffsetsPerTrigger", mirror.batch).load()
    return catch_up(from_records(records, mirror, checkpoint), follow=follow, on_progress=on_progress)


def mirror_to_kafka(
    spark: "SparkSession", mirror: Mirror, checkpoint: str, *, follow: bool = False, on_progress: OnProgress = quiet
) -> int:
    """Copy the messages of the broker's topic to the Kafka topic, from the first or from the checkpoint on.

    Returns their number. The session needs `package()`. Raises Spark's errors.
    """
    writer = to_records(spark, mirror).writeStream.format("kafka").options(**mirror.kafka)
    writer = writer.option("topic", mirror.kafka_topic).option("checkpointLocation", checkpoint)
    return catch_up(writer, follow=follow, on_progress=on_progress)


def from_records(records: "DataFrame", mirror: Mirror, checkpoint: str) -> "DataStreamWriter":
    """The query that stores a stream of records with headers as messages, born at the records' timestamps."""
    born = records.timestamp.alias("born_timestamp")
    partition = [records.partition] if mirror.keep_partitions else []
    writer = records.select(*_RECORD, born, *partition).writeStream.format("mqdb")
    return writer.options(url=mirror.dsn, topic=mirror.topic, checkpointLocation=checkpoint)


def to_records(spark: "SparkSession", mirror: Mirror) -> "DataFrame":
    """The messages as a stream of Kafka records."""
    reader = spark.readStream.format("mqdb").options(url=mirror.dsn, subscribe=mirror.topic, rowFormat="kafka")
    reader = reader.option("startingOffsets", "earliest").option("includeHeaders", "true")
    messages = reader.option("maxOffsetsPerTrigger", mirror.batch).load()
    return messages.select(*_RECORD, *(["partition"] if mirror.keep_partitions else []))


def count_from_kafka(spark: "SparkSession", mirror: Mirror, checkpoint: str) -> int:
    """The number of records that `mirror_from_kafka` would read now."""
    reader: Any = spark.read.format("kafka").options(**mirror.kafka, subscribe=mirror.kafka_topic)
    return count_left(reader, spark, checkpoint)


def count_to_kafka(spark: "SparkSession", mirror: Mirror, checkpoint: str) -> int:
    """The number of messages that `mirror_to_kafka` would read now."""
    reader = spark.read.format("mqdb").options(url=mirror.dsn, subscribe=mirror.topic, columns="queue_id")
    return count_left(reader, spark, checkpoint)
