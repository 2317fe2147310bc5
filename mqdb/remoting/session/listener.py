"""The socket where clients come, with or without TLS: a connection that begins as TLS does is one.

RocketMQ: NettyRemotingServer.HandshakeHandler, TlsMode, which tell by the first byte as well.
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

#: The first byte of a TLS connection: a record of its handshake.
_TLS: Final = b"\x16"

#: For the first byte of a client, and for the handshake.
_FIRST_SECONDS: Final = 10.0

#: So many may wait until they are accepted.
_BACKLOG: Final = 1_024


class Tls(NamedTuple):
    """The files of a certificate and its key, in PEM; `is_required` refuses who comes without TLS."""

    certificate: Path
    key: Path
    is_required: bool = False

    def context(self) -> ssl.SSLContext:
        """Raises OSError, of which ssl.SSLError is one, if they cannot be used."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self.key)
        return context


class SocketListener:
    """Accepts connections until it is closed. Use it in its loop only."""

    def __init__(self, address: HttpAddress, tls: Tls | None, most_beginning: int) -> None:
        """Listens at once, and accepts from `start` on. Raises OSError.

        With TLS, if more than `most_beginning` have sent no first byte yet or are at their handshake, the first ones
        are closed: each takes a file.
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
        #: First the one that has come first.
        self._beginning: dict[asyncio.Task[None], None] = {}

    def start(self, connect: Callable[[], Connection]) -> None:
        """Accept connections from now on; `connect` makes the protocol of each."""
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
            except OSError as error:  # no file is left, perhaps; who waits is accepted later
                if not is_failing:
                    fields = {"reason": str(error)}
                    logger.warning("could not accept connections; will retry: %(reason)s", fields, extra=fields)
                is_failing = True
                await asyncio.sleep(1.0)
                continue
            is_failing = False
            self._begin(self._take(client, connect))
            await asyncio.sleep(0)  # so that it has begun, and closes its socket if it is cancelled

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
        """The first byte, which stays to be read."""
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
