"""Metrics and probes over HTTP, for commands that serve nothing else over HTTP."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mqdb.common.http_address import HttpAddress
    from mqdb.settings import Settings
    from mqdb.web.application import Metrics
    from mqdb.web.probe_report import Probes


@contextmanager
def metrics_served(settings: "Settings", probes: "Probes", *metrics: "Metrics") -> "Iterator[HttpAddress]":
    """Answer probes and scrapes at the HTTP address in the settings.

    Yields the address. Raises CannotListen if that fails.
    """
    from mqdb.web.application import create_application
    from mqdb.web.proxies import Proxies
    from mqdb.web.web_server import serve_web

    address = settings.http_address
    assert address is not None
    application = create_application(
        probes,
        *metrics,
        loopback_only=address.is_loopback,
        passwords=settings.web_passwords,
        proxies=Proxies.of(settings),
    )
    server = serve_web(settings, address, application)
    try:
        yield server.address
    finally:
        server.stop()
