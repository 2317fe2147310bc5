"""Remains of a killed owner or postmaster in a data directory, and their removal.

Only the holder of the directory's lock calls this module, so no other process may have a server there.
- The owner was killed: its postmaster is shutting down, or is about to. It is asked again to shut down, and waited for.
- The postmaster was killed: its backends notice when they next wait for something. A backend that is computing does not
  notice, and while it lives, PostgreSQL refuses to start (the shared memory block is still in use).
- postmaster.pid contains the number of another process by now, or of a zombie that is never collected (common in
  containers): PostgreSQL would take it for a live postmaster forever.
"""

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

logger = logging.getLogger(__name__)

#: A fast shutdown writes all changed buffers to disk. Interrupting it would only move the work to the recovery.
FAST_SHUTDOWN_SECONDS = 30.0
_IMMEDIATE_SHUTDOWN_SECONDS = 3.0
_POLL_SECONDS = 0.01


def end_server(data: Path) -> None:
    """Stop any PostgreSQL that still runs in the directory."""
    data = data.resolve()
    pid = postmaster_pid(data)
    if pid is not None:
        if serves(pid, data):
            logger.info("stopping the server of an owner that is gone", extra={"pid": pid})
            _end_postmaster(pid, data)
        elif _exists(pid):
            (data / "postmaster.pid").unlink(missing_ok=True)
    for backend in list(_processes_in(data)):
        logger.info("stopping a backend without a postmaster", extra={"pid": backend})
        with suppress(ProcessLookupError):
            os.kill(backend, signal.SIGKILL)
        _wait_until(lambda pid=backend: not serves(pid, data), _IMMEDIATE_SHUTDOWN_SECONDS)  # type: ignore[misc]


def postmaster_pid(data: Path) -> int | None:
    """The process number in postmaster.pid, whether or not that process exists."""
    try:
        return int((data / "postmaster.pid").read_text().splitlines()[0])
    except (OSError, ValueError, IndexError):
        return None


def serves(pid: int, data: Path) -> bool:
    """Whether a process is a live PostgreSQL server in this directory."""
    if sys.platform == "linux":
        process = Path("/proc", str(pid))
        try:
            # The working directory of a zombie cannot be read. A shell that was started in the directory is not a
            # server.
            return Path(os.readlink(process / "cwd")) == data and (process / "comm").read_text() == "postgres\n"
        except OSError:
            return False
    else:
        command = ["ps", "-p", str(pid), "-o", "args="]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        return "postgres" in answer.stdout and str(data) in answer.stdout


def _end_postmaster(pid: int, data: Path) -> None:
    for how, seconds in (
        (signal.SIGINT, FAST_SHUTDOWN_SECONDS),
        (signal.SIGQUIT, _IMMEDIATE_SHUTDOWN_SECONDS),
        (signal.SIGKILL, _IMMEDIATE_SHUTDOWN_SECONDS),
    ):
        with suppress(ProcessLookupError):
            os.kill(pid, how)
        if _wait_until(lambda: not serves(pid, data), seconds):
            return


def _processes_in(data: Path) -> Iterator[int]:
    """The PostgreSQL processes in the directory; on Linux only.

    On other systems, a busy backend has to notice the end of its postmaster by itself.
    """
    if sys.platform == "linux":
        for name in os.listdir("/proc"):
            if name.isdigit() and serves(int(name), data):
                yield int(name)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True
