"""The socket to which clients connect, with or without TLS: the first byte tells whether a connection uses TLS.

RocketMQ: NettyRemotingServer.HandshakeHandler and TlsMode, which also use the first byte.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from mqdb.common.http_address import HttpAddress
from mqdb.remoting.session.connection import Connection

logger = logging.getLogger(__name__)

#: First byte of a TLS connection: a handshake record.
_TLS: Final = b"\x16"

#: Time for the first byte of a client and for the handshake.
_FIRST_SECONDS: Final = 10.0

#: Maximum number of connections that wait to be accepted.
_BACKLOG: Final = 1_024


class Tls(NamedTuple):
    """The PEM files of a certificate and its key; with `is_required`, connections without TLS are refused."""

    certificate: Path
    key: Path
    is_required: bool = False

    def context(self) -> ssl.SSLContext:
        """Raises OSError, including ssl.SSLError, if the files cannot be used."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self.key)
        return context


class SocketListener:
    """Accepts connections until it is closed. Use it in the front's event loop only."""

    def __init__(self, address: HttpAddress, tls: Tls | None, most_beginning: int) -> None:
        """Listens immediately, and accepts connections from `start` on. Raises OSError.

        With TLS, if more than `most_beginning` connections have sent no first byte or are in their handshake, the
        oldest are closed, because each uses a file descriptor.
        """
        self._context = None if tls is None else tls.context()
        self._is_tls_required = tls is not None and tls.is_required
        self._loop = asyncio.get_running_loop()
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        self._socket = socket.create_server((address.host, address.port), family=family, backlog=_BACKLOG)
        self._socket.setblocking(False)
        self.port: int = self._socket.getsockname()[1]
        self._most_beginning = most_beginning
        self._accepting: asyncio.Task[None] | None = None
        #: Ordered by arrival, oldest first.
        self._beginning: dict[asyncio.Task[None], None] = {}

    def start(self, connect: Callable[[], Connection]) -> None:
        """Accept connections from now on; `connect` creates the protocol of each."""
        self._accepting = self._loop.create_task(self._accept(connect))

    def close(self) -> None:
        """Stop accepting. Calling it twice has no effect."""
        if self._accepting is not None:
            self._accepting.cancel()
        for task in self._beginning:
            task.cancel()
        self._socket.close()

    async def _accept(self, connect: Callable[[], Connection]) -> None:
        is_failing = False
        while True:
            try:
                client, _ = await self._loop.sock_accept(self._socket)
            except OSError as error:  # possibly no file descriptor is left; waiting connections are accepted later
                if not is_failing:
                    fields = {"reason": str(error)}
                    logger.warning("could not accept connections; will retry: %(reason)s", fields, extra=fields)
                is_failing = True
                await asyncio.sleep(1.0)
                continue
            is_failing = False
            self._begin(self._take(client, connect))
            await asyncio.sleep(0)  # so that the task has started, and closes its socket if it is cancelled

    async def _take(self, client: socket.socket, connect: Callable[[], Connection]) -> None:
        try:
            client.setblocking(False)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            async with asyncio.timeout(_FIRST_SECONDS):
                context = self._context if self._context and await self._first(client) == _TLS else None
                if context is None and self._is_tls_required:
                    client.close()
                    return
                await self._loop.connect_accepted_socket(connect, client, ssl=context)
        except (OSError, TimeoutError, asyncio.CancelledError) as error:
            client.close()
            logger.debug("a connection failed before its first request", extra={"reason": str(error)})

    async def _first(self, client: socket.socket) -> bytes:
        """The first byte, which remains to be read."""
        readable: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(client, readable.set_result, None)
        try:
            await readable
        finally:
            self._loop.remove_reader(client)
        with suppress(BlockingIOError):
            return client.recv(1, socket.MSG_PEEK)
        return b""

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._beginning[task] = None
        task.add_done_callback(lambda _: self._beginning.pop(task, None))
        if self._context is not None and len(self._beginning) > self._most_beginning:
            first = next(iter(self._beginning))
            del self._beginning[first]
            first.cancel()
