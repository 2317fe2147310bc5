"""The choice of a TCP port on 127.0.0.1."""

import errno
import random
import socket
from collections.abc import Iterator

HOST = "127.0.0.1"

# Below the range from which Linux (32768), macOS and Windows (49152) choose the local port of an outgoing connection.
# Within that range, a client that retries while the server is down would sooner or later be assigned the server's own
# port, connect to itself, and prevent the server from coming back.
_CHOICE = range(20_000, 32_768)
_ATTEMPTS = 100


def is_free(port: int) -> bool:
    """Whether a server could listen on this port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As in PostgreSQL: connections of a server that just ended do not matter.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as exc:
            return exc.errno != errno.EADDRINUSE
    return True


def candidates(wished: int, previous: int | None) -> Iterator[int]:
    """Ports to try: only the wished port, or if it is 0, the port of the previous run and then random ones."""
    if wished:
        yield wished
        return
    if previous is not None:
        yield previous
    yield from random.sample(_CHOICE, _ATTEMPTS)
