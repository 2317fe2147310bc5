"""One run of a service: what lives from a start to the next stop.

A round that outlives its stop, because a server never answers it, belongs to an old run and cannot disturb a new one.
"""

import os
import socket
import threading
from contextlib import suppress

import psycopg
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from mqdb.store.engine import driver


class Run:
    """The state of a run. `stopping` is for all threads, `in_round` is held during a round of a periodic service."""

    def __init__(self) -> None:
        self.stopping = threading.Event()
        #: Ends the pause of a loop. Set by `stop`, too.
        self.woken = threading.Event()
        #: Whether somebody has ever woken this run.
        self.has_waker = False
        self.in_round = threading.Lock()
        self.connection: Connection | None = None
        self.failures = 0
        self.last_error: type[Exception] | None = None
        #: When the log has told of it, by the monotonic clock.
        self.told_at = 0.0
        self.thread: threading.Thread | None = None
        self.job_id = ""
        self.not_before = 0.0
        self._closing = threading.Lock()

    def stop(self) -> None:
        """Begin no further round."""
        self.stopping.set()
        self.woken.set()

    def wake(self) -> None:
        """Begin the next round soon."""
        self.has_waker = True
        # Mostly it is set already: the dispatcher wakes others up to 500 times a second.
        if not self.woken.is_set():
            self.woken.set()

    def close(self) -> None:
        """Close the connection, if there is one, also one that is broken."""
        with self._closing:
            connection, self.connection = self.connection, None
            if connection is not None:
                # Never back to the pool: the session's locks and settings end with it.
                connection.invalidate()
                connection.close()

    def cut(self) -> None:
        """End the wait of whoever waits for an answer on the connection, even from a server that never gives one."""
        with self._closing:
            if self.connection is not None:
                with suppress(DBAPIError, psycopg.Error, OSError):
                    handle = os.dup(driver(self.connection).pgconn.socket)
                    with socket.socket(fileno=handle) as line:
                        line.shutdown(socket.SHUT_RDWR)
