"""HTTP addresses: `host:port`, the hosts that only this machine can reach, and networks."""

import re
from contextlib import suppress
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Final, NamedTuple, TypeAlias

_HOST: Final = r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)"
_ADDRESS: Final = re.compile(rf"{_HOST}:(?P<port>\d{{1,5}})", re.ASCII)
_HOST_HEADER: Final = re.compile(rf"{_HOST}(:\d*)?", re.ASCII)

_MAX_PORT: Final = 65_535

Network: TypeAlias = IPv4Network | IPv6Network


class HttpAddress(NamedTuple):
    """A host (an IPv6 address without brackets) and a port; port 0 means any free port."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the address."""
        return is_loopback(self.host)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_http_address(text: str) -> HttpAddress:
    """Parse `host:port`. Raises ValueError with the rule."""
    match = _ADDRESS.fullmatch(text.strip())
    if match is None or int(match["port"]) > _MAX_PORT:
        raise ValueError("must be host:port, such as 127.0.0.1:8090")
    return HttpAddress(match["host"].strip("[]"), int(match["port"]))


def parse_networks(text: str) -> tuple[Network, ...]:
    """Parse a list of addresses and networks, separated by commas or blanks. Raises ValueError with the rule."""
    try:
        networks = tuple(map(ip_network, text.replace(",", " ").split()))
    except ValueError as error:
        raise ValueError(f"{error}; write addresses or networks, such as 10.0.0.7, 192.168.4.0/24") from None
    if not networks or not all(each.prefixlen for each in networks):
        raise ValueError("names no address, or all; write addresses or networks, such as 10.0.0.7, 192.168.4.0/24")
    return networks


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
