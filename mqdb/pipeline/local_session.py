"""A Spark session on this machine, set up for the pipeline.

It finds a Java, makes the workers run this Python, starts processes quickly, tries failed tasks again (which plain
local mode does not do), and leaves out the web server.
"""

import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mqdb.errors import ExtraMissing
from mqdb.pipeline.java import find_java, home_for_spark
from mqdb.pipeline.read.jdbc_driver import find_jar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The failures of a task before its query fails: a replica ends a read that is in the way of its replay.
TASK_FAILURES: Final = 4

#: The serial collector has no threads to start, and on few cores none that it would miss.
_JVM_OPTIONS: Final = (
    "-XX:+UseSerialGC",
    f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}",
)

_EXTRA_OPTIONS: Final = "spark.driver.extraJavaOptions"


def session(
    app_name: str = "mqdb",
    *,
    cores: int = 2,
    jars: Sequence[str | Path] = (),
    config: Mapping[str, str] | None = None,
    ui: bool = False,
) -> "SparkSession":
    """The Spark session of this process: the one that runs, as it is, else a new one on `cores` threads from here.

    `config` is Spark's configuration and comes before what is set here, spark.master too; options for the JVM are added
    to those set here. `jars` go on the class path of driver and executors, and so does the JDBC driver of PostgreSQL
    that this machine has. Stop it by its `stop()`. Raises ExtraMissing without PySpark, JavaNotFound, and JarNotFound
    for a $MQDB_PG_JAR that names nothing.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ExtraMissing("pyspark", "spark") from error
    running = SparkSession.getActiveSession()
    if running is not None:
        return running
    settings = _settings(cores, jars, ui) | dict(config or {})
    settings[_EXTRA_OPTIONS] = " ".join([*_JVM_OPTIONS, *filter(None, [(config or {}).get(_EXTRA_OPTIONS)])])
    builder = SparkSession.builder.appName(app_name)
    for name, value in settings.items():
        builder = builder.config(name, value)
    with _environment(_variables(settings["spark.master"])):
        return builder.getOrCreate()


def register(spark: "SparkSession") -> None:
    """Let a session know format("mqdb"). Only where Spark cannot find it itself: mqdb came by --py-files."""
    from mqdb.pipeline.source import MqdbDataSource

    spark.dataSource.register(MqdbDataSource)


def _settings(cores: int, jars: Sequence[str | Path], ui: bool) -> dict[str, str]:
    # From the start: all of Spark's threads know it then, and `read_jdbc` has nothing to look for.
    class_path = [*jars, *filter(None, [find_jar()])]
    return {
        "spark.master": f"local[{cores},{TASK_FAILURES}]",
        "spark.ui.enabled": str(ui).lower(),
        "spark.ui.showConsoleProgress": "false",
        # Only this machine may connect, and a host name that cannot be resolved must not prevent it.
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        # A streaming query keeps as many states, for good; 200 of them take longer than a batch of the queries here.
        "spark.sql.shuffle.partitions": str(cores),
        **({"spark.jars": ",".join(map(str, class_path))} if class_path else {}),
    }


def _variables(master: str) -> dict[str, str]:
    """Environment variables for the JVM. The nodes of a cluster have their own Python."""
    java = find_java()
    java_home = home_for_spark(java, Path() if java.has_vector_module else _temporary_folder("mqdb-java-"))
    if not master.startswith("local"):
        return {"JAVA_HOME": str(java_home)}
    variables = {
        "JAVA_HOME": str(java_home),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    # One that the user has set may hold other jars or settings. Links need a right on Windows.
    if "SPARK_HOME" not in os.environ and os.name != "nt":
        variables["SPARK_HOME"] = str(_home_without_zip(_temporary_folder("mqdb-spark-")))
    return variables


def _temporary_folder(prefix: str) -> Path:
    """A folder until this process ends; the JVM looks into it as long as it runs."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _home_without_zip(folder: Path) -> Path:
    """Links to Spark's own home, without the zipped copy of PySpark that each Python process of Spark imports first.

    Nothing in a zip is compiled, so each process would compile what it imports, for 1 s of CPU instead of 0.2. Spark
    starts several for each query and for each batch of a sink, and gives each of them 10 s. Without the zip they import
    the PySpark of this Python.
    """
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    for part in Path(spec.origin).parent.iterdir():
        if part.name != "python":
            (folder / part.name).symlink_to(part)
    return folder


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables until the end of the block, for the JVM that is started in it."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
