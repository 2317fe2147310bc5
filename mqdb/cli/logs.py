"""Logging of a command: to standard error, one line a record."""

import logging

from mqdb.common.log_lines import FieldFormatter


def configure(level: int) -> None:
    """Log of mqdb from `level` on; of the libraries below, which speak of every step, warnings only."""
    handler = logging.StreamHandler()
    handler.setFormatter(FieldFormatter())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    for name in ("mqdb", "mqdb_client"):
        logging.getLogger(name).setLevel(max(level, logging.DEBUG))
