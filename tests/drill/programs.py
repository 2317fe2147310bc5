"""Programs from other packages: found or reported as missing, and run as a user that PostgreSQL accepts."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from mqdb.embedded.account import run_as, service_account
from mqdb.embedded.ports import candidates, is_free
from mqdb.embedded.process import ServerProcess

#: By the package of Debian that has it.
PACKAGES: Final = {
    "patroni": "patroni",
    "patronictl": "patroni",
    "etcd": "etcd-server",
    "haproxy": "haproxy",
    "pgbackrest": "pgbackrest",
}
PG_BIN: Final = Path(os.environ.get("MQDB_PG_BIN") or "/usr/lib/postgresql/15/bin")

_PATH: Final = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin"])
_TAKEN: Final[set[int]] = set()


def missing() -> str | None:
    """The command that installs missing programs, or None if all are installed."""
    packages = {package for program, package in PACKAGES.items() if shutil.which(program, path=_PATH) is None}
    if not (PG_BIN / "postgres").exists():
        packages.add("postgresql-15")
    return f"on Debian: apt-get install {' '.join(sorted(packages))}" if packages else None


def program(name: str) -> str:
    """The path of a program."""
    found = shutil.which(name, path=_PATH)
    assert found is not None, f"{name} is missing"
    return found


def free_port() -> int:
    """A port on which nothing listens, another one at each call."""
    port = next(port for port in candidates(0, None) if is_free(port) and port not in _TAKEN)
    _TAKEN.add(port)
    return port


def make_directory(path: Path) -> Path:
    """A directory that belongs to the user who runs PostgreSQL."""
    path.mkdir(mode=0o700)
    give(path)
    return path


def give(path: Path) -> None:
    """Give a file to the user who runs PostgreSQL."""
    account = service_account()
    if account is not None:
        os.chown(path, account.uid, account.gid)


def start(command: Sequence[str], home: Path, log: Path) -> ServerProcess:
    """Start a program as the user who runs PostgreSQL. The program ends with this process."""
    with log.open("ab") as output:
        return ServerProcess(command, account=service_account(), cwd=home, output=output.fileno())


def run(command: Sequence[str | Path], home: Path) -> subprocess.CompletedProcess[str]:
    """Run a program to its end as the user who runs PostgreSQL."""
    return run_as(service_account(), command, cwd=home)
