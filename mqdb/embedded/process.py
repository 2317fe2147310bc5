"""A run of the server program, which is spawned, watched, and usually tied to the life of its owner.

Linux sends the parent-death signal when the *thread* that spawned the child ends, not the process. The spawning thread
therefore does nothing else than wait for the child, and lives exactly as long. It notices the end of the child
immediately, and a server may be started from any thread, even from one that ends soon.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path

from mqdb.embedded.account import Account, postgres_environment
from mqdb.embedded.leftovers import FAST_SHUTDOWN_SECONDS, end_server, serves

_LAUNCHER = Path(__file__).with_name("launcher.py")
_IMMEDIATE_SHUTDOWN_SECONDS = 5.0

#: Interval between checks of an adopted server. Other systems need a process for each check.
_LOOK_SECONDS = 0.1 if sys.platform == "linux" else 1.0


class ServerProcess:
    """A running server. `exited` is set as soon as it has ended, for any reason."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        account: Account | None,
        cwd: Path,
        output: int,
        outlives_owner: bool = False,
        with_pipe: bool = sys.platform != "linux",
    ) -> None:
        """Start the server; its output goes to the file descriptor `output`.

        `with_pipe` selects the watcher for other systems; a fork of the owner would hold the pipe open, too.
        """
        self.exited = threading.Event()
        with_pipe = with_pipe and not outlives_owner
        watch, self._owner_end = os.pipe() if with_pipe else (-1, -1)
        identity = (account.uid, account.gid) if account else (-1, -1)
        launcher = [sys.executable, "-I", "-S", str(_LAUNCHER)]
        numbers = [str(number) for number in (0 if outlives_owner else os.getpid(), watch, *identity)]
        spawned: Future[subprocess.Popen[bytes]] = Future()
        threading.Thread(
            target=self._spawn_and_wait,
            args=([*launcher, *numbers, *command], cwd, output, watch, outlives_owner, spawned),
            name="mqdb-postgres",
            daemon=True,
        ).start()
        try:
            self._process = spawned.result()
        finally:
            if with_pipe:
                os.close(watch)
        self.pid = self._process.pid

    def _spawn_and_wait(
        self,
        command: list[str],
        cwd: Path,
        output: int,
        watch: int,
        outlives_owner: bool,
        spawned: "Future[subprocess.Popen[bytes]]",
    ) -> None:
        try:
            process = subprocess.Popen(
                command,
                cwd=cwd,
                env=postgres_environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=() if watch < 0 else (watch,),
                # Ctrl-C is left to the owner, which then stops the server itself.
                process_group=None if outlives_owner else 0,
                # The end of the owner's terminal must not end the server either.
                start_new_session=outlives_owner,
            )
        except OSError as exc:
            spawned.set_exception(exc)
            return
        spawned.set_result(process)
        process.wait()
        self.exited.set()
        self._dismiss_watcher()

    def _dismiss_watcher(self) -> None:
        if self._owner_end >= 0:
            with suppress(BrokenPipeError):
                os.write(self._owner_end, b".")
            os.close(self._owner_end)

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    def stop(self) -> None:
        """Stop the server with a fast shutdown: sessions are terminated, and changed buffers are written.

        Stronger signals follow only if that does not help.
        """
        for how, seconds in (
            (signal.SIGINT, FAST_SHUTDOWN_SECONDS),
            (signal.SIGQUIT, _IMMEDIATE_SHUTDOWN_SECONDS),
            (signal.SIGKILL, None),
        ):
            with suppress(ProcessLookupError):
                self._process.send_signal(how)
            if self.exited.wait(seconds):
                return


class AdoptedServer:
    """A running server that another process started and left behind. `exited` is set when it has ended."""

    #: Only the parent of the server learns its exit code.
    returncode = None

    def __init__(self, pid: int, data: Path) -> None:
        self.pid = pid
        self.exited = threading.Event()
        self._data = data
        threading.Thread(target=self._watch, name="mqdb-postgres", daemon=True).start()

    def _watch(self) -> None:
        # The end of a process that is not a child is not reported. It may remain as a zombie, which `serves` detects.
        while serves(self.pid, self._data):
            time.sleep(_LOOK_SECONDS)
        self.exited.set()

    def stop(self) -> None:
        """Stop the server, as `ServerProcess.stop` does."""
        end_server(self._data)
        self.exited.wait()
