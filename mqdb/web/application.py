"""The web application: its paths and their answers."""

from collections.abc import Collection
from typing import TypeAlias

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp

from mqdb.web.access import OPEN_PATHS, AccessControl
from mqdb.web.probe_report import Probes, Report
from mqdb.web.proxies import Proxies

#: A source of metrics for /metrics.
Metrics: TypeAlias = Collector

#: Pages that are served besides the metrics.
Pages: TypeAlias = ASGIApp


def create_application(
    health: Probes,
    *metrics: Metrics,
    loopback_only: bool,
    passwords: Collection[str],
    proxies: Proxies,
    pages: Pages | None = None,
) -> Starlette:
    """The web application of one process. `loopback_only`: whether it is served on a loopback address.

    `pages` answers all other paths, and authenticates people itself.
    """
    registry = CollectorRegistry()
    for each in metrics:
        registry.register(each)
    ProcessCollector(registry=registry)

    async def healthz(_request: Request) -> Response:
        return answer(health.liveness())

    async def readyz(_request: Request) -> Response:
        return answer(health.readiness())

    # Not a coroutine, so it runs in a thread: rendering many series takes a while, and probes must not wait.
    def render(request: Request) -> Response:
        try:
            encode, content_type = choose_encoder(request.headers.get("accept", ""))
        except (TypeError, ValueError):  # it expects versions to be numbers
            encode, content_type = choose_encoder("")
        return Response(encode(registry), headers={"Content-Type": content_type})

    own = [Route("/healthz", healthz), Route("/readyz", readyz), Route("/metrics", render)]
    routes: list[BaseRoute] = [*own]
    guarded = None
    if pages is not None:
        guarded = {route.path for route in own} - OPEN_PATHS
        routes.append(Mount("/", pages))
    access = Middleware(
        AccessControl, loopback_only=loopback_only, passwords=passwords, proxies=proxies, guarded=guarded
    )
    return Starlette(routes=routes, middleware=[access])


def answer(report: Report) -> Response:
    """The response to a probe: its status, the names of the failing checks, and all checks."""
    body = {"status": "ok" if report.has_passed else "failing", "failing": report.failing, "checks": report.checks}
    return JSONResponse(body, status_code=200 if report.has_passed else 503)
