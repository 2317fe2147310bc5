"""The example pipeline runs, and its figures are right."""

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from tests.fixtures.postgres import Database

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLE = Path(__file__).parents[2] / "examples" / "flights_pipeline.py"

#: Two days and a half, of which the first one is over.
FLIGHTS = 2_000


@pytest.fixture(scope="module")
def pipeline() -> ModuleType:
    """The example, as a module."""
    spec = importlib.util.spec_from_file_location(EXAMPLE.stem, EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_run_ends_what_one_before_it_has_left_and_sends_no_flight_twice(
    spark: "SparkSession", database: Database, pipeline: ModuleType, tmp_path: Path
) -> None:
    # The example sets the time zone of its session.
    own = spark.newSession()

    def run() -> Any:
        return pipeline.run(own, database.dsn, tmp_path, tmp_path / "delays", FLIGHTS, lambda sentence: None)

    # As if it were killed before the batch without flights that tells the averages of the days that are over.
    own.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    assert run().in_topic == []
    own.conf.unset("spark.sql.streaming.noDataMicroBatches.enabled")
    result = run()

    assert result.differences == 0
    assert sum(each.flights for each in result.in_topic) > 0
    with database.connect() as connection:
        pipeline.wait_for_offsets(connection)
        assert pipeline.count(connection, pipeline.FLIGHTS) == FLIGHTS
