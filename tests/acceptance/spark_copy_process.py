"""A Spark application that copies a topic to another one, until it is killed; run as a script by test_spark_faults.

    python spark_copy_process.py '{"dsn": ..., "source": ..., "target": ..., "checkpoint": ...}'

A query that fails is started again from its checkpoint. Prints a line for each failure.
"""

import json
import sys
import time
from typing import Any, Final

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from mqdb.pipeline import session
from tests.fixtures.spark_config import CONFIG

_PAUSE_SECONDS: Final = 0.3


def start_query(spark: SparkSession, arguments: dict[str, Any]) -> StreamingQuery:
    messages = (
        spark.readStream.format("mqdb")
        .option("url", arguments["dsn"])
        .option("subscribe", arguments["source"])
        .option("startingOffsets", "earliest")
        .option("splitBy", "queue")
        .option("recordsPerTask", "100")  # several tasks in a batch
        .option("columns", "body,queue_id,keys")
        .load()
    )
    writing = (
        messages.selectExpr("body", "keys", "split(cast(body AS string), ':')[0] AS sharding_key")
        .writeStream.format("mqdb")
        .option("url", arguments["dsn"])
        .option("topic", arguments["target"])
        .option("checkpointLocation", arguments["checkpoint"])
    )
    return writing.start()


def main(arguments: dict[str, Any]) -> None:
    spark = session("copy", config=CONFIG)
    while True:
        try:
            start_query(spark, arguments).awaitTermination()
        except StreamingQueryException as error:
            sys.stdout.write(f"failed: {error}\n")
            sys.stdout.flush()
        time.sleep(_PAUSE_SECONDS)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
