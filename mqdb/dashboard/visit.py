"""A visit: a request of a person who has logged in, in the form in which the functions of pages receive it."""

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
    """The requested page does not exist."""

    what: str
    sentence = "there is no {what}"


@dataclass(frozen=True)
class Visit:
    """A request, the session of its person, and the methods that answer the request."""

    request: Request
    session: Session
    brokers: Brokers
    form: Fields
    """The posted fields; empty for a GET."""

    @property
    def is_post(self) -> bool:
        """Whether the request is a POST, which may change something."""
        return self.request.method == "POST"

    @cached_property
    def is_fragment(self) -> bool:
        """Whether a script of a page requests a part of the page."""
        return bool(self.request.headers.get("hx-request"))

    @cached_property
    def query(self) -> Fields:
        """The fields of the query string."""
        return query_of(self.request)

    @cached_property
    def broker_name(self) -> str:
        """The name of a broker in the path, even if no broker has this name. Raises ParameterInvalid."""
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
        """The permissions of the person on this broker, which also name the actor of a change."""
        return Permissions(self.session, self.broker, read_only=self.brokers.are_read_only)

    def part(self, name: str) -> str:
        """The part of the path with this name. Raises ParameterInvalid."""
        return checked(name, str(self.request.path_params[name]))

    @cached_property
    def url(self) -> Callable[..., str]:
        """A function that makes the path of a page of this broker; its arguments are those of `path`."""
        return partial(path, "b", self.broker_name)

    def page(self, template: str, status: int = 200, **context: Any) -> Response:
        """Render a whole page or a part of a page."""
        notices = [] if self.is_fragment else list(self.session.notices)
        del self.session.notices[: len(notices)]
        common = {
            # If the broker does not exist, the page has no links to pages of the broker.
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
        """Redirect to another page of this broker, which begins with the notice."""
        if notice is not None:
            self.session.notices.append(notice)
        return RedirectResponse(self.url(*parts, **query), 303)
