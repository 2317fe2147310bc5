"""The memory of all requests under way.

A request may have 5 MiB, and a front thousands of calls under way. While the database does not answer, sends stay under
way for seconds. The SDKs repeat a send that was refused with TOO_MANY_REQUESTS after a while.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from mqdb.grpc.wire.rocketmq_pb2 import Code
from mqdb.grpc.wire.status import CallRefused

#: Of one front.
_MOST_BYTES: Final = 256 * 2**20


class RequestMemory:
    """Counts the bytes of the requests of one front, as they came. Call it from the event loop only."""

    def __init__(self) -> None:
        self._bytes = 0

    @contextmanager
    def held(self, size: int) -> Iterator[None]:
        """Count a request until it is answered. Raises CallRefused if all of them would hold too much."""
        if self._bytes + size > _MOST_BYTES:
            reason = f"requests hold {self._bytes:,} bytes already; the limit is {_MOST_BYTES:,}"
            raise CallRefused(Code.TOO_MANY_REQUESTS, reason)
        self._bytes += size
        try:
            yield
        finally:
            self._bytes -= size
