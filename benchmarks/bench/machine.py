"""The machine: its description, its load, and the CPU time that PostgreSQL uses on it."""

import os
import platform
from pathlib import Path
from typing import Any

import psycopg

_PROC = Path("/proc")

#: Addresses of this machine; a connection through a socket file has none.
_LOCAL = ("", "127.0.0.1", "::1")


def describe() -> dict[str, Any]:
    """The machine as described in a report."""
    return {
        "cpu": _cpu_model(),
        "cores": _cores(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def load_average() -> float | None:
    """The load average of the last minute; None if the system does not report it."""
    try:
        return round(os.getloadavg()[0], 2)
    except (AttributeError, OSError):
        return None


def _cpu_model() -> str:
    try:
        lines = (_PROC / "cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()


def _cores() -> int:
    """The number of cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def durability(connection: "psycopg.Connection[Any]") -> dict[str, str]:
    """The settings that decide what a commit waits for, and RocketMQ's name for this mode."""
    names = ("synchronous_commit", "fsync", "full_page_writes")
    row = connection.execute("SELECT " + ", ".join(f"current_setting('{name}')" for name in names)).fetchone()
    assert row is not None
    found = dict(zip(names, row, strict=True))
    is_flushed = found["fsync"] == "on" and found["synchronous_commit"] != "off"
    return {"flush": "SYNC_FLUSH" if is_flushed else "ASYNC_FLUSH", **found}


class ProcessClock:
    """The CPU time of one process of this machine. The CPU time of a server elsewhere cannot be read."""

    def __init__(self, pid: int | None) -> None:
        self._pid = pid

    def seconds(self) -> float | None:
        """User and system time so far; None if they cannot be read."""
        return None if self._pid is None else _cpu_seconds(self._pid, with_children=False)


class ServerClock:
    """The CPU time of a PostgreSQL server: the postmaster, its backends and workers, and processes that have exited."""

    def __init__(self, postmaster_pid: int | None) -> None:
        self._pid = postmaster_pid

    def seconds(self) -> float | None:
        """The total CPU time so far; None if it cannot be read."""
        if self._pid is None:
            return None
        # Children first: one that ends in between is counted once more, by the postmaster, not lost.
        running = [_cpu_seconds(pid, with_children=False) for pid in _children_of(self._pid)]
        own = _cpu_seconds(self._pid, with_children=True)
        return None if own is None else own + sum(each for each in running if each is not None)


def backend_pid(connection: "psycopg.Connection[Any]") -> int | None:
    """The pid of the process behind a connection, if it runs on this machine."""
    # Elsewhere it may have the number of a stranger here; so it may in a container that answers on a port of ours.
    fields = _stat(connection.info.backend_pid) if connection.info.hostaddr in _LOCAL else None
    return connection.info.backend_pid if fields is not None and fields[0] == "postgres" else None


def postmaster_pid(connection: "psycopg.Connection[Any]") -> int | None:
    """The pid of the server behind a connection, if it runs on this machine."""
    pid = backend_pid(connection)
    fields = None if pid is None else _stat(pid)
    return None if fields is None else int(fields[_PARENT])


def resident_bytes() -> int | None:
    """The present memory of this process; None if it cannot be read. See proc_pid_statm(5)."""
    try:
        return int((_PROC / "self" / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None


# Places in /proc/<pid>/stat, counted from the name of the program; see proc_pid_stat(5).
_PARENT, _USER, _SYSTEM, _CHILDREN_USER, _CHILDREN_SYSTEM = 2, 12, 13, 14, 15


def _stat(pid: int) -> list[str] | None:
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    # The name stands in parentheses, and may hold blanks and parentheses itself.
    name, _, rest = text.partition("(")[2].rpartition(")")
    return [name, *rest.split()]


def _cpu_seconds(pid: int, *, with_children: bool) -> float | None:
    fields = _stat(pid)
    if fields is None:
        return None
    places = (_USER, _SYSTEM, _CHILDREN_USER, _CHILDREN_SYSTEM) if with_children else (_USER, _SYSTEM)
    return sum(int(fields[place]) for place in places) / float(os.sysconf("SC_CLK_TCK"))


def _children_of(pid: int) -> list[int]:
    try:
        # Of the thread that forks; the postmaster has one.
        return [int(child) for child in (_PROC / str(pid) / "task" / str(pid) / "children").read_text().split()]
    except OSError:
        return []
