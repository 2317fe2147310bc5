"""Silence: how a wait for a server that does not answer ends, and how to tell it from a statement that takes long."""

import logging
import math
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, Final, Protocol, Self, TypeVar

import psycopg
from sqlalchemy import Connection

from mqdb.errors import MqdbError
from mqdb.store.engine import driver, translated
from mqdb.store.server_state import backends_at_work

logger = logging.getLogger(__name__)

#: As long as an attempt to connect takes at most (`mqdb.store.engine`).
FIRST_ANSWERS_SECONDS: Final = 5.0

#: A wait of so long is a reason to ask whether the server still works at the statement.
PATIENCE_SECONDS: Final = 15.0

#: Between two questions: a statement may end between a look at its connection here and at its backend there.
_SECOND_LOOK_SECONDS: Final = 0.5


class Scissors:
    """Ends all waiting of a connection of the driver for its server, from any thread."""

    def __init__(self, below: "psycopg.Connection[Any] | psycopg.AsyncConnection[Any]") -> None:
        """Raises psycopg.OperationalError for a lost one."""
        # A socket object of its own, which stays good when the driver closes.
        self._socket = socket.socket(fileno=os.dup(below.fileno()))

    @classmethod
    def of(cls, connection: Connection) -> Self:
        """The scissors of a connection. Raises BrokerUnavailable for a lost one."""
        with translated(connection):
            return cls(driver(connection))

    def fileno(self) -> int:
        """The descriptor of the connection's socket, for polling."""
        return self._socket.fileno()

    def cut(self) -> None:
        """Cut the connection. An answer of the server is never read."""
        with suppress(OSError):  # closed meanwhile, by either end
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """The connection goes on."""
        self._socket.close()


@contextmanager
def in_time(connection: Connection, seconds: float = FIRST_ANSWERS_SECONDS) -> Iterator[None]:
    """Bound the time of the block: after that the connection is lost, and the block raises BrokerUnavailable."""
    scissors = Scissors.of(connection)
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


class Wait(Protocol):
    """A connection that may be waiting for an answer."""

    @property
    def pid(self) -> int | None:
        """The pid of its backend; None if it is not known: a pooler gives each client a pid of its own."""

    @property
    def waits_since(self) -> float:
        """Start of the wait by time.monotonic; infinity if it does not wait."""

    def is_late(self, now: float) -> bool:
        """Whether a statement has had no answer for PATIENCE_SECONDS."""


WaitT = TypeVar("WaitT", bound=Wait)


def find_stranded(
    connect: Callable[[], AbstractContextManager[Connection]], waits: Mapping[WaitT, float]
) -> list[WaitT] | None:
    """The connections that get no answer: one is late, and its backend is gone, or does not work at a statement.

    `waits` says since when each has waited, and `connect` makes a new connection, by the same way. If a late one is
    stranded, all others in `waits` are whose backends do not work either. Returns None if nothing answers on the new
    connection within 5 s. Then all connections are stranded that are as old.
    """
    try:
        with connect() as connection, translated(connection), in_time(connection):
            for pause in (_SECOND_LOOK_SECONDS, 0.0):
                at_work = backends_at_work(connection, [wait.pid for wait in waits if wait.pid is not None])
                time.sleep(pause)
                waits = {
                    wait: since
                    for wait, since in waits.items()
                    # Who has waited and does so no longer, or waits anew, has had an answer.
                    if wait.pid not in {None, *at_work} and since in (wait.waits_since, math.inf)
                }
    except MqdbError as error:
        logger.debug("a new connection gets no answer", extra={"reason": str(error)})
        return [] if _has_answered(error) else None
    now = time.monotonic()
    return list(waits) if any(wait.is_late(now) for wait in waits) else []


#: How a server refuses a connection; not one that starts, recovers or shuts down, which works at no statement of ours.
_REFUSAL: Final = re.compile(r"FATAL:  (?!the database system is )")


def _has_answered(error: BaseException) -> bool:
    """Whether a failed attempt to connect was refused by a server that works: it has no room, or a new password."""
    return _REFUSAL.search(str(error.__cause__ or error)) is not None
