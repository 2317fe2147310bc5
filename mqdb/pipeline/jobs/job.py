"""The common parts of all jobs of the command line: a quiet session, and Spark's errors in one line."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from mqdb.errors import ExtraMissing
from mqdb.pipeline.errors import JobFailed
from mqdb.pipeline.local_session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The end of a Python worker's traceback, if it is an error of mqdb; the last one is the cause of the others.
_OF_MQDB: Final = re.compile(r"^(?:[\w.]+: )*mqdb\.(?:\w+\.)*\w+: (.+)$", re.MULTILINE)

#: The same for any other Python error.
_OF_PYTHON: Final = re.compile(r"^([A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Unavailable): .+)$", re.MULTILINE)

_PY4J: Final = re.compile(r"An error occurred while calling [^\n]*\n: ")


@contextmanager
def own_session(cores: int, config: Mapping[str, str] | None = None) -> "Iterator[SparkSession]":
    """A session for the block, which logs nothing. An already active session is used unchanged.

    `config` and the errors are those of `mqdb.pipeline.session`.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ExtraMissing("pyspark", "spark") from error
    running = SparkSession.getActiveSession()
    if running is not None:
        yield running
        return
    spark = session("mqdb", cores=cores, config=config)
    try:
        # The error that ends a job contains its cause; without this, Spark would first log it in a hundred lines.
        spark.sparkContext.setLogLevel("OFF")
        yield spark
    finally:
        spark.stop()


@contextmanager
def failures_told() -> Iterator[None]:
    """Turn Spark's errors into JobFailed, which gives the cause in one line; Spark's error is its `__cause__`."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise JobFailed(cause_of(str(error))) from error


def cause_of(text: str) -> str:
    """The line of Spark's error that contains the cause."""
    for pattern in (_OF_MQDB, _OF_PYTHON):
        if found := pattern.findall(text):
            return str(found[-1]).strip()
    lines = _PY4J.sub("", text).strip().splitlines()
    return lines[0].strip() if lines else "Spark stopped the job without a message"
