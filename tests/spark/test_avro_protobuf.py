"""Avro and Protobuf bodies work in the ways that docs/spark.md shows."""

import json

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from sqlalchemy import Connection

from tests.fixtures.broker import append, dispatch_all, topic
from tests.fixtures.postgres import Database

pytestmark = pytest.mark.long

AVRO = "org.apache.spark:spark-avro_2.13:4.2.0"
ORDER = json.dumps(
    {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}, {"name": "item", "type": "string"}]}
)


def test_avro_goes_through_a_topic(spark: SparkSession, database: Database, broker: Connection) -> None:
    try:
        spark.sql(f"ADD JAR 'ivy://{AVRO}?transitive=false'")
    except PySparkException as error:
        pytest.skip(f"{AVRO} cannot be fetched: {str(error).splitlines()[0]}")
    topic(broker)
    written = spark.sql(f"SELECT to_avro(named_struct('id', 1L, 'item', 'fig'), '{ORDER}') AS body")
    written.write.format("mqdb").mode("append").options(url=database.dsn, topic="orders").save()
    dispatch_all(broker)

    orders = spark.read.format("mqdb").options(url=database.dsn, subscribe="orders").load()
    orders = orders.select("queue_offset", F.expr(f"from_avro(body, '{ORDER}') AS o")).select("queue_offset", "o.*")

    assert orders.collect() == [(0, 1, "fig")]


def test_protobuf_is_read_by_a_function_of_python(spark: SparkSession, database: Database, broker: Connection) -> None:
    append(broker, topic(broker), Timestamp(seconds=5, nanos=7).SerializeToString().decode())
    dispatch_all(broker)

    @F.udf("seconds bigint, nanos int", useArrow=False)
    def decoded(body: bytes) -> tuple[int, int]:
        from google.protobuf.timestamp_pb2 import Timestamp

        message = Timestamp.FromString(bytes(body))
        return message.seconds, message.nanos

    times = spark.read.format("mqdb").options(url=database.dsn, subscribe="orders").load()

    assert times.select(decoded("body").alias("at")).select("at.*").collect() == [(5, 7)]
