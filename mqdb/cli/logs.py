"""The log of a command: standard error, with one line for each record."""

import logging
from enum import StrEnum

from mqdb.common.log_lines import FieldFormatter, JsonFormatter


class LogFormat(StrEnum):
    """The format of a log record."""

    TEXT = "text"
    JSON = "json"


def configure(level: int, log_format: LogFormat = LogFormat.TEXT) -> None:
    """Log records of mqdb from `level` on; of libraries, which log every step, only warnings."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if log_format is LogFormat.JSON else FieldFormatter())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    for name in ("mqdb", "mqdb_client"):
        logging.getLogger(name).setLevel(max(level, logging.DEBUG))
