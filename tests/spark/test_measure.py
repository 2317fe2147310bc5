"""`do.py bench spark` gives Spark the right work. The tests do not assert any speed."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import Connection

from benchmarks.bench.spark import FLIGHTS
from tests.fixtures.broker import append, dispatch_all, topic
from tests.fixtures.postgres import Database

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from benchmarks.bench.spark_load import SparkLoad


@pytest.fixture
def load(spark: "SparkSession", database: Database) -> "SparkLoad":
    from benchmarks.bench.spark_load import SparkLoad

    return SparkLoad(spark, database.dsn)


@pytest.mark.long
def test_what_is_prepared_is_what_is_written_and_read(load: "SparkLoad", broker: Connection, tmp_path: Path) -> None:
    topic(broker, "flown", queues=2)

    load.prepare(FLIGHTS, 700, tmp_path / "messages")
    load.write(tmp_path / "messages", "flown")
    dispatch_all(broker)

    assert load.count("flown") == 700


def test_a_follower_tells_how_long_a_batch_took(load: "SparkLoad", broker: Connection, tmp_path: Path) -> None:
    route = topic(broker, "followed")
    with load.following("followed", tmp_path / "checkpoint") as follower:
        append(broker, route, "one", "two")
        dispatch_all(broker)

        assert follower.batch_ms() > 0
