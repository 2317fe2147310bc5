"""The common parts of all jobs of the command line: a quiet session, and an error of Spark's in one line."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from mqdb.errors import ExtraMissing
from mqdb.pipeline.errors import JobFailed
from mqdb.pipeline.local_session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The end of a Python worker's traceback, where it is an error of ours; the last one is the cause of the others.
_OF_MQDB: Final = re.compile(r"^(?:[\w.]+: )*mqdb\.(?:\w+\.)*\w+: (.+)$", re.MULTILINE)

#: Same for any other error of Python.
_OF_PYTHON: Final = re.compile(r"^([A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Unavailable): .+)$", re.MULTILINE)

_PY4J: Final = re.compile(r"An error occurred while calling [^\n]*\n: ")


@contextmanager
def own_session(cores: int, config: Mapping[str, str] | None = None) -> "Iterator[SparkSession]":
    """A session until the end of the block, which logs nothing. If a session is active already, it is used unchanged.

    `config` and the errors raised are those of `mqdb.pipeline.session`.
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
        # The error that ends a job tells its cause; before that Spark would tell it in a hundred lines.
        spark.sparkContext.setLogLevel("OFF")
        yield spark
    finally:
        spark.stop()


@contextmanager
def failures_told() -> Iterator[None]:
    """Turns what Spark raises into JobFailed, which says the cause in one line; Spark's own is its `__cause__`."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise JobFailed(cause_of(str(error))) from error


def cause_of(text: str) -> str:
    """The line of Spark's error that says what was wrong."""
    for pattern in (_OF_MQDB, _OF_PYTHON):
        if found := pattern.findall(text):
            return str(found[-1]).strip()
    lines = _PY4J.sub("", text).strip().splitlines()
    return lines[0].strip() if lines else "Spark gave the job up without a word"
