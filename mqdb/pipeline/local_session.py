"""A Spark session on this machine, set up for the pipeline.

`session` finds a Java runtime, makes the workers use this Python, starts processes quickly, retries failed tasks (which
plain local mode does not do), and omits the web server.
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

#: The failures of a task before its query fails: a replica cancels a read that blocks its replay.
TASK_FAILURES: Final = 4

#: The serial collector starts no threads, and on few cores more threads would not help.
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
    """The Spark session of this process: the running one, unchanged, or a new one with `cores` threads.

    `config` is Spark's configuration and overrides the values set here, including spark.master; JVM options are added
    to those set here. `jars` go on the class path of driver and executors, and so does this machine's PostgreSQL JDBC
    driver. Stop the session with its `stop()`. Raises ExtraMissing without PySpark, JavaNotFound, and JarNotFound if
    $MQDB_PG_JAR does not exist.
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
    """Register format("mqdb") with a session.

    Needed only if Spark cannot find the format, because mqdb was shipped with --py-files.
    """
    from mqdb.pipeline.source import MqdbDataSource

    spark.dataSource.register(MqdbDataSource)


def _settings(cores: int, jars: Sequence[str | Path], ui: bool) -> dict[str, str]:
    # From the start, so that all of Spark's threads know it, and `read_jdbc` need not search for it.
    class_path = [*jars, *filter(None, [find_jar()])]
    return {
        "spark.master": f"local[{cores},{TASK_FAILURES}]",
        "spark.ui.enabled": str(ui).lower(),
        "spark.ui.showConsoleProgress": "false",
        # Only this machine may connect, and an unresolvable host name must not prevent it.
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        # A streaming query permanently keeps this many states; 200 would take longer than a batch of these queries.
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
    # A home set by the user may contain other jars or settings. Links require a right on Windows.
    if "SPARK_HOME" not in os.environ and os.name != "nt":
        variables["SPARK_HOME"] = str(_home_without_zip(_temporary_folder("mqdb-spark-")))
    return variables


def _temporary_folder(prefix: str) -> Path:
    """A folder that exists until this process ends, because the JVM uses it while it runs."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _home_without_zip(folder: Path) -> Path:
    """Links to Spark's own home, without the zipped copy of PySpark that each Python process of Spark imports first.

    Modules in a zip are not compiled, so each process would compile what it imports, for 1 s of CPU instead of 0.2.
    Spark starts several processes for each query and each batch of a sink, and gives each of them 10 s. Without the zip
    they import PySpark from this Python.
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
    """Set environment variables for the block, in which the JVM is started."""
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
