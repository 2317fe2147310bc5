"""The gate: only people who have logged in may see pages and make changes.

A change has to come from a page of the dashboard itself. The browser reports the origin in the header Sec-Fetch-Site,
or in Origin on an address without TLS. In addition, forms contain a token, which the endpoint checks.

If a trusted proxy names a person, cookies and passwords in the request are ignored: the proxy only passes them on.
"""

from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mqdb.dashboard.login_sessions import PersonStanding, Session, Sessions
from mqdb.web.guesses import Guesses
from mqdb.web.proxies import Proxies

LOGIN: Final = "/login"
LOGOUT: Final = "/logout"
STATIC: Final = "/static/"

_SAFE_METHODS: Final = frozenset({"GET", "HEAD"})

_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    # Not no-referrer, with which browsers send `Origin: null` for forms.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Gate:
    """ASGI middleware, which adds the session to the state of a request."""

    def __init__(
        self, app: ASGIApp, *, sessions: Sessions, proxies: Proxies, guesses: Guesses, read_only: bool
    ) -> None:
        self._app = app
        self._sessions = sessions
        self._proxies = proxies
        self._guesses = guesses
        self._read_only = read_only

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        request = Request(scope)
        is_asset = request.url.path.startswith(STATIC)

        async def send_bound(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                headers["Cache-Control"] = "no-cache" if is_asset else "no-store"
            await send(message)

        await (await self._refusal(request) or self._app)(scope, receive, send_bound)

    async def _refusal(self, request: Request) -> Response | None:
        path = request.url.path
        if request.method not in _SAFE_METHODS:
            if self._read_only and path not in (LOGIN, LOGOUT):
                return _said(405, "MQDB_WEB_READ_ONLY is set: nothing can be changed here.", Allow="GET, HEAD")
            if not _is_from_here(request):
                return _said(403, "The request does not come from a page of this dashboard.")
        person = self._proxies.person(request.scope)
        if path.startswith(STATIC):
            return None
        if path == LOGIN:
            if person is not None:
                return RedirectResponse("/", 303)
            return None if self._has_login else self._stranger(request, None)
        authorization = request.headers.get("authorization")
        session = self._sessions.of_person(person) if person else await self._session(request, authorization)
        if session is None:
            return self._stranger(request, authorization)
        if session.standing is PersonStanding.VIEWER and request.method not in _SAFE_METHODS and path != LOGOUT:
            return _said(403, "The password for viewers does not allow changes.")
        request.state.session = session
        return None

    @property
    def _has_login(self) -> bool:
        return self._sessions.has_password or self._sessions.has_link

    async def _session(self, request: Request, authorization: str | None) -> Session | None:
        if authorization is None or not self._sessions.has_password:
            return self._sessions.find(request.cookies.get(self._sessions.cookie, ""))
        await self._guesses.wait()
        session = self._sessions.of_header(authorization)
        if session is None:
            self._guesses.note_wrong()
        return session

    def _stranger(self, request: Request, authorization: str | None) -> Response:
        if authorization is not None and self._sessions.has_password:
            challenge = 'Basic realm="mqdb", charset="UTF-8"'
            return _said(401, "The password in MQDB_WEB_PASSWORD is required.", **{"WWW-Authenticate": challenge})
        if not self._has_login:
            return _said(403, "Use a proxy in MQDB_WEB_TRUSTED_PROXIES that sends your name.")
        if request.method not in _SAFE_METHODS:
            return _said(401, "Log in first.")
        if request.headers.get("hx-request"):
            # The session of a page has ended: the whole page, not only the requested part, goes to the login.
            return _said(401, "Log in first.", **{"HX-Redirect": LOGIN})
        return RedirectResponse(LOGIN, 303)


def _is_from_here(request: Request) -> bool:
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    return request.headers.get("origin", "").partition("://")[2] == request.headers.get("host", "?")


def _said(status: int, sentence: str, **headers: str) -> Response:
    return PlainTextResponse(f"{sentence}\n", status, headers)
