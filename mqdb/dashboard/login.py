"""Login by the one-time link that `mqdb serve` prints, or by name and password."""

from typing import Final

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from mqdb.dashboard.fields import FormRefused, form_of
from mqdb.dashboard.login_sessions import Sessions
from mqdb.dashboard.rendering import render
from mqdb.web.guesses import Guesses

#: The limit of the login form, which anyone can post.
_MOST_FORM_BYTES: Final = 64 * 1024


class Login:
    """The endpoints for people who have not logged in."""

    def __init__(self, sessions: Sessions, guesses: Guesses) -> None:
        self._sessions = sessions
        self._guesses = guesses

    async def login(self, request: Request) -> Response:
        """Show the login form, check a posted form, or redeem a one-time link."""
        if request.method == "POST":
            try:
                form = await form_of(request, _MOST_FORM_BYTES)
            except FormRefused as refused:
                return refused.response
            await self._guesses.wait()
            key = self._sessions.log_in(form.raw("name") or "", form.raw("password") or "")
            if key is None:
                self._guesses.note_wrong()
                return self._form(403, "The password is wrong.")
            return self._welcome(key)
        token = request.query_params.get("token")
        # A HEAD request does not use the link up.
        if token is None or request.method != "GET":
            return self._form(200)
        key = self._sessions.redeem(token)
        if key is None:
            return self._form(403, "This link has been used already, or belongs to another process.")
        return self._welcome(key)

    async def logout(self, request: Request) -> Response:
        """End the session of the browser."""
        self._sessions.log_out(request.cookies.get(self._sessions.cookie, ""))
        response = RedirectResponse("/login", 303)
        response.delete_cookie(self._sessions.cookie, httponly=True, samesite="strict")
        return response

    def _form(self, status: int, fault: str | None = None) -> Response:
        text = render("login.html", has_password=self._sessions.has_password, fault=fault)
        return HTMLResponse(text, status)

    def _welcome(self, key: str) -> Response:
        response = RedirectResponse("/", 303)
        response.set_cookie(self._sessions.cookie, key, httponly=True, samesite="strict")
        return response
