"""The memory and CPU time of a JVM and its Python workers, as reported by Linux.

For a worker, the proportional set size is used: workers are forks of one daemon, and share unchanged pages.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
_MIB_IN_KIB: Final = 1024

# Places in /proc/<pid>/stat behind the name of the program; see proc_pid_stat(5).
_PARENT, _USER, _SYSTEM, _CHILDREN_USER, _CHILDREN_SYSTEM = 1, 11, 12, 13, 14


def memory_of(jvm: int) -> dict[str, float]:
    """Details of a measurement, in MiB; empty if the system does not report them."""
    resident = _kib(_PROC / str(jvm) / "status", "VmRSS:")
    if resident is None:
        return {}
    workers = [_kib(_PROC / str(pid) / "smaps_rollup", "Pss:") or 0 for pid in _below(jvm)]
    return {"JVM_RSS_MiB": resident / _MIB_IN_KIB, "Python_PSS_MiB": sum(workers) / _MIB_IN_KIB}


def cpu_seconds_of(jvm: int) -> float | None:
    """The CPU seconds of the JVM and its descendants, including exited ones.

    None if the system does not report them.
    """
    table = _processes()
    if jvm not in table:
        return None
    ticks = sum(sum(int(table[pid][place]) for place in (_USER, _SYSTEM)) for pid in (jvm, *_below(jvm, table)))
    ticks += sum(int(table[jvm][place]) for place in (_CHILDREN_USER, _CHILDREN_SYSTEM))
    return ticks / float(os.sysconf("SC_CLK_TCK"))


def _below(ancestor: int, table: Mapping[int, list[str]] | None = None) -> Iterator[int]:
    table = _processes() if table is None else table
    for pid, fields in table.items():
        if int(fields[_PARENT]) == ancestor:
            yield pid
            yield from _below(pid, table)


def _processes() -> dict[int, list[str]]:
    found = {}
    for path in _PROC.glob("[0-9]*/stat"):
        try:
            # The name stands in parentheses, and may hold blanks and parentheses itself.
            found[int(path.parent.name)] = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended in between
            continue
    return found


def _kib(path: Path, name: str) -> int | None:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith(name)), None)
