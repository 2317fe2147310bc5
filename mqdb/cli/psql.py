"""Calls of psql for a broker's database: a command line for a shell, and a process.

Neither of them shows the password.
"""

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from psycopg.conninfo import conninfo_to_dict

from mqdb.common.dsn import without_secrets
from mqdb.embedded import find_postgres
from mqdb.settings import Settings


class PsqlCall(NamedTuple):
    """A call of psql, with variables for its environment. One of these variables is the password."""

    program: str
    dsn: str
    environment: dict[str, str]


def psql_command(dsn: str, home: Path | None = None, program: str = "psql") -> str:
    """The command line for a shell.

    With `home`, the password is read from a file in that directory; otherwise psql prompts for it or finds it
    (.pgpass).
    """
    if home is None:
        return f"{shlex.quote(program)} {shlex.quote(without_secrets(dsn))}"
    secrets = f'PGPASSWORD="$(cat {shlex.quote(str(home / "password"))})" PGREQUIREAUTH=scram-sha-256'
    return f"{secrets} {shlex.quote(program)} {shlex.quote(_plain(dsn))}"


def psql_of(settings: Settings, dsn: str) -> str:
    """The psql command line for the broker of these settings, whose database is at `dsn`."""
    if settings.broker is not None:
        return psql_command(dsn)
    return psql_command(dsn, settings.home, _program())


def psql_call(settings: Settings, dsn: str) -> PsqlCall:
    """The psql process for the broker of these settings, whose database is at `dsn`."""
    password = conninfo_to_dict(dsn).get("password")
    environment = {} if password is None else {"PGPASSWORD": str(password)}
    if settings.broker is not None:
        return PsqlCall(shutil.which("psql") or _bundled(), without_secrets(dsn), environment)
    return PsqlCall(_program(), _plain(dsn), environment | {"PGREQUIREAUTH": "scram-sha-256"})


def _plain(dsn: str) -> str:
    """The DSN of the embedded broker, without its secrets and its authentication method.

    The method is set in the environment instead: psql before version 16 refuses a URI that contains it.
    """
    return without_secrets(dsn).replace("&require_auth=scram-sha-256", "")


def _program() -> str:
    """The psql to use with the embedded broker."""
    return "psql" if _understands_embedded() else _bundled()


def _understands_embedded() -> bool:
    """Whether this machine's psql supports PGREQUIREAUTH.

    Without PGREQUIREAUTH, another program on the port could ask for the password.
    """
    program = shutil.which("psql")
    if program is None:
        return False
    answer = subprocess.run([program, "--version"], capture_output=True, text=True, errors="replace", check=False)
    version = re.search(r"\d+", answer.stdout)
    return version is not None and int(version[0]) >= 16


def _bundled() -> str:
    """The psql next to the embedded PostgreSQL's programs; some installations do not have it."""
    program = find_postgres().program("psql")
    return str(program) if program.exists() else "psql"
