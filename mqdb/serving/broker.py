"""`mqdb serve`: a broker, with the dashboard and the front for RocketMQ's clients if the settings say where."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from mqdb.process.signals import interruption
from mqdb.process.systemd import SystemdSupervisor
from mqdb.remoting.session.traffic import Traffic
from mqdb.server import Server, WebParts
from mqdb.serving.front import front_of
from mqdb.settings import Settings

if TYPE_CHECKING:
    from mqdb.dashboard.dashboard import Dashboard
    from mqdb.remoting.front import Front
    from mqdb.web.application import Metrics

logger = logging.getLogger(__name__)

#: Called when clients may come, with the server, and with the dashboard and the front if there are any.
OnServing: TypeAlias = "Callable[[Server, Dashboard | None, Front | None], None]"


def serve_broker(settings: Settings, on_serving: OnServing, on_welcome: Callable[[str], None]) -> None:
    """Serve until SIGINT, SIGTERM or SIGHUP. For the main thread.

    `on_welcome` gets each new link to the dashboard. Raises what `Server.start` raises, also after a wait for the
    primary; CannotListen and SettingInvalid if the dashboard or the front cannot be served.
    """
    traffic = Traffic()
    with dashboard_of(settings, on_welcome) as dashboard:
        web = WebParts(
            dashboard.application if dashboard else None,
            dashboard.lag_history if dashboard else None,
            _metrics_of(settings, traffic),
        )
        server = Server(settings, outlives_owner=True, web=web)
        run(server, lambda front: on_serving(server, dashboard, front), traffic)


def run(server: Server, on_serving: "Callable[[Front | None], None]", traffic: Traffic | None = None) -> None:
    """Start a server and its front, and stop both when a signal comes. `traffic` gets the counts of the front."""
    supervisor, health = SystemdSupervisor(), server.health

    def tell_alive() -> None:
        if supervisor.awaits_a_sign() and health.liveness().has_passed:
            supervisor.tell_alive()

    health.is_starting = True
    with interruption() as interrupted, server:
        if server.waits_for_primary:
            # systemd would give up a start that takes as long.
            supervisor.tell_ready()
            interrupted.wait(tell_alive, until=server.has_found_primary)
        if interrupted.is_set():
            supervisor.tell_stopping()
            return
        with front_of(server.settings, server.dsn, traffic=traffic) as front:
            health.beside = None if front is None else front.liveness
            on_serving(front)
            health.is_starting = False
            supervisor.tell_ready()
            interrupted.wait(tell_alive)
            supervisor.tell_stopping()
            health.end()
            logger.info("stopping")


@contextmanager
def dashboard_of(settings: Settings, on_welcome: Callable[[str], None]) -> "Iterator[Dashboard | None]":
    """The dashboard, if the settings say where."""
    if settings.http is None:
        yield None
        return
    # Nobody else pays for the import of its libraries.
    from mqdb.dashboard.dashboard import Dashboard

    dashboard = Dashboard(settings, on_welcome)
    try:
        yield dashboard
    finally:
        dashboard.close()


def _metrics_of(settings: Settings, traffic: Traffic) -> "Callable[[str, str], Metrics] | None":
    """The metrics of the front, if the settings say where both are served."""
    if settings.http is None or settings.remoting is None:
        return None
    from mqdb.remoting.session.metrics import TrafficCollector

    return partial(TrafficCollector, traffic=traffic)
