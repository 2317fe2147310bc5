"""`mqdb dsn` and `mqdb psql`: direct access to the broker's database, for programs and people."""

import os
import signal
import subprocess
from typing import TYPE_CHECKING, Annotated

import typer

from mqdb.cli.options import start

if TYPE_CHECKING:
    from mqdb.settings import Settings


def dsn(context: typer.Context) -> None:
    """Print the DSN of the broker's database, with its password.

    The DSN is for programs that have their own tables in this database and send messages in their own transactions.
    Clients of mqdb do not need it: they find the embedded broker by the home directory, and any other broker by
    MQDB_DSN. The DSN of the embedded broker stays valid when the broker restarts. The option require_auth in this DSN
    needs libpq 16 or newer.

    \b
    [bold]Examples[/bold]
      mqdb dsn
      export DATABASE_URL="$(mqdb dsn)"
    """
    print(_dsn_of(start(context)))


def psql(
    context: typer.Context,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ARGUMENT]...", help="Arguments for psql; put -v and -h after --.", show_default=False),
    ] = None,
) -> None:
    """Open the broker's database in psql.

    psql logs in with the password in the DSN; the command returns psql's exit code. For the embedded broker, the psql
    on PATH is used if its version is 16 or newer; otherwise the psql of the embedded PostgreSQL is used.

    \b
    [bold]Examples[/bold]
      mqdb psql
      mqdb psql -c 'SELECT * FROM mqdb.consumer_lag'
      mqdb psql -- -v key=17 -f report.sql
    """
    settings = start(context)
    from mqdb.cli.psql import psql_call
    from mqdb.errors import PostgresNotFound

    call = psql_call(settings, _dsn_of(settings))
    before = signal.getsignal(signal.SIGINT)
    # Ctrl-C cancels a query in psql, and must not end this process first.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        command = [call.program, call.dsn, *(arguments or ())]
        ended = subprocess.run(command, env=os.environ | call.environment, check=False)
    except FileNotFoundError:
        raise PostgresNotFound("there is no psql on PATH or next to the server's programs") from None
    finally:
        signal.signal(signal.SIGINT, before)
    raise typer.Exit(ended.returncode)


def _dsn_of(settings: "Settings") -> str:
    """The URI of the broker's database, with its password.

    Raises SettingInvalid if the settings name several brokers, and BrokerUnavailable if the embedded broker does not
    run.
    """
    from mqdb.settings.broker_list import brokers_of

    broker = settings.broker or brokers_of(settings)[0]
    return broker.dsn
