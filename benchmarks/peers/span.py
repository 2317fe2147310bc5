"""A measured span of time: the CPU time of servers, clients and other programs, and the WAL."""

import os
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from benchmarks.peers import install
from benchmarks.peers.clients import Client, Work
from benchmarks.peers.rocketmq_servers import java
from benchmarks.peers.servers import Running

_TICKS: Final = float(os.sysconf("SC_CLK_TCK"))

#: How long the server may go on with what the clients have left: dispatch, indexes, checkpoints of its own.
_SETTLING_SECONDS: Final = 10.0
_STILL_SECONDS: Final = 0.4

#: A client program that takes longer hangs. Loading a million jobs takes minutes.
_PATIENCE_SECONDS: Final = 1_200.0


def start_client(server: Running, role: str, **options: object) -> Client:
    """A client program of the side.

    An option with the value True is a flag; options that are None or False are left out.
    """
    arguments = [role]
    for name, value in options.items():
        if value is not None and value is not False:
            arguments += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    side, database = server.side, server.database
    environment = {**os.environ, **server.environment}
    if side.java_client is not None:
        command = java(side.java_client, side.java_client.main_class, *arguments)
    else:
        assert database is not None
        # The peers' Python must not see the modules of mqdb's client: it lacks what they import.
        paths = install.checkout_environment()["PYTHONPATH"] if side.name == "mqdb" else str(install.CHECKOUT)
        environment |= {"PEERS_DSN": database.dsn, "PYTHONPATH": paths}
        command = [str(install.PYTHON), "-m", side.worker, *arguments]
        if side.name == "mqdb":
            command[0] = install.OWN_PYTHON
    return Client(command, environment, install.DATA / "clients.log", _PATIENCE_SECONDS)


def work(server: Running, role: str, **options: object) -> Work:
    """Run a client program to its end, unmeasured."""
    with start_client(server, role, **options) as client:
        client.wait_until_ready()
        return client.finish()


class Span:
    """A span from its construction to `figures`. The clients are ready at its beginning."""

    def __init__(self, server: Running, *clients: Client) -> None:
        self._server = server
        self._clients_before = sum(client.cpu_seconds for client in clients)
        self._wal = self._wal_position()
        self._server_cpu = server.cpu_seconds()
        self._own = _own_seconds()
        self._busy = _busy_seconds()
        self._began = time.monotonic()

    def figures(self, count: int, *done: Work) -> dict[str, float | None]:
        """The cost of each of `count` messages. Waits until the server is idle."""
        end = self._settle()
        server = self._server.cpu_seconds() - self._server_cpu
        clients = sum(each.cpu_seconds for each in done) - self._clients_before
        seconds = time.monotonic() - self._began
        foreign = _busy_seconds() - self._busy - server - clients - (_own_seconds() - self._own)
        figures: dict[str, float | None] = {
            "count": count,
            "server_us": server / count * 1e6 if count else None,
            "client_us": clients / count * 1e6 if count else None,
            "foreign": max(foreign / seconds, 0.0),
        }
        database = self._server.database
        if database is not None and count:
            records = database.wal_records(self._wal, end)
            figures["wal"] = (end - self._wal) / count
            figures["wal_records"] = None if records is None else records / count
        return figures

    def _wal_position(self) -> int:
        return 0 if self._server.database is None else self._server.database.wal_position()

    def _settle(self) -> int:
        """Wait until the server stops writing, and return its WAL position."""
        deadline = time.monotonic() + _SETTLING_SECONDS
        position, cpu = self._wal_position(), self._server.cpu_seconds()
        while True:
            time.sleep(_STILL_SECONDS)
            now, cpu_now = self._wal_position(), self._server.cpu_seconds()
            # A heartbeat is a few hundred bytes; an idle JVM or dispatcher takes little of a core.
            is_still = now - position < 4_096 and cpu_now - cpu < 0.1 * _STILL_SECONDS
            if is_still or time.monotonic() > deadline:
                return now
            position, cpu = now, cpu_now


def _busy_seconds() -> float:
    """CPU time that the machine has spent on any work, including other virtual machines on its host."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    idle, waiting = fields[3:5]
    return (sum(fields) - idle - waiting) / _TICKS


def _own_seconds() -> float:
    """CPU time of this program and of the short-lived programs that it has run."""
    times = os.times()
    return times.user + times.system


def machine_load() -> float:
    return round(os.getloadavg()[0], 2)


def describe_commit() -> Mapping[str, str]:
    """The state of the measured checkout."""
    command = ("git", "describe", "--always", "--dirty")
    done = subprocess.run(command, cwd=install.CHECKOUT, capture_output=True, text=True)
    return {"commit": done.stdout.strip()}
