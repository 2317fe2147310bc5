"""A new connection: which database it leads to, and how long it may keep silent before it is used.

What is asked on it first is asked by threads that others wait for, and nobody sets these questions a deadline.
"""

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from sqlalchemy import Connection

from mqdb.errors import BrokerUnavailable
from mqdb.store.engine import driver, target_of, translated
from mqdb.store.log.history import ANOTHER_HISTORY, History

#: As long as an attempt to connect takes at most (`mqdb.store.engine`).
FIRST_ANSWERS_SECONDS: Final = 5.0

_HISTORY: Final = "mqdb_history"


class Scissors:
    """Ends all waiting of a connection for its server, from any thread. Raises BrokerUnavailable for a lost one."""

    def __init__(self, connection: Connection) -> None:
        # A socket object of its own, which stays good when the driver closes.
        with translated(target_of(connection)):
            self._socket = socket.socket(fileno=os.dup(driver(connection).fileno()))

    def fileno(self) -> int:
        """Of the connection's socket, to be polled."""
        return self._socket.fileno()

    def cut(self) -> None:
        """What the server may answer is never read."""
        with suppress(OSError):  # closed meanwhile, by either end
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """The connection goes on."""
        self._socket.close()


@contextmanager
def in_time(connection: Connection, seconds: float = FIRST_ANSWERS_SECONDS) -> Iterator[None]:
    """Whoever waits in here for longer finds the connection lost: BrokerUnavailable."""
    scissors = Scissors(connection)
    timer = threading.Timer(seconds, scissors.cut)
    timer.daemon = True
    try:
        with suppress(RuntimeError):  # there are no new threads when the interpreter ends
            timer.start()
        yield
    finally:
        timer.cancel()
        if timer.is_alive():  # no thread is left behind
            timer.join()
        scissors.close()


def prepared(connect: Callable[[], Connection], *steps: Callable[[Connection], object]) -> Callable[[], Connection]:
    """The same way to connect, to connections on which the steps were made. They must not go back into a pool."""

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
    """Remember where a connection leads to, as long as it lives. Not behind a pooler that shares connections."""
    connection.info[_HISTORY] = history


def history_on(connection: Connection) -> History | None:
    """The history of the log that it leads to, or None if nobody has noted it."""
    history: History | None = connection.info.get(_HISTORY)
    return history


def require_history(connection: Connection, history: History | None) -> None:
    """Raise BrokerUnavailable if the connection is known to lead to a log of another history."""
    if history_on(connection) not in (None, history):
        raise BrokerUnavailable(target_of(connection), ANOTHER_HISTORY)
