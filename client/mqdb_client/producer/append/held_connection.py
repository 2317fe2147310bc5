"""A held connection: statements end in time, and a lost connection is restored automatically.

One thread at a time runs a statement and waits for its end, without a hand-off to another thread. A keeper thread,
which sleeps nearly always, does the rest:

    nine tenths of the time have passed    it asks the server to cancel the statement
    all of the time has passed             it shuts the socket down, which ends the wait
    the connection is lost                 it reconnects, with growing pauses

So a statement is done, or certainly cancelled, or its outcome is unknown, and `run` reports which of these is the case.
"""

import contextlib
import logging
import math
import select
import threading
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

import psycopg
from sqlalchemy import Connection

from mqdb.common.backoff import pauses
from mqdb.errors import BrokerUnavailable, IllegalState, MqdbError, ServerIsStandby, StorageRefused
from mqdb.store.engine import READ_ONLY, driver, translated
from mqdb.store.silence import Scissors

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Short, because senders wait for it.
LONGEST_PAUSE_SECONDS: Final = 1.0

#: An impatient caller waits no longer than this for a connection, and not at all if it is known to be lost.
IMPATIENT_SECONDS: Final = 0.3

# The time left for the server to confirm the cancellation.
_SHARE_FOR_CANCELLING: Final = 0.1

_QUERY_CANCELED: Final = "57014"


class NotRun(Exception):
    """The server has done nothing.

    `error` is the reason why there is no connection; None if the connection was busy all the time.
    """

    def __init__(self, error: MqdbError | None) -> None:
        super().__init__(error)
        self.error = error


class Overdue(Exception):
    """The deadline has passed.

    `is_undone` means that the server cancelled the statement; otherwise the outcome is unknown.
    """

    def __init__(self, is_undone: bool) -> None:
        super().__init__(is_undone)
        self.is_undone = is_undone


class _Link:
    """A connection, with ways to end a wait on it from another thread."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.driver: psycopg.Connection[Any] = driver(connection)
        self._scissors = Scissors.of(connection)
        self._poller = select.poll()
        self._poller.register(self._scissors, select.POLLIN)

    def has_news(self) -> bool:
        """Whether the server has sent unread data, or is gone."""
        return bool(self._poller.poll(0))

    def cancel(self, seconds: float) -> None:
        """Ask the server to cancel the statement; the waiting thread gets its answer."""
        with contextlib.suppress(psycopg.Error):
            self.driver.cancel_safe(timeout=seconds)

    def cut(self) -> None:
        """End all waits for the server. A later answer is never read."""
        self._scissors.cut()

    def close(self, *, is_shared: bool = False) -> None:
        """Close the connection; a shared connection that still works goes back to its pool."""
        if not is_shared or self.has_news() or not _is_idle(self.driver):
            self.connection.invalidate()
        self._scissors.close()
        self.connection.close()


class _Run:
    """A running statement."""

    __slots__ = ("cancel_at", "cut_at", "is_cancelled", "is_cut", "link")

    def __init__(self, link: _Link, deadline: float) -> None:
        self.link = link
        self.cut_at = deadline
        self.cancel_at = deadline - (deadline - time.monotonic()) * _SHARE_FOR_CANCELLING
        self.is_cancelled = False
        self.is_cut = False

    def next_step_at(self) -> float:
        """The time at which the keeper has to act."""
        if self.is_cut:
            return math.inf
        return self.cut_at if self.is_cancelled else self.cancel_at


class HeldConnection:
    """A connection for many threads, which take turns to run statements. Deadlines are values of time.monotonic."""

    def __init__(
        self,
        connect: Callable[[], Connection],
        target: str = "the server",
        lost: Callable[[], None] = lambda: None,
        *,
        is_shared: bool = False,
    ) -> None:
        """`target` names the server of `connect` in errors.

        `lost` is called when a connection is lost, before the next connection is made. With `is_shared` a working
        connection is returned to its pool at the end, because its session was not changed.
        """
        self._connect = connect
        self._tell_lost = lost
        self.target = target
        self._is_shared = is_shared
        # Reentrant, so that its holder can release it even if Ctrl-C came while it was acquired.
        self._turn = threading.RLock()
        # Entered directly: Condition.__enter__ is Python code, where Ctrl-C could leave the lock held.
        self._guard = threading.RLock()
        self._changed = threading.Condition(self._guard)
        self._link: _Link | None = None
        self._lost: list[_Link] = []
        #: Why there is no connection; None while there is one, or if it was given up on purpose.
        self.why_lost: MqdbError | None = None
        self._trouble: tuple[float, MqdbError | None] = (-math.inf, None)
        # Two threads use these without a lock, so each writes its own field before it reads the other's.
        self._current: _Run | None = None
        self._wakes_at = math.inf
        #: The statement that `begin` started and `run` has to finish.
        self._begun: _Run | None = None
        self._is_closed = False
        self._keeper: threading.Thread | None = None

    def open(self) -> None:
        """Start to connect; `run` waits for the connection. Calling this twice has no effect.

        Raises RuntimeError if no thread can start.
        """
        with self._guard:
            if self._keeper is None and not self._is_closed:
                keeper = threading.Thread(target=self._keep, name="mqdb-connection-keeper", daemon=True)
                keeper.start()
                self._keeper = keeper

    def close(self) -> None:
        """Release the connection after the current statement or connection attempt.

        Later calls raise IllegalState.
        """
        with self._turn, self._guard:
            self._is_closed = True
            self._changed.notify_all()
        if self._keeper is not None:
            self._keeper.join()

    @property
    def is_lost(self) -> bool:
        """Whether there is no connection and the last attempt to connect failed."""
        return self._link is None and self.why_lost is not None

    def trouble_since(self, moment: float) -> MqdbError | None:
        """The reason why the connection was last missing, even if it is back, unless that was before `moment`."""
        at, error = self._trouble
        return error if at >= moment else None

    def cut(self) -> None:
        """Treat the connection as lost, for an external reason."""
        if (link := self._link) is not None:
            link.cut()

    def wait_connected(self, deadline: float) -> None:
        """Wait until there is a connection. Raises NotRun."""
        self._connected(deadline, is_patient=True)

    def run(self, work: Callable[[Connection], T], deadline: float, is_patient: bool = True) -> T:
        """Run `work`, which queries the server, and return its result.

        Raises NotRun, Overdue, and the errors of `work`: after a BrokerUnavailable it is unknown what the server has
        done.
        """
        if (begun := self._begun) is not None:
            self._begun = None
            return self._run(work, begun)
        while True:
            # Without holding the turn, so that other callers can go elsewhere.
            link = self._connected(deadline, is_patient)
            seconds_left = deadline - time.monotonic()
            if seconds_left <= 0:
                raise NotRun(self.why_lost)
            try:
                # A signal handler may get here in the middle of its thread's statement.
                if not self._turn.acquire(timeout=seconds_left) or self._current is not None:
                    raise NotRun(self.why_lost)
                if self._is_closed:
                    raise NotRun(IllegalState("the connection", "closed"))
                # It may have been lost since, and this is noticed only now.
                if link is self._link and (not link.has_news() or self._answers(link, deadline)):
                    return self._run(work, _Run(link, deadline))
            finally:
                # With contextlib.suppress, Ctrl-C could come before it.
                try:  # noqa: SIM105
                    self._turn.release()
                except RuntimeError:  # it was not taken
                    pass

    def begin(self, deadline: float) -> Connection | None:
        """Begin a statement without waiting; None if no connection is free.

        The next call of `run`, by any thread, continues the statement, on this connection and with this deadline. Until
        then no other thread may call `begin` or `run`.
        """
        link = self._link
        if link is None or not self._turn.acquire(blocking=False):
            return None
        try:
            if self._current is not None or self._is_closed or link is not self._link or link.has_news():
                return None
            self._begun = self._current = _Run(link, deadline)
            self._watch(self._begun)
        finally:
            self._turn.release()
        return link.connection

    def _watch(self, run: _Run) -> None:
        """Make the keeper wake up in time."""
        if run.cancel_at < self._wakes_at:
            with self._guard:
                self._changed.notify_all()

    def _connected(self, deadline: float, is_patient: bool) -> _Link:
        if (link := self._link) is not None:
            return link
        until = deadline if is_patient else min(deadline, time.monotonic() + IMPATIENT_SECONDS)
        with self._guard:
            while (link := self._link) is None:
                if self._is_closed:
                    raise NotRun(IllegalState("the connection", "closed"))
                if self.is_lost and not is_patient:
                    raise NotRun(self.why_lost)
                if not self._changed.wait(max(0.0, until - time.monotonic())):
                    if until < deadline and self.why_lost is None:  # the others need not wait as long
                        reason = f"to connect takes more than {IMPATIENT_SECONDS:g} s"
                        self.why_lost = BrokerUnavailable(self.target, reason)
                    raise NotRun(self.why_lost)
            return link

    def _answers(self, link: _Link, deadline: float) -> bool:
        """Whether a connection still works after unrequested data from the server, most likely a notice of its end."""
        try:
            with translated(link.connection):
                self._run(lambda _: link.driver.execute("SELECT 1"), _Run(link, deadline))
        except (MqdbError, Overdue):
            return False
        return True

    def _run(self, work: Callable[[Connection], T], run: _Run) -> T:
        reason: BaseException | None = None
        try:
            self._current = run
            self._watch(run)
            return work(run.link.connection)
        except BaseException as error:
            reason = error
            if run.is_cancelled and _is_cancellation(error):
                raise Overdue(is_undone=True) from error
            if run.is_cut:
                raise Overdue(is_undone=False) from error
            if isinstance(error, StorageRefused) and error.sqlstate == READ_ONLY:
                # This happens behind a pooler, which does not know the primary.
                reason = error = ServerIsStandby(self.target, error.reason)
            if isinstance(error, ServerIsStandby):
                raise NotRun(error) from error
            if isinstance(error, StorageRefused) and not _is_idle(run.link.driver):
                # A PANIC has the SQLSTATE of its cause (53100: no space to flush the log), and may follow a commit.
                reason = BrokerUnavailable(self.target, f"the session has ended: {error.reason}")
                raise reason from error
            raise
        finally:
            self._current = None
            # A late cancel request would hit the next statement.
            is_lost = isinstance(reason, ServerIsStandby) or (reason is not None and not _is_idle(run.link.driver))
            if run.is_cancelled or is_lost:
                self._lose(run.link, reason)

    def _take(self, connection: Connection) -> None:
        with self._guard:
            self._link = _Link(connection)
            self.why_lost = None
            self._changed.notify_all()

    def _lose(self, link: _Link, reason: BaseException | None) -> None:
        # An idle connection has answered, even if late.
        if not _is_idle(link.driver) or isinstance(reason, ServerIsStandby):
            self._tell_lost()
        # The keeper closes it, so that it does not cancel on it at the same time.
        with self._guard:
            self._link = None
            self._lost.append(link)
            self.why_lost = reason if isinstance(reason, BrokerUnavailable) else None
            self._changed.notify_all()

    # -- the keeper ---------------------------------------------------------------------------

    def _keep(self) -> None:
        waits = pauses(LONGEST_PAUSE_SECONDS)
        has_failed = False
        while not self._is_closed:
            self._await_work()
            if (run := self._current) is not None:
                self._hurry(run)
            self._close_lost()
            if self._link is not None or self._is_closed:
                continue
            if has_failed or isinstance(self.why_lost, ServerIsStandby):
                with self._guard:
                    self._changed.notify_all()  # impatient callers
                    self._changed.wait_for(lambda: self._is_closed, next(waits))
            else:
                waits = pauses(LONGEST_PAUSE_SECONDS)
            has_failed = not self._reconnect()
        self._close_lost()
        if (link := self._link) is not None:
            self._link = None
            link.close(is_shared=self._is_shared)

    def _await_work(self) -> None:
        with self._guard:
            while not self._is_closed and not self._lost and self._link is not None:
                self._wakes_at = math.inf
                if self._current is not None:
                    self._wakes_at = self._current.next_step_at()
                if self._wakes_at <= time.monotonic():
                    return
                self._changed.wait(None if self._wakes_at == math.inf else self._wakes_at - time.monotonic())

    def _hurry(self, run: _Run) -> None:
        """Cancel a statement when its time is up, or end the wait for it."""
        now = time.monotonic()
        if now >= run.cut_at:
            run.is_cancelled = run.is_cut = True
            if self._current is run:
                run.link.cut()
        elif now >= run.cancel_at and not run.is_cancelled:
            run.is_cancelled = True
            if self._current is run:
                run.link.cancel(run.cut_at - now)

    def _reconnect(self) -> bool:
        try:
            self._take(self._connect())
        except MqdbError as error:
            with self._guard:
                self.why_lost = error
                self._trouble = (time.monotonic(), error)
            return False
        except Exception:
            # No other thread would retry.
            fields = {"broker": self.target}
            logger.exception("could not connect to broker %(broker)s; will retry", fields, extra=fields)
            return False
        return True

    def _close_lost(self) -> None:
        while self._lost:
            self._lost.pop().close()


def _is_cancellation(error: BaseException) -> bool:
    return isinstance(error, StorageRefused) and error.sqlstate == _QUERY_CANCELED


def _is_idle(connection: "psycopg.Connection[Any]") -> bool:
    return connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
