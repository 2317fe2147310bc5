"""`mqdb web`: only the dashboard, for brokers that other processes serve."""

import logging
from functools import partial
from typing import Annotated

import typer

from mqdb.cli.options import log_from, start, warn_of_unknown_variables

_DEFAULT_ADDRESS = "127.0.0.1:8090"


def web(
    context: typer.Context,
    http: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help=f"Address to serve on; MQDB_HTTP, or {_DEFAULT_ADDRESS}.")
    ] = None,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Allow no changes, as with MQDB_WEB_READ_ONLY=true.")
    ] = False,
) -> None:
    """Serve the dashboard for the brokers in the settings, with /healthz and /readyz.

    With MQDB_HTTP=127.0.0.1:8090, mqdb serve serves the dashboard for its own broker. On loopback, you log in once with
    the link that the command prints; with MQDB_WEB_PASSWORD, you log in with a form. MQDB_WEB_VIEWER_PASSWORD is the
    password for viewers, who cannot change anything. A proxy listed in MQDB_WEB_TRUSTED_PROXIES passes the user's name
    in MQDB_WEB_USER_HEADER, and the rights of mqdb acl apply to this user. Any address except loopback needs a password
    or such a proxy.

    \b
    [bold]Examples[/bold]
      mqdb web
      mqdb web --dsn 'a=postgresql://mqdb@db-1/mqdb;b=postgresql://mqdb@db-2/mqdb'
      MQDB_WEB_PASSWORD=... mqdb web --http 0.0.0.0:8090 --read-only
    """
    settings = start(context, http=http, web_read_only=read_only or None)
    if settings.http is None:
        settings = settings.model_copy(update={"http": _DEFAULT_ADDRESS})
    from mqdb.serving.web import serve_alone

    def on_started(line: str) -> None:
        print(f"mqdb web\n  end      Ctrl-C\n{line}", flush=True)
        log_from(context, logging.INFO)
        warn_of_unknown_variables()

    serve_alone(settings, on_started, partial(print, flush=True))
