"""DSNs: which databases are brokers, and how to speak of them without telling a password.

One PostgreSQL URI is one broker. A cluster is a list, `broker-a=postgresql://...;broker-b=postgresql://...`.
Nothing here connects. A password may hold any character that is percent-encoded, and `redact` leaves
none of it, not even from a text that is no DSN at all.
"""

import re
from typing import NamedTuple

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict

SHAPE = "postgresql://user:password@host:port/database"

_BROKER_NAME = r"[A-Za-z0-9][A-Za-z0-9_.@-]*"
_SCHEME = r"postgres(?:ql)?(?:\+psycopg)?://"
# A password may hold a semicolon, so only one that begins the next named broker ends a broker.
_NEXT_BROKER = re.compile(rf";\s*(?={_BROKER_NAME}={_SCHEME})")
_NAMED = re.compile(rf"(?P<name>{_BROKER_NAME})=(?={_SCHEME})")
_URI = re.compile(
    rf"""{_SCHEME}
    (?:(?P<user>[^:/?\#@\s]*)(?::(?P<password>[^/?\#@\s]*))?@)?
    (?P<hosts>[^/?\#@;\s]*)
    (?:/(?P<database>[^/?\#;\s]*))?
    (?:\?(?P<options>[^?\#\s]*))?""",
    re.VERBOSE,
)
# Greedy: a password that nobody encoded may hold @ and / itself, and so may a user name.
_PASSWORD_OF_USER = re.compile(r"(://[^:]*:).*@", re.DOTALL)
# The @host was forgotten: what stands where the port should be is the password.
_PASSWORD_AS_PORT = re.compile(r"(://[^:/?@\[]*:)(?!\d{0,5}(?:[/?,]|$))[^/?]*")
_PASSWORD_OPTION = re.compile(r"(password\s*=\s*)('[^']*'|[^\s&;]*)", re.IGNORECASE)


class BrokerDsn(NamedTuple):
    """A broker and the URI of its database. The URI holds the password: print `redact(dsn)`."""

    name: str
    dsn: str

    def __repr__(self) -> str:
        return f"BrokerDsn(name={self.name!r}, dsn={redact(self.dsn)!r})"


def is_broker_name(text: object) -> bool:
    """Letters, digits and `_.@-`, so that a list of DSNs can be read one way only; `room@name` says where it stands."""
    return isinstance(text, str) and re.fullmatch(_BROKER_NAME, text) is not None


def parse_brokers(text: str, default_name: str) -> tuple[BrokerDsn, ...]:
    """The brokers in the order of the list; a lone URI without a name is `default_name`.

    Raises ValueError with a reason that holds no password.
    """
    parts = [part.strip() for part in _NEXT_BROKER.split(text.strip().rstrip(";"))]
    brokers = tuple(_broker(part, default_name if len(parts) == 1 else None) for part in parts)
    names = [broker.name for broker in brokers]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"broker {name!r} is named twice")
    return brokers


def redact(text: str) -> str:
    """The text with *** in place of every password. Hides too much of a broken DSN rather than too little."""
    return ";".join(_redact_one(part) for part in _NEXT_BROKER.split(text))


def _redact_one(text: str) -> str:
    masked = _PASSWORD_OF_USER.sub(r"\1***@", text) if "@" in text else _PASSWORD_AS_PORT.sub(r"\1***", text)
    return _PASSWORD_OPTION.sub(r"\1***", masked)


def _broker(part: str, default_name: str | None) -> BrokerDsn:
    named = _NAMED.match(part)
    uri = part[named.end() :] if named else part
    name = named["name"] if named else default_name
    if name is None:
        raise ValueError("in a list every broker has a name: broker-a=postgresql://...;broker-b=postgresql://...")
    _check(uri)
    # What SQLAlchemy and libpq both read.
    return BrokerDsn(name, re.sub(_SCHEME, "postgresql://", uri, count=1))


def _check(uri: str) -> None:
    match = _URI.fullmatch(uri)
    if not match:
        raise ValueError(f"write {SHAPE}, with @ : / ? # % and blanks inside a part as %40 %3A %2F %3F %23 %25 %20")
    if re.search(r"%(?![0-9A-Fa-f]{2})", uri):
        raise ValueError("% must be followed by two hexadecimal digits; write %25 for the character itself")
    for host in match["hosts"].split(","):
        port = re.sub(r"\[[^\]]*\]", "", host).partition(":")[2]
        if port and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
            raise ValueError("a port is a number from 1 to 65535")
    try:
        # The rest is for libpq to judge. It quotes what it dislikes, so it never sees the password.
        conninfo_to_dict(re.sub(_SCHEME, "postgresql://", redact(uri), count=1))
    except ProgrammingError as exc:
        raise ValueError(str(exc).strip()) from None
