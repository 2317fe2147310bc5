"""The application: which path answers what."""

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

#: The source of some of the metrics of /metrics.
Metrics: TypeAlias = Collector

#: Pages that are served besides.
Pages: TypeAlias = ASGIApp


def create_application(
    health: Probes,
    *metrics: Metrics,
    loopback_only: bool,
    passwords: Collection[str],
    proxies: Proxies,
    pages: Pages | None = None,
) -> Starlette:
    """The web application of one process. `loopback_only`: it is served on a loopback address.

    `pages` answer all other paths. They authenticate people themselves.
    """
    registry = CollectorRegistry()
    for each in metrics:
        registry.register(each)
    ProcessCollector(registry=registry)

    async def healthz(_request: Request) -> Response:
        return answer(health.liveness())

    async def readyz(_request: Request) -> Response:
        return answer(health.readiness())

    # No coroutine, so it runs in a thread: to render many series takes a while, and probes do not wait for it.
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
    """The answer to a probe: all checks, and the failing ones."""
    body = {"status": "ok" if report.has_passed else "failing", "failing": report.failing, "checks": report.checks}
    return JSONResponse(body, status_code=200 if report.has_passed else 503)
