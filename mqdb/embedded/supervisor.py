"""The owner of an embedded PostgreSQL, which creates the cluster, and starts, supervises and stops the server.

Only the holder of the directory's lock starts a server, and the kernel releases the lock when the process ends, however
it ends. A server therefore belongs to one process. It ends with that process, even if the process is killed; or it
outlives a killed process, and the next owner adopts it.
"""

import logging
import os
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Self

import psycopg
from filelock import BaseFileLock

from mqdb.embedded import cluster, ports
from mqdb.embedded import home as homes
from mqdb.embedded.account import Account, owner_of, service_account
from mqdb.embedded.binaries import PostgresBinaries, binaries_for, find_postgres
from mqdb.embedded.home import Home, RunningPostgres
from mqdb.embedded.leftovers import end_server, postmaster_pid, serves
from mqdb.embedded.process import AdoptedServer, ServerProcess
from mqdb.embedded.tuning import as_arguments, server_settings
from mqdb.errors import (
    IllegalState,
    ParameterInvalid,
    PortInUse,
    PostgresFailed,
    PostgresNotFound,
    PostgresVersionMismatch,
)

logger = logging.getLogger(__name__)

NO_SETTINGS: Mapping[str, str] = MappingProxyType({})

_LOG_TAIL_LINES = 15
# The server's messages while the previous server is still ending, and how long to wait then.
_NOT_GONE_YET = ("is still in use", 'lock file "postmaster.pid" already exists')
_PATIENCE_SECONDS = 10.0
_RETRY_SECONDS = 0.1


class EmbeddedPostgres:
    """A PostgreSQL server that belongs to this process. Its methods may be called from any thread."""

    def __init__(
        self,
        home: Path,
        *,
        port: int = 0,
        settings: Mapping[str, str] = NO_SETTINGS,
        binaries: PostgresBinaries | None = None,
        durable: bool = True,
        outlives_owner: bool = False,
    ) -> None:
        """A `port` of 0 stands for the port of the previous run, or any free port; `settings` override the tuning.

        Without `durable`, a crash of the machine (not of the server) may destroy the data; use this for tests and
        demos. With `outlives_owner`, the server keeps running if this process is killed, and such a server is adopted.
        """
        if not 0 <= port <= 65_535:
            raise ParameterInvalid("port", port, "must be 0 (any free port) to 65,535")
        self._home = Home(home)
        self._wished_port = port
        self._settings = settings
        self._wished_binaries = binaries
        self._durable = durable
        self._outlives_owner = outlives_owner
        self._guard = threading.RLock()
        self._lock: BaseFileLock | None = None
        self._account: Account | None = None
        self._binaries: PostgresBinaries | None = None
        self._password = ""
        self._superuser_password = ""
        self._port = 0
        self._process: ServerProcess | AdoptedServer | None = None

    # -- what it is ---------------------------------------------------------------------------

    @property
    def home(self) -> Path:
        return self._home.path

    @property
    def dsn(self) -> str:
        """DSN of the database for clients, with the password."""
        self._started()
        return cluster.dsn(self._port, self._password)

    @property
    def superuser_dsn(self) -> str:
        """DSN of the server for its superuser, with a password that clients do not have."""
        self._started()
        return cluster.superuser_dsn(self._port, self._superuser_password)

    @property
    def port(self) -> int:
        self._started()
        return self._port

    @property
    def pid(self) -> int:
        """Process number of the postmaster."""
        return self._started().pid

    @property
    def binaries(self) -> PostgresBinaries:
        """The programs in use: if root needed a copy, the copy."""
        self._started()
        assert self._binaries is not None
        return self._binaries

    def is_running(self) -> bool:
        return self._process is not None and not self._process.exited.is_set()

    def _started(self) -> ServerProcess | AdoptedServer:
        """The latest server, which may have ended since."""
        if self._process is None:
            raise IllegalState("the embedded PostgreSQL", "not started")
        return self._process

    # -- what it does -------------------------------------------------------------------------

    def start(self) -> None:
        """Start the server, and return when it accepts connections.

        The home and the cluster are created if they are missing.

        Raises DataDirectoryBusy immediately if another process owns the directory, PortInUse if the port given to the
        constructor is taken, and other errors of the EmbeddedError family. After an error, nothing is left running.
        """
        with self._guard:
            if self._process is not None:
                raise IllegalState("the embedded PostgreSQL", "started already")
            account = service_account()
            if sys.platform == "win32":
                raise PostgresNotFound("the embedded PostgreSQL runs only on Linux and macOS")
            homes.create(self._home, account)
            self._lock = homes.lock(self._home)
            try:
                self._prepare(account)
                if not self._adopt():
                    end_server(self._home.data)
                    self._start_on_a_port()
            except BaseException:
                self.stop()
                raise

    def stop(self) -> None:
        """Stop the server with a fast shutdown, and release the directory. It has no effect if no server is running."""
        with self._guard:
            process, self._process = self._process, None
            if process is not None:
                process.stop()
                logger.info("stopped PostgreSQL", extra={"pid": process.pid})
            if self._lock is not None:
                self._lock.release()
                self._lock = None

    def restart(self) -> None:
        """Start the server again on the same port, after it has died or to replace a running one."""
        with self._guard:
            self._started().stop()
            end_server(self._home.data)
            self._serve(self._port)

    def supervise_once(self) -> bool:
        """Restart the server if it ended unexpectedly; returns True in that case."""
        with self._guard:
            if self._process is None or not self._process.exited.is_set():
                return False
            fields = {"exit_code": self._process.returncode}
            logger.warning("PostgreSQL ended with exit code %(exit_code)s; restarting it", fields, extra=fields)
            self.restart()
            return True

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # -- how it does it -----------------------------------------------------------------------

    def _prepare(self, account: Account | None) -> None:
        """Prepare everything up to a data directory that can be served."""
        version = homes.data_version(self._home)
        is_new = version is None
        self._account = account if is_new else owner_of(self._home.data, account)
        homes.check_reachable(self._home, self._account)
        found = self._wished_binaries or find_postgres(version)
        if version not in (None, found.major):
            raise PostgresVersionMismatch(version, [str(found)])
        with homes.refusing(self._home.path):
            self._binaries = binaries_for(self._account, found, self._home.runtime)
        self._password = homes.password(self._home, is_new=is_new)
        self._superuser_password = homes.superuser_password(self._home, is_new=is_new)
        if is_new:
            cluster.initialize(
                self._home, self._binaries, self._account, self._superuser_password, durable=self._durable
            )

    def _adopt(self) -> bool:
        """Take over the server that a killed owner left running, if it answers and has the right settings."""
        running, pid = homes.read_run_file(self._home), postmaster_pid(self._home.data)
        if not self._outlives_owner or running is None or pid is None or not serves(pid, self._home.data):
            return False
        if self._wished_port not in (0, running.port) or not self._runs_so(running.port):
            return False
        try:
            with cluster.connect_superuser(running.port, self._superuser_password):
                pass
        except psycopg.Error as exc:
            logger.info("the server of an owner that is gone does not answer", extra={"pid": pid, "reason": str(exc)})
            return False
        self._process = AdoptedServer(pid, self._home.data)
        self._note_running(running.port)
        fields = {"pid": pid, "port": running.port}
        sentence = "adopted PostgreSQL, process %(pid)s on port %(port)s, from an owner that is gone"
        logger.warning(sentence, fields, extra=fields)
        return True

    def _runs_so(self, port: int) -> bool:
        """Whether the running server was started with these settings."""
        with homes.refusing(self._home.data):
            # Source: CreateOptsFile in postmaster.c.
            given = (self._home.data / "postmaster.opts").read_text()
        return given.partition(" ")[2].rstrip("\n") == " ".join(f'"{part}"' for part in self._arguments(port))

    def _arguments(self, port: int) -> list[str]:
        settings = server_settings(port, self._settings, durable=self._durable)
        return ["-D", str(self._home.data), *as_arguments(settings)]

    def _start_on_a_port(self) -> None:
        previous = homes.read_run_file(self._home)
        for port in ports.candidates(self._wished_port, previous.port if previous else None):
            if ports.is_free(port):
                try:
                    return self._serve(port)
                except PortInUse:
                    # Another process was faster.
                    continue
        raise PortInUse(self._wished_port)

    def _serve(self, port: int) -> None:
        """Start the server, wait until it is ready, and store its address."""
        started = time.monotonic()
        while True:
            try:
                self._start_process(port)
                break
            except PostgresFailed as exc:
                too_late = time.monotonic() - started > _PATIENCE_SECONDS
                if too_late or not any(text in exc.log_tail for text in _NOT_GONE_YET):
                    raise
                time.sleep(_RETRY_SECONDS)
                end_server(self._home.data)
        self._note_running(port)
        seconds = round(time.monotonic() - started, 3)
        logger.info("started PostgreSQL", extra={"pid": self.pid, "port": port, "seconds": seconds})

    def _note_running(self, port: int) -> None:
        self._port = port
        homes.write_run_file(self._home, RunningPostgres(self.dsn, port, os.getpid(), self.pid))

    def _start_process(self, port: int) -> None:
        assert self._binaries is not None
        command = [str(self._binaries.program("postgres")), *self._arguments(port)]
        output = homes.open_log(self._home)
        try:
            log_start = os.fstat(output).st_size
            process = ServerProcess(
                command,
                account=self._account,
                cwd=self._home.path,
                output=output,
                outlives_owner=self._outlives_owner,
            )
        except OSError as exc:
            raise PostgresFailed(f"could not be started: {exc}", "") from exc
        finally:
            os.close(output)
        try:
            with cluster.connect_when_ready(process, port, self._superuser_password, self._home) as connection:
                cluster.create_database(connection, self._password)
        except PostgresFailed as exc:
            process.stop()
            tail = self._log_since(log_start)
            if "Address already in use" in tail:
                raise PortInUse(port) from exc
            raise PostgresFailed(exc.reason, tail) from exc
        except psycopg.Error as exc:
            process.stop()
            raise PostgresFailed(f"its database could not be created: {exc}", self._log_since(log_start)) from exc
        except BaseException:
            process.stop()
            raise
        self._process = process

    def _log_since(self, position: int) -> str:
        with open(self._home.log_file, "rb") as log:
            log.seek(position)
            text = log.read().decode(errors="replace")
        return "\n".join(text.splitlines()[-_LOG_TAIL_LINES:])
