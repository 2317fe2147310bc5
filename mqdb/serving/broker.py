"""`mqdb serve`: a broker, with the dashboard and the fronts for RocketMQ's clients if the settings enable them."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from mqdb.process.signals import interruption
from mqdb.process.systemd import SystemdSupervisor
from mqdb.server import Server, WebParts
from mqdb.serving.front import front_of
from mqdb.serving.grpc_front import grpc_front_of
from mqdb.settings import Settings
from mqdb.web.probe_report import Report

if TYPE_CHECKING:
    from mqdb.dashboard.dashboard import Dashboard
    from mqdb.fronts.front_thread import FrontThread
    from mqdb.grpc.traffic import CallTraffic
    from mqdb.remoting.session.traffic import Traffic
    from mqdb.web.application import Metrics

logger = logging.getLogger(__name__)

#: Called when clients can connect, with the server, the dashboard if there is one, and lines with the addresses of
#: fronts.
OnServing: TypeAlias = "Callable[[Server, Dashboard | None, list[str]], None]"


def serve_broker(settings: Settings, on_serving: OnServing, on_welcome: Callable[[str], None]) -> None:
    """Serve until SIGINT, SIGTERM or SIGHUP. Call it in the main thread.

    `on_welcome` is called with each new link to the dashboard. Raises the errors of `Server.start`, even after a wait
    for the primary, and CannotListen and SettingInvalid if the dashboard or a front cannot be served.
    """
    traffic = FrontTraffic.of(settings)
    with dashboard_of(settings, on_welcome) as dashboard:
        web = WebParts(
            dashboard.application if dashboard else None,
            dashboard.figures if dashboard else None,
            traffic.metrics_of() if settings.http else (),
        )
        server = Server(settings, outlives_owner=True, web=web)
        run(server, lambda lines: on_serving(server, dashboard, lines), traffic)


def run(server: Server, on_serving: Callable[[list[str]], None], traffic: "FrontTraffic | None" = None) -> None:
    """Start a server and its fronts, and stop all of them when a signal arrives.

    `on_serving` is called with lines that contain the addresses of the fronts, and `traffic` receives their counts.
    """
    traffic = traffic or FrontTraffic.of(server.settings)
    supervisor, health = SystemdSupervisor(), server.health

    def tell_alive() -> None:
        if supervisor.awaits_a_sign() and health.liveness().has_passed:
            supervisor.tell_alive()

    health.is_starting = True
    with interruption() as interrupted, server:
        if server.waits_for_primary:
            # systemd would otherwise abort a start that takes this long.
            supervisor.tell_ready()
            interrupted.wait(tell_alive, until=server.has_found_primary)
        if interrupted.is_set():
            supervisor.tell_stopping()
            return
        with (
            front_of(server.settings, server.dsn, traffic=traffic.remoting) as remoting,
            grpc_front_of(server.settings, server.dsn, traffic=traffic.grpc) as grpc,
        ):
            fronts: list[FrontThread] = [front for front in (remoting, grpc) if front is not None]
            health.beside = partial(_liveness_of, fronts) if fronts else None
            on_serving([line for front in fronts for line in front.lines])
            health.is_starting = False
            supervisor.tell_ready()
            interrupted.wait(tell_alive)
            supervisor.tell_stopping()
            health.end()
            logger.info("stopping")


def _liveness_of(fronts: "list[FrontThread]") -> Report:
    return Report({name: check for front in fronts for name, check in front.liveness().checks.items()})


@contextmanager
def dashboard_of(settings: Settings, on_welcome: Callable[[str], None]) -> "Iterator[Dashboard | None]":
    """The dashboard, if the settings enable it."""
    if settings.http is None:
        yield None
        return
    # Imported here, so that only this setting pays for loading its libraries.
    from mqdb.dashboard.dashboard import Dashboard

    dashboard = Dashboard(settings, on_welcome)
    try:
        yield dashboard
    finally:
        dashboard.close()


class FrontTraffic(NamedTuple):
    """The counts of the fronts that the settings enable."""

    remoting: "Traffic | None"
    grpc: "CallTraffic | None"

    @classmethod
    def of(cls, settings: Settings) -> "FrontTraffic":
        """New counts, all zero."""
        from mqdb.remoting.session.traffic import Traffic

        remoting = None if settings.remoting is None else Traffic()
        if settings.grpc is None:
            return cls(remoting, None)
        from mqdb.grpc.traffic import CallTraffic

        return cls(remoting, CallTraffic())

    def metrics_of(self) -> "list[Callable[[str, str], Metrics]]":
        """The functions that create the metrics of the fronts."""
        makers: list[Callable[[str, str], Metrics]] = []
        if self.remoting is not None:
            from mqdb.remoting.session.metrics import TrafficCollector

            makers.append(partial(TrafficCollector, traffic=self.remoting))
        if self.grpc is not None:
            from mqdb.grpc.traffic import CallTrafficCollector

            is_alone = self.remoting is None
            makers.append(partial(CallTrafficCollector, traffic=self.grpc, is_alone=is_alone))
        return makers
