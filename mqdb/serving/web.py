"""`mqdb web`: the dashboard without a broker process."""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

import anyio
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

from mqdb.common.http_address import HttpAddress
from mqdb.dashboard.brokers import Brokers
from mqdb.dashboard.dashboard import Dashboard
from mqdb.errors import MqdbError, SettingInvalid
from mqdb.process.signals import interruption
from mqdb.settings import Settings
from mqdb.web.access import AccessControl
from mqdb.web.application import answer
from mqdb.web.health import ANSWER_SECONDS
from mqdb.web.probe_report import PASSED, Report
from mqdb.web.proxies import Proxies
from mqdb.web.web_server import serve_web

logger = logging.getLogger(__name__)

#: The brokers are queried at most once in this time, however many probes arrive.
_KNOWN_SECONDS: Final = 5.0


class Reach:
    """Checks for probes whether the brokers of a dashboard answer. Only the thread of the web server may call it."""

    def __init__(self, brokers: Brokers, clock: Callable[[], float] = time.monotonic) -> None:
        self._brokers = brokers
        self._clock = clock
        self._asked_at = 0.0
        self._asking: asyncio.Task[Report] | None = None

    async def report(self) -> Report:
        """One check for each broker. While a query is unanswered, no other query is sent."""
        now = self._clock()
        if self._asking is None or (self._asking.done() and now - self._asked_at >= _KNOWN_SECONDS):
            self._asking, self._asked_at = asyncio.create_task(self._ask()), now
        done, _ = await asyncio.wait({self._asking}, timeout=ANSWER_SECONDS)
        return self._asking.result() if done else Report({"brokers": f"have not answered for {ANSWER_SECONDS:.0f} s"})

    async def _ask(self) -> Report:
        return await anyio.to_thread.run_sync(self._look)

    def _look(self) -> Report:
        try:
            answers = self._brokers.admin().on_each(lambda broker: broker.retention.log())
        except MqdbError as error:
            fields = {"error": str(error)}
            logger.warning("could not query any broker: %(error)s", fields, extra=fields)
            return Report({"brokers": "cannot be found; see the log for the reason"})
        for name, fault in answers.failures.items():
            fields = {"broker": name, "error": str(fault)}
            logger.warning("broker %(broker)s did not answer: %(error)s", fields, extra=fields)
        failing = dict.fromkeys(answers.failures, "cannot be used; see the log for the reason")
        return Report(dict.fromkeys(answers.results, PASSED) | failing)


def create_application(dashboard: Dashboard, address: HttpAddress) -> Starlette:
    """The dashboard and its probes, in the form served at this address."""
    reach = Reach(dashboard.brokers)

    async def healthz(_request: Request) -> Response:
        # An answer shows that the only event loop of the process works.
        return answer(Report({}))

    async def readyz(_request: Request) -> Response:
        return answer(await reach.report())

    routes = [Route("/healthz", healthz), Route("/readyz", readyz), Mount("/", dashboard.application)]
    # The pages authenticate users themselves.
    access = Middleware(
        AccessControl, loopback_only=address.is_loopback, passwords=(), proxies=Proxies(None, ()), guarded=()
    )
    return Starlette(routes=routes, middleware=[access])


def serve_alone(
    settings: Settings, on_started: Callable[[str], None], on_welcome: Callable[[str], None] = lambda line: None
) -> None:
    """Serve until SIGINT, SIGTERM or SIGHUP. Call it in the main thread.

    `on_started` is called with the line that contains the address to open, and `on_welcome` with each new link. Raises
    CannotListen, and SettingInvalid if `http` is not set.
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
