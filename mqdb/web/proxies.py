"""Trusted proxies, which authenticate people and name the person behind a request in a header.

A proxy is recognized by the address of its TCP connection. No header can change this address, because the server does
not read X-Forwarded-For (`proxy_headers=False`).
"""

from contextlib import suppress
from ipaddress import IPv6Address, ip_address
from typing import Final

from starlette.types import Scope

from mqdb.common.http_address import Network
from mqdb.common.printable import printable
from mqdb.settings import Settings

#: The longest name; an actor may have 255 characters.
_MOST_NAME: Final = 100


class Proxies:
    """The networks of the trusted proxies, and the header that names the person."""

    def __init__(self, header: str | None, networks: tuple[Network, ...]) -> None:
        self._header = b"" if header is None else header.lower().encode()
        self._networks = networks

    @classmethod
    def of(cls, settings: Settings) -> "Proxies":
        """The trusted proxies in the settings."""
        return cls(settings.web_user_header, settings.trusted_networks)

    @property
    def are_trusted(self) -> bool:
        """Whether there are trusted proxies."""
        return bool(self._networks)

    def person(self, scope: Scope) -> str | None:
        """The name that a trusted proxy sends; None for any other peer, or if the header is missing or repeated.

        A name that is too long or has control characters is ignored. A shortened name could be another person's.
        """
        if not self._is_trusted(scope):
            return None
        given: list[bytes] = [value for name, value in scope["headers"] if name == self._header]
        with suppress(ValueError):
            (name,) = (each.decode().strip() for each in given)
            if 0 < len(name) <= _MOST_NAME and printable(name) == name:
                return name
        return None

    def _is_trusted(self, scope: Scope) -> bool:
        client = scope.get("client")
        if not self._networks or client is None:
            return False
        with suppress(ValueError):
            peer = ip_address(client[0])
            if isinstance(peer, IPv6Address) and peer.ipv4_mapped is not None:
                peer = peer.ipv4_mapped
            return any(peer in network for network in self._networks)
        return False
