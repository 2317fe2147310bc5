"""Strangers: connections that have not shown whose they are, and how much memory they hold together.

A frame may have 16 MiB and a front thousands of connections, so anybody who reaches the port could fill the memory with
frames that are only begun, with requests that wait for the database, and with answers that are not read.
"""

import logging
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from mqdb.remoting.connection import Connection

logger = logging.getLogger(__name__)

#: Eight frames of the largest size. A client's first signed request may be such a frame.
_MOST_BYTES: Final = 128 * 2**20


class Strangers:
    """Those of one front, and of its loop."""

    def __init__(self) -> None:
        self._bytes = 0
        #: First the one that has been holding something for the longest time.
        self._held: dict[Connection, int] = {}

    def hold(self, connection: "Connection", size: int) -> None:
        """Note how much a connection holds now. If they all hold too much, the first ones are closed.

        A client that means it has sent its frame soon, so it is not among them.
        """
        if not size:
            self.release(connection)
            return
        self._bytes += size - self._held.get(connection, 0)
        self._held[connection] = size
        while self._bytes > _MOST_BYTES:
            first = next(iter(self._held))
            logger.warning("closed a connection that has signed nothing and holds memory", extra={"peer": first.peer})
            first.close()  # which releases it

    def release(self, connection: "Connection") -> None:
        """A connection holds nothing, or is no stranger any more."""
        self._bytes -= self._held.pop(connection, 0)
