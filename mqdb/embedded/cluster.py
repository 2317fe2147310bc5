"""The database cluster in a data directory: its creation, and connections to it.

It has two database users with separate passwords: `postgres`, the superuser that only the supervisor needs, and `mqdb`,
the owner of database `mqdb`. `mqdb` has the rights that an administrator would grant it on another server.

While the server is down, any user of the machine can listen on its port. Every connection therefore requires SCRAM, in
which the server proves that it knows the password, and in which the password is not disclosed.
"""

import logging
import os
import shutil
import tempfile
import time
from pathlib import Path

import psycopg
from psycopg import sql

from mqdb.embedded.account import Account, run_as
from mqdb.embedded.binaries import PostgresBinaries
from mqdb.embedded.home import Home, refusing
from mqdb.embedded.ports import HOST
from mqdb.embedded.process import ServerProcess
from mqdb.errors import DataDirectoryUnusable, PostgresFailed

logger = logging.getLogger(__name__)

DATABASE = "mqdb"
USER = "mqdb"
_SUPERUSER = "postgres"
#: libpq supports this from version 16 on; the libpq in psycopg's wheels is newer.
REQUIRE_AUTH = "require_auth=scram-sha-256"

_FIRST_POLL_SECONDS = 0.02
# During a recovery, each poll adds a line to the log.
_LONGEST_POLL_SECONDS = 0.1
_READY_SECONDS = 60.0
_STRANGER_SECONDS = 1.0


def dsn(port: int, password: str) -> str:
    """The DSN for clients."""
    return _uri(USER, password, port, DATABASE)


def superuser_dsn(port: int, password: str) -> str:
    """The DSN for the supervisor."""
    return _uri(_SUPERUSER, password, port, "postgres")


def _uri(user: str, password: str, port: int, database: str) -> str:
    # Without TLS, whatever PGSSLMODE says: the wheels are built without TLS.
    return f"postgresql://{user}:{password}@{HOST}:{port}/{database}?sslmode=disable&{REQUIRE_AUTH}"


def initialize(
    home: Home, binaries: PostgresBinaries, account: Account | None, password: str, *, durable: bool
) -> None:
    """Create the cluster next to its final place, and move it there when it is complete.

    A partial cluster is therefore never used.
    """
    with refusing(home.path):
        for abandoned in home.path.glob("data-new-*"):
            # An initdb that outlived its killed owner may still be writing; the next start removes the rest.
            shutil.rmtree(abandoned, ignore_errors=True)
        workplace = Path(tempfile.mkdtemp(prefix="data-new-", dir=home.path))
        try:
            password_file = workplace / "password"
            password_file.write_text(password)
            if account is not None:
                for path in (workplace, password_file):
                    os.chown(path, account.uid, account.gid)
            _run_initdb(workplace / "data", password_file, binaries, account, durable=durable)
            (workplace / "data").rename(home.data)
        finally:
            shutil.rmtree(workplace, ignore_errors=True)


def _run_initdb(
    data: Path, password_file: Path, binaries: PostgresBinaries, account: Account | None, *, durable: bool
) -> None:
    command = [
        *(binaries.program("initdb"), "--pgdata", data, "--username", _SUPERUSER),
        *("--auth", "scram-sha-256", "--pwfile", password_file),
        *("--encoding", "UTF8", "--locale", "C"),
        *(() if durable else ("--no-sync",)),
    ]
    started = time.monotonic()
    answer = run_as(account, command, cwd=data.parent)
    if answer.returncode != 0:
        raise PostgresFailed("could not create its data directory", (answer.stdout + answer.stderr).strip())
    logger.info("created a database cluster", extra={"seconds": round(time.monotonic() - started, 2)})


def connect_superuser(port: int, password: str) -> psycopg.Connection:
    """A connection of the superuser, in autocommit. Raises psycopg.OperationalError if it cannot connect."""
    return psycopg.connect(superuser_dsn(port, password), gssencmode="disable", connect_timeout=10, autocommit=True)


def connect_when_ready(process: ServerProcess, port: int, password: str, home: Home) -> psycopg.Connection:
    """A connection of the superuser, as soon as the server accepts one.

    A recovery may take as long as it needs. Raises PostgresFailed if the server exits or does not answer; the caller
    adds the end of the log.
    """
    deadline = time.monotonic() + _READY_SECONDS
    pause = _FIRST_POLL_SECONDS
    while True:
        try:
            return connect_superuser(port, password)
        except psycopg.OperationalError as exc:
            # For a refused connection, libpq reports no SQLSTATE, only the text, which is English (lc_messages).
            refused = "password authentication failed" in str(exc)
            # The refusal may come from another server that took the port a moment earlier. In that case, our server is
            # about to exit.
            if process.exited.wait(_STRANGER_SECONDS if refused else 0):
                raise PostgresFailed(f"exited with code {process.returncode}", "") from exc
            if refused:
                file_name = home.superuser_password_file.name
                raise DataDirectoryUnusable(home.path, f"{file_name} does not fit its database") from exc
            if "the database system is" in str(exc):  # starting up, in recovery mode, or not yet accepting connections
                deadline = time.monotonic() + _READY_SECONDS
            elif time.monotonic() > deadline:
                raise PostgresFailed(f"did not become ready within {_READY_SECONDS:g} s", "") from exc
        process.exited.wait(pause)
        pause = min(pause * 1.5, _LONGEST_POLL_SECONDS)


def create_database(connection: psycopg.Connection, password: str) -> None:
    """Create the user and the database of mqdb, unless they exist. The connection has to be in autocommit mode."""
    if connection.execute("select from pg_roles where rolname = %s", [USER]).fetchone() is None:
        # Only the verifier is sent to the server, so that no log and no statistics view ever contains the password.
        verifier = connection.pgconn.encrypt_password(password.encode(), USER.encode(), b"scram-sha-256")
        connection.execute(
            sql.SQL("create role {} login createdb password {} in role pg_monitor").format(
                sql.Identifier(USER), verifier.decode()
            )
        )
    if connection.execute("select from pg_database where datname = %s", [DATABASE]).fetchone() is None:
        connection.execute(
            sql.SQL("create database {} owner {}").format(sql.Identifier(DATABASE), sql.Identifier(USER))
        )
