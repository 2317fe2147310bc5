"""A front: an event loop in its own thread, with start, stop and probes.

For the database, a front is one client, and the clients that connect to the front are its guests.
"""

import asyncio
import logging
import sys
import threading
import time
from abc import ABC, abstractmethod
from concurrent.futures import Future
from contextlib import AsyncExitStack
from typing import Final

from mqdb.common.dsn import BrokerDsn
from mqdb.common.http_address import HttpAddress
from mqdb.fronts.database import Database
from mqdb.web.probe_report import PASSED, Report
from mqdb_client.instance import ClientInstance

logger = logging.getLogger(__name__)

#: Each connection uses a file descriptor, and the services of the process need descriptors for the database.
_MOST_CONNECTIONS: Final = 4_096

_LONGEST_STOP_SECONDS: Final = 10.0

_TURN_SECONDS: Final = 1.0

#: An event loop that has not run for this long is stuck.
_STUCK_SECONDS: Final = 30.0

#: The client instance queries the database at least every 5 s, and waits 2 s for the answer.
_ANSWER_SECONDS: Final = 7.0


class FrontThread(ABC):
    """Serves one broker to RocketMQ's clients from `start` to `stop`."""

    def __init__(self, protocol: str, broker: BrokerDsn, pool_dsn: str | None) -> None:
        """`protocol` is the protocol of the front.

        `pool_dsn` leads to the same database through a pooler, which LISTEN bypasses.
        """
        self._protocol = protocol
        self._broker = broker
        self._pool_dsn = pool_dsn
        self._instance: ClientInstance | None = None
        self._turned_at = 0.0
        self._address: HttpAddress | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None

    @abstractmethod
    async def _serve(self, database: Database, stack: AsyncExitStack) -> HttpAddress:
        """Start serving, and return the address. The callbacks of the stack stop the front."""

    @property
    def address(self) -> HttpAddress:
        """The address on which the front listens."""
        assert self._address is not None
        return self._address

    @property
    def lines(self) -> list[str]:
        """The address on which the front listens, as lines for people."""
        return [f"  {self._protocol:<8} {self.address}"]

    @property
    def names(self) -> tuple[str, str]:
        """The names of the broker and its cluster."""
        assert self._instance is not None
        return self._instance.broker_name, self._instance.cluster_name

    def liveness(self) -> Report:
        """Whether the event loop has run recently."""
        return Report({self._protocol: self._loop_state()})

    def readiness(self) -> Report:
        """Whether the front is serving, and the database has answered recently. No query is sent for this."""
        assert self._instance is not None
        is_silent = time.monotonic() - self._instance.answered_at > _ANSWER_SECONDS
        database = f"has not answered for {_ANSWER_SECONDS:.0f} s" if is_silent else PASSED
        return Report({self._protocol: self._loop_state(), "database": database})

    def _loop_state(self) -> str:
        if self._thread is None or not self._thread.is_alive():
            return "is not serving; see the log for the reason"
        is_stuck = time.monotonic() - self._turned_at > _STUCK_SECONDS
        return f"its event loop has not run for {_STUCK_SECONDS:.0f} s" if is_stuck else PASSED

    def start(self) -> None:
        """Start the front, and return when clients can connect.

        Raises OSError if it cannot listen or the TLS files are unusable, OpenToAll if no key has a secret and the front
        may not be open, and BrokerUnavailable and its subclasses.
        """
        started: Future[HttpAddress] = Future()
        self._thread = threading.Thread(target=self._run, args=(started,), name=f"mqdb-{self._protocol}", daemon=True)
        self._thread.start()
        self._address = started.result()

    def stop(self) -> None:
        """Close all connections, and wait for requests in progress. Calling it twice has no effect."""
        loop, stopping, thread = self._loop, self._stopping, self._thread
        self._thread = None
        if thread is None or loop is None or stopping is None:
            return
        loop.call_soon_threadsafe(stopping.set)
        thread.join(_LONGEST_STOP_SECONDS)

    def _run(self, started: "Future[HttpAddress]") -> None:
        try:
            asyncio.run(self._serve_until_stopped(started))
        except BaseException as error:
            if started.done():
                fields = {"protocol": self._protocol}
                logger.exception("front for %(protocol)s failed", fields, extra=fields)
            else:
                started.set_exception(error)

    async def _serve_until_stopped(self, started: "Future[HttpAddress]") -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        instance = self._instance = ClientInstance(self._broker, self._pool_dsn)
        self._turn(self._loop)
        async with AsyncExitStack() as stack:
            instance.open()
            stack.callback(instance.close)
            # If no `mqdb serve` is running, consumers have to dispatch.
            stack.enter_context(instance.awaiting_arrivals())
            database = Database(instance, self._protocol)
            stack.push_async_callback(database.close)
            address = await self._serve(database, stack)
            started.set_result(address)
            await self._stopping.wait()

    def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
        """Note every second that the event loop is running."""
        self._turned_at = time.monotonic()
        loop.call_later(_TURN_SECONDS, self._turn, loop)


def reachable(host: str, instance: ClientInstance) -> str:
    """The address for clients of a host to which the socket is bound.

    It is an IPv4 address, because offset ids have no room for other addresses.
    """
    return {"localhost": "127.0.0.1", "0.0.0.0": instance.address, "::": instance.address}.get(host, host)


def most_connections(most: int | None = None) -> int:
    """Maximum number of connections of a front: at most half of the files that the process may open."""
    most = _MOST_CONNECTIONS if most is None else most
    if sys.platform == "win32":
        return most
    import resource  # imported here: the module is missing on Windows, where this module must still be importable

    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most if files == resource.RLIM_INFINITY else min(most, files // 2)
