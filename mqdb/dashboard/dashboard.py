"""The application of the dashboard."""

from collections.abc import Callable
from typing import Final

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from mqdb.common.http_address import HttpAddress
from mqdb.dashboard.assets import STATIC
from mqdb.dashboard.brokers import Brokers
from mqdb.dashboard.endpoint import Endpoints, Page
from mqdb.dashboard.gate import LOGIN, LOGOUT, Gate
from mqdb.dashboard.live.streams import Live
from mqdb.dashboard.live.tail import Tails
from mqdb.dashboard.login import Login
from mqdb.dashboard.login_sessions import Sessions
from mqdb.dashboard.pages import (
    crons,
    dead_letters,
    doctor,
    groups,
    messages,
    operations,
    overview,
    scheduled,
    selectors,
    storage,
    topics,
    transactions,
)
from mqdb.dashboard.visit import Visit
from mqdb.drawing.templating import path
from mqdb.settings import Settings
from mqdb.web.guesses import Guesses
from mqdb.web.proxies import Proxies

_SUBJECTS: Final = (
    overview,
    topics,
    messages,
    groups,
    dead_letters,
    scheduled,
    transactions,
    crons,
    selectors,
    operations,
    storage,
    doctor,
)


class Dashboard:
    """The dashboard of the brokers in the settings, as an ASGI application."""

    def __init__(self, settings: Settings, on_welcome: Callable[[str], None] = lambda line: None) -> None:
        """Does not connect yet. Each use of the one-time link calls `on_welcome` with a line for the next link."""
        self.brokers: Final = Brokers(settings)
        self.figures: Final = self.brokers.figures
        """The server that samples the broker of these pages adds its samples here."""
        self.live: Final = Live(self.brokers)
        self.tails: Final = Tails(self.brokers)
        self._address: HttpAddress | None = None
        self._on_welcome = on_welcome
        proxies, guesses = Proxies.of(settings), Guesses()
        self._sessions = Sessions(
            settings.web_password,
            self._renew,
            viewer_password=settings.web_viewer_password,
            by_proxy=proxies.are_trusted,
        )
        login, endpoints = Login(self._sessions, guesses), Endpoints(self.brokers)
        routes = [
            Mount("/static", StaticFiles(directory=STATIC)),
            Route(LOGIN, login.login, methods=["GET", "POST"]),
            Route(LOGOUT, login.logout, methods=["POST"]),
            endpoints.route(Page("", _first), "/"),
            Route("/b/{broker}/live", self.live.overview),
            Route("/b/{broker}/topics/{topic}/live", self.live.topic),
            Route("/b/{broker}/groups/{group}/live", self.live.group),
            Route("/b/{broker}/topics/{topic}/tail/stream", self.tails.endpoint),
            *(endpoints.route(page) for subject in _SUBJECTS for page in subject.PAGES),
        ]
        gate = Middleware(
            Gate, sessions=self._sessions, proxies=proxies, guesses=guesses, read_only=settings.web_read_only
        )
        self.application: Final = Starlette(routes=routes, middleware=[gate], exception_handlers={404: _nowhere})

    def link(self, address: HttpAddress) -> str:
        """The link to open in a browser. Without a password and a trusted proxy, the link logs in once."""
        query = {"token": self._sessions.link_token} if self._sessions.has_link else {}
        return f"http://{address}{path('login', **query)}"

    def welcome(self, address: HttpAddress) -> str:
        """A line for the terminal with the address of the dashboard."""
        self._address = address
        return f"  open     {self.link(address)}"

    def _renew(self) -> None:
        if self._address is not None:
            self._on_welcome(self.welcome(self._address))

    def close(self) -> None:
        """Disconnect from the brokers."""
        self.brokers.close()


def _first(visit: Visit) -> Response:
    names = [broker.name for broker in visit.brokers.admin().brokers]
    if len(names) == 1:
        return RedirectResponse(path("b", names[0], ""), 303)
    return visit.page("brokers.html", names=names)


async def _nowhere(_request: Request, _error: Exception) -> Response:
    return PlainTextResponse("There is no such page. Start at /.\n", 404)
