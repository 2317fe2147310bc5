"""The HTTP server of the application: uvicorn, in a thread."""

import logging
import socket
import threading
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from mqdb.common.http_address import HttpAddress

logger = logging.getLogger(__name__)

#: How long a response may go on when the server stops.
_GRACE_SECONDS: Final = 1
_LONGEST_STOP_SECONDS: Final = 5


class WebServer:
    """Serves an application from when it is made until it is stopped."""

    def __init__(self, address: HttpAddress, application: ASGIApp) -> None:
        """Raises OSError if the address cannot be listened on."""
        self._socket = _listen(address)
        self.address = HttpAddress(address.host, self._socket.getsockname()[1])
        config = uvicorn.Config(
            application,
            loop="asyncio",
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            log_level=logging.WARNING,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=_GRACE_SECONDS,
        )
        self._server = uvicorn.Server(config)
        # Outside of the main thread it installs no handlers of signals.
        self._thread = threading.Thread(target=self._run, name="mqdb-web", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Returns when nothing is served any more, or after some seconds."""
        self._server.should_exit = True
        self._thread.join(_LONGEST_STOP_SECONDS)
        self._socket.close()

    def _run(self) -> None:
        try:
            self._server.run(sockets=[self._socket])
        except Exception:
            logger.exception("the web server failed", extra={"address": str(self.address)})


def _listen(address: HttpAddress) -> socket.socket:
    found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, *_, place = found[0]
    return socket.create_server(place[:2], family=family)
