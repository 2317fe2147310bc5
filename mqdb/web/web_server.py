"""The HTTP server of the application: uvicorn, in a thread."""

import asyncio
import logging
import socket
import threading
from typing import Final

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from mqdb.common.http_address import HttpAddress
from mqdb.errors import CannotListen
from mqdb.settings import Settings

logger = logging.getLogger(__name__)

#: The time that responses have to finish when the server stops.
_GRACE_SECONDS: Final = 1
_LONGEST_STOP_SECONDS: Final = 5

#: The limit of open connections. Each takes a file, and the services need files for the database.
_MOST_CONNECTIONS: Final = 100
#: A connection without a complete request after this time is closed, because its peer may be gone.
_REQUEST_SECONDS: Final = 10.0


class _Protocol(H11Protocol):
    """uvicorn's HTTP protocol with two limits: for the number of connections, and for the wait for a request."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if len(self.connections) >= _MOST_CONNECTIONS:
            self.transport = transport
            transport.abort()
            return
        # asyncio sets this option only on sockets that were made with IPPROTO_TCP. Head and body are two packets, and
        # the second packet would wait for the browser's delayed ACK of the first: 40 ms.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        super().connection_made(transport)
        self.loop.call_later(_REQUEST_SECONDS, self._close_unless_asked)

    def _close_unless_asked(self) -> None:
        # Before the first request `cycle` is None, whatever its type says.
        if self.cycle is None:
            self.transport.close()  # type: ignore[unreachable]


class WebServer:
    """Serves an application from the construction of the object until `stop`."""

    def __init__(self, address: HttpAddress, application: ASGIApp) -> None:
        """Raises OSError if the server cannot listen on the address."""
        self._socket = _listen(address)
        self.address = HttpAddress(address.host, self._socket.getsockname()[1])
        config = uvicorn.Config(
            application,
            loop="asyncio",
            http=_Protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            # Otherwise uvicorn would warn of each malformed request, and anyone can send such requests.
            log_level=logging.ERROR,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=_GRACE_SECONDS,
        )
        self._server = uvicorn.Server(config)
        # Outside the main thread, uvicorn installs no signal handlers.
        self._thread = threading.Thread(target=self._run, name="mqdb-web", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop serving; returns when all requests have ended, or after a few seconds."""
        self._server.should_exit = True
        self._thread.join(_LONGEST_STOP_SECONDS)
        self._socket.close()

    def _run(self) -> None:
        try:
            self._server.run(sockets=[self._socket])
        except Exception:
            fields = {"address": str(self.address)}
            logger.exception("web server at %(address)s failed", fields, extra=fields)


def serve_web(settings: Settings, address: HttpAddress, application: ASGIApp) -> WebServer:
    """Serve an application at the address that the settings name. Raises CannotListen."""
    try:
        return WebServer(address, application)
    except OSError as error:
        raise CannotListen("http", str(address), settings.origin("http"), error.strerror or str(error)) from error


def _listen(address: HttpAddress) -> socket.socket:
    found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, *_, place = found[0]
    return socket.create_server(place[:2], family=family)
