"""Workers: the processes that make the load, so that one interpreter does not limit the measured rates.

A load is a function that opens a number of connections to a broker, and yields an operation for each: a call that does
one thing and returns the number of messages. Each operation is repeated by a separate thread in one of the processes.
All threads begin at the same moment, and only work between the beginning and the end counts. For an operation that only
begins work, the end of that work counts: `Pipeline`.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import wraps
from multiprocessing import get_context
from multiprocessing.connection import Connection as Pipe
from typing import Any, Concatenate, NamedTuple, ParamSpec, Protocol, Self, TypeAlias, runtime_checkable

from benchmarks.bench.figures import Measurement, durations
from benchmarks.bench.machine import ServerClock, resident_bytes
from mqdb.common.dsn import BrokerDsn
from mqdb.errors import MqdbError
from mqdb.process.signals import deferred

Operation: TypeAlias = Callable[[], int]

#: Pickled for the workers: a function of a module, or a `partial` of one.
Load: TypeAlias = Callable[[BrokerDsn, int], AbstractContextManager[Sequence[Operation]]]

P = ParamSpec("P")

#: Between the word that all are ready and the start: all have heard of it by then.
_LEAD_SECONDS = 0.05
_END_SECONDS = 10.0


class Exhausted(Exception):
    """Raised by an operation that has no work left, which ends the round."""


@runtime_checkable
class Pipeline(Protocol):
    """An operation that begins work which ends later. Finished messages count."""

    def __call__(self) -> int:
        """Begin one piece of work; returns how many messages have finished since the last call."""

    def drain(self) -> int:
        """Wait for all work under way; returns how many messages that was."""


class WorkerDied(MqdbError):
    """A process of the benchmark exited without an answer."""

    exit_code: int | None
    sentence = "a process of the benchmark died with exit code {exit_code}"


def per_connection(
    open_one: Callable[Concatenate[BrokerDsn, P], Iterator[Operation]],
) -> Callable[Concatenate[BrokerDsn, int, P], AbstractContextManager[Sequence[Operation]]]:
    """Turns a generator that opens one connection into a load."""

    @contextmanager
    @wraps(open_one)
    def open_all(
        broker: BrokerDsn, connections: int, /, *args: P.args, **kwargs: P.kwargs
    ) -> Iterator[Sequence[Operation]]:
        with ExitStack() as stack:
            opened = contextmanager(open_one)
            yield [stack.enter_context(opened(broker, *args, **kwargs)) for _ in range(connections)]

    return open_all


class LoadWorker:
    """A process that runs `function(pipe, *arguments)` and ends at the latest when its pipe is closed."""

    def __init__(self, function: Callable[..., None], *arguments: object) -> None:
        context = get_context("spawn")
        self._pipe, other_end = context.Pipe()
        self._process = context.Process(target=_guarded, args=(function, other_end, *arguments), daemon=True)
        # A process whose parent leaves before it has told it what to do ends with a traceback.
        with deferred(signal.SIGINT):
            self._process.start()
        other_end.close()

    def tell(self, message: object) -> None:
        """Send a message to the worker."""
        self._pipe.send(message)

    def answer(self) -> Any:
        """The worker's next message. Raises the error that the worker raised, or WorkerDied if the worker is gone."""
        try:
            answer = self._pipe.recv()
        except EOFError:
            self._process.join(_END_SECONDS)
            raise WorkerDied(self._process.exitcode) from None
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def close(self) -> None:
        """Let the worker end, by force if necessary."""
        self._pipe.close()
        self._process.join(_END_SECONDS)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def _guarded(function: Callable[..., None], pipe: Pipe, *arguments: object) -> None:
    # Ctrl-C is for the parent; it closes the pipe.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        function(pipe, *arguments)
    except (EOFError, BrokenPipeError):
        return
    except BaseException as error:  # noqa: BLE001 - the parent raises it, if it is still there
        with suppress(OSError):
            pipe.send(error)


class Shift(NamedTuple):
    """The work of one worker in one round."""

    messages: int
    ended_at: float
    cpu_seconds: float
    #: Of each operation.
    seconds: list[float]
    #: What the process holds at its end; None where that cannot be read.
    resident_bytes: int | None = None


class Crew:
    """Processes that share a number of connections between them."""

    def __init__(self, broker: BrokerDsn, *, connections: int, jobs: int, servers: Sequence[ServerClock]) -> None:
        """Create the crew; the processes are started later. `servers` are the servers whose CPU time the load uses."""
        self._broker = broker
        jobs = min(jobs, connections)
        self._shares = [connections // jobs + (number < connections % jobs) for number in range(jobs)]
        self._servers = servers
        self._workers: list[LoadWorker] = []

    def measure(self, load: Load, seconds: float, *, timed: bool = False, weighed: bool = False) -> Measurement:
        """Messages per second over all connections, with the CPU time of both sides for each message.

        With `timed` the result includes the durations of operations, with `weighed` the memory of the largest process.
        """
        if not self._workers:
            self._workers = [LoadWorker(_work, self._broker) for _ in self._shares]
        for worker, share in zip(self._workers, self._shares, strict=True):
            worker.tell((load, share, seconds))
        for worker in self._workers:
            worker.answer()
        server_began = self._server_seconds()
        started_at = time.monotonic() + _LEAD_SECONDS
        for worker in self._workers:
            worker.tell(started_at)
        shifts: list[Shift] = [worker.answer() for worker in self._workers]
        server_ended = self._server_seconds()
        for worker in self._workers:
            worker.answer()
        messages = sum(shift.messages for shift in shifts)
        elapsed = max(shift.ended_at for shift in shifts) - started_at
        details = {"client_cpu_us": _each(sum(shift.cpu_seconds for shift in shifts), messages)}
        if server_began is not None and server_ended is not None:
            details["server_cpu_us"] = _each(server_ended - server_began, messages)
        if timed:
            details |= durations([each for shift in shifts for each in shift.seconds])
        sizes = [shift.resident_bytes for shift in shifts if shift.resident_bytes is not None]
        if weighed and sizes:
            details["RSS_MiB"] = max(sizes) / 2**20
        return Measurement(messages / elapsed, details)

    def _server_seconds(self) -> float | None:
        clocks = [server.seconds() for server in self._servers]
        found = [seconds for seconds in clocks if seconds is not None]
        return sum(found) if len(found) == len(clocks) else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.close()


def _each(seconds: float, messages: int) -> float:
    """Microseconds for each message."""
    return seconds / messages * 1e6 if messages else 0.0


def _work(pipe: Pipe, broker: BrokerDsn) -> None:
    """The loop of a worker in a crew: round after round, each until the load has nothing left."""
    while True:
        load, connections, seconds = pipe.recv()
        with load(broker, connections) as operations:
            pipe.send("ready")
            pipe.send(run_shift(operations, pipe.recv(), seconds))
        pipe.send("closed")


def run_shift(operations: Sequence[Operation], started_at: float, seconds: float) -> Shift:
    """Repeat each operation in a separate thread from a moment of time.monotonic on.

    Raises the error of an operation that fails.
    """
    threads = [_Repeat(operation, started_at, started_at + seconds) for operation in operations]
    cpu = time.process_time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for thread in threads:
        if thread.error is not None:
            raise thread.error
    cpu = time.process_time() - cpu
    return Shift(
        sum(thread.messages for thread in threads),
        max(thread.ended_at for thread in threads),
        cpu,
        [seconds for thread in threads for seconds in thread.seconds],
        resident_bytes(),
    )


class _Repeat(threading.Thread):
    """Repeats one operation from the start to the end of a round, at least once."""

    def __init__(self, operation: Operation, started_at: float, until: float) -> None:
        super().__init__(daemon=True)
        self._operation = operation
        self._started_at = started_at
        self._until = until
        self.messages = 0
        self.ended_at = started_at
        self.seconds: list[float] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        time.sleep(max(self._started_at - time.monotonic(), 0.0))
        try:
            self._repeat()
            if isinstance(self._operation, Pipeline):
                self.messages += self._operation.drain()
        except BaseException as error:  # noqa: BLE001 - the worker raises it
            self.error = error
        self.ended_at = time.monotonic()

    def _repeat(self) -> None:
        operation, clock, until, seconds = self._operation, time.monotonic, self._until, self.seconds
        messages = 0
        before = clock()
        with suppress(Exhausted):
            # A busy machine may let the thread run when the round is over; to have done nothing says nothing.
            while before < until or not seconds:
                messages += operation()
                now = clock()
                seconds.append(now - before)
                before = now
        self.messages = messages
