"""Limits the memory that connections hold together, by closing some of them when it exceeds a limit.

A frame may have 16 MiB, and a front may have thousands of connections. Without a limit, incomplete frames could fill
the memory, sent by stalled clients or by any program that reaches the port. Connections that have not signed a request
could also fill it with requests that wait for the database, and with unread answers.
"""

import logging
from typing import Protocol

logger = logging.getLogger(__name__)


class Holder(Protocol):
    """A connection that holds memory."""

    peer: str

    def close(self) -> None:
        """Close the connection, which releases its memory."""


class HeldMemory:
    """Counts the bytes that some connections of a front hold, in its event loop.

    `whose` describes these connections in the log.
    """

    def __init__(self, most_bytes: int, whose: str) -> None:
        self._most_bytes = most_bytes
        self._whose = whose
        self._bytes = 0
        #: Ordered by how long the connections have held memory, longest first.
        self._held: dict[Holder, int] = {}

    def hold(self, connection: Holder, size: int) -> None:
        """Note how many bytes a connection holds now.

        If all connections together hold too much, those that have held memory longest are closed.

        A well-behaved client completes its frame soon, so it is not among them.
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
            first.close()  # this releases its memory

    def release(self, connection: Holder) -> None:
        """Forget a connection that holds nothing, or that no longer counts."""
        self._bytes -= self._held.pop(connection, 0)
