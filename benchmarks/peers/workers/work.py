"""Parts that all client programs share: options, the message, counting, and the loops that send.

A program prints READY when its work begins, and a line of JSON with its results at its end. A body has 200 bytes: the
send time in nanoseconds as 20 digits, then letters.
"""

import argparse
import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

TOPIC: Final = "bench"
TAG: Final = "a"
PROPERTIES: Final = {"k": "v"}
BATCH: Final = 100

_CLOCK_DIGITS: Final = 20
_LETTERS: Final = "".join(random.Random(1).choices("0123456789abcdefghijklmnopqrstuvwxyz", k=180))

#: How long a consumer waits for its first message.
_FIRST_MESSAGE_SECONDS: Final = 30.0

Send: TypeAlias = Callable[[], object]


def body() -> str:
    return f"{time.time_ns():0{_CLOCK_DIGITS}d}{_LETTERS}"


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a client program."""

    #: produce, load, pace or consume.
    role: str
    dsn: str
    #: How long it sends; how long it consumes from the first message on.
    seconds: float
    #: Threads, connections or tasks that send.
    senders: int
    #: Messages of one call; 1 calls the method for single messages.
    batch: int
    #: Messages to load; a consumer ends after as many.
    count: int
    #: Messages per second of `pace`.
    rate: float
    #: How the consumer reads.
    way: str
    group: str
    #: The consumer waits for more when nothing is left.
    follows: bool
    #: Latencies are measured, without those of as many first messages.
    skipped: int | None


def options(arguments: Sequence[str] | None = None) -> Options:
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=("produce", "load", "pace", "consume"))
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--senders", type=int, default=1)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--count", type=int, default=sys.maxsize)
    parser.add_argument("--rate", type=float, default=0.0)
    parser.add_argument("--way", default="")
    parser.add_argument("--group", default="g")
    parser.add_argument("--follows", action="store_true")
    parser.add_argument("--skipped", type=int)
    return Options(dsn=os.environ.get("PEERS_DSN", ""), **vars(parser.parse_args(arguments)))


@dataclass
class Tally:
    """The number of messages and, if wanted, the time of each from send to consumer."""

    asked: Options
    count: int = 0
    began: float | None = None
    ended: float = 0.0
    latencies_ms: list[float] = field(default_factory=list)
    _guard: threading.Lock = field(default_factory=threading.Lock)
    _created: float = field(default_factory=time.monotonic)

    def add(self, bodies: Sequence[str | bytes]) -> None:
        """Count messages that a consumer received."""
        now, now_ns = time.monotonic(), time.time_ns()
        with self._guard:
            if self.began is None:
                self.began = now
            self.count += len(bodies)
            self.ended = now
            if self.asked.skipped is not None:
                self.latencies_ms += [(now_ns - int(each[:_CLOCK_DIGITS])) / 1e6 for each in bodies]

    @property
    def is_over(self) -> bool:
        """Whether the consumer has received enough messages, or has waited too long."""
        if self.count >= self.asked.count:
            return True
        now = time.monotonic()
        if self.began is None:
            return now - self._created >= _FIRST_MESSAGE_SECONDS
        return now - self.began >= self.asked.seconds

    def wait(self) -> None:
        """Wait until the work is over, for consumers that call a listener in their own threads."""
        while not self.is_over:
            time.sleep(0.02)

    def report(self, close: Send | None = None, **more: object) -> None:
        """Print the counts, after `close`, and end the process. Later messages do not count."""
        began = self.ended if self.began is None else self.began
        done = {"count": self.count, "seconds": self.ended - began, **more}
        measured = sorted(self.latencies_ms[self.asked.skipped or 0 :])
        if measured:
            done |= {f"p{percent}": percentile(measured, percent) for percent in (50, 99)}
        if close is not None:
            close()
        print(json.dumps(done), flush=True)  # noqa: T201 - the answer of the program
        # Threads of a client library must not hold up the end.
        os._exit(0)


def percentile(ascending: Sequence[float], percent: int) -> float:
    return ascending[min(len(ascending) * percent // 100, len(ascending) - 1)]


def ready() -> None:
    """Report that the work begins: from now on the program's CPU time counts."""
    print("READY", flush=True)  # noqa: T201 - a word to the process that measures


def send(asked: Options, connect: Callable[[int], Send]) -> None:
    """Run the role of a sender with a blocking client. `connect(batch)` returns the send function of a new sender."""
    if asked.role == "pace":
        pace(asked, connect(1))
    elif asked.role == "load":
        load(asked, connect(asked.batch))
    else:
        produce(asked, connect)


def produce(asked: Options, connect: Callable[[int], Send]) -> None:
    """Send as fast as possible in `senders` threads."""
    tally = Tally(asked)
    failures: list[str] = []
    gate = threading.Barrier(asked.senders + 1)

    def run() -> None:
        calls = 0
        try:
            call = connect(asked.batch)
            for _ in range(3):
                call()
            gate.wait()  # warm
            gate.wait()  # go
            end = time.monotonic() + asked.seconds
            while time.monotonic() < end:
                call()
                calls += 1
        except Exception as failure:  # noqa: BLE001 - the report names it, and the measurement fails
            failures.append(repr(failure))
            gate.abort()
        with tally._guard:
            tally.count += calls * asked.batch

    threads = [threading.Thread(target=run, daemon=True) for _ in range(asked.senders)]
    for thread in threads:
        thread.start()
    try:
        gate.wait()
        ready()
        gate.wait()
    except threading.BrokenBarrierError:
        sys.exit(f"a sender failed: {failures}")
    tally.began = time.monotonic()
    for thread in threads:
        thread.join()
    tally.ended = time.monotonic()
    if failures:
        sys.exit(f"a sender failed: {failures}")
    tally.report()


def load(asked: Options, call: Send) -> None:
    """Send `count` messages in batches."""
    ready()
    tally = Tally(asked, began=time.monotonic())
    while tally.count < asked.count:
        call()
        tally.count += asked.batch
    tally.ended = time.monotonic()
    tally.report()


def pace(asked: Options, call: Send) -> None:
    """Send `rate` messages per second, each at its time. A late message is sent at once, and counted as late."""
    for _ in range(5):
        call()
    ready()
    began = time.monotonic()
    tally = Tally(asked, began=began)
    late = 0
    while tally.count < asked.seconds * asked.rate:
        wait = began + tally.count / asked.rate - time.monotonic()
        if wait > 0:
            time.sleep(wait)
        elif wait < -0.05:
            late += 1
        call()
        tally.count += 1
    tally.ended = time.monotonic()
    tally.report(late=late)
