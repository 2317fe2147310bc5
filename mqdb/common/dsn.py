"""DSNs: the databases that are brokers, and how to show them without a password.

One PostgreSQL URI is one broker. A cluster is a list, `broker-a=postgresql://...;broker-b=postgresql://...`.
This module never connects to a database. A password may contain any percent-encoded character. `redact` shows only text
that libpq and this module read as the same DSN; it hides any other text completely, because a password may be anywhere
in it.
"""

import re
from difflib import get_close_matches
from functools import cache, lru_cache
from typing import Final, NamedTuple
from urllib.parse import unquote

from psycopg import ProgrammingError, pq
from psycopg.conninfo import conninfo_to_dict

SHAPE = "postgresql://user:password@host:port/database"

#: Replaces a secret, and a whole text that is not a DSN.
HIDDEN: Final = "***"

_BROKER_NAME = r"[A-Za-z0-9][A-Za-z0-9_.@-]*"
_SCHEME = r"postgres(?:ql)?(?:\+psycopg)?://"
# A password may contain a semicolon, so only a semicolon before the next named broker ends a broker.
_NEXT_BROKER = re.compile(rf";\s*(?={_BROKER_NAME}={_SCHEME})")
_NAMED = re.compile(rf"(?P<name>{_BROKER_NAME})=(?={_SCHEME})")
_URI = re.compile(
    rf"""(?P<scheme>{_SCHEME})
    (?:(?P<user>[^:/?\#@\s]*)(?::(?P<password>[^/?\#@\s]*))?@)?
    (?P<hosts>[^/?\#@;\s]*)
    (?:/(?P<database>[^/?\#;\s]*))?
    (?:\?(?P<options>[^?\#\s]*))?""",
    re.VERBOSE,
)
_LIKE_A_DSN = re.compile(r"postgres(?:ql)?(?:\+\w+)?:|password|:[^/]*@", re.IGNORECASE)
# SQLAlchemy's names of other drivers. They are listed because any other text there may be part of a password.
_OTHER_DRIVER = re.compile(
    rf"(?:^|;\s*)(?:{_BROKER_NAME}=)?postgres(?:ql)?\+(?P<driver>asyncpg|psycopg2|psycopg2cffi|psycopg_async|pg8000)://",
    re.IGNORECASE,
)
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")


class BrokerDsn(NamedTuple):
    """A broker and the URI of its database. The URI contains the password: print `redact(dsn)`."""

    name: str
    dsn: str

    def __repr__(self) -> str:
        return f"BrokerDsn(name={self.name!r}, dsn={redact(self.dsn)!r})"


def is_broker_name(text: object) -> bool:
    """Whether a text consists of letters, digits and `_.@-`, so that a list of DSNs is unambiguous;

    `room@name` is allowed.
    """
    return isinstance(text, str) and re.fullmatch(_BROKER_NAME, text) is not None


def parse_brokers(text: str, default_name: str) -> tuple[BrokerDsn, ...]:
    """The brokers in the order of the list; a single URI without a name gets `default_name`.

    Raises ValueError with a reason that quotes only names of brokers.
    """
    if other := _OTHER_DRIVER.search(text.strip()):
        raise ValueError(f"mqdb uses psycopg and no other driver; write postgresql:// without +{other['driver']}")
    parts = _parts(text)
    brokers = tuple(_broker(part, default_name if len(parts) == 1 else None) for part in parts)
    names = [broker.name for broker in brokers]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"broker {name!r} is named twice")
    return brokers


@lru_cache(maxsize=64)  # named in errors, so it is read for each connection
def redact(text: str) -> str:
    """The DSN or the list of DSNs with *** for every secret; a text that is not a DSN becomes ***."""
    try:
        parse_brokers(text, "")
    except ValueError:
        return HIDDEN
    return ";".join(_redacted(part) for part in _parts(text))


def hide_dsn(text: str) -> str:
    """A value that should not be a DSN, such as a directory, or *** if it looks like a misplaced DSN."""
    return HIDDEN if _LIKE_A_DSN.search(unquote(text)) else text


def without_secrets(dsn: str) -> str:
    """The URI of one broker without its secrets, so that libpq looks for the password elsewhere."""
    match = _URI.fullmatch(dsn)
    if match is None:
        raise ValueError(f"write {SHAPE}")
    options = [option for option in (match["options"] or "").split("&") if option and not _is_secret(option)]
    return (
        match["scheme"]
        + (f"{match['user']}@" if match["user"] else "")
        + match["hosts"]
        + (f"/{match['database']}" if match["database"] is not None else "")
        + (f"?{'&'.join(options)}" if options else "")
    )


def is_secret(option: str) -> bool:
    """Whether one of libpq's options is secret."""
    return option in _options() and (_options()[option] or option.startswith("scram_"))


@cache
def _options() -> dict[str, bool]:
    """libpq's options by name; the value is True for those that a program should mask on input."""
    return {option.keyword.decode(): option.dispchar == b"*" for option in pq.Conninfo.get_defaults()}


def _is_secret(option: str) -> bool:
    """Whether `name=value` in a URI is a secret. The name may be percent-encoded too."""
    return is_secret(unquote(option.partition("=")[0]))


def _parts(text: str) -> list[str]:
    return [part.strip() for part in _NEXT_BROKER.split(text.strip().rstrip(";"))]


def _redacted(part: str) -> str:
    """A part of a list, without its secrets; the part is valid for `parse_brokers`."""
    named = _NAMED.match(part)
    begin = named.end() if named else 0
    match = _URI.fullmatch(part, begin)
    assert match is not None
    database, options = match["database"] or "", match["options"] or ""
    if _is_doubtful(match):
        return part[:begin] + HIDDEN
    text = part[:begin] + match["scheme"]
    if match["user"] is not None:
        # An encoded colon: the password was taken for part of the user name.
        user = re.split("%3a", match["user"], maxsplit=1, flags=re.IGNORECASE)
        text += user[0] + (f":{HIDDEN}" if len(user) > 1 or match["password"] is not None else "") + "@"
    text += match["hosts"] if "@" not in unquote(match["hosts"])[1:] else HIDDEN
    text += f"/{database}" if match["database"] is not None else ""
    shown = [_redacted_option(option) for option in options.split("&")]
    return text + (f"?{'&'.join(shown)}" if match["options"] is not None else "")


def _is_doubtful(match: re.Match[str]) -> bool:
    """Whether a password may be elsewhere than libpq assumes, because its colon, slash or @ was not percent-encoded.

    `user:5432/rest@host` is a host with its port and a database, `user:/rest` a host, and `user:@rest` no password.
    """
    database, options = match["database"] or "", match["options"] or ""
    no_port = any(host.endswith(":") for host in match["hosts"].split(","))
    return (
        no_port or match["password"] == "" or "@" in database + options or ":" in database or "://" in unquote(database)
    )


def _redacted_option(option: str) -> str:
    name, equals, value = option.partition("=")
    hidden = _is_secret(option) or "@" in unquote(value)[1:]
    return f"{unquote(name)}={HIDDEN}" if hidden else name + equals + value


def _broker(part: str, default_name: str | None) -> BrokerDsn:
    named = _NAMED.match(part)
    uri = part[named.end() :] if named else part
    name = named["name"] if named else default_name
    if name is None:
        raise ValueError("in a list, every broker needs a name: broker-a=postgresql://...;broker-b=postgresql://...")
    # A URI that SQLAlchemy and libpq both read.
    dsn = re.sub(_SCHEME, "postgresql://", uri, count=1)
    _check(uri, dsn)
    return BrokerDsn(name, dsn)


def _check(uri: str, dsn: str) -> None:
    match = _URI.fullmatch(uri)
    if not match or _UNPRINTABLE.search(uri):
        raise ValueError(f"write {SHAPE}, with @ : / ? # % and blanks inside a part as %40 %3A %2F %3F %23 %25 %20")
    if re.search(r"%(?![0-9A-Fa-f]{2})", uri):
        raise ValueError("% must be followed by two hexadecimal digits; write %25 for the character itself")
    for host in match["hosts"].split(","):
        port = re.sub(r"\[[^\]]*\]", "", host).partition(":")[2]
        if port and not (port.isascii() and port.isdigit() and len(port) < 6 and 0 < int(port) < 65536):
            raise ValueError("a port is a number from 1 to 65535")
    try:
        conninfo_to_dict(dsn)
    except ProgrammingError:
        # libpq quotes the invalid part, which may be part of the password.
        raise ValueError(_fault(match["options"])) from None
    except UnicodeError:
        raise ValueError("what is percent-encoded must be UTF-8") from None


def _fault(options: str | None) -> str:
    """The reason why libpq refuses a text that looks like a URI, without quoting the text."""
    for number, option in enumerate(options.split("&") if options else (), start=1):
        name, equals, value = option.partition("=")
        if not equals or "=" in value:
            return f"option {number} after the ? is not name=value; write & and = inside a value as %26 and %3D"
        if unquote(name) not in _options():
            near = get_close_matches(unquote(name), _options(), n=1)
            remedy = f"; did you mean {near[0]}?" if near else ""
            return f"option {number} after the ? is unknown to libpq{remedy}"
    return f"libpq cannot read it; write {SHAPE}"
