"""The session is ready for use: its workers run this Python, failed tasks are retried, and no other user has access."""

import os
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from mqdb.pipeline import session


def test_a_second_session_is_the_first_one(spark: SparkSession) -> None:
    assert session("another", cores=7) is spark


def test_workers_run_this_python_and_find_mqdb(spark: SparkSession) -> None:
    def look(_number: int) -> tuple[str, str]:
        import mqdb

        return sys.executable, mqdb.__file__

    [seen] = spark.sparkContext.parallelize([0], 1).map(look).collect()

    assert seen == look(0)


def test_workers_import_pyspark_from_where_it_is_compiled(spark: SparkSession) -> None:
    def look(_number: int) -> str:
        import pyspark

        return pyspark.__file__

    [seen] = spark.sparkContext.parallelize([0], 1).map(look).collect()

    assert Path(seen).is_file()
    assert seen == look(0)


def test_a_task_that_fails_is_tried_again(spark: SparkSession, tmp_path: Path) -> None:
    def fail_once(number: int) -> int:
        trace = tmp_path / "tried"
        if not trace.exists():
            trace.touch()
            raise ConnectionError("the first try")
        return number

    assert spark.sparkContext.parallelize([7], 1).map(fail_once).collect() == [7]


def test_nothing_listens_to_the_world(spark: SparkSession) -> None:
    settings = spark.sparkContext.getConf()

    assert settings.get("spark.driver.host") == "127.0.0.1"
    assert settings.get("spark.ui.enabled") == "false"
    assert spark.sparkContext.uiWebUrl is None


@pytest.mark.usefixtures("spark")
def test_the_environment_is_as_it_was_before() -> None:
    assert "PYSPARK_PYTHON" not in os.environ
