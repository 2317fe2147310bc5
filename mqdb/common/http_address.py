"""Where HTTP is served: `host:port`, and which hosts only this machine can reach."""

import re
from contextlib import suppress
from ipaddress import ip_address
from typing import Final, NamedTuple

_HOST: Final = r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)"
_ADDRESS: Final = re.compile(rf"{_HOST}:(?P<port>\d{{1,5}})", re.ASCII)
_HOST_HEADER: Final = re.compile(rf"{_HOST}(:\d*)?", re.ASCII)

_MAX_PORT: Final = 65_535


class HttpAddress(NamedTuple):
    """A host, an IPv6 address without its brackets, and a port; port 0 is any free one."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return is_loopback(self.host)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_http_address(text: str) -> HttpAddress:
    """The address that `host:port` says. Raises ValueError with the rule."""
    match = _ADDRESS.fullmatch(text.strip())
    if match is None or int(match["port"]) > _MAX_PORT:
        raise ValueError("write host:port, such as 127.0.0.1:8090")
    return HttpAddress(match["host"].strip("[]"), int(match["port"]))


def is_loopback(host: str) -> bool:
    """Whether a host without its port is `localhost` or an address of the loopback interface."""
    if host.lower() == "localhost":
        return True
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return False


def names_loopback(host_header: str) -> bool:
    """Whether the Host header of a request names a loopback host."""
    match = _HOST_HEADER.fullmatch(host_header)
    return match is not None and is_loopback(match["host"].strip("[]"))
