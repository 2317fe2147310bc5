"""One run of a service: the state from a start to the next stop.

A round that outlives its stop, because a server never answers, belongs to an old run and cannot disturb a new one.
"""

import math
import threading
from contextlib import suppress

import psycopg
from psycopg.pq import TransactionStatus
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from mqdb.errors import MqdbError
from mqdb.store import silence
from mqdb.store.engine import driver
from mqdb.store.silence import Scissors


class Run:
    """The state of a run. `stopping` is for all threads, `in_round` is held during a round of a periodic service."""

    def __init__(self) -> None:
        self.stopping = threading.Event()
        #: Ends the pause of a loop. Also set by `stop`.
        self.woken = threading.Event()
        #: Whether this run was ever woken.
        self.has_waker = False
        self.in_round = threading.Lock()
        self.connection: Connection | None = None
        self.failures = 0
        self.last_error: type[Exception] | None = None
        #: When the failures were last logged, by the monotonic clock.
        self.told_at = 0.0
        #: The start of the running round, by time.monotonic; infinity between rounds.
        self.waits_since = math.inf
        #: The reason why the connection was cut, which the round does not know.
        self.why_cut = ""
        self.thread: threading.Thread | None = None
        self.job_id = ""
        self.not_before = 0.0
        self._closing = threading.Lock()

    def stop(self) -> None:
        """Prevent further rounds."""
        self.stopping.set()
        self.woken.set()

    def wake(self) -> None:
        """Start the next round soon."""
        self.has_waker = True
        # Usually it is already set: the dispatcher wakes others up to 500 times a second.
        if not self.woken.is_set():
            self.woken.set()

    def close(self) -> None:
        """Close the connection, if there is one, even if it is broken."""
        with self._closing:
            connection, self.connection = self.connection, None
            if connection is not None:
                # Never returned to the pool: the session's locks and settings end with it.
                connection.invalidate()
                connection.close()

    def cut(self, reason: str = "") -> None:
        """End waits for an answer on the connection, even from a server that never answers."""
        with self._closing:
            if self.connection is not None:
                self.why_cut = reason
                with suppress(DBAPIError, MqdbError):
                    scissors = Scissors.of(self.connection)
                    scissors.cut()
                    scissors.close()

    @property
    def pid(self) -> int | None:
        """The pid of the backend, if there is a connection."""
        with self._closing, suppress(DBAPIError, psycopg.Error):
            return driver(self.connection).info.backend_pid if self.connection is not None else None
        return None

    def is_late(self, now: float) -> bool:
        """Whether a statement of the round has had no answer for too long."""
        if now - self.waits_since < silence.PATIENCE_SECONDS:
            return False
        with self._closing, suppress(DBAPIError, psycopg.Error):
            connection = self.connection
            return connection is not None and driver(connection).info.transaction_status is TransactionStatus.ACTIVE
        return False
