"""The processes of the load: `mqdb serve`, producers and consumers, from this checkout or another."""

import json
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from mqdb.embedded.process import ServerProcess

ROOT: Final = Path(__file__).resolve().parents[2]

#: The processes take these from the checkout, and their own modules from this one.
_PARTS: Final = {
    "mqdb": "mqdb",
    "client/mqdb_client": "mqdb_client",
    "migrations": "migrations",
    "alembic.ini": "alembic.ini",
}
_END_SECONDS: Final = 30.0


class LogMark(NamedTuple):
    """A position in a log."""

    position: int


class Trouble(NamedTuple):
    """The part of a log that should be short: WARNINGs and tracebacks."""

    #: Of WARNING and above.
    warnings: list[str]
    tracebacks: int


class LoadProcess:
    """A process that logs JSON lines to its own file."""

    def __init__(self, name: str, clients: int, log: Path, process: ServerProcess) -> None:
        self.name = name
        #: How many clients of mqdb are in it.
        self.clients = clients
        self._log = log
        self._process = process

    @property
    def has_ended(self) -> bool:
        return self._process.exited.is_set()

    def mark(self) -> LogMark:
        return LogMark(self._log.stat().st_size)

    def trouble(self, since: LogMark) -> Trouble:
        """WARNINGs and tracebacks in its log since the mark."""
        with self._log.open("rb") as file:
            file.seek(since.position)
            lines = file.read().decode(errors="replace").splitlines()
        warnings: list[str] = []
        tracebacks = 0
        for line in lines:
            if not line.startswith("{"):
                tracebacks += line.startswith("Traceback")
                continue
            with suppress(json.JSONDecodeError):
                record = json.loads(line)
                if record["level"] not in ("DEBUG", "INFO"):
                    warnings.append(line)
                tracebacks += "exception" in record
        return Trouble(warnings, tracebacks)

    def end(self) -> None:
        """Ask the process to exit, and kill it if it does not."""
        for how, seconds in ((signal.SIGTERM, _END_SECONDS), (signal.SIGKILL, _END_SECONDS)):
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, how)
            if self._process.exited.wait(seconds):
                return


class Launcher:
    """Starts processes with the mqdb of a checkout."""

    def __init__(self, directory: Path, checkout: Path = ROOT) -> None:
        self._directory = directory
        # Before anything else on the path, and without the tests of that checkout.
        links = directory / "checkout"
        links.mkdir()
        for source, link in _PARTS.items():
            (links / link).symlink_to(checkout.resolve() / source)
        self._path = os.pathsep.join([str(links), str(ROOT)])

    def start(self, name: str, clients: int, arguments: Sequence[str], python: str = sys.executable) -> LoadProcess:
        """Start `python -m` with the arguments, and without user settings."""
        log = self._directory / f"{name}.log"
        kept = {key: os.environ[key] for key in ("PATH", "HOME", "LANG") if key in os.environ}
        environment = [f"{key}={value}" for key, value in {**kept, "PYTHONPATH": self._path}.items()]
        # `env` would take a path with "=" in it for a variable.
        through_shell = ["/bin/sh", "-c", 'exec "$0" "$@"']
        command = ["/usr/bin/env", "-i", *environment, *through_shell, python, "-m", *arguments]
        with log.open("ab") as output:
            process = ServerProcess(command, account=None, cwd=self._directory, output=output.fileno())
        return LoadProcess(name, clients, log, process)

    def run(self, *arguments: str) -> None:
        """Run a short mqdb command."""
        process = self.start("command", 0, ["mqdb", *arguments])
        assert process._process.exited.wait(60)
        assert process._process.returncode == 0, (self._directory / "command.log").read_text()
