"""The fence of appends: each statement looks up its queue, and a missing queue is refused with a clear error.

The queue in a producer's route may belong to a deleted topic, or to another history of the log. PostgreSQL would also
refuse the NULL for such a queue, but the error in its log would look like corruption.
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
    """The key of a queue that a statement has looked up.

    If it is NULL, because the queue is gone, the statement fails.
    """
    return func.coalesce(queue_key, func.mqdb.refuse_append(), type_=Integer())


@contextmanager
def refusals_name(topic: str) -> Iterator[None]:
    """Raise TopicNotFound for this topic if the fence refuses a statement. Other psycopg errors are not changed."""
    try:
        yield
    except psycopg.Error as error:
        if error.sqlstate != _REFUSED:
            raise
        raise TopicNotFound(topic) from error
