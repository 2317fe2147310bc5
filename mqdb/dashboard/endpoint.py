"""The endpoint: calls the function of a page for a request, and turns an error into a page."""

import hmac
import logging
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple, TypeAlias

import anyio
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from mqdb.dashboard.brokers import Brokers
from mqdb.dashboard.fields import Fields, FormRefused, form_of
from mqdb.dashboard.visit import Visit
from mqdb.errors import Denied, InvalidInput, MqdbError, NotFound, Transient

logger = logging.getLogger(__name__)

Handler: TypeAlias = Callable[[Visit], Response]

#: The limit of pages that are made at the same time; each may use a connection. Metrics and probes do not wait.
_MOST_AT_A_TIME: Final = 8


class Page(NamedTuple):
    """A page: its path below the path of the broker, its handler, and whether the page can make changes."""

    path: str
    handler: Handler
    acts: bool = False


class Endpoints:
    """Creates the routes of pages."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self._limiter: anyio.CapacityLimiter | None = None

    def route(self, page: Page, prefix: str = "/b/{broker}/") -> Route:
        """The route of a page. Forms on the page are posted to the same route."""

        async def endpoint(request: Request) -> Response:
            return await self._answer(request, page.handler)

        return Route(prefix + page.path, endpoint, methods=["GET", "POST"] if page.acts else ["GET"])

    async def _answer(self, request: Request, handler: Handler) -> Response:
        session = request.state.session
        form = Fields()
        if request.method == "POST":
            try:
                form = await form_of(request)
            except FormRefused as refused:
                return refused.response
            if not hmac.compare_digest((form.raw("form_token") or "").encode(), session.form_token.encode()):
                return PlainTextResponse("The form belongs to another session. Go back and reload the page.\n", 403)
        visit = Visit(request, session, self._brokers, form)
        if self._limiter is None:
            self._limiter = anyio.CapacityLimiter(_MOST_AT_A_TIME)
        return await anyio.to_thread.run_sync(partial(_made, handler, visit), limiter=self._limiter)


def _made(handler: Handler, visit: Visit) -> Response:
    try:
        if "broker" in visit.request.path_params:
            _ = visit.broker
        return handler(visit)
    except MqdbError as error:
        return error_page(visit, str(error), _status_of(error))
    except Exception:
        fields = {"path": visit.request.url.path}
        logger.exception("page %(path)s failed", fields, extra=fields)
        return error_page(visit, "the page failed; see the log of the process", 500)


def error_page(visit: Visit, sentence: str, status: int) -> Response:
    """A page that shows an error."""
    return visit.page("fault.html" if visit.is_fragment else "error.html", status, sentence=sentence)


def _status_of(error: MqdbError) -> int:
    kinds = ((NotFound, 404), (Denied, 403), (InvalidInput, 400), (Transient, 503))
    return next((status for kind, status in kinds if isinstance(error, kind)), 500)
