"""`mqdb web`: the dashboard without a broker process."""

import time
from collections.abc import Callable
from typing import Final

from mqdb.dashboard.dashboard import Dashboard
from mqdb.errors import SettingInvalid
from mqdb.server import interruption
from mqdb.settings import Settings
from mqdb.web.access import AccessControl
from mqdb.web.web_server import WebServer

_SIGNAL_SECONDS: Final = 0.1


def serve_alone(
    settings: Settings, on_started: Callable[[str], None], on_welcome: Callable[[str], None] = lambda line: None
) -> None:
    """Serve until SIGINT, SIGTERM or SIGHUP. For the main thread.

    `on_started` gets the line that says what to open, `on_welcome` each new one. Raises SettingInvalid if `http` is not
    set, or cannot be listened on.
    """
    address = settings.http_address
    if address is None:
        raise SettingInvalid("http", "", settings.origin("http"), "is not set")
    dashboard = Dashboard(settings, on_welcome)
    # The pages ask for the password.
    application = AccessControl(dashboard.application, loopback_only=address.is_loopback, password=None)
    try:
        server = WebServer(address, application)
    except OSError as error:
        reason = f"cannot listen there: {error.strerror or error}"
        raise SettingInvalid("http", str(address), settings.origin("http"), reason) from error
    try:
        with interruption() as interrupted:
            on_started(dashboard.welcome(server.address))
            while not interrupted.is_set():
                time.sleep(_SIGNAL_SECONDS)
    finally:
        server.stop()
        dashboard.close()
