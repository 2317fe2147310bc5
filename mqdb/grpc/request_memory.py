"""Limits the memory of all requests in progress.

A request may have 5 MiB, and a front may have thousands of calls in progress. While the database does not answer, sends
stay in progress for seconds. The SDKs repeat a send that was refused with TOO_MANY_REQUESTS after some time.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from mqdb.grpc.wire.rocketmq_pb2 import Code
from mqdb.grpc.wire.status import CallRefused

#: Maximum for one front.
_MOST_BYTES: Final = 256 * 2**20


class RequestMemory:
    """Counts the bytes of the requests of one front, as received. Call it from the event loop only."""

    def __init__(self) -> None:
        self._bytes = 0

    @contextmanager
    def held(self, size: int) -> Iterator[None]:
        """Count a request until it is answered. Raises CallRefused if all requests together would exceed the limit."""
        if self._bytes + size > _MOST_BYTES:
            reason = f"requests already hold {self._bytes:,} bytes; the limit is {_MOST_BYTES:,}"
            raise CallRefused(Code.TOO_MANY_REQUESTS, reason)
        self._bytes += size
        try:
            yield
        finally:
            self._bytes -= size
