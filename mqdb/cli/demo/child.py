"""Child processes of the demo.

Each reads its order from standard input, reports on standard output, and exits when its input is closed.

No process can therefore outlive the demo: when the demo is killed, the kernel closes the pipe. Both directions carry
lines of JSON. An order may contain a password, so it is not passed as an argument, which every user of the machine
could read.
"""

import json
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Self

from mqdb.errors import MqdbError

_END_SECONDS = 30.0


class ChildFailed(MqdbError):
    """A process of the demo ended early."""

    what: str
    reason: str
    sentence = "{what} of the demo ended: {reason}"


class Child:
    """The demo's handle of a child process. A thread calls `on_report` with each report."""

    def __init__(self, what: str, module: str, order: object, on_report: Callable[[dict[str, Any]], None]) -> None:
        self._what = what
        self._on_report = on_report
        self._failure: str | None = None
        self._is_stopping = False
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    def check(self) -> None:
        """Raise ChildFailed if the process has ended."""
        if self._failure is not None:
            raise ChildFailed(self._what, self._failure)

    def ask_to_stop(self) -> None:
        """Close the input of the process, so that it finishes its current work and exits."""
        self._is_stopping = True
        assert self._process.stdin is not None
        self._process.stdin.close()

    def stop(self) -> None:
        """Stop the process, and return when it has ended."""
        self.ask_to_stop()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                report = json.loads(line)
                self._failure = report.get("failure", self._failure)
                self._on_report(report)
        if not self._is_stopping and self._failure is None:
            self._failure = f"exit code {self._process.wait()}"


def wait_for(condition: Callable[[], bool], seconds: float, *, meanwhile: Callable[[], None]) -> bool:
    """Return True once the condition holds, False when the time is over; `meanwhile` runs in between and may raise."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        meanwhile()
        time.sleep(_LOOK_SECONDS)
    return True


_LOOK_SECONDS = 0.02


# -- in the process -------------------------------------------------------------------------------


def report(**what: Any) -> None:
    """Send a report to the demo."""
    print(json.dumps(what), flush=True)


def until_input_ends(seconds: float) -> Iterator[None]:
    """Yield at this interval, in seconds, until standard input is closed."""
    while True:
        yield
        readable, _, _ = select.select([sys.stdin], [], [], seconds)
        if readable:
            return


def run_child(work: Callable[[list[Any]], None]) -> None:
    """Run the child process: `work` is called with the order.

    Ctrl-C is left to the demo, which then closes the input.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        work(json.loads(sys.stdin.readline()))
    except MqdbError as exc:
        report(failure=str(exc))
        sys.exit(1)
    except BrokenPipeError:
        # The demo is gone, so nothing is left to report to.
        sys.stderr.close()
        sys.exit(1)
