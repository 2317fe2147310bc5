"""Silence: how a wait for a silent server ends, and how to distinguish it from a long statement."""

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

#: The maximum duration of a connection attempt (`mqdb.store.engine`).
FIRST_ANSWERS_SECONDS: Final = 5.0

#: After a wait of this long, it is checked whether the server is still working on the statement.
PATIENCE_SECONDS: Final = 15.0

#: The time between two checks: a statement may end between the check of its connection here and of its backend there.
_SECOND_LOOK_SECONDS: Final = 0.5


class Scissors:
    """Ends all waits of a driver connection for its server, from any thread."""

    def __init__(self, below: "psycopg.Connection[Any] | psycopg.AsyncConnection[Any]") -> None:
        """Raises psycopg.OperationalError for a lost connection."""
        # A separate socket object, which stays valid when the driver closes its own.
        self._socket = socket.socket(fileno=os.dup(below.fileno()))

    @classmethod
    def of(cls, connection: Connection) -> Self:
        """The scissors of a connection. Raises BrokerUnavailable for a lost connection."""
        with translated(connection):
            return cls(driver(connection))

    def fileno(self) -> int:
        """The descriptor of the connection's socket, for polling."""
        return self._socket.fileno()

    def cut(self) -> None:
        """Cut the connection. Answers of the server are never read."""
        with suppress(OSError):  # closed in the meantime by either end
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Release the scissors; the connection stays open."""
        self._socket.close()


@contextmanager
def in_time(connection: Connection, seconds: float = FIRST_ANSWERS_SECONDS) -> Iterator[None]:
    """Limit the time of the block: after that the connection is lost, and the block raises BrokerUnavailable."""
    scissors = Scissors.of(connection)
    timer = threading.Timer(seconds, scissors.cut)
    timer.daemon = True
    try:
        with suppress(RuntimeError):  # threads cannot be started while the interpreter shuts down
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
        """The pid of its backend; None if unknown, because a pooler assigns its own pid to each client."""

    @property
    def waits_since(self) -> float:
        """The start of the wait by time.monotonic; infinity if it does not wait."""

    def is_late(self, now: float) -> bool:
        """Whether a statement has had no answer for PATIENCE_SECONDS."""


WaitT = TypeVar("WaitT", bound=Wait)


def find_stranded(
    connect: Callable[[], AbstractContextManager[Connection]], waits: Mapping[WaitT, float]
) -> list[WaitT] | None:
    """The stranded connections.

    A connection is stranded if it is late, and its backend is gone or works on no statement.

    `waits` has the start of each connection's wait, and `connect` makes a new connection in the same way. If a late
    connection is stranded, so are all others in `waits` whose backends work on no statement either. Returns None if
    there is no answer on the new connection within 5 s; all connections of the same age are then stranded.
    """
    try:
        with connect() as connection, translated(connection), in_time(connection):
            for pause in (_SECOND_LOOK_SECONDS, 0.0):
                at_work = backends_at_work(connection, [wait.pid for wait in waits if wait.pid is not None])
                time.sleep(pause)
                waits = {
                    wait: since
                    for wait, since in waits.items()
                    # A connection that no longer waits, or that started a new wait, has had an answer.
                    if wait.pid not in {None, *at_work} and since in (wait.waits_since, math.inf)
                }
    except MqdbError as error:
        logger.debug("a new connection gets no answer", extra={"reason": str(error)})
        return [] if _has_answered(error) else None
    now = time.monotonic()
    return list(waits) if any(wait.is_late(now) for wait in waits) else []


#: Refusals of a connection by a working server, and not by one that starts, recovers or shuts down, which does not work
#: on our statements.
_REFUSAL: Final = re.compile(r"FATAL:  (?!the database system is )")


def _has_answered(error: BaseException) -> bool:
    """Whether a failed connection attempt was refused by a working server, because it is full or has a new password."""
    return _REFUSAL.search(str(error.__cause__ or error)) is not None
