"""Translates a DSN, as libpq parses it, to a URL and properties of PostgreSQL's JDBC driver.

Both use the same names for most parameters. A parameter without an equivalent in the driver is an error, because the
connection would be less secure or lead elsewhere. The password goes into a separate property, never into the URL, which
Spark and the driver show in errors and in the user interface.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import quote

from psycopg import pq
from psycopg.conninfo import conninfo_to_dict

from mqdb.common.dsn import is_secret, parse_brokers, redact
from mqdb.pipeline.errors import OptionInvalid

#: Source: the connection parameters of pgjdbc's manual.
_SAME_WORD: Final = frozenset(
    {"user", "password", "options", "sslmode", "sslrootcert", "sslcert", "sslkey", "sslpassword"}
)
_OTHER_WORD: Final = {
    "application_name": "ApplicationName",
    "connect_timeout": "connectTimeout",
    "channel_binding": "channelBinding",
    "gssencmode": "gssEncMode",
    "krbsrvname": "kerberosServerName",
}
_SERVER_TYPE: Final = {
    "any": "any",
    "read-write": "primary",
    "primary": "primary",
    "read-only": "secondary",
    "standby": "secondary",
    "prefer-standby": "preferSecondary",
}
#: Parameters for libpq's waits and encodings; they affect neither the choice of the server nor security.
_WITHOUT_MEANING: Final = frozenset(
    {"client_encoding", "fallback_application_name", "keepalives_count", "keepalives_idle", "keepalives_interval",
     "sslcompression", "sslsni", "tcp_user_timeout"}
)  # fmt: skip


class JdbcTarget(NamedTuple):
    """A URL without secrets, and the properties of the connection."""

    url: str
    properties: Mapping[str, str]

    def __repr__(self) -> str:
        return f"JdbcTarget(url={self.url!r}, properties={sorted(self.properties)})"


def jdbc_target(dsn: str) -> JdbcTarget:
    """The JDBC target of a DSN. Environment variables (PGHOST, PGUSER, PGPASSWORD, ...) complete the DSN.

    Raises OptionInvalid if `dsn` is not a DSN, or has several brokers, a Unix socket, or a parameter without an
    equivalent in the driver. No error shows the password.
    """
    given = _parameters(dsn)
    # .pgpass and PGPASSFILE are read by the driver itself.
    for ours in ("passfile", *_WITHOUT_MEANING):
        given.pop(ours, None)
    if _is_embedded(given):
        del given["require_auth"]
    database = quote(given.pop("dbname", "") or given.get("user", ""), safe="")
    properties = {} if given.pop("keepalives", "1") == "0" else {"tcpKeepAlive": "true"}
    url = f"jdbc:postgresql://{_hosts(dsn, given)}/{database}"
    for name, value in given.items():
        properties |= _property(dsn, name, value)
    return JdbcTarget(url, properties)


def _parameters(dsn: str) -> dict[str, str]:
    try:
        brokers = parse_brokers(dsn, "broker-a")
    except ValueError as error:
        raise OptionInvalid("url", redact(dsn), str(error)) from None
    if len(brokers) > 1:
        raise OptionInvalid("url", redact(dsn), "names several brokers; load each of them, and union the results")
    # The parameters that libpq itself would use, except those compiled into it.
    from_environment = {
        default.keyword.decode(): default.val.decode()
        for default in pq.Conninfo.get_defaults()
        if default.val is not None and default.envvar is not None and default.val != default.compiled
    }
    return from_environment | {name: str(value) for name, value in conninfo_to_dict(brokers[0].dsn).items()}


def _is_embedded(given: Mapping[str, str]) -> bool:
    """Whether this is the DSN of an embedded server, which requires SCRAM, for which the driver has no parameter.

    The planner has just reached this port through libpq with SCRAM, so the server there is the embedded one.
    """
    return given.get("host") == "127.0.0.1" and given.get("require_auth") == "scram-sha-256"


def _hosts(dsn: str, given: dict[str, str]) -> str:
    names = given.pop("host", "").split(",")
    addresses = given.pop("hostaddr", "").split(",")
    ports = given.pop("port", "5432").split(",")
    hosts = addresses if addresses != [""] else names
    for host in hosts:
        if host == "" or host.startswith(("/", "@")):
            where = f"the Unix socket {host!r}" if host else "a Unix socket (it names no host)"
            reason = f"leads to {where}, but JDBC supports only TCP: name a host, or use format('mqdb')"
            raise OptionInvalid("url", redact(dsn), reason)
    # A single port applies to all hosts.
    ports = ports * len(hosts) if len(ports) == 1 else ports
    if len(ports) != len(hosts):
        raise OptionInvalid("url", redact(dsn), f"names {len(hosts)} hosts and {len(ports)} ports")
    return ",".join(
        f"{f'[{host}]' if ':' in host else host}:{port or 5432}" for host, port in zip(hosts, ports, strict=True)
    )


def _property(dsn: str, name: str, value: str) -> dict[str, str]:
    if name in _SAME_WORD:
        return {name: value}
    if name in _OTHER_WORD:
        return {_OTHER_WORD[name]: value}
    if name == "target_session_attrs" and value in _SERVER_TYPE:
        return {"targetServerType": _SERVER_TYPE[value]}
    if name == "load_balance_hosts":
        return {"loadBalanceHosts": "true" if value == "random" else "false"}
    shown = name if is_secret(name) else f"{name}={value}"
    raise OptionInvalid("url", redact(dsn), f"{shown} has no meaning for JDBC: leave it out, or use format('mqdb')")
