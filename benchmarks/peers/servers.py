"""The servers: only those of the measured side run. All brokers in PostgreSQL share one, with one configuration.

Each side starts with a fresh database, copied from a template that is created once in a run, or with fresh files.
"""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, LiteralString
from urllib.parse import quote

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from benchmarks.bench.machine import ProcessClock, ServerClock
from benchmarks.peers import install
from benchmarks.peers.sides import Side
from benchmarks.peers.workers import work
from mqdb.embedded.binaries import PostgresBinaries, find_postgres, inspect_folder
from mqdb.embedded.supervisor import EmbeddedPostgres

_DEBIAN_15: Final = Path("/usr/lib/postgresql/15/bin")

#: Beside what mqdb's embedded PostgreSQL sets; every commit waits for the disk. No checkpoint falls into a measurement.
_SETTINGS: Final = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "shared_buffers": "1GB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "30min",
}

_STOP_SECONDS: Final = 30.0
_START_SECONDS: Final = 60.0


class ServerFailed(Exception):
    """A server did not start."""


class Process:
    """A server process started here: SIGTERM ends it, and SIGKILL if it does not exit."""

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> None:
        with log.open("a") as output:
            # In a session of its own, so that Ctrl-C reaches this program first.
            self._popen = subprocess.Popen(
                command,
                env=environment,
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self.log = log
        self.clock = ProcessClock(self._popen.pid)

    def is_running(self) -> bool:
        return self._popen.poll() is None

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait until the server reports that it is up. Raises ServerFailed with the last lines of its output."""
        deadline = time.monotonic() + _START_SECONDS
        while not condition():
            if not self.is_running() or time.monotonic() > deadline:
                raise ServerFailed("\n".join([str(self.log), *self.log.read_text().splitlines()[-15:]]))
            time.sleep(0.1)

    def stop(self) -> None:
        if self.is_running():
            self._popen.terminate()
            try:
                self._popen.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._popen.kill()
                self._popen.wait()


@contextmanager
def stopping(process: Process) -> Iterator[Process]:
    try:
        yield process
    finally:
        process.stop()


class Running:
    """The running servers of one side."""

    def __init__(self, side: Side, clocks: Sequence[ProcessClock | ServerClock], database: "Database | None") -> None:
        self.side = side
        self.database = database
        #: What the client programs find in their environment.
        self.environment: dict[str, str] = {}
        self._clocks = clocks

    def cpu_seconds(self) -> float:
        """The CPU seconds of all server processes so far."""
        return sum(clock.seconds() or 0.0 for clock in self._clocks)

    def calm(self) -> None:
        """Wait until the servers have finished all earlier work."""
        if self.database is not None:
            self.database.wait_for_autovacuum()


class Postgres:
    """The PostgreSQL that all sides with a database share."""

    def __init__(self, announce: Callable[[str], None]) -> None:
        self._announce = announce
        self._server: EmbeddedPostgres | None = None
        self._templates: set[str] = set()
        self.binaries = chosen_postgres()

    @contextmanager
    def running(self, side: Side) -> Iterator[Running]:
        """PostgreSQL with a fresh database for the side, and `mqdb serve` if the side is mqdb."""
        assert side.database is not None
        server = self._start()
        database = Database(server, side.database)
        self._make_template(database)
        database.renew()
        clocks: list[ProcessClock | ServerClock] = [ServerClock(server.pid)]
        try:
            if side.database != "mqdb":
                yield Running(side, clocks, database)
                return
            front = f"127.0.0.1:{free_port()}" if side.is_java else ""
            remoting, grpc = ("", front) if side.speaks_grpc else (front, "")
            with stopping(serve(database, remoting, grpc)) as service:
                found = Running(side, [*clocks, service.clock], database)
                found.environment |= {"PEERS_NAME_SERVER": remoting, "PEERS_ENDPOINT": grpc}
                yield found
        finally:
            database.close()

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()
            self._server = None

    def _start(self) -> EmbeddedPostgres:
        if self._server is None:
            home = install.DATA / "postgres"
            self._server = EmbeddedPostgres(home, binaries=self.binaries, settings=_SETTINGS)
            self._server.start()
        return self._server

    def _make_template(self, database: "Database") -> None:
        if database.name in self._templates:
            return
        self._announce(f"making the database of {database.name}")
        database.make_template(_SCHEMAS[database.name])
        self._templates.add(database.name)


def chosen_postgres() -> PostgresBinaries:
    """MQDB_PG_BIN, else Debian's PostgreSQL 15, else the one that mqdb itself would run."""
    debian = None if os.environ.get("MQDB_PG_BIN") else inspect_folder(_DEBIAN_15)
    return debian or find_postgres()


class Database:
    """A side's database, and statistics of its server."""

    def __init__(self, server: EmbeddedPostgres, name: str) -> None:
        self.name = name
        self._address = conninfo_to_dict(server.superuser_dsn)
        self._owner = "mqdb" if name == "mqdb" else str(self._address["user"])
        self.dsn = server.dsn if name == "mqdb" else self._dsn(name)
        self._admin = psycopg.connect(server.superuser_dsn, autocommit=True)

    def close(self) -> None:
        self._admin.close()

    def _dsn(self, database: str) -> str:
        """The DSN without options that only libpq supports."""
        user, password = (quote(str(self._address[part]), safe="") for part in ("user", "password"))
        return f"postgresql://{user}:{password}@{self._address['host']}:{self._address['port']}/{database}"

    def connect(self) -> psycopg.Connection[Any]:
        """A connection to the side's database."""
        return psycopg.connect(self._dsn(self.name), autocommit=True)

    def ask(self, query: str) -> int:
        """A number queried from the side's database."""
        with self.connect() as connection:
            row = connection.execute(query.encode()).fetchone()
        assert row is not None
        return int(row[0] or 0)

    def make_template(self, schema: Callable[["Database"], None]) -> None:
        """Create the database once and keep it as a template."""
        for name in (self.name, f"{self.name}_fresh"):
            self._admin.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))
        self._create("template1")
        schema(self)
        rename = sql.SQL("ALTER DATABASE {} RENAME TO {}")
        self._admin.execute(rename.format(sql.Identifier(self.name), sql.Identifier(f"{self.name}_fresh")))

    def renew(self) -> None:
        """Replace the database, filled by earlier measurements, with a copy of the template."""
        self._admin.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(self.name)))
        self._create(f"{self.name}_fresh")
        self._admin.execute("CHECKPOINT")

    def _create(self, template: str) -> None:
        command = sql.SQL("CREATE DATABASE {} TEMPLATE {} OWNER {}")
        names = (self.name, template, self._owner)
        self._admin.execute(command.format(*map(sql.Identifier, names)))

    def wait_for_autovacuum(self, seconds: float = 30.0) -> None:
        """Wait until no autovacuum worker is busy with tables of an earlier measurement."""
        deadline = time.monotonic() + seconds
        query = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'autovacuum worker'"
        while self._number(query) and time.monotonic() < deadline:
            time.sleep(0.2)

    def wal_position(self) -> int:
        """The number of WAL bytes that the server has written so far."""
        return self._number("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint")

    def wal_records(self, begin: int, end: int) -> int | None:
        """The bytes of the WAL records between two positions, without page images.

        None if the server cannot report them.
        """
        query = """
            SELECT sum(record_size) FROM pg_get_wal_stats(
                '0/0'::pg_lsn + %s::numeric, least('0/0'::pg_lsn + %s::numeric, pg_current_wal_flush_lsn()))"""
        try:
            self._admin.execute("CREATE EXTENSION IF NOT EXISTS pg_walinspect")
            row = self._admin.execute(query, (begin, end)).fetchone()
        except psycopg.Error:
            return None
        return None if row is None or row[0] is None else int(row[0])

    def size(self) -> int:
        """The size on disk in bytes, with all indexes."""
        self._admin.execute("CHECKPOINT")
        return self.ask("SELECT pg_database_size(current_database())")

    def _number(self, query: LiteralString) -> int:
        row = self._admin.execute(query).fetchone()
        assert row is not None
        return int(row[0])


def serve(database: Database, remoting: str, grpc: str) -> Process:
    """`mqdb serve` of this checkout, once it leads.

    The process serves RocketMQ's clients at the addresses that are not empty.
    """
    environment = {**install.checkout_environment(), "MQDB_REMOTING": remoting, "MQDB_GRPC": grpc}
    home = install.DATA / "mqdb"
    home.mkdir(parents=True, exist_ok=True)
    command = (sys.executable, "-m", "mqdb", "serve", "--dsn", database.dsn, "--home", str(home))
    process = Process(command, install.DATA / "mqdb-serve.log", environment)
    try:
        process.wait_for(lambda: database.ask("SELECT count(*) FROM mqdb.leader WHERE expires_at > now()") > 0)
    except BaseException:
        process.stop()
        raise
    return process


def _mqdb_schema(database: Database) -> None:
    for command in (("migrate",), ("topic", "create", work.TOPIC)):
        run_mqdb(database, *command)


def run_mqdb(database: Database, *command: str) -> None:
    """Run a command of this checkout. Raises ServerFailed."""
    done = subprocess.run(
        (sys.executable, "-m", "mqdb", *command, "--dsn", database.dsn),
        env=install.checkout_environment(),
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise ServerFailed(done.stdout + done.stderr)


def _pgmq_schema(database: Database) -> None:
    with database.connect() as connection:
        connection.execute(install.packaged("pgmq/sql/pgmq.sql").encode())
        connection.execute("SELECT pgmq.create(%s)", (work.TOPIC,))


def _pgqueuer_schema(database: Database) -> None:
    # `pgq autovac` is what its documentation advises for busy queues.
    for command in ("install", "autovac"):
        address = conninfo_to_dict(database.dsn)
        names = {"host": "PGHOST", "port": "PGPORT", "user": "PGUSER", "password": "PGPASSWORD", "dbname": "PGDATABASE"}
        environment = {**os.environ, **{name: str(address[key]) for key, name in names.items()}}
        done = subprocess.run(
            (str(install.PYTHON.parent / "pgq"), command), env=environment, capture_output=True, text=True
        )
        if done.returncode != 0:
            raise ServerFailed(done.stdout + done.stderr)


def _procrastinate_schema(database: Database) -> None:
    with database.connect() as connection:
        connection.execute(install.packaged("procrastinate/sql/schema.sql").encode())


_SCHEMAS: Final[Mapping[str, Callable[[Database], None]]] = {
    "mqdb": _mqdb_schema,
    "pgmq": _pgmq_schema,
    "pgqueuer": _pgqueuer_schema,
    "procrastinate": _procrastinate_schema,
}


def free_port() -> int:
    """A port with two free ports next to it: a RocketMQ broker listens on three in a row."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        if all(_is_free(port + step) for step in (-2, -1, 0, 1)):
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def remove_data() -> None:
    shutil.rmtree(install.DATA, ignore_errors=True)
    install.DATA.mkdir(parents=True)
    install.DATA.chmod(0o755)
