"""`mqdb web`: the dashboard without a broker process."""

from collections.abc import Callable

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

from mqdb.common.http_address import HttpAddress
from mqdb.dashboard.dashboard import Dashboard
from mqdb.dashboard.reach import Reach
from mqdb.errors import SettingInvalid
from mqdb.settings import Settings
from mqdb.signals import interruption
from mqdb.web.access import AccessControl
from mqdb.web.application import answer
from mqdb.web.proxies import Proxies
from mqdb.web.report import Report
from mqdb.web.web_server import serve_web


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

    `on_started` gets the line that says what to open, `on_welcome` each new one. Raises CannotListen, and
    SettingInvalid if `http` is not set.
    """
    address = settings.http_address
    if address is None:
        raise SettingInvalid("http", "", settings.origin("http"), "is not set")
    dashboard = Dashboard(settings, on_welcome)
    server = serve_web(settings, address, create_application(dashboard, address))
    try:
        with interruption() as interrupted:
            on_started(dashboard.welcome(server.address))
            interrupted.wait()
    finally:
        server.stop()
        dashboard.close()
