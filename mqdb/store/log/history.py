"""History: whether the log is still the one in which a position was found.

A database can go back: to a backup, to the state of a standby that was promoted, or by the last commits that a server
with `synchronous_commit = off` had not written when it crashed. None of these happens while a server runs, so its
start, its last recovery and the file of the log's sequence tell one history from the next (`mqdb/sql/log/history.sql`).
A position that a client keeps names its history, and the statement that stores the position compares the history. So
this also works behind a pooler, which hides that a connection is a new one. Source: PostgreSQL, "The Cumulative
Statistics System", on when statistics are reset. Kafka: KIP-101, KIP-320.
"""

from typing import Any, Final, TypeAlias

from sqlalchemy import ColumnElement, Connection, func, or_, select

#: What `mqdb.history()` returns. If two of them differ, the log may still be the same: the server was restarted.
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
