"""One server for all processes in the same home: the first process owns it, and the others attach.

An attached process repeatedly tries to take the directory's lock, which costs two system calls. Once it holds the lock,
the owner is gone, and the process becomes the owner. It adopts a server that has outlived its owner; otherwise it waits
for the old server to end and starts a new one on the same port, so that every address known to clients stays valid.
"""

import logging
import threading
import time
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Self

import psycopg

from mqdb.embedded import home as homes
from mqdb.embedded.binaries import PostgresBinaries
from mqdb.embedded.home import Home, RunningPostgres
from mqdb.embedded.supervisor import NO_SETTINGS, EmbeddedPostgres
from mqdb.errors import DataDirectoryBusy

logger = logging.getLogger(__name__)

_ATTACH_POLL_SECONDS = 0.1
_WATCH_SECONDS = 0.2
_LONGEST_PAUSE_SECONDS = 5.0


def attach(home: Path) -> RunningPostgres | None:
    """The running server of this home, or None. The server itself is asked, because the run file may be out of date.

    Raises DataDirectoryUnusable if the file may not be read because it belongs to another user.
    """
    running = homes.read_run_file(Home(home))
    return running if running is not None and _answers(running.dsn) else None


def _answers(dsn: str) -> bool:
    """Whether the server of this home answers: only it knows the password (and SCRAM makes it prove that)."""
    try:
        with psycopg.connect(dsn, connect_timeout=5, gssencmode="disable"):
            return True
    except psycopg.OperationalError as exc:
        return "too many clients" in str(exc) or "remaining connection slots" in str(exc)


class Supervision(Enum):
    """The outcome of one check of the server."""

    UNCHANGED = "unchanged"
    RESTARTED = "restarted"
    TAKEN_OVER = "taken over"


class SharedPostgres:
    """The server of a home, run by this process or by another; created by `open_or_attach`."""

    def __init__(self, owned: EmbeddedPostgres, running: RunningPostgres | None) -> None:
        """If `running` is given, `owned` is not started yet, and takes over when the running server ends."""
        self._server = owned
        self._running = running
        self._closing = threading.Event()
        self._watcher: threading.Thread | None = None

    @property
    def is_owner(self) -> bool:
        return self._running is None

    @property
    def dsn(self) -> str:
        running = self._running
        return running.dsn if running is not None else self._server.dsn

    @property
    def port(self) -> int:
        running = self._running
        return running.port if running is not None else self._server.port

    def supervise_once(self) -> Supervision:
        """Check once: the owner restarts a dead server, and any other process takes over from a dead owner.

        Raises an EmbeddedError if that fails; the next call tries again.
        """
        if self._running is None:
            return Supervision.RESTARTED if self._server.supervise_once() else Supervision.UNCHANGED
        try:
            self._server.start()
        except DataDirectoryBusy:
            # Another process may have been faster, and may have found the port in use.
            self._running = homes.read_run_file(Home(self._server.home)) or self._running
            return Supervision.UNCHANGED
        self._running = None
        fields = {"port": self._server.port}
        logger.warning("took over PostgreSQL on port %(port)s from an owner that is gone", fields, extra=fields)
        return Supervision.TAKEN_OVER

    def watch(self) -> None:
        """Call `supervise_once` repeatedly from a separate thread until `close`."""
        self._watcher = threading.Thread(target=self._watch, name="mqdb-postgres-watch", daemon=True)
        self._watcher.start()

    def _watch(self) -> None:
        pause = _WATCH_SECONDS
        while not self._closing.wait(pause):
            try:
                self.supervise_once()
                pause = _WATCH_SECONDS
            except Exception:  # whatever the error is, no other thread would try again
                pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)
                fields = {"next_attempt_in_seconds": pause}
                sentence = "PostgreSQL is not running; next attempt in %(next_attempt_in_seconds)g s"
                logger.exception(sentence, fields, extra=fields)

    def close(self) -> None:
        """Stop watching, and stop the server if this process owns it."""
        self._closing.set()
        if self._watcher is not None:
            self._watcher.join()
        self._server.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_or_attach(
    home: Path,
    *,
    port: int = 0,
    settings: Mapping[str, str] = NO_SETTINGS,
    binaries: PostgresBinaries | None = None,
    durable: bool = True,
    outlives_owner: bool = False,
    patience_seconds: float = 60.0,
) -> SharedPostgres:
    """Start the server of this home, or attach to the running one.

    Waits while another process is starting it; raises DataDirectoryBusy if that takes too long, for example because the
    owner hangs.
    """

    def owned(port: int) -> EmbeddedPostgres:
        return EmbeddedPostgres(
            home, port=port, settings=settings, binaries=binaries, durable=durable, outlives_owner=outlives_owner
        )

    server = owned(port)
    deadline = time.monotonic() + patience_seconds
    while True:
        try:
            server.start()
            return SharedPostgres(server, None)
        except DataDirectoryBusy:
            running = attach(home)
            if running is not None:
                # In a later takeover, the port of the attached server counts, not the wished one.
                return SharedPostgres(owned(0), running)
            if time.monotonic() > deadline:
                raise
        time.sleep(_ATTACH_POLL_SECONDS)
