"""`mqdb web`: the dashboard without a broker process."""

import time
from collections.abc import Callable
from typing import Final

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

from mqdb.common.http_address import HttpAddress
from mqdb.dashboard.dashboard import Dashboard
from mqdb.dashboard.reach import Reach
from mqdb.errors import SettingInvalid
from mqdb.server import interruption
from mqdb.settings import Settings
from mqdb.web.access import AccessControl
from mqdb.web.application import answer
from mqdb.web.proxies import Proxies
from mqdb.web.report import Report
from mqdb.web.web_server import WebServer

_SIGNAL_SECONDS: Final = 0.1


def create_application(dashboard: Dashboard, address: HttpAddress) -> Starlette:
    """The dashboard and its probes, as served at this address."""
    reach = Reach(dashboard.brokers)

    async def healthz(_request: Request) -> Response:
        # An answer shows that the only loop of the process works.
        return answer(Report({}))

    async def readyz(_request: Request) -> Response:
        return answer(await reach.report())

    routes = [Route("/healthz", healthz), Route("/readyz", readyz), Mount("/", dashboard.application)]
    # The pages authenticate people themselves.
    access = Middleware(
        AccessControl, loopback_only=address.is_loopback, passwords=(), proxies=Proxies(None, ()), guarded=()
    )
    return Starlette(routes=routes, middleware=[access])


def serve_alone(
    settings: Settings, on_started: Callable[[str], None], on_welcome: Callable[[str], None] = lambda line: None
) -> None:
    """Serve until SIGINT, SIGTERM or SIGHUP. For the main thread.

    `on_started` gets the line that says what to open, `on_welcome` each new one. Raises SettingInvalid if `http` is not
    set, or cannot be listened on.
    """
    address = settings.http_address
    if address is None:
        raise SettingInvalid("http", "", settings.origin("http"), "is not set")
    dashboard = Dashboard(settings, on_welcome)
    try:
        server = WebServer(address, create_application(dashboard, address))
    except OSError as error:
        reason = f"cannot listen there: {error.strerror or error}"
        raise SettingInvalid("http", str(address), settings.origin("http"), reason) from error
    try:
        with interruption() as interrupted:
            on_started(dashboard.welcome(server.address))
            while not interrupted.is_set():
                time.sleep(_SIGNAL_SECONDS)
    finally:
        server.stop()
        dashboard.close()
