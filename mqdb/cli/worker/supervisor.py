"""The supervisor: it starts worker processes, and replaces each process that exits unexpectedly.

Worker          one process and the socket to it: two threads report its messages and its end to the supervisor
Supervisor      the main thread: takes these, signals and changes of files one after the other
"""

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Final

from mqdb.cli.worker.order import ANNOUNCED, METRICS_DIRECTORY, READY, UNUSABLE, Order, is_end_of_work
from mqdb.process.signals import STOP_SIGNALS, handled
from mqdb.web.probe_report import PASSED, Report

logger = logging.getLogger(__name__)

#: A process that ends sooner than this is not replaced immediately, because the next process would probably end for the
#: same reason.
_SOON: Final = 1.0
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 10.0

#: A signal that arrives just before a wait is only noted and wakes no thread, so every wait needs a timeout.
_SIGNAL_SECONDS: Final = 0.5

#: A process whose event loop has not run for this long is stuck.
STUCK_SECONDS: Final = 30.0


class Worker:
    """A worker process."""

    def __init__(
        self, number: int, order: Order, environment: Mapping[str, str], tell: Callable[["Worker"], None]
    ) -> None:
        """A thread calls `tell` once, when the process has ended."""
        self.number = number
        self.is_ready = False
        self.has_announced = False
        self.is_retired = False
        self.started_at = self.heard_at = time.monotonic()
        self._line, theirs = socket.socketpair()
        with theirs, _without_interrupts():
            self.process = subprocess.Popen(
                [sys.executable, "-m", "mqdb.cli.worker.process", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=dict(environment),
            )
        with suppress(OSError):
            self._line.sendall(order.line())
        self._listener = threading.Thread(target=self._listen, name=f"worker-{number}-says", daemon=True)
        self._listener.start()
        threading.Thread(target=self._wait, args=(tell,), name=f"worker-{number}", daemon=True).start()

    def signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        with suppress(ProcessLookupError):
            self.process.send_signal(number)

    @property
    def life_seconds(self) -> float:
        """Seconds since the process started."""
        return time.monotonic() - self.started_at

    def _listen(self) -> None:
        with suppress(OSError), self._line.makefile("r") as lines:
            for line in lines:
                self.heard_at = time.monotonic()
                if line.strip() == READY:
                    self.is_ready = True
                    fields = {"worker": self.number, "pid": self.process.pid, "seconds": round(self.life_seconds, 2)}
                    logger.info("a worker consumes", extra=fields)
                elif line.strip() == ANNOUNCED:
                    self.has_announced = True

    def _wait(self, tell: Callable[["Worker"], None]) -> None:
        self.process.wait()
        with suppress(OSError):
            self._line.shutdown(socket.SHUT_RDWR)  # a process forked by the worker may still hold the other end
        self._line.close()
        self._listener.join()  # all its messages have been read
        tell(self)


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Keep Ctrl-C from ending a process while it imports; the process unblocks the signal once it ignores it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Supervisor:
    """Runs the given number of processes with one order. Use it once, from the main thread."""

    def __init__(
        self, order: Order, processes: int, environment: Mapping[str, str] = os.environ, *, reloads: bool = False
    ) -> None:
        """If `reloads` is true, code changes trigger `reload`, so an application that cannot run is not fatal."""
        self._order = order
        self._reloads = reloads
        self._environment = environment
        self._processes = processes
        self._workers: dict[int, Worker] = {}
        self._news: SimpleQueue[Worker | Callable[[], None]] = SimpleQueue()
        self._starts: list[tuple[float, int]] = []
        self._failures: dict[int, int] = {}
        self._signals = 0
        self._is_stopping = False
        self._has_announced = False
        self._waits_for_change = False
        self._code = 0

    def run(self) -> int:
        """Run the processes; returns 0, 1 if a process did not end well, or UNUSABLE if the application cannot run."""
        with self._listening_to_signals():
            for number in range(1, self._processes + 1):
                self._start(number)
            while self._workers or self._starts or self._waits_for_change:
                self._step()
        return self._code

    def reload(self) -> None:
        """Replace all processes, so that the new processes load the changed code. Any thread may call it."""
        self._news.put(self._reload)

    # -- what is asked from outside -----------------------------------------------------------------

    def liveness(self) -> Report:
        """Whether the event loop of each consuming process has run recently."""
        now = time.monotonic()
        stuck = f"its event loop has not run for {STUCK_SECONDS:.0f} s"
        workers = list(self._workers.values())
        return Report(
            {
                f"worker {worker.number}": stuck
                if worker.is_ready and now - worker.heard_at > STUCK_SECONDS
                else PASSED
                for worker in workers
            }
        )

    def readiness(self) -> Report:
        """Whether all processes are consuming."""
        ready = {worker.number for worker in list(self._workers.values()) if worker.is_ready}
        checks = {
            f"worker {number}": PASSED if number in ready else "is not consuming yet"
            for number in range(1, self._processes + 1)
        }
        return Report(checks | ({"process": "is stopping"} if self._is_stopping else {}))

    # -- one thing after the other ------------------------------------------------------------------

    def _step(self) -> None:
        wait = _SIGNAL_SECONDS
        if self._starts:
            wait = min(max(self._starts[0][0] - time.monotonic(), 0.0), wait)
        news = None
        with suppress(Empty):
            news = self._news.get(timeout=wait)
        if self._signals and not self._is_stopping:  # first, because a signal to all processes ends them, too
            self._stop()
        if isinstance(news, Worker):
            self._ended(news)
        elif news is not None:
            news()
        while self._starts and self._starts[0][0] <= time.monotonic():
            self._start(self._starts.pop(0)[1])

    def _start(self, number: int) -> None:
        """The first process announces its listeners and removes crons; if it ends before that, its replacement does."""
        announces = number == 1 and not self._has_announced
        order = replace(self._order, announces=announces, prunes=announces and self._order.prunes)
        self._workers[number] = Worker(number, order, self._environment, self._news.put)

    def _ended(self, worker: Worker) -> None:
        del self._workers[worker.number]
        code = worker.process.returncode
        if self._order.is_measured:
            from mqdb.web.process_metrics import forget_state

            forget_state(self._environment[METRICS_DIRECTORY], worker.process.pid)
        if self._is_stopping or self._order.is_once:
            if not is_end_of_work(code, signal.SIGTERM):
                self._code = UNUSABLE if code == UNUSABLE else 1
        elif worker.is_retired:  # even one that could not run: its replacement loads the changes made since
            self._start(worker.number)
        elif code == UNUSABLE:
            self._give_up()
        else:
            self._replace(worker, code)

    def _replace(self, worker: Worker, code: int) -> None:
        self._has_announced |= worker.has_announced
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        is_soon = not worker.is_ready or worker.life_seconds < _SOON
        failures = self._failures[worker.number] = self._failures.get(worker.number, 0) + 1 if is_soon else 0
        pause = min(_FIRST_PAUSE * 2 ** (failures - 1), _LONGEST_PAUSE) if failures else 0.0
        fields = {"worker": worker.number, "pid": worker.process.pid, "by": how, "successor_in_seconds": pause}
        sentence = (
            "worker %(worker)s, process %(pid)s, ended by %(by)s; its successor starts in %(successor_in_seconds)g s"
        )
        logger.warning(sentence, fields, extra=fields)
        self._starts.append((time.monotonic() + pause, worker.number))
        self._starts.sort()

    def _give_up(self) -> None:
        """Stop, because the application cannot run. With `reloads`, wait until its files change instead."""
        if self._reloads:
            self._waits_for_change = True
            fields = {"application": self._order.target}
            sentence = "application %(application)s cannot run; waiting for a change of its files"
            logger.warning(sentence, fields, extra=fields)
            return
        self._code = UNUSABLE
        self._stop()

    def _reload(self) -> None:
        if self._is_stopping:
            return
        logger.info("files have changed; restarting the workers")
        self._starts.clear()
        self._waits_for_change = self._has_announced = False
        for number in range(1, self._processes + 1):
            worker = self._workers.get(number)
            if worker is None:
                self._start(number)
            elif not worker.is_retired:
                worker.is_retired = True
                worker.signal(signal.SIGTERM)

    def _stop(self) -> None:
        self._is_stopping = True
        self._waits_for_change = False
        self._starts.clear()
        for worker in self._workers.values():
            worker.signal(signal.SIGTERM)

    def _listening_to_signals(self) -> AbstractContextManager[None]:
        """Handle signals: the first signal stops the processes, and the second kills them."""

        def handle(_number: int, _frame: FrameType | None) -> None:
            self._signals += 1
            if self._signals > 1:
                for worker in list(self._workers.values()):
                    worker.signal(signal.SIGKILL)

        return handled(STOP_SIGNALS, handle)
