"""The ages of the connections of a pool: after the loss of one, those that are as old are not used again.

They may lead to a server that is gone, and a pool finds that out only by an error of the next statement
(docs/decisions/0034-lost-connections-make-others-suspect.md).
"""

import time
from collections.abc import Callable
from typing import Final

from sqlalchemy import Engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.pool import ConnectionPoolEntry

_MADE_AT: Final = "mqdb_made_at"


class ConnectionAges:
    """Watches the pool of an engine. `is_open` says whether its owner still uses the pool."""

    def __init__(self, engine: Engine, is_open: Callable[[], bool]) -> None:
        self._is_open = is_open
        self._suspect_before = 0.0
        event.listen(engine, "connect", self._note)
        event.listen(engine, "checkout", self._check)
        event.listen(engine, "checkin", self._close_late)

    def distrust(self) -> None:
        """A connection was lost. Those that lie idle are as old, and are not used again."""
        self._suspect_before = time.monotonic()

    def _note(self, _connection: DBAPIConnection, entry: ConnectionPoolEntry) -> None:
        entry.info[_MADE_AT] = time.monotonic()

    def _check(self, _connection: DBAPIConnection, entry: ConnectionPoolEntry, _proxy: object) -> None:
        if entry.info[_MADE_AT] < self._suspect_before:
            raise DisconnectionError("older than the last loss of a connection")  # the pool makes another one

    def _close_late(self, _connection: DBAPIConnection | None, entry: ConnectionPoolEntry) -> None:
        if not self._is_open():  # its pool is gone, and nobody else would close it
            entry.invalidate()
