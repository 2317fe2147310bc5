"""Sessions of people who have logged in, and the one-time link to log in without a password and a trusted proxy.

They live in this process, and end with it. Only the thread of the web server calls `Sessions`.
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

#: Who is behind a change if nobody has said a name.
NOBODY: Final = "dashboard"

#: The longest name; an actor may have 255 characters.
_MOST_NAME: Final = 100

_MOST_SESSIONS: Final = 1_000
#: A session ends after so long without a request.
_IDLE_SECONDS: Final = 12 * 3_600.0


class PersonStanding(StrEnum):
    """The standing of a person. It follows from the way to log in."""

    OPERATOR = "operator"
    """May do everything. Has logged in by the password or the link."""
    VIEWER = "viewer"
    """May see everything and change nothing. Has logged in by the password of viewers."""
    PRINCIPAL = "principal"
    """May do what `mqdb acl` has granted to the name. A trusted proxy has named the person."""


class Session:
    """Somebody who has logged in."""

    def __init__(self, person: str, standing: PersonStanding = PersonStanding.OPERATOR) -> None:
        self.person = person
        self.standing = standing
        self.form_token = secrets.token_urlsafe(24)
        """Forms carry it; a page of another site cannot know it."""
        self.notices: list[str] = []
        """Sentences for the next page."""
        self.used_at = time.monotonic()


class Sessions:
    """Logs people in, and knows them again by their cookie."""

    def __init__(
        self,
        password: str | None,
        on_link: Callable[[], None] = lambda: None,
        *,
        viewer_password: str | None = None,
        by_proxy: bool = False,
    ) -> None:
        """Without a password a one-time link logs in; `on_link` is called when there is a new one.

        With `by_proxy` there is no link: a trusted proxy names people.
        """
        given = ((password, PersonStanding.OPERATOR), (viewer_password, PersonStanding.VIEWER))
        self._passwords = [(each.encode(), standing) for each, standing in given if each is not None]
        self.has_link: Final = not self._passwords and not by_proxy
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
        return bool(self._passwords)

    def redeem(self, token: str) -> str | None:
        """The key of a new session for the one-time token; None for another token."""
        if not self.has_link or not hmac.compare_digest(token.encode(), self.link_token.encode()):
            return None
        self.link_token = secrets.token_urlsafe(24)
        self._on_link()
        return self._begin(Session(NOBODY))

    def log_in(self, person: str, password: str) -> str | None:
        """The key of a new session; None for a wrong password."""
        standing = self._standing_of(password.encode())
        return None if standing is None else self._begin(Session(_name_of(person), standing))

    def log_out(self, key: str) -> None:
        """End a session."""
        self._by_key.pop(key, None)

    def find(self, key: str) -> Session | None:
        """The session of a cookie; None if it has ended."""
        session = self._by_key.pop(key, None)
        if session is None or time.monotonic() - session.used_at > _IDLE_SECONDS:
            return None
        session.used_at = time.monotonic()
        # Behind all others: the first one is that which was not used for the longest time.
        self._by_key[key] = session
        return session

    def of_header(self, authorization: str) -> Session | None:
        """The session of HTTP basic. All requests of a person share it. None for a wrong password."""
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
        """The session of a person whom a trusted proxy names. All requests of the person share it."""
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
