"""The watch over a client's connections, which may lead to a server that is gone, or wait for a silent server.

    a connection is lost                  idle connections of the same age are not reused
    another server is at the address      connections to the old one are cut: their waits end with an error
    no answer for 15 s                    a new connection asks whether the server works at the statement
        it does                           (a lock, a slow disk, a stopped client machine): nothing happens
        it does not                       the connection is cut, and all others whose backends do not work either
        the new connection has no answer  all connections are cut

TCP keepalives detect neither case while a kernel answers for the server: the server's processes are stopped, a disk
hangs, or a proxy keeps the connection open (docs/decisions/0034-lost-connections-make-others-suspect.md).
"""

import math
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final

import psycopg
from psycopg.pq import TransactionStatus
from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.pool import ConnectionPoolEntry

from mqdb.store import silence
from mqdb.store.log.history import History
from mqdb.store.silence import Scissors, find_stranded
from mqdb_client.new_connection import history_in

_LINE: Final = "mqdb_line"


class Line:
    """A connection, and when its user began to wait for an answer (time.monotonic; infinity if it does not wait)."""

    def __init__(self, entry: ConnectionPoolEntry, *, is_direct: bool, counts: bool) -> None:
        self.made_at = time.monotonic()
        self.waits_since = math.inf
        self.is_cut = False
        self._entry = entry
        self._counts = counts
        connection: Any = entry.driver_connection
        self._pgconn: psycopg.pq.abc.PGconn = connection.pgconn
        #: The pid of the backend; None behind a pooler, which assigns its own pid to each client.
        self.pid: int | None = connection.info.backend_pid if is_direct else None
        self._scissors = Scissors(connection)

    def begin(self) -> None:
        """Note that the user starts to wait, perhaps for the answers to several statements."""
        self.waits_since = time.monotonic() if self._counts else math.inf

    def end(self) -> None:
        """Note that the user no longer waits."""
        self.waits_since = math.inf

    def is_late(self, now: float) -> bool:
        """Whether a statement has had no answer for too long."""
        is_long = now - self.waits_since >= silence.PATIENCE_SECONDS
        return is_long and self._pgconn.transaction_status == TransactionStatus.ACTIVE

    def is_in_transaction(self) -> bool:
        """Whether a transaction is open and none of its statements is running."""
        return self._pgconn.transaction_status in (TransactionStatus.INTRANS, TransactionStatus.INERROR)

    def leads_elsewhere(self, history: History) -> bool:
        """Whether the connection is known to lead to a log with another history."""
        return history_in(self._entry.info) not in (None, history)

    def cut(self) -> None:
        """End all waits for the server. A later answer is never read."""
        self.is_cut = True
        self._scissors.cut()

    def close(self) -> None:
        """Note that the connection is closed or about to be closed."""
        self._scissors.close()


class ConnectionWatch:
    """Watches the connections of engines. Thread-safe.

    `connect` makes a connection as the engines do, and `is_open` tells whether the owner still uses the engines' pools.
    `foretell` is called with the reason before connections are cut.
    """

    def __init__(
        self,
        connect: Callable[[], AbstractContextManager[Connection]],
        is_open: Callable[[], bool],
        foretell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._connect = connect
        self._is_open = is_open
        self._foretell = foretell
        self._suspect_before = 0.0
        self._lines: set[Line] = set()
        self._guard = threading.Lock()
        self._is_asking = False
        self._ask_at = 0.0

    def cover(self, engine: Engine, *, is_direct: bool = True, counts: bool = True) -> None:
        """Also watch the connections of an engine.

        With `counts`, a user counts as waiting from the check-out of a connection to its check-in, unless the
        connection is held.
        """

        def note(_connection: DBAPIConnection, entry: ConnectionPoolEntry) -> None:
            line = entry.info[_LINE] = Line(entry, is_direct=is_direct, counts=counts)
            with self._guard:
                self._lines.add(line)

        def check(connection: DBAPIConnection, entry: ConnectionPoolEntry, _proxy: object) -> None:
            if _LINE not in entry.info:  # made before it was watched
                note(connection, entry)
            self._check(entry.info[_LINE])

        def forget(_connection: DBAPIConnection, entry: ConnectionPoolEntry) -> None:
            line: Line | None = entry.info.get(_LINE)
            if line is not None:
                with self._guard:
                    self._lines.discard(line)
                line.close()

        event.listen(engine, "connect", note)
        event.listen(engine, "close", forget)
        event.listen(engine, "checkout", check)
        if counts:
            event.listen(engine, "checkin", self._note_return)

    def distrust(self) -> None:
        """Note that a connection was lost: idle connections of the same age are not reused."""
        self._suspect_before = time.monotonic()

    def replaced(self, history: History) -> None:
        """Cut the connections to the old server, after it was restarted or another server took over its address."""
        self.distrust()
        for line in self._all():
            if line.leads_elsewhere(history):
                line.cut()

    def look(self) -> None:
        """Check, in a separate thread, the connections that have waited for an answer for too long."""
        now = time.monotonic()
        if self._is_asking or now < self._ask_at:
            return
        if any(line.is_late(now) for line in self._all()):
            self._is_asking = True
            threading.Thread(target=self._ask, name="mqdb-asks-server", daemon=True).start()

    # -- events of the pool -------------------------------------------------------------------

    def _check(self, line: Line) -> None:
        if line.made_at < self._suspect_before or line.is_cut:
            raise DisconnectionError("older than the last loss of a connection")  # the pool makes a new one
        line.begin()

    def _note_return(self, _connection: DBAPIConnection | None, entry: ConnectionPoolEntry) -> None:
        line: Line | None = entry.info.get(_LINE)
        if line is not None:
            line.end()
        if not self._is_open():  # its pool no longer exists, and would not close it
            entry.invalidate()

    # -- missing answers ----------------------------------------------------------------------

    def _all(self) -> list[Line]:
        with self._guard:
            return list(self._lines)

    def _ask(self) -> None:
        try:
            began = time.monotonic()
            # Not only the late ones: a loss noticed a moment later would be a second outage. A listener may work for
            # minutes between two statements of its transaction, and notices only at the next one.
            waits = {line: line.waits_since for line in self._all() if not line.is_in_transaction()}
            stranded = find_stranded(self._connect, waits)
            if stranded is None:
                stranded = [line for line in self._all() if line.made_at < began]
            if stranded:
                self._foretell(f"no answer for {silence.PATIENCE_SECONDS:g} s")
            for line in stranded:
                line.cut()
        finally:
            self._ask_at = time.monotonic() + silence.PATIENCE_SECONDS
            self._is_asking = False


def line_of(connection: Connection) -> Line:
    """The line of a connection of a watched engine."""
    line: Line = connection.info[_LINE]
    return line


def hold(connection: Connection) -> Line:
    """Mark a connection as kept between statements.

    The user of the connection marks each wait for an answer in the returned Line.
    """
    line = line_of(connection)
    line.end()
    return line
