"""The producers of the drill, with a process for each way to the cluster.

    python -m tests.drill.producing '{"dsn": ..., "client": "haproxy", "path": ...}'

    flush     a message that waits for the disk, the default
    master    a message that also waits for the synchronous standby
    own       a message with `connection=`, and an application row in the same transaction
    delay     a message with a delay level
    timer     a message with a delivery time
    asyncio   a message of an AsyncProducer

Each kind sends five messages a second until SIGTERM. All attempts are written to the file, and the log to standard
error.
"""

import asyncio
import itertools
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import psycopg

from mqdb.errors import BrokerUnavailable, MqdbError, SendOutcomeUnknown
from mqdb_client import Durability, JsonFormatter, Message, Producer, SendResult
from mqdb_client.aio import AsyncProducer
from tests.drill.attempts import Attempt, AttemptFile, Result

TOPIC: Final = "drill"
LATE_TOPIC: Final = "drill-late"
KINDS: Final = ("flush", "master", "own", "delay", "timer", "asyncio")

_PAUSE_SECONDS: Final = 0.2
_DELAY: Final = timedelta(seconds=1)
#: The time-out of a transaction of the application.
_OWN_SECONDS: Final = 5.0


class Load:
    """The pace and the file that all kinds share."""

    def __init__(self, dsn: str, client: str, file: AttemptFile) -> None:
        self.dsn = dsn
        self.client = client
        self.stop = threading.Event()
        self._file = file

    def names(self, kind: str) -> Iterator[str]:
        """A name for each message, at the pace of the load, until the end."""
        # Another process may have sent before with the same way.
        start = os.getpid()
        for number in itertools.count():
            if self.stop.wait(_PAUSE_SECONDS):
                return
            yield f"{self.client}-{kind}-{start}:{number}"

    def note(self, began: float, kind: str, name: str, result: Result, detail: object) -> None:
        text = f"{type(detail).__name__}: {detail}" if isinstance(detail, Exception) else str(detail)
        self._file.write(Attempt(began, time.monotonic(), self.client, kind, name, result, text[:300]))

    def send_with(self, kind: str, send: Callable[[str], SendResult], producer: Producer) -> None:
        """Send in a loop; if a send has no answer, ask for its outcome."""
        unknown: dict[str, str] = {}
        for name in self.names(kind):
            began = time.monotonic()
            try:
                self.note(began, kind, name, Result.STORED, send(name).status)
            except SendOutcomeUnknown as error:
                self.note(began, kind, name, Result.UNKNOWN, error)
                unknown[name] = error.message_ids[0]
                continue
            except MqdbError as error:
                self.note(began, kind, name, Result.REFUSED, error)
                continue
            for earlier, message_id in list(unknown.items()):
                with suppress(BrokerUnavailable, SendOutcomeUnknown):
                    result = Result.REFUSED if producer.outcome(message_id) is None else Result.STORED
                    self.note(began, kind, earlier, result, "told later")
                    del unknown[earlier]


class OwnSession:
    """An application's session that stores its own row and a message in one transaction."""

    def __init__(self, load: Load, producer: Producer) -> None:
        self._load = load
        self._producer = producer
        self._session: psycopg.Connection[Any] | None = None
        self._is_released = False

    def run(self) -> None:
        for name in self._load.names("own"):
            began, is_committing = time.monotonic(), False
            try:
                session = self._connected()
                with _in_time(session):
                    session.execute("INSERT INTO public.own_row (name) VALUES (%s)", [name])
                    self._producer.send(Message(TOPIC, name), connection=session)
                    is_committing = True
                    session.commit()
                result = Result.UNKNOWN if self._is_released else Result.STORED
                self._load.note(began, "own", name, result, "COMMIT")
            except (psycopg.Error, MqdbError) as error:
                self._load.note(began, "own", name, Result.UNKNOWN if is_committing else Result.REFUSED, error)
                if self._session is not None:
                    self._session.close()

    def _connected(self) -> psycopg.Connection[Any]:
        if self._session is None or self._session.closed:
            self._is_released = False
            self._session = psycopg.connect(self._load.dsn, connect_timeout=3, target_session_attrs="read-write")
            self._session.add_notice_handler(self._hear)
        return self._session

    def _hear(self, notice: psycopg.errors.Diagnostic) -> None:
        # A commit that a shutdown has released from its wait is told as one, with this WARNING.
        if notice.severity_nonlocalized == "WARNING":
            self._is_released = True


@contextmanager
def _in_time(session: psycopg.Connection[Any]) -> Iterator[None]:
    """Cut the connection if the server takes too long: libpq waits as long as TCP is acknowledged."""
    line = socket.socket(fileno=os.dup(session.pgconn.socket))

    def cut() -> None:
        with suppress(OSError):
            line.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(_OWN_SECONDS, cut)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        line.close()


async def send_in_loop(load: Load, producer: AsyncProducer) -> None:
    """Like `Load.send_with`, in an event loop."""
    unknown: dict[str, str] = {}
    for number in itertools.count():
        await asyncio.sleep(_PAUSE_SECONDS)
        if load.stop.is_set():
            return
        name, began = f"{load.client}-asyncio-{os.getpid()}:{number}", time.monotonic()
        try:
            sent = await producer.send(Message(TOPIC, name))
            load.note(began, "asyncio", name, Result.STORED, sent.status)
        except SendOutcomeUnknown as error:
            load.note(began, "asyncio", name, Result.UNKNOWN, error)
            unknown[name] = error.message_ids[0]
            continue
        except MqdbError as error:
            load.note(began, "asyncio", name, Result.REFUSED, error)
            continue
        for earlier, message_id in list(unknown.items()):
            with suppress(BrokerUnavailable, SendOutcomeUnknown):
                found = await producer.outcome(message_id)
                result = Result.REFUSED if found is None else Result.STORED
                load.note(began, "asyncio", earlier, result, "told later")
                del unknown[earlier]


async def run_loop(load: Load) -> None:
    async with AsyncProducer(f"{load.client}-asyncio-senders", load.dsn) as producer:
        await send_in_loop(load, producer)


def main(arguments: dict[str, str]) -> None:
    log_to_stderr()
    load = Load(arguments["dsn"], arguments["client"], AttemptFile(Path(arguments["path"])))
    signal.signal(signal.SIGTERM, lambda *_: load.stop.set())
    with ExitStack() as stack:
        plain = stack.enter_context(Producer(f"{load.client}-senders", load.dsn))
        master = Producer(f"{load.client}-master-senders", load.dsn, durability=Durability.SYNC_MASTER)
        stack.enter_context(master)
        own = OwnSession(load, plain)

        def late(name: str) -> SendResult:
            return plain.send(Message(LATE_TOPIC, name, deliver_at=datetime.now(UTC) + _DELAY))

        works: list[Callable[[], None]] = [
            lambda: load.send_with("flush", lambda name: plain.send(Message(TOPIC, name)), plain),
            lambda: load.send_with("master", lambda name: master.send(Message(TOPIC, name)), master),
            own.run,
            lambda: load.send_with("delay", lambda name: plain.send(Message(LATE_TOPIC, name, delay_level=1)), plain),
            lambda: load.send_with("timer", late, plain),
            lambda: asyncio.run(run_loop(load)),
        ]
        threads = [threading.Thread(target=work, daemon=True) for work in works]
        for thread in threads:
            thread.start()
        load.stop.wait()
        for thread in threads:
            thread.join(20)


def log_to_stderr() -> None:
    """Log each record as a JSON line."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler])


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
