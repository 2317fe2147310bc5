"""PostgreSQL's JDBC driver, brought to a running Spark session: only those who read by JDBC need it.

The first that there is: the jar that the caller names, what the session was started with, $MQDB_PG_JAR, the place where
Debian's libpostgresql-jdbc-java puts it, and last the Maven repository that Spark is set up for.
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
#: SHA-256 of that jar. A driver that a user names or has installed is not compared.
MAVEN_CHECKSUM: Final = "157963d60ae66d607e09466e8c0cdf8087e9cb20d0159899ffca96bca2528460"


def find_jar(
    jar: str | Path | None = None, environ: Mapping[str, str] = os.environ, system: Path = SYSTEM_JAR
) -> Path | None:
    """The jar on this machine: `jar`, $MQDB_PG_JAR or Debian's; None if there is no jar.

    Raises JarNotFound if a named jar does not exist: it is not silently replaced by another one.
    """
    for name, wished in (("jar", jar), (ENVIRONMENT, environ.get(ENVIRONMENT, "").strip())):
        if wished:
            if not Path(wished).is_file():
                raise JarNotFound([f"{name}={wished}"])
            return Path(wished)
    return system if system.is_file() else None


def ensure_driver(spark: "SparkSession", jar: str | Path | None = None) -> None:
    """Let the session have the driver. Raises JarNotFound, which names all the places, and JarMismatch."""
    if jar is None and _has_driver(spark):
        return
    found = find_jar(jar)
    if found is None:
        found = _fetch(spark)
        check_fetched(found)
    _add(spark, found)


def check_fetched(jar: Path) -> None:
    """Raise JarMismatch unless it is the jar that was asked for."""
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

    # A path may hold a quote.
    source = str(jar.resolve()).replace("\\", "\\\\").replace("'", "\\'")
    spark.sql(f"ADD JAR '{source}'")
    # Spark's own threads do not look where this puts it, and for them an error of the driver is an unknown reason.
    with suppress(Py4JError):
        loader = _java(spark).Thread.currentThread().getContextClassLoader()
        for url in loader.getURLs():
            loader.getParent().addURL(url)


def _java(spark: "SparkSession") -> Any:
    """The package java.lang of the session's JVM."""
    context: Any = spark.sparkContext
    return context._jvm.java.lang
