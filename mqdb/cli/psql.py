"""The command that opens a broker's database in psql: one that works as it stands, and shows no password."""

import shlex
import shutil
from pathlib import Path
from urllib.parse import urlsplit

from mqdb.embedded import find_postgres
from mqdb.settings import Settings


def psql_command(dsn: str, home: Path | None = None, program: str = "psql") -> str:
    """A line for a shell. With `home` the password is read from the file that lies there, else psql asks for it
    or finds it itself (.pgpass).
    """
    command = f"{shlex.quote(program)} {shlex.quote(without_password(dsn))}"
    return command if home is None else f'PGPASSWORD="$(cat {shlex.quote(str(home / "password"))})" {command}'


def without_password(dsn: str) -> str:
    """The same URI, for which libpq looks elsewhere for the password."""
    parts = urlsplit(dsn)
    credentials, at, hosts = parts.netloc.rpartition("@")
    options = [option for option in parts.query.split("&") if not option.startswith("password=")]
    return parts._replace(netloc=credentials.partition(":")[0] + at + hosts, query="&".join(options)).geturl()


def psql_of(settings: Settings, dsn: str) -> str:
    """The command for the broker of these settings, whose database is at `dsn`."""
    if settings.broker is not None:
        return psql_command(dsn)
    return psql_command(dsn, settings.home, "psql" if shutil.which("psql") else _bundled())


def _bundled() -> str:
    """The psql beside the embedded PostgreSQL's programs; not every set of them has one."""
    program = find_postgres().program("psql")
    return str(program) if program.exists() else "psql"
