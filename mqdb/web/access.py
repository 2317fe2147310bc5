"""Access control for the web application: the Host header, passwords, and people whom a trusted proxy names.

On a loopback address, a request has to name a loopback host. Otherwise a foreign page in a browser on this machine
could send requests to 127.0.0.1 under its own domain, if that domain resolves to 127.0.0.1 (DNS rebinding). The Host
header of such a request names that domain.
"""

import base64
import binascii
import hmac
from collections.abc import Collection
from typing import Final

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from mqdb.common.http_address import names_loopback
from mqdb.web.guesses import Guesses
from mqdb.web.proxies import Proxies

#: The paths of probes, which have no password. The answers only show whether the process works.
OPEN_PATHS: Final = frozenset({"/healthz", "/readyz"})


class AccessControl:
    """ASGI middleware that refuses requests before they reach the application."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        loopback_only: bool,
        passwords: Collection[str],
        proxies: Proxies,
        guarded: Collection[str] | None = None,
    ) -> None:
        """`guarded` are the paths that need one of the passwords or a person named by a trusted proxy; by default all
        paths except OPEN_PATHS. Without passwords and proxies, all paths are open.
        """
        self._app = app
        self._loopback_only = loopback_only
        self._passwords = [each.encode() for each in passwords]
        self._proxies = proxies
        self._guarded = guarded
        self._guesses = Guesses()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        refusal = await self._refusal(scope) if scope["type"] == "http" else None
        await (refusal or self._app)(scope, receive, send)

    async def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if self._loopback_only and not names_loopback(headers.get("host", "")):
            return PlainTextResponse("The Host header has to name a loopback host.\n", status_code=403)
        path = scope["path"]
        is_open = path in OPEN_PATHS if self._guarded is None else path not in self._guarded
        if is_open or not (self._passwords or self._proxies.are_trusted) or self._proxies.person(scope) is not None:
            return None
        given = _password_in(headers.get("authorization", ""))
        if given and self._passwords:
            await self._guesses.wait()
            if any(hmac.compare_digest(given, each) for each in self._passwords):
                return None
            self._guesses.note_wrong()
        if not self._passwords:
            return PlainTextResponse("Use one of the proxies in MQDB_WEB_TRUSTED_PROXIES.\n", 403)
        challenge = {"WWW-Authenticate": 'Basic realm="mqdb", charset="UTF-8"'}
        return PlainTextResponse("The password in MQDB_WEB_PASSWORD is required.\n", 401, challenge)


def _password_in(authorization: str) -> bytes:
    """The password in an Authorization header: from HTTP basic for any user, or a bearer token; otherwise empty."""
    scheme, _, credentials = authorization.partition(" ")
    match scheme.lower():
        case "bearer":
            # Headers are read as Latin-1, whatever their bytes mean.
            return credentials.strip().encode("latin-1")
        case "basic":
            try:
                return base64.b64decode(credentials.strip(), validate=True).partition(b":")[2]
            except (binascii.Error, ValueError):
                return b""
        case _:
            return b""
