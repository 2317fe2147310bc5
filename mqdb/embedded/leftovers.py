"""The remains of a killed owner or a killed postmaster in a data directory, and how they are cleared away.

Called only by the holder of the directory's lock: then no other process has a right to a server in there.
- The owner was killed: its postmaster is shutting down, or about to. It is asked again and waited for.
- The postmaster was killed: its backends notice when they next wait for something. One that computes does not,
  and as long as it lives, PostgreSQL refuses to start (the shared memory block is still in use).
- postmaster.pid names a process number that another process has by now, or a zombie that is never collected (usual in
  containers): PostgreSQL would take it for a living postmaster for ever.
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

#: A fast shutdown writes all changed buffers to disk. Interrupting that would only move the work into the recovery.
FAST_SHUTDOWN_SECONDS = 30.0
_IMMEDIATE_SHUTDOWN_SECONDS = 3.0
_POLL_SECONDS = 0.01


def end_server(data: Path) -> None:
    """Ends whatever PostgreSQL still runs in the directory."""
    data = data.resolve()
    pid = postmaster_pid(data)
    if pid is not None:
        if serves(pid, data):
            logger.info("ending the server of an owner that is gone", extra={"pid": pid})
            _end_postmaster(pid, data)
        elif _exists(pid):
            (data / "postmaster.pid").unlink(missing_ok=True)
    for backend in list(_processes_in(data)):
        logger.info("ending a backend without a postmaster", extra={"pid": backend})
        with suppress(ProcessLookupError):
            os.kill(backend, signal.SIGKILL)
        _wait_until(lambda pid=backend: not serves(pid, data), _IMMEDIATE_SHUTDOWN_SECONDS)  # type: ignore[misc]


def postmaster_pid(data: Path) -> int | None:
    """The process number in postmaster.pid, whether that process lives or not."""
    try:
        return int((data / "postmaster.pid").read_text().splitlines()[0])
    except (OSError, ValueError, IndexError):
        return None


def serves(pid: int, data: Path) -> bool:
    """Whether the process is a living PostgreSQL that works in the directory."""
    if sys.platform == "linux":
        process = Path("/proc", str(pid))
        try:
            # The working directory of a zombie cannot be read. A shell that was opened in there is not a server.
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
    """Linux only. Elsewhere a busy backend has to notice the end of its postmaster by itself."""
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
