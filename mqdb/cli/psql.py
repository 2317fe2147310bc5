"""The command that opens a broker's database in psql: one that works as it stands, and shows no password."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

from mqdb.common.dsn import without_secrets
from mqdb.embedded import find_postgres
from mqdb.settings import Settings


def psql_command(dsn: str, home: Path | None = None, program: str = "psql") -> str:
    """A line for a shell. With `home` the password is read from the file that lies there, else psql asks for it
    or finds it itself (.pgpass).
    """
    if home is None:
        return f"{shlex.quote(program)} {shlex.quote(without_secrets(dsn))}"
    # In the environment: a psql before version 16 does not know it, and refuses a URI that holds it.
    secrets = f'PGPASSWORD="$(cat {shlex.quote(str(home / "password"))})" PGREQUIREAUTH=scram-sha-256'
    plain = without_secrets(dsn).replace("&require_auth=scram-sha-256", "")
    return f"{secrets} {shlex.quote(program)} {shlex.quote(plain)}"


def psql_of(settings: Settings, dsn: str) -> str:
    """The command for the broker of these settings, whose database is at `dsn`."""
    if settings.broker is not None:
        return psql_command(dsn)
    return psql_command(dsn, settings.home, "psql" if _understands_embedded() else _bundled())


def _understands_embedded() -> bool:
    """Whether this machine's psql knows PGREQUIREAUTH.

    Without it another program on the port could ask for the password.
    """
    program = shutil.which("psql")
    if program is None:
        return False
    answer = subprocess.run([program, "--version"], capture_output=True, text=True, errors="replace", check=False)
    version = re.search(r"\d+", answer.stdout)
    return version is not None and int(version[0]) >= 16


def _bundled() -> str:
    """The psql beside the embedded PostgreSQL's programs; not every set of them has one."""
    program = find_postgres().program("psql")
    return str(program) if program.exists() else "psql"
