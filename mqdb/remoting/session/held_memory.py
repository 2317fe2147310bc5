"""The memory of all connections, and the choice of those that are closed when it is too much.

A frame may have 16 MiB and a front thousands of connections. So its memory could be filled with frames that are only
begun, by clients that stand still or by any program that reaches the port. Connections that have not signed a request
could also fill it with requests that wait for the database, and with answers that are not read.
"""

import logging
from typing import Protocol

logger = logging.getLogger(__name__)


class Holder(Protocol):
    """A connection."""

    peer: str

    def close(self) -> None:
        """Close it; it releases what it holds."""


class HeldMemory:
    """Counts the bytes that some connections of a front hold, in its loop. `whose` says in the log which they are."""

    def __init__(self, most_bytes: int, whose: str) -> None:
        self._most_bytes = most_bytes
        self._whose = whose
        self._bytes = 0
        #: First the one that has been holding something for the longest time.
        self._held: dict[Holder, int] = {}

    def hold(self, connection: Holder, size: int) -> None:
        """Note how much a connection holds now. If they all hold too much, the first ones are closed.

        A client that means it has sent its frame soon, so it is not among them.
        """
        if not size:
            self.release(connection)
            return
        self._bytes += size - self._held.get(connection, 0)
        self._held[connection] = size
        while self._bytes > self._most_bytes:
            first = next(iter(self._held))
            fields = {"peer": first.peer, "whose": self._whose, "bytes": self._held[first]}
            sentence = (
                "closed the connection of %(peer)s, which held %(bytes)s bytes: all connections %(whose)s held too much"
            )
            logger.warning(sentence, fields, extra=fields)
            first.close()  # which releases it

    def release(self, connection: Holder) -> None:
        """Forget a connection that holds nothing, or no longer counts."""
        self._bytes -= self._held.pop(connection, 0)
