"""The fence of appends: each statement looks up its queue, and an error that says so refuses a queue that is gone.

The queue of a producer's route may belong to a topic that was deleted, or to another history of the log. PostgreSQL
would refuse the NULL of such a queue, too, but by an error that looks like corruption to those who read its log.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import psycopg
from sqlalchemy import ColumnElement, Integer, func

from mqdb.errors import TopicNotFound

#: SQLSTATE of `mqdb/sql/log/refuse_append.sql`.
_REFUSED: Final = "MQ301"


def or_refused(queue_key: ColumnElement[Any]) -> ColumnElement[int]:
    """The key of a queue that a statement has looked up. It is NULL if the queue is gone, which ends the statement."""
    return func.coalesce(queue_key, func.mqdb.refuse_append(), type_=Integer())


@contextmanager
def refusals_name(topic: str) -> Iterator[None]:
    """Raise TopicNotFound of this topic if the fence refuses a statement. Other errors of psycopg pass."""
    try:
        yield
    except psycopg.Error as error:
        if error.sqlstate != _REFUSED:
            raise
        raise TopicNotFound(topic) from error
