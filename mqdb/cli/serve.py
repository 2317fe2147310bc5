"""`mqdb serve`: a broker in the foreground."""

import logging
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from mqdb.cli.options import log_from, start, warn_of_unknown_variables
from mqdb.errors import ParameterInvalid

if TYPE_CHECKING:
    from mqdb.dashboard.dashboard import Dashboard
    from mqdb.server import Server
    from mqdb.settings import Settings


def serve(
    context: typer.Context,
    port: Annotated[
        int | None,
        typer.Option(
            help="Port of the embedded PostgreSQL; if not given or 0, the port of the last run, or any free port."
        ),
    ] = None,
    wait_for_primary: Annotated[
        bool,
        typer.Option(
            "--wait-for-primary",
            help="If the DSN leads to a standby, wait for the primary instead of exiting. MQDB_WAIT_FOR_PRIMARY "
            "MQDB_WAIT_FOR_PRIMARY",
        ),
    ] = False,
) -> None:
    """Start a broker and keep it running until Ctrl-C or SIGTERM.

    The broker upgrades the schema and runs the services: dispatch, retention and others. Without a DSN, it also runs
    PostgreSQL, in the home directory. Several of these processes can serve one database: one leads, and another takes
    over if the leader is gone. Each process serves one database; a cluster of several databases needs one process for
    each. If the process is killed, its PostgreSQL keeps running until the next mqdb serve in the same home adopts it.

    \b
    [bold]Examples[/bold]
      mqdb serve
      mqdb serve --home ./data --port 5433
      mqdb serve --dsn postgresql://mqdb@db.example.org/mqdb
      mqdb serve --dsn postgresql://mqdb@127.0.0.1/mqdb --wait-for-primary
    """
    settings = start(context, port=port, wait_for_primary=wait_for_primary or None)
    if port and settings.broker is not None:
        raise ParameterInvalid(
            "port", port, "is for the embedded PostgreSQL; the port of another server belongs in --dsn"
        )
    from mqdb.serving.broker import serve_broker

    def on_serving(server: "Server", dashboard: "Dashboard | None", front_lines: list[str]) -> None:
        lines = greeting(settings, server.dsn)
        lines[-1:-1] = front_lines
        if dashboard is not None and server.http_address is not None:
            lines.insert(-1, f"  metrics  http://{server.http_address}/metrics")
            lines.append(dashboard.welcome(server.http_address))
        print("\n".join(lines), flush=True)
        # Logging starts here: if the start fails, only the one line with the reason is printed.
        log_from(context, logging.INFO)
        warn_of_unknown_variables()

    serve_broker(settings, on_serving, partial(print, flush=True))


def greeting(settings: "Settings", dsn: str) -> list[str]:
    """The lines that `mqdb serve` prints after its start."""
    from mqdb import __version__
    from mqdb.cli.psql import psql_of
    from mqdb.common.dsn import redact
    from mqdb.settings.layers import default_home

    name = settings.broker.name if settings.broker else settings.broker_name
    where = redact(dsn) if settings.broker else f"the embedded PostgreSQL in {settings.home}"
    lines = [f"mqdb {__version__} serves {name} on {where}"]
    if settings.broker is None and settings.home != default_home():
        lines.append(f"  clients  MQDB_HOME={settings.home}")
    return [*lines, f"  psql     {psql_of(settings, dsn)}", "  end      Ctrl-C"]
