"""`mqdb serve`: a broker in the foreground."""

import gc
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from mqdb.cli.options import log_from, start, warn_of_unknown_variables
from mqdb.errors import CannotListen, ParameterInvalid, SettingInvalid

if TYPE_CHECKING:
    from mqdb.dashboard.dashboard import Dashboard
    from mqdb.remoting.front import Front
    from mqdb.remoting.traffic import Traffic
    from mqdb.settings import Settings
    from mqdb.web.application import Metrics
    from mqdb.web.report import Report


def serve(
    context: typer.Context,
    port: Annotated[
        int | None,
        typer.Option(help="Port of the embedded PostgreSQL; unset or 0, that of the last time or any free one."),
    ] = None,
) -> None:
    """Start a broker and keep it running until Ctrl-C or SIGTERM.

    It brings the schema to head and runs the services: dispatch, retention and
    the rest. Without a DSN it also runs the PostgreSQL, in the home directory.
    Several of these processes may serve one database: one of them leads,
    another takes over when it is gone. Each serves one database; a cluster
    of several has one for each. When it is killed, its PostgreSQL stays until
    the next mqdb serve in the home, which adopts it.

    \b
    [bold]Examples[/bold]
      mqdb serve
      mqdb serve --home ./data --port 5433
      mqdb serve --dsn postgresql://mqdb@db.example.org/mqdb
    """
    settings = start(context, port=port)
    if port and settings.broker is not None:
        raise ParameterInvalid("port", port, "is for the embedded PostgreSQL; --dsn says where another one is")
    from mqdb.remoting.traffic import Traffic
    from mqdb.server import Server

    traffic = Traffic()
    with pages_of(settings) as dashboard:
        server = Server(
            settings,
            outlives_owner=True,
            pages=dashboard.application if dashboard else None,
            lag_history=dashboard.lag_history if dashboard else None,
            more_metrics=_metrics_of(settings, traffic),
        )

        @contextmanager
        def beside() -> "Iterator[Callable[[], Report] | None]":
            with front_of(settings, server.dsn, traffic=traffic) as front:
                lines = greeting(settings, server.dsn)
                if front is not None:
                    lines.insert(-1, f"  remoting {front.address}")
                if dashboard is not None and server.http_address is not None:
                    lines.insert(-1, f"  metrics  http://{server.http_address}/metrics")
                    lines.append(dashboard.welcome(server.http_address))
                print("\n".join(lines), flush=True)
                # Not from the start: when it fails, the one line that says why stands alone.
                log_from(context, logging.INFO)
                warn_of_unknown_variables()
                yield None if front is None else front.liveness

        server.run(beside)


@contextmanager
def pages_of(settings: "Settings") -> "Iterator[Dashboard | None]":
    """The dashboard, if the settings say where; it tells each new link on standard output."""
    if settings.http is None:
        yield None
        return
    # Nobody else pays for the import of its libraries.
    from mqdb.dashboard.dashboard import Dashboard

    dashboard = Dashboard(settings, on_welcome=partial(print, flush=True))
    try:
        yield dashboard
    finally:
        dashboard.close()


def _metrics_of(settings: "Settings", traffic: "Traffic") -> "Callable[[str, str], Metrics] | None":
    """The metrics of the front, if the settings say where both are served."""
    if settings.http is None or settings.remoting is None:
        return None
    from mqdb.remoting.metrics import TrafficCollector

    return partial(TrafficCollector, traffic=traffic)


@contextmanager
def front_of(
    settings: "Settings", dsn: str, pool_dsn: str | None = None, traffic: "Traffic | None" = None
) -> "Iterator[Front | None]":
    """The front for RocketMQ's clients, if the settings say where; `traffic` gets its counts.

    Raises CannotListen, and SettingInvalid for what it cannot use.
    """
    if settings.remoting_address is None:
        yield None
        return
    from mqdb.common.dsn import BrokerDsn
    from mqdb.remoting.access import OpenToAll
    from mqdb.remoting.front import Front
    from mqdb.remoting.listener import Tls

    name = settings.broker.name if settings.broker else settings.broker_name
    is_open = settings.remoting_address.is_loopback or settings.remoting_open
    advertised = settings.remoting_advertised_address
    tls = None
    if (certificate := settings.remoting_certificate) is not None:
        tls = Tls(certificate, settings.remoting_certificate_key or certificate, settings.remoting_tls_only)
        try:
            tls.context()
        except OSError as error:
            origin = settings.origin("remoting_certificate")
            reason = f"it, or its key, cannot be used: {error.strerror or error}"
            raise SettingInvalid("remoting_certificate", str(certificate), origin, reason) from error
    elif settings.remoting_tls_only:
        reason = "there is no TLS without remoting_certificate"
        raise SettingInvalid("remoting_tls_only", True, settings.origin("remoting_tls_only"), reason)
    front = Front(
        BrokerDsn(name, dsn),
        settings.remoting_address,
        advertised,
        is_open=is_open,
        tls=tls,
        pool_dsn=pool_dsn,
        traffic=traffic,
    )
    try:
        front.start()
    except OpenToAll:
        reason = (
            "anybody who reaches it could do all; give an access key a secret (mqdb acl secret), or set remoting_open"
        )
        raise SettingInvalid("remoting", settings.remoting, settings.origin("remoting"), reason) from None
    except OSError as error:
        origin = settings.origin("remoting")
        raise CannotListen("remoting", str(settings.remoting), origin, error.strerror or str(error)) from error
    # All that is loaded stays: full collections need not look at it while requests wait.
    gc.collect()
    gc.freeze()
    try:
        yield front
    finally:
        front.stop()


def greeting(settings: "Settings", dsn: str) -> list[str]:
    """What somebody who has just started a broker wants to know."""
    from mqdb import __version__
    from mqdb.cli.psql import psql_of
    from mqdb.common.dsn import redact
    from mqdb.setting_layers import default_home

    name = settings.broker.name if settings.broker else settings.broker_name
    where = redact(dsn) if settings.broker else f"the embedded PostgreSQL in {settings.home}"
    lines = [f"mqdb {__version__} serves {name} on {where}"]
    if settings.broker is None and settings.home != default_home():
        lines.append(f"  clients  MQDB_HOME={settings.home}")
    return [*lines, f"  psql     {psql_of(settings, dsn)}", "  end      Ctrl-C"]
