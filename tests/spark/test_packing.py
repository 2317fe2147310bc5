"""mqdb as a zip: a Python without mqdb imports it, and a cluster gets it by --py-files."""

import os
import subprocess
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path

import pytest
from sqlalchemy import Connection

from mqdb.pipeline.packing import pack
from tests.fixtures.broker import dispatch_all, topic
from tests.fixtures.postgres import Database

JOB = """
import sys
from pyspark.sql import SparkSession
from mqdb.pipeline import register

spark = SparkSession.builder.getOrCreate()
register(spark)
rows = spark.createDataFrame([(f"b{n}",) for n in range(1000)], "body string").repartition(4)
rows.write.format("mqdb").options(url=sys.argv[1], topic="orders").mode("append").save()
print("read", spark.read.format("mqdb").options(url=sys.argv[1], subscribe="payments", columns="body").load().count())
"""


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    path = tmp_path / "mqdb.zip"
    pack(path)
    return path


def without_mqdb(**more: str) -> dict[str, str]:
    """An environment in which the libraries are found, and mqdb is not."""
    return os.environ | {"PYTHONPATH": sysconfig.get_path("purelib")} | more


def base_python() -> str:
    return str(Path(sys.base_prefix) / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}")


def test_it_is_imported_where_mqdb_is_not_installed(packed: Path, tmp_path: Path) -> None:
    uses = "import pyspark_mqdb, mqdb_client; from mqdb.selector import compile_selector; compile_selector('a > 1')"
    environment = without_mqdb()

    def run(program: str, **more: str) -> "subprocess.CompletedProcess[str]":
        command = [base_python(), "-c", program]
        return subprocess.run(command, env=environment | more, cwd=tmp_path, capture_output=True, text=True, timeout=60)

    assert "No module named 'mqdb.errors'" in run("import mqdb.errors").stderr
    both = os.pathsep.join([str(packed), environment["PYTHONPATH"]])
    assert (run(uses, PYTHONPATH=both).stderr, pack(packed) > 100) == ("", True)


def test_it_is_the_same_each_time(packed: Path, tmp_path: Path) -> None:
    pack(tmp_path / "again.zip")

    assert (tmp_path / "again.zip").read_bytes() == packed.read_bytes()


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_cluster_gets_it_by_py_files(broker: Connection, database: Database, packed: Path, tmp_path: Path) -> None:
    topic(broker)
    topic(broker, "payments")
    job = tmp_path / "job.py"
    job.write_text(JOB)
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    submit = [str(Path(spec.origin).parent / "bin" / "spark-submit"), "--master", "local-cluster[2,1,1024]"]
    environment = without_mqdb(PYSPARK_PYTHON=base_python(), PYSPARK_DRIVER_PYTHON=base_python())

    done = subprocess.run(
        [*submit, "--py-files", str(packed), str(job), database.dsn],
        env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=240,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr[-3000:]
    assert "read 0" in done.stdout
    dispatch_all(broker)
    assert database.rows("SELECT count(*) FROM mqdb.message WHERE topic = 'orders'") == [(1000,)]
