"""A new connection: the checks before it is used, and the database that it leads to."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from sqlalchemy import Connection

from mqdb.errors import BrokerUnavailable
from mqdb.store.engine import target_of
from mqdb.store.log.history import ANOTHER_HISTORY, History
from mqdb.store.silence import in_time

_HISTORY: Final = "mqdb_history"


def prepared(connect: Callable[[], Connection], *steps: Callable[[Connection], object]) -> Callable[[], Connection]:
    """Wrap `connect` so that the steps are run on each new connection.

    These connections must not go back into a pool.
    """

    def connecting() -> Connection:
        connection = connect()
        try:
            with in_time(connection):
                for step in steps:
                    step(connection)
        except BaseException:
            connection.invalidate()
            connection.close()
            raise
        return connection

    return connecting


def note_history(connection: Connection, history: History) -> None:
    """Remember the history that a connection leads to, for the lifetime of the connection.

    Not for use behind a pooler that shares connections.
    """
    connection.info[_HISTORY] = history


def history_on(connection: Connection) -> History | None:
    """The history of the log behind a connection, or None if it was not noted."""
    return history_in(connection.info)


def history_in(info: Mapping[Any, Any]) -> History | None:
    """The history of the log, from the notes (`info`) of a connection, or None if it was not noted."""
    history: History | None = info.get(_HISTORY)
    return history


def require_history(connection: Connection, history: History | None) -> None:
    """Raise BrokerUnavailable if the connection is known to lead to a log of another history."""
    if history_on(connection) not in (None, history):
        raise BrokerUnavailable(target_of(connection), ANOTHER_HISTORY)
