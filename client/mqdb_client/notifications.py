"""Notifications: the LISTEN connection of a process to one broker, and the thread that owns it.

The thread waits for notifications, runs duties when they are due, and reconnects with growing pauses when the
connection is lost.
"""

import logging
import selectors
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import psycopg
from sqlalchemy import Connection, Engine, func, select

from mqdb.common.backoff import pauses
from mqdb.common.wake_limit import WakeLimit
from mqdb.errors import BrokerUnavailable, MqdbError
from mqdb.store.clients.clients import ARRIVALS_CHANNEL, CHANNEL
from mqdb.store.engine import driver, target_of, translated
from mqdb.store.server_state import timeline
from mqdb_client.callbacks import Callbacks
from mqdb_client.connection_watch import Line, hold
from mqdb_client.duty import Duty
from mqdb_client.outage import Outage

logger = logging.getLogger(__name__)

#: A client's consumption waits for this connection, and many clients may try at once.
_LONGEST_PAUSE_SECONDS: Final = 2.0

# The system call does not accept infinity.
_LONGEST_WAIT_SECONDS: Final = 3600.0

#: The maximum reads of notifications per second. Dispatch notifies up to 500 times a second.
_READS_PER_SECOND: Final = 1000.0

# The server should also notice within 15 s that a client vanished, because it holds the client's presence lock.
_SERVER_KEEPALIVE: Final = {
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "3",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "15000",
}


class Heard(NamedTuple):
    """The content of some notifications, merged.

    If `queue_keys` is None, messages may have arrived in any queue. `clients` are the ids of the clients with a
    request.
    """

    has_arrivals: bool
    queue_keys: frozenset[int] | None
    groups: frozenset[str]
    clients: frozenset[str] = frozenset()


#: A queue key is a 32-bit integer. Any role may notify, and Python refuses to parse a number of 5,000 digits.
_MAX_KEY_DIGITS: Final = 10


def understand(payloads: Iterable[str]) -> Heard:
    """Read payloads: `a:` and queue keys, `a:*`, `m:` and a group, `c:` and a client id.

    Any role may send other payloads, which are ignored.
    """
    keys: set[int] = set()
    groups: set[str] = set()
    clients: set[str] = set()
    is_any = False
    for payload in payloads:
        kind, _, text = payload.partition(":")
        if kind == "m":
            groups.add(text)
        elif kind == "c":
            clients.add(text)
        elif kind == "a":
            is_any = is_any or text == "*"
            keys.update(int(key) for key in text.split(",") if key.isdecimal() and len(key) <= _MAX_KEY_DIGITS)
    return Heard(is_any or bool(keys), None if is_any else frozenset(keys), frozenset(groups), frozenset(clients))


class NotificationThread:
    """Listens for a client. Its thread handles the notifications and runs the duties.

    The thread listens to arrivals while `arrivals` has callbacks, and calls the callbacks with None when it begins to
    listen. `greet` is called with each new connection, and rejects a connection by raising an error. `recovered` is
    called after each new connection except the first connection.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        greet: Callable[[Connection], None],
        arrivals: Callbacks[frozenset[int] | None],
        heard: Callable[[Heard], None],
        recovered: Callable[[], None],
        duties: Sequence[Duty],
        outage: Outage,
    ) -> None:
        self._engine = engine
        self._target = target_of(engine)
        self._greet = greet
        self._arrivals = arrivals
        self._hears_arrivals = False
        self._heard = heard
        self._recovered = recovered
        self._duties = duties
        self._outage = outage
        self._connection: Connection | None = None
        self._line: Line
        self._stopping = threading.Event()
        #: Ends a pause between two attempts to connect.
        self._hurried = threading.Event()
        self._thread: threading.Thread | None = None
        self._bell: tuple[socket.socket, socket.socket] | None = None
        self._read_limit = WakeLimit(per_second=_READS_PER_SECOND)

    @property
    def connection(self) -> Connection:
        """The LISTEN connection, for duties of this thread only."""
        assert self._connection is not None
        return self._connection

    def start(self, *, may_be_down: bool = False) -> bool:
        """Connect, then listen in a thread. If this raises, the thread has not started.

        With `may_be_down` this returns False if the broker cannot be reached, and the thread keeps trying.
        """
        self._stopping.clear()
        try:
            self._connect()
        except MqdbError as error:
            # Waiting does not help against a refused password or a wrong schema.
            if not (may_be_down and isinstance(error, BrokerUnavailable) and error.may_pass):
                raise
            self._outage.covers(self, error)
        is_connected = self._connection is not None
        try:
            self._bell = socket.socketpair()
            for end in self._bell:
                end.setblocking(False)
            thread = threading.Thread(target=self._run, name="mqdb-notifications", daemon=True)
            thread.start()
        except BaseException:
            self.stop()
            raise
        self._thread = thread
        return is_connected

    def stop(self) -> None:
        """Stop listening and close the connection, after the current duty.

        Must not be called in the notification thread itself.

        Calling it twice has no effect.
        """
        self._stopping.set()
        self.hurry()
        self.wake()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._disconnect()
        self._engine.dispose()
        bell, self._bell = self._bell, None
        for end in bell or ():
            end.close()

    def wake(self) -> None:
        """Make the thread check its duties now."""
        bell = self._bell
        if bell is not None:
            with suppress(OSError):  # its buffer is full of wake-ups, or it was just closed
                bell[0].send(b"\0")

    def hurry(self) -> None:
        """Reconnect now instead of after the pause, because the broker has just answered another connection."""
        self._hurried.set()

    def _connect(self) -> None:
        with translated(self._target):
            self._connection = self._engine.connect()
            try:
                self._greet(self._connection)
                settings = (func.set_config(name, value, False) for name, value in _SERVER_KEEPALIVE.items())
                self._outage.timeline = self._connection.scalar(select(timeline(), *settings))
                info = driver(self._connection).info
                self._outage.server = f"{info.host}:{info.port}"
                driver(self._connection).execute(f"LISTEN {CHANNEL}")
                self._hears_arrivals = False
                self._line = hold(self._connection)
            except BaseException:
                self._disconnect()
                raise

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            # Not returned to the pool: its session holds a lock and listens.
            connection.invalidate()
            connection.close()

    def _run(self) -> None:
        if self._connection is None:
            self._reconnect()
        while not self._stopping.is_set():
            try:
                self._listen()
            except Exception as error:
                if not isinstance(error, _EXPECTED):
                    fields = {"broker": self._target}
                    sentence = "notification thread of broker %(broker)s failed; will reconnect"
                    logger.exception(sentence, fields, extra=fields)
                self._outage.covers(self, BrokerUnavailable(self._target, _line(error)))
                self._disconnect()
                self._reconnect()
        self._outage.leave(self)

    def _listen(self) -> None:
        connection = driver(self.connection)
        assert self._bell is not None
        rung = self._bell[1]
        with selectors.DefaultSelector() as selector:
            selector.register(connection.fileno(), selectors.EVENT_READ)
            selector.register(rung, selectors.EVENT_READ)
            while not self._stopping.is_set():
                self._line.begin()
                for duty in self._duties:
                    duty.run_if_due()
                self._follow_arrivals(connection)
                self._line.end()
                payloads = [notify.payload for notify in connection.notifies(timeout=0)]
                if payloads:
                    self._heard(understand(payloads))
                    self._read_limit.spend()
                    self._stopping.wait(self._read_limit.seconds_left())
                else:
                    seconds = min(duty.seconds_left() for duty in self._duties)
                    selector.select(min(seconds, _LONGEST_WAIT_SECONDS))
                    with suppress(BlockingIOError):
                        rung.recv(4096)

    def _follow_arrivals(self, connection: "psycopg.Connection[tuple[Any, ...]]") -> None:
        """Listen to arrivals only while there are callbacks for them.

        Under load there are hundreds of arrivals per second, and each costs the listening session 150 µs of CPU.
        """
        is_wanted = not self._arrivals.is_empty
        if is_wanted is not self._hears_arrivals:
            connection.execute(f"{'LISTEN' if is_wanted else 'UNLISTEN'} {ARRIVALS_CHANNEL}".encode())
            self._hears_arrivals = is_wanted
            self._arrivals.call(None)

    def _reconnect(self) -> None:
        """Retry until connected, or until `stop`."""
        for pause in pauses(_LONGEST_PAUSE_SECONDS):
            self._hurried.wait(pause)
            self._hurried.clear()
            if self._stopping.is_set():
                break
            try:
                self._connect()
                self._recovered()
                self._outage.works(self)
                break
            except Exception as error:
                self._disconnect()
                # Not a WARNING: it would be repeated at each attempt, every 2 s.
                unexpected = None if isinstance(error, _EXPECTED) else error
                logger.debug("no connection to the broker yet", extra={"reason": _line(error)}, exc_info=unexpected)


_EXPECTED: Final = (MqdbError, psycopg.Error, OSError)


def _line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
