"""History: whether the log is still the one in which a position was found.

A database can be set back: to a backup, to the state of a promoted standby, or by the last commits that a server with
`synchronous_commit = off` had not written when it crashed. None of this happens while a server runs, so its start, its
last recovery and the file of the log's sequence distinguish histories (`mqdb/sql/log/history.sql`). A position kept by
a client includes its history, and the statement that stores the position compares the histories. So this also works
behind a pooler, which hides reconnections. Source: PostgreSQL, "The Cumulative Statistics System", on when statistics
are reset. Kafka: KIP-101, KIP-320.
"""

from typing import Any, Final, TypeAlias

from sqlalchemy import ColumnElement, Connection, func, or_, select

#: The result of `mqdb.history()`. If two histories differ, the log may still be the same, because the server was only
#: restarted.
History: TypeAlias = int

#: Why a position is refused.
ANOTHER_HISTORY: Final = "the server was restarted, or replaced by another database"


def find(connection: Connection) -> History:
    """The history of the log that a connection leads to."""
    history: History = connection.scalars(select(func.mqdb.history())).one()
    return history


def is_current(history: ColumnElement[Any]) -> ColumnElement[bool]:
    """Whether a position with this history belongs to this log. NULL belongs to every log."""
    return or_(history.is_(None), history == func.mqdb.history())
