"""Sessions: who has logged in, and the one-time link that logs in where there is no password.

They live in this process, and end with it. Only the thread of the web server calls `Sessions`.
"""

import base64
import binascii
import hmac
import secrets
import time
from collections.abc import Callable
from typing import Final

from mqdb.common.printable import printable

#: Who is behind a change if nobody has said a name.
NOBODY: Final = "dashboard"

#: The longest name; an actor may have 255 characters.
_MOST_NAME: Final = 100

_MOST_SESSIONS: Final = 1_000
#: A session ends after so long without a request.
_IDLE_SECONDS: Final = 12 * 3_600.0


class Session:
    """Somebody who has logged in."""

    def __init__(self, person: str) -> None:
        self.person = person
        self.form_token = secrets.token_urlsafe(24)
        """Forms carry it; no page of a stranger knows it."""
        self.notices: list[str] = []
        """Sentences for the next page."""
        self.used_at = time.monotonic()


class Sessions:
    """Logs people in, and knows them again by their cookie."""

    def __init__(self, password: str | None, on_link: Callable[[], None] = lambda: None) -> None:
        """Without a password a one-time link logs in; `on_link` is called when there is a new one."""
        self._password = None if password is None else password.encode()
        self._on_link = on_link
        self._by_key: dict[str, Session] = {}
        # Whoever knows a key is logged in, and names of people are no secret.
        self._header_key = secrets.token_urlsafe(32)
        # Cookies know no ports: two processes on one host would each overwrite the cookie of the other.
        self.cookie: Final = f"mqdb_{secrets.token_hex(4)}"
        self.link_token = secrets.token_urlsafe(24)
        """Logs in once."""

    @property
    def has_password(self) -> bool:
        """Whether people log in by a password."""
        return self._password is not None

    def redeem(self, token: str) -> str | None:
        """The key of a new session for the one-time token; None for another token."""
        if self.has_password or not hmac.compare_digest(token.encode(), self.link_token.encode()):
            return None
        self.link_token = secrets.token_urlsafe(24)
        self._on_link()
        return self._begin(NOBODY)

    def log_in(self, person: str, password: str) -> str | None:
        """The key of a new session; None for a wrong password."""
        return self._begin(_name_of(person)) if self._is_right(password.encode()) else None

    def log_out(self, key: str) -> None:
        """End a session."""
        self._by_key.pop(key, None)

    def find(self, key: str) -> Session | None:
        """The session of a cookie; None if there is none any more."""
        session = self._by_key.pop(key, None)
        if session is None or time.monotonic() - session.used_at > _IDLE_SECONDS:
            return None
        session.used_at = time.monotonic()
        # Behind all others: the first one is that which was not used for the longest time.
        self._by_key[key] = session
        return session

    def of_header(self, authorization: str) -> Session | None:
        """The session of HTTP basic, the same for each request of a person; None for a wrong password."""
        scheme, _, credentials = authorization.partition(" ")
        try:
            person, _, password = base64.b64decode(credentials.strip(), validate=True).partition(b":")
        except (binascii.Error, ValueError):
            return None
        if scheme.lower() != "basic" or not self._is_right(password):
            return None
        key = f"{self._header_key} {person.hex()}"
        return self.find(key) or self._by_key[self._begin(_name_of(person.decode(errors="replace")), key)]

    def _is_right(self, password: bytes) -> bool:
        return self._password is not None and hmac.compare_digest(password, self._password)

    def _begin(self, person: str, key: str | None = None) -> str:
        key = secrets.token_urlsafe(32) if key is None else key
        self._by_key[key] = Session(person)
        while len(self._by_key) > _MOST_SESSIONS:
            del self._by_key[next(iter(self._by_key))]
        return key


def _name_of(text: str) -> str:
    return printable(text).strip()[:_MOST_NAME] or NOBODY
