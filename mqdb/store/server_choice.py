"""The choice of the server for a connection: the primary, and among several hosts the one that last answered.

Behind a single address (a proxy, a virtual IP, a Kubernetes service) a connection that is opened during a switchover
can lead to the old primary, which is now a standby. Such a connection would work but refuse each write. So a writer
requests a primary, and never gets a connection to a standby. A promoted standby keeps its connections, and a primary
that becomes a standby closes them: so a server keeps the role that it had when the connection was made.
Source: PostgreSQL, "Database Connection Control Functions" (target_session_attrs), "Hot Standby" (in_hot_standby).
"""

from collections.abc import Mapping
from enum import Enum, auto
from typing import Any, Final, NamedTuple, TypeVar

import psycopg

from mqdb.errors import ServerIsStandby

#: libpq's messages for a server that does not fit `target_session_attrs`, for which there is no SQLSTATE.
_NOT_PRIMARY: Final = ("session is read-only", "server is in hot standby mode")

_DEFAULT_PORT: Final = "5432"

_C = TypeVar("_C", "psycopg.Connection[Any]", "psycopg.AsyncConnection[Any]")


class ServerRole(Enum):
    """The server that an engine connects to."""

    PRIMARY = auto()
    """Only the primary: for writers."""
    PRIMARY_FIRST = auto()
    """The primary, or a standby if there is no primary: for people, who read and write."""
    ANY = auto()
    """Any server, or the one requested in the DSN: for reads, and for poolers, which choose the server themselves."""


class ServerChoice:
    """The arguments of psycopg for connections to one DSN. `given` are the parts of the DSN."""

    def __init__(self, given: Mapping[str, Any], target: str, server: ServerRole, arguments: Mapping[str, Any]) -> None:
        self._target = target
        self._server = server
        self._arguments = dict(arguments)
        self._asks = server is not ServerRole.ANY and "target_session_attrs" not in given
        # A DSN that shuffles its hosts determines itself which one comes first.
        self._hosts = () if given.get("load_balance_hosts") == "random" else hosts_of(given)

    def arguments(self) -> list[dict[str, Any]]:
        """The arguments of each attempt; the next attempt is made if this one finds no primary.

        The host that last answered comes first, because an attempt at a hanging host takes seconds.
        """
        asked = self._arguments | _as_lists(_orders.get(self._hosts, self._hosts))
        if not self._asks:
            return [asked]
        primary = asked | {"target_session_attrs": "read-write"}
        return [primary, asked] if self._server is ServerRole.PRIMARY_FIRST else [primary]

    def connect(self, dsn: str) -> "psycopg.Connection[Any]":
        """A new connection. Raises psycopg.Error, and ServerIsStandby if the DSN itself requests a standby."""
        *first, last = self.arguments()
        for attempt in first:
            try:
                return self._accept(psycopg.connect(dsn, **attempt))
            except psycopg.OperationalError as error:
                if not is_not_primary(error):
                    raise
        return self._accept(psycopg.connect(dsn, **last))

    async def connect_asynchronously(self, dsn: str) -> "psycopg.AsyncConnection[Any]":
        """Connect as `connect` does, but asynchronously."""
        connection = await psycopg.AsyncConnection.connect(dsn, **self.arguments()[0])
        self._accept(connection)
        return connection

    def _accept(self, connection: _C) -> _C:
        if self._server is ServerRole.PRIMARY and is_standby(connection):
            connection.pgconn.finish()
            raise ServerIsStandby(self._target, "the DSN leads to it")
        info = connection.info
        if self._hosts:
            # A stable sort: the other hosts keep their order.
            _orders[self._hosts] = tuple(sorted(self._hosts, key=lambda host: not host.is_that_of(info)))
        return connection


def is_standby(connection: "psycopg.Connection[Any] | psycopg.AsyncConnection[Any]") -> bool:
    """Whether a connection leads to a standby; also False behind a pooler, which does not report it."""
    return connection.info.parameter_status("in_hot_standby") == "on"


def is_not_primary(error: BaseException) -> bool:
    """Whether a connection attempt reached a standby, or a read-only server."""
    text = str(error)
    return any(each in text for each in _NOT_PRIMARY)


class Host(NamedTuple):
    """One of several hosts of a DSN, as named there."""

    host: str
    hostaddr: str
    port: str

    def is_that_of(self, info: psycopg.ConnectionInfo) -> bool:
        """Whether a connection leads to this host."""
        return (self.host or self.hostaddr, self.port) == (info.host or info.hostaddr, str(info.port))


def hosts_of(given: Mapping[str, Any]) -> tuple[Host, ...]:
    """The hosts of a DSN with several hosts; () for a single host.

    Also () if its lists differ in length, which libpq refuses with a message.
    """
    lists = {name: str(given[name]).split(",") for name in Host._fields if given.get(name)}
    count = max((len(lists[name]) for name in ("host", "hostaddr") if name in lists), default=1)
    ports = lists.get("port", [_DEFAULT_PORT])
    lists["port"] = [port or _DEFAULT_PORT for port in (ports * count if len(ports) == 1 else ports)]
    if count == 1 or {len(values) for values in lists.values()} != {count}:
        return ()
    nothing = [""] * count
    return tuple(map(Host._make, zip(*(lists.get(name, nothing) for name in Host._fields), strict=True)))


#: The hosts of each DSN with several hosts, the one that last answered first, for all connections of the process.
_orders: Final[dict[tuple[Host, ...], tuple[Host, ...]]] = {}


def _as_lists(hosts: tuple[Host, ...]) -> dict[str, str]:
    """The hosts as libpq's options; options that the DSN does not have are left out."""
    lists = {name: ",".join(getattr(host, name) for host in hosts) for name in Host._fields}
    return {name: values for name, values in lists.items() if values.strip(",")}
