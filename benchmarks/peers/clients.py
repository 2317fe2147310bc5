"""A client program as a process: it is started, prints READY, works, and prints its results.

The system counts its CPU time from READY to its end, so the start of an interpreter or JVM does not count.
"""

import contextlib
import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.bench.machine import ProcessClock


class ClientFailed(Exception):
    """A client program ended without an answer."""


@dataclass(frozen=True, slots=True)
class Work:
    """The report of a client program."""

    count: int
    seconds: float
    cpu_seconds: float
    #: p50 and p99 in milliseconds, late: whatever else it said.
    more: Mapping[str, float]

    @property
    def rate(self) -> float:
        return self.count / self.seconds if self.seconds else 0.0


class Client:
    """A running client program. The program is killed if the block ends first."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path, patience: float) -> None:
        self._log = log
        with log.open("a") as errors:
            self._process = subprocess.Popen(
                command, env=environment, stdout=subprocess.PIPE, stderr=errors, stdin=subprocess.DEVNULL, text=True
            )
        # A program that hangs would stop the whole comparison.
        self._limit = threading.Timer(patience, self._kill)
        self._limit.daemon = True
        self._limit.start()
        self._ready_cpu = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._limit.cancel()
        if self._process.returncode is None:
            self._kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    @property
    def cpu_seconds(self) -> float:
        """The CPU seconds of a running program since READY."""
        return (ProcessClock(self._process.pid).seconds() or self._ready_cpu) - self._ready_cpu

    def wait_until_ready(self) -> None:
        for line in self._lines():
            if line.startswith("READY"):
                self._ready_cpu = ProcessClock(self._process.pid).seconds() or 0.0
                return
        raise self._failed()

    def finish(self) -> Work:
        """Wait for the end of the program. Raises ClientFailed if the program did not report its results."""
        answers = [line for line in self._lines() if line.startswith("{")]
        # The system's account of the process is lost when somebody else waits for it.
        _, status, usage = os.wait4(self._process.pid, 0)
        self._process.returncode = os.waitstatus_to_exitcode(status)
        self._limit.cancel()
        if not answers or self._process.returncode != 0:
            raise self._failed()
        said: dict[str, Any] = json.loads(answers[-1])
        cpu = usage.ru_utime + usage.ru_stime - self._ready_cpu
        return Work(int(said.pop("count")), float(said.pop("seconds")), cpu, said)

    def _lines(self) -> Iterator[str]:
        assert self._process.stdout is not None
        return iter(self._process.stdout)

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGKILL)

    def _failed(self) -> ClientFailed:
        return ClientFailed("a client program failed:\n" + "\n".join(self._log.read_text().splitlines()[-15:]))
