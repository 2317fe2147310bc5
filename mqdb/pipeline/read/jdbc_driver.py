"""PostgreSQL's JDBC driver, added to a running Spark session: only reads by JDBC need it.

The driver is the first of: the jar given by the caller, the jars with which the session was started, $MQDB_PG_JAR, the
path used by Debian's libpostgresql-jdbc-java, and finally Spark's configured Maven repository.
"""

import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mqdb.pipeline.errors import JarMismatch, JarNotFound

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DRIVER: Final = "org.postgresql.Driver"
ENVIRONMENT: Final = "MQDB_PG_JAR"
SYSTEM_JAR: Final = Path("/usr/share/java/postgresql.jar")
MAVEN: Final = "org.postgresql:postgresql:42.7.7"
#: The SHA-256 of this jar. A driver that the user gives or has installed is not compared.
MAVEN_CHECKSUM: Final = "157963d60ae66d607e09466e8c0cdf8087e9cb20d0159899ffca96bca2528460"


def find_jar(
    jar: str | Path | None = None, environ: Mapping[str, str] = os.environ, system: Path = SYSTEM_JAR
) -> Path | None:
    """The jar on this machine: `jar`, $MQDB_PG_JAR or Debian's; None if there is no jar.

    Raises JarNotFound if a given jar does not exist: it is not silently replaced by another.
    """
    for name, wished in (("jar", jar), (ENVIRONMENT, environ.get(ENVIRONMENT, "").strip())):
        if wished:
            if not Path(wished).is_file():
                raise JarNotFound([f"{name}={wished}"])
            return Path(wished)
    return system if system.is_file() else None


def ensure_driver(spark: "SparkSession", jar: str | Path | None = None) -> None:
    """Make the driver available to the session. Raises JarNotFound, which lists all places, and JarMismatch."""
    if jar is None and _has_driver(spark):
        return
    found = find_jar(jar)
    if found is None:
        found = _fetch(spark)
        check_fetched(found)
    _add(spark, found)


def check_fetched(jar: Path) -> None:
    """Raise JarMismatch unless a fetched file is the requested jar."""
    digest = hashlib.sha256(jar.read_bytes()).hexdigest()
    if digest != MAVEN_CHECKSUM:
        raise JarMismatch(str(jar), MAVEN_CHECKSUM, digest)


def _has_driver(spark: "SparkSession") -> bool:
    from py4j.protocol import Py4JJavaError

    try:
        _java(spark).Class.forName(DRIVER, False, _java(spark).Thread.currentThread().getContextClassLoader())
    except Py4JJavaError:
        return False
    return True


def _fetch(spark: "SparkSession") -> Path:
    """The jar from Maven, in Spark's cache. `ADD JAR 'ivy://...'` also fetches it, but gives no path to check."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    java: Any = spark.sparkContext
    try:
        coordinates = java._jvm.java.net.URI.create(f"ivy://{MAVEN}?transitive=false")
        resolved = java._jvm.org.apache.spark.util.DependencyUtils.resolveMavenDependencies(coordinates)
        return Path(resolved.head())
    except (PySparkException, Py4JError) as error:
        raise JarNotFound(["the session", f"${ENVIRONMENT}", str(SYSTEM_JAR), f"Maven ({MAVEN})"]) from error


def _add(spark: "SparkSession", jar: Path) -> None:
    from py4j.protocol import Py4JError

    # A path may contain a quote.
    source = str(jar.resolve()).replace("\\", "\\\\").replace("'", "\\'")
    spark.sql(f"ADD JAR '{source}'")
    # Spark's own threads do not search this location, and report errors of the driver as unknown.
    with suppress(Py4JError):
        loader = _java(spark).Thread.currentThread().getContextClassLoader()
        for url in loader.getURLs():
            loader.getParent().addURL(url)


def _java(spark: "SparkSession") -> Any:
    """The package java.lang of the session's JVM."""
    context: Any = spark.sparkContext
    return context._jvm.java.lang
