"""A visit: one request of a person who has logged in, as the functions of the pages get it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from mqdb.dashboard.brokers import Brokers
from mqdb.dashboard.fields import Fields, checked, query_of
from mqdb.dashboard.login_sessions import PersonStanding, Session
from mqdb.dashboard.permissions import Permissions
from mqdb.dashboard.rendering import render
from mqdb.drawing.templating import path
from mqdb.errors import NotFound
from mqdb_client import BrokerAdmin


class PageNotFound(NotFound):
    """There is no such page."""

    what: str
    sentence = "there is no {what}"


@dataclass(frozen=True)
class Visit:
    """The request, its person, and the ways to answer."""

    request: Request
    session: Session
    brokers: Brokers
    form: Fields
    """The posted fields; empty for a GET."""

    @property
    def is_post(self) -> bool:
        """Whether the request is a POST, which changes something."""
        return self.request.method == "POST"

    @cached_property
    def is_fragment(self) -> bool:
        """Whether a script of the page asks for a part of it."""
        return bool(self.request.headers.get("hx-request"))

    @cached_property
    def query(self) -> Fields:
        """The fields of the query string."""
        return query_of(self.request)

    @cached_property
    def broker_name(self) -> str:
        """The name in the path, even if no broker has it. Raises ParameterInvalid."""
        return self.part("broker")

    @cached_property
    def broker(self) -> BrokerAdmin:
        """The broker that the path names. Raises PageNotFound."""
        found = self.brokers.find(self.broker_name)
        if found is None:
            raise PageNotFound(f"broker {self.broker_name!r} here")
        return found

    @cached_property
    def rights(self) -> Permissions:
        """The permissions of the person on this broker; they name the actor of a change."""
        return Permissions(self.session, self.broker, read_only=self.brokers.are_read_only)

    def part(self, name: str) -> str:
        """A part of the path. Raises ParameterInvalid."""
        return checked(name, str(self.request.path_params[name]))

    @cached_property
    def url(self) -> Callable[..., str]:
        """Makes the path of a page of this broker, of parts and of fields of a query as `path` takes them."""
        return partial(path, "b", self.broker_name)

    def page(self, template: str, status: int = 200, **context: Any) -> Response:
        """A whole page, or a part of one."""
        notices = [] if self.is_fragment else list(self.session.notices)
        del self.session.notices[: len(notices)]
        common = {
            # Without a broker that is there, no page of it.
            "here": self.broker_name if "broker" in vars(self) else None,
            "url": self.url if "broker" in vars(self) else None,
            "person": self.session.person,
            "form_token": self.session.form_token,
            "read_only": self.brokers.are_read_only or self.session.standing is PersonStanding.VIEWER,
            "may_log_out": self.session.standing is not PersonStanding.PRINCIPAL,
            "notices": notices,
            "visit": self,
        }
        return HTMLResponse(render(template, **common, **context), status)

    def go(self, *parts: object, notice: str | None = None, **query: object) -> Response:
        """To another page of this broker, which begins with the notice."""
        if notice is not None:
            self.session.notices.append(notice)
        return RedirectResponse(self.url(*parts, **query), 303)
