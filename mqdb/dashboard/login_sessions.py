"""Sessions of people who have logged in, and the one-time link for logging in without a password or a trusted proxy.

Sessions are in the memory of this process, and end with the process. Only the web server's thread uses `Sessions`.
"""

import base64
import binascii
import hmac
import secrets
import time
from collections.abc import Callable
from enum import StrEnum
from typing import Final

from mqdb.common.printable import printable

#: The actor of a change by a person without a name.
NOBODY: Final = "dashboard"

#: The longest name; an actor may have 255 characters.
_MOST_NAME: Final = 100

_MOST_SESSIONS: Final = 1_000
#: A session ends after this time without a request.
_IDLE_SECONDS: Final = 12 * 3_600.0


class PersonStanding(StrEnum):
    """The standing of a person, which depends on the way of logging in."""

    OPERATOR = "operator"
    """A person who may do everything, after logging in with the password or the link."""
    VIEWER = "viewer"
    """A person who may see everything and change nothing, after logging in with the password for viewers."""
    PRINCIPAL = "principal"
    """A person named by a trusted proxy, with the rights that `mqdb acl` has granted to that name."""


class Session:
    """The session of a person who has logged in."""

    def __init__(self, person: str, standing: PersonStanding = PersonStanding.OPERATOR) -> None:
        self.person = person
        self.standing = standing
        self.form_token = secrets.token_urlsafe(24)
        """A token in each form, which pages of other sites cannot know."""
        self.notices: list[str] = []
        """Sentences to show on the next page."""
        self.used_at = time.monotonic()


class Sessions:
    """Logs people in, and finds their sessions by cookie."""

    def __init__(
        self,
        password: str | None,
        on_link: Callable[[], None] = lambda: None,
        *,
        viewer_password: str | None = None,
        by_proxy: bool = False,
    ) -> None:
        """Without a password, people log in by a one-time link; `on_link` is called when there is a new link.

        With `by_proxy` there is no link, because a trusted proxy names people.
        """
        given = ((password, PersonStanding.OPERATOR), (viewer_password, PersonStanding.VIEWER))
        self._passwords = [(each.encode(), standing) for each, standing in given if each is not None]
        self.has_link: Final = not self._passwords and not by_proxy
        self._on_link = on_link
        self._by_key: dict[str, Session] = {}
        # Anyone with a key is logged in, and the names of people are not secret.
        self._header_key = secrets.token_urlsafe(32)
        # Cookies do not depend on ports: two processes on one host would overwrite each other's cookies.
        self.cookie: Final = f"mqdb_{secrets.token_hex(4)}"
        self.link_token = secrets.token_urlsafe(24)
        """The token of the one-time link; after each use, a new token replaces it."""

    @property
    def has_password(self) -> bool:
        """Whether people log in with a password."""
        return bool(self._passwords)

    def redeem(self, token: str) -> str | None:
        """Start a session for the one-time token; returns its key, or None for any other token."""
        if not self.has_link or not hmac.compare_digest(token.encode(), self.link_token.encode()):
            return None
        self.link_token = secrets.token_urlsafe(24)
        self._on_link()
        return self._begin(Session(NOBODY))

    def log_in(self, person: str, password: str) -> str | None:
        """Start a session; returns its key, or None for a wrong password."""
        standing = self._standing_of(password.encode())
        return None if standing is None else self._begin(Session(_name_of(person), standing))

    def log_out(self, key: str) -> None:
        """End a session."""
        self._by_key.pop(key, None)

    def find(self, key: str) -> Session | None:
        """The session with the key from a cookie; None if the session has ended."""
        session = self._by_key.pop(key, None)
        if session is None or time.monotonic() - session.used_at > _IDLE_SECONDS:
            return None
        session.used_at = time.monotonic()
        # Moved to the end, so that the first session is the least recently used session.
        self._by_key[key] = session
        return session

    def of_header(self, authorization: str) -> Session | None:
        """The session for HTTP basic, shared by all requests of a person; None for a wrong password."""
        scheme, _, credentials = authorization.partition(" ")
        try:
            person, _, password = base64.b64decode(credentials.strip(), validate=True).partition(b":")
        except (binascii.Error, ValueError):
            return None
        standing = self._standing_of(password)
        if scheme.lower() != "basic" or standing is None:
            return None
        return self._same(Session(_name_of(person.decode(errors="replace")), standing))

    def of_person(self, person: str) -> Session:
        """The session of a person named by a trusted proxy, shared by all requests of the person."""
        return self._same(Session(person, PersonStanding.PRINCIPAL))

    def _same(self, new: Session) -> Session:
        key = f"{self._header_key} {new.standing} {new.person}"
        return self.find(key) or self._by_key[self._begin(new, key)]

    def _standing_of(self, password: bytes) -> PersonStanding | None:
        right = [standing for each, standing in self._passwords if hmac.compare_digest(password, each)]
        return right[0] if right else None

    def _begin(self, session: Session, key: str | None = None) -> str:
        key = secrets.token_urlsafe(32) if key is None else key
        self._by_key[key] = session
        while len(self._by_key) > _MOST_SESSIONS:
            del self._by_key[next(iter(self._by_key))]
        return key


def _name_of(text: str) -> str:
    return printable(text).strip()[:_MOST_NAME] or NOBODY
