"""A Spark application that copies a topic to a second topic and that to Parquet; run as a script by fault tests.

    python spark_copy_process.py '{"dsn": ..., "source": ..., "target": ..., "folder": ...}'

Optional keys are `config` for Spark, `sink` with options of the write, `records_per_task`, and `stores`: if that is
false, no files are written. Files and checkpoints are below the folder. The text of a message before a colon is its
key; a message without a colon has no key. If a query fails, both queries restart from their checkpoints. Prints a line
for each failure. Runs until it is killed.
"""

import json
import sys
import time
from typing import Any, Final

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from mqdb.pipeline import session
from tests.fixtures.spark_config import CONFIG

_PAUSE_SECONDS: Final = 0.3


def read(spark: SparkSession, dsn: str, topic: str, records_per_task: str = "100") -> DataFrame:
    return (
        spark.readStream.format("mqdb")
        .option("url", dsn)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("splitBy", "queue")
        .option("recordsPerTask", records_per_task)  # several tasks in a batch
        .option("columns", "body,queue_id,keys")
        .load()
    )


def start_queries(spark: SparkSession, arguments: dict[str, Any]) -> None:
    dsn, folder = arguments["dsn"], arguments["folder"]
    key = "IF(locate(':', string(body)) > 0, split(string(body), ':')[0], NULL) AS sharding_key"
    copying = (
        read(spark, dsn, arguments["source"], arguments.get("records_per_task", "100"))
        .selectExpr("body", "keys", key)
        .writeStream.format("mqdb")
        .option("url", dsn)
        .option("topic", arguments["target"])
        .option("checkpointLocation", f"{folder}/copying")
        .options(**arguments.get("sink", {}))
    )
    storing = (
        read(spark, dsn, arguments["target"])
        .selectExpr("queue_id", "string(body) AS text")
        .writeStream.format("parquet")
        .option("path", f"{folder}/files")
        .option("checkpointLocation", f"{folder}/storing")
    )
    copying.start()
    if arguments.get("stores", True):
        storing.start()


def main(arguments: dict[str, Any]) -> None:
    spark = session("copy", config=CONFIG | arguments.get("config", {}))
    while True:
        try:
            start_queries(spark, arguments)
            spark.streams.awaitAnyTermination()
        except StreamingQueryException as error:
            sys.stdout.write(f"failed: {error}\n")
            sys.stdout.flush()
        for query in spark.streams.active:
            query.stop()
        spark.streams.resetTerminated()
        time.sleep(_PAUSE_SECONDS)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
