"""The ways to submit a job in docs/spark.md work on a cluster of two executors, with the printed commands."""

import os
import shlex
import subprocess
import sys
import sysconfig
import tarfile
import venv
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pytest
from sqlalchemy import Connection

from tests.fixtures.broker import dispatch_all, topic
from tests.fixtures.postgres import Database
from tests.fixtures.spark_page import blocks

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

HEADING: Final = "### Submitting a job"
INSTALLED, PACKING, PACKED, ZIP = blocks(HEADING, "sh")
[JOB] = blocks(HEADING, "python")

CLUSTER: Final = "local-cluster[2,1,1024]"
LIBRARIES: Final = sysconfig.get_path("purelib")
#: What a Python imports that has mqdb and its libraries.
ALL: Final = os.pathsep.join(filter(None, sys.path))

REGISTER: Final = """
from mqdb.pipeline import register
register(spark)
"""

CONNECT: Final = """
import sys
from pyspark.sql import SparkSession
dsn, checkpoint = sys.argv[1:]
spark = SparkSession.builder.remote("local[2]").getOrCreate()
rows = spark.createDataFrame([("a",)], "body string")
rows.write.format("mqdb").mode("append").options(url=dsn, topic="orders").save()
orders = spark.readStream.format("mqdb").options(url=dsn, subscribe="payments", startingOffsets="earliest").load()
copies = orders.select("body").writeStream.format("mqdb").option("checkpointLocation", checkpoint)
copies.options(url=dsn, topic="orders").trigger(availableNow=True).start().awaitTermination()
print("read", spark.read.format("mqdb").options(url=dsn, subscribe="payments").load().count())
"""


@pytest.fixture(autouse=True)
def topics(broker: Connection) -> None:
    topic(broker)
    topic(broker, "payments")


@pytest.fixture
def folder(database: Database, tmp_path: Path) -> Path:
    """The page's job, and the programs that its commands use."""
    (tmp_path / "job.py").write_text(JOB.replace('option("url", dsn)', f'option("url", {database.dsn!r})'))
    pyspark = find_spec("pyspark")
    assert pyspark is not None
    assert pyspark.origin is not None
    # Executors of such a cluster work in the home of Spark.
    home = tmp_path / "spark"
    home.mkdir()
    for part in Path(pyspark.origin).parent.iterdir():
        if part.name != "work":
            (home / part.name).symlink_to(part)
    submit = f"SPARK_HOME={shlex.quote(str(home))} {shlex.quote(str(home / 'bin' / 'spark-submit'))}"
    mqdb = f"PYTHONPATH={shlex.quote(ALL)} {shlex.quote(sys.executable)} -m mqdb"
    for name, command in (("spark-submit", f"{submit} --master {shlex.quote(CLUSTER)}"), ("mqdb", mqdb)):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f'#!/bin/sh\nexport PYTHONPATH=${{JOB_PYTHONPATH:-}}\nexec env {command} "$@"\n')
        program.chmod(0o700)
    return tmp_path


def run(block: str, folder: Path, environment: Mapping[str, str]) -> None:
    """Run the commands of a block in the folder."""
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    whole = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "PYTHONPATH"))}
    done = subprocess.run(
        ["bash", "-e", "-c", block],
        env={**whole, "PATH": path, **environment}, cwd=folder, capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "written" in done.stdout or "read 0" in done.stdout


def assert_stored(broker: Connection, database: Database, messages: int) -> None:
    dispatch_all(broker)
    assert database.rows("SELECT count(*) FROM mqdb.message WHERE topic = 'orders'") == [(messages,)]


def base_python() -> str:
    return str(Path(sys.base_prefix) / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}")


def test_mqdb_is_installed(folder: Path, broker: Connection, database: Database) -> None:
    run(INSTALLED, folder, {"PYSPARK_PYTHON": sys.executable, "JOB_PYTHONPATH": ALL})

    assert_stored(broker, database, 1000)


def test_mqdb_comes_in_a_packed_environment(folder: Path, broker: Connection, database: Database) -> None:
    """mqdb is shipped in a packed environment. A link to the libraries saves copying them."""
    assert "venv-pack -p environment -o environment.tar.gz" in PACKING
    venv.create(folder / "environment", symlinks=True)
    [packages] = (folder / "environment").glob("lib/*/site-packages")
    (packages / "all.pth").write_text("\n".join(filter(None, sys.path)))
    with tarfile.open(folder / "environment.tar.gz", "w:gz") as packed:
        packed.add(folder / "environment", ".")

    run(PACKED, folder, {})

    assert_stored(broker, database, 1000)


def test_mqdb_comes_as_a_zip(folder: Path, broker: Connection, database: Database) -> None:
    job = folder / "job.py"
    job.write_text(job.read_text().replace(".getOrCreate()\n", f".getOrCreate(){REGISTER}"))

    run(ZIP, folder, {"PYSPARK_PYTHON": base_python(), "JOB_PYTHONPATH": LIBRARIES})

    assert_stored(broker, database, 1000)


@pytest.mark.skipif(
    find_spec("grpc_status") is None or find_spec("pandas") is None, reason="needs pyspark[connect], for its client"
)
def test_a_client_of_spark_connect(folder: Path, broker: Connection, database: Database) -> None:
    (folder / "job.py").write_text(CONNECT)
    command = (
        f"{shlex.quote(sys.executable)} job.py {shlex.quote(database.dsn)} {shlex.quote(str(folder / 'checkpoint'))}"
    )

    run(command, folder, {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": ALL})

    assert_stored(broker, database, 1)
