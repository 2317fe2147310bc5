"""The common structure of all services.

    start ──▶ round, pause, round, pause, ... ──▶ stop

A service works in rounds, on its own connection, which it opens when the first round needs it. After a failed round the
connection is closed, and the pause before the next round doubles; a series of failures is logged when it begins, every
10 minutes, and when it ends, and does not affect other services. Starting a started service and stopping a stopped one
have no effect; a stopped service can be started again.

`LoopService` has its own thread and chooses its pauses, which `wake` can end; `PeriodicService` is a job of a
scheduler.
"""

import logging
import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import ClassVar, Final, Generic, TypeVar

from apscheduler.jobstores.base import JobLookupError
from apscheduler.schedulers.background import BackgroundScheduler
from sqlalchemy import Connection, column, func, select, table

from mqdb.common.clock import Clock, SystemClock
from mqdb.errors import BrokerUnavailable, MqdbError
from mqdb.service.run import Run
from mqdb.store.engine import driver, translated
from mqdb.store.session_settings import COMMIT_LOCALLY

logger = logging.getLogger(__name__)

CountsT = TypeVar("CountsT")

#: How long `stop` waits for a round that it has cut off.
_CUT_SECONDS: Final = 0.3

#: The time after which a failing service is logged again.
_REMINDER_SECONDS: Final = 600.0

#: How often a service other than leadership fails for lack of a broker before this is logged: about 10 s.
_FAILURES_ALONE: Final = 8

_FORBIDDEN_PAUSE: Final = timedelta(milliseconds=100)
_FIRST_BACKOFF: Final = timedelta(milliseconds=100)


def _always() -> bool:
    return True


def _unheard(_outcome: object) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Context:
    """The environment of a service, given by the process that runs it."""

    connect: Callable[[], Connection]
    """Opens a connection in AUTOCOMMIT, directly to the database; raises BrokerUnavailable."""
    may_act: Callable[[], bool] = _always
    """Called before each round: whether this process is still the leader."""
    on_round: Callable[[object], None] = _unheard
    """Receives the counts of each round, or its error; tests wait for this."""
    clock: Clock = field(default_factory=SystemClock)


class Service(ABC, Generic[CountsT]):
    """A service; subclasses define its rounds."""

    name: ClassVar[str]
    longest_backoff: ClassVar[timedelta] = timedelta(seconds=5)
    #: Whether the first failure of this service due to a missing broker is logged.
    tells_of_outages: ClassVar[bool] = False
    #: The time that `stop` gives a round to finish on its own.
    grace: timedelta = timedelta(milliseconds=500)

    def __init__(self, context: Context) -> None:
        self._context = context
        self._guard = threading.RLock()
        self._run: Run | None = None

    @property
    def waiting(self) -> Run | None:
        """The run, if its round has waited too long for the server."""
        run = self._run
        return run if run is not None and run.is_late(time.monotonic()) else None

    def cut(self, reason: str) -> None:
        """Cut off the running round; the next round uses a new connection."""
        if (run := self._run) is not None:
            run.cut(reason)

    @abstractmethod
    def run_once(self, connection: Connection) -> CountsT:
        """Run one round: do what is due now, and return how much that was."""

    def start(self) -> None:
        """Start the rounds. Does not use the database, so it cannot fail without one."""
        with self._guard:
            if self._run is None:
                self._run = Run()
                self._begin(self._run)

    def halt(self) -> None:
        """Prevent further rounds. Returns immediately; `stop` waits for the running one."""
        run = self._run
        if run is not None:
            run.stop()

    def stop(self) -> None:
        """Prevent further rounds, and end the running one: by force, if that takes longer than `grace`.

        The server still finishes a statement that it has begun; no round relies on being the only one.
        """
        with self._guard:
            run, self._run = self._run, None
            if run is None:
                return
            run.stop()
            if not self._has_ended(run, self.grace.total_seconds()):
                run.cut()
                if not self._has_ended(run, _CUT_SECONDS):
                    fields = {"service": self.name}
                    logger.warning("round of service %(service)s did not end in time", fields, extra=fields)
                    return
            run.close()

    @abstractmethod
    def _begin(self, run: Run) -> None:
        """Run rounds until `run.stopping` is set."""

    @abstractmethod
    def _has_ended(self, run: Run, seconds: float) -> bool:
        """Wait up to `seconds` for the end of the running round."""

    def prepare(self, connection: Connection) -> None:
        """Set session settings on which the rounds rely."""

    def pause_after(self, counts: CountsT) -> timedelta:
        """The pause after a round with these counts."""
        return timedelta(0)

    def _failed(self, error: Exception) -> None:
        """Called when a round has failed and its connection is about to be closed."""

    def _round(self, run: Run) -> timedelta:
        """One round with everything around it; returns the pause after it."""
        outcome: object
        run.waits_since = time.monotonic()
        try:
            connection = run.connection or self._open(run)
            if run.stopping.is_set() or not self._context.may_act():
                return _FORBIDDEN_PAUSE
            with translated(connection):
                outcome = counts = self.run_once(connection)
        except Exception as error:  # noqa: BLE001 - the outermost level of the loop
            outcome = error
            pause = self._after_failure(run, error)
            self._failed(error)
            run.close()
        else:
            pause = self.pause_after(counts)
            if run.last_error is not None:
                self._tell_success(run)
            run.failures, run.last_error = 0, None
        finally:
            run.waits_since = math.inf
        self._context.on_round(outcome)
        return pause

    def _tell_failure(self, fields: dict[str, object], trace: Exception | None) -> None:
        sentence = "round of service %(service)s failed; will retry: %(reason)s"
        logger.warning(sentence, fields, exc_info=trace, extra=fields)

    def _tell_success(self, run: Run) -> None:
        logger.info("rounds succeed again", extra={"service": self.name, "failures": run.failures})

    def _open(self, run: Run) -> Connection:
        connection = run.connection = self._context.connect()
        with translated(connection):
            # PostgreSQL 17 and newer also have this setting; older versions refuse to start a session with it.
            no_timeout = select(func.set_config(column("name"), "0", False)).select_from(table("pg_settings"))
            no_timeout = no_timeout.where(column("name") == "transaction_timeout")
            name = func.set_config("application_name", f"mqdb {self.name}", False)
            connection.execute(select(name, no_timeout.scalar_subquery()))
            driver(connection).execute(COMMIT_LOCALLY)
            self.prepare(connection)
        return connection

    def _after_failure(self, run: Run, error: Exception) -> timedelta:
        run.failures += 1
        now = self._context.clock.monotonic()
        is_outage = isinstance(error, BrokerUnavailable)
        kind = BrokerUnavailable if isinstance(error, BrokerUnavailable) and error.may_pass else type(error)
        is_news = run.last_error is not kind or now - run.told_at >= _REMINDER_SECONDS
        # Leadership fails together with all other services, and stops them: one line is enough, unless a service fails
        # alone.
        is_told = is_outage and not self.tells_of_outages and run.failures < _FAILURES_ALONE
        if is_news and not is_told and not run.stopping.is_set():
            run.last_error, run.told_at = kind, now
            # The message of our own errors contains everything relevant.
            trace = None if isinstance(error, MqdbError) else error
            fields = {"service": self.name, "failures": run.failures, "reason": run.why_cut or str(error)}
            self._tell_failure(fields, trace)
        run.why_cut = ""
        backoff: timedelta = _FIRST_BACKOFF * 2 ** min(run.failures - 1, 16)
        return min(backoff, self.longest_backoff)


class LoopService(Service[CountsT]):
    """A service with its own thread, for pauses of milliseconds. `wake` ends a pause early."""

    def wake(self) -> None:
        """Announce possible work: the next round begins after `pause_when_woken`. Returns immediately."""
        run = self._run
        if run is not None:
            run.wake()

    def pause_when_woken(self, since_round: timedelta) -> timedelta:
        """The pause before the next round if the service is woken `since_round` after the last round."""
        return timedelta(0)

    @property
    def _has_waker(self) -> bool:
        """Whether other services wake this service. If not, it has to check for work itself."""
        run = self._run
        return run is not None and run.has_waker

    def _begin(self, run: Run) -> None:
        run.thread = threading.Thread(target=self._loop, args=(run,), name=f"mqdb-{self.name}", daemon=True)
        run.thread.start()

    def _loop(self, run: Run) -> None:
        try:
            while not run.stopping.is_set():
                run.woken.clear()
                pause = self._round(run)
                self._wait(run, pause)
            self._leave(run)
        finally:
            run.close()

    def _wait(self, run: Run, pause: timedelta) -> None:
        """Pause between two rounds. Ends early if the service stops, or if it is woken after a successful round."""
        if run.failures or run.stopping.is_set():
            run.stopping.wait(pause.total_seconds())
            return
        began = time.monotonic()
        if run.woken.wait(pause.total_seconds()):
            since_round = timedelta(seconds=time.monotonic() - began)
            rest = min(pause - since_round, self.pause_when_woken(since_round))
            run.stopping.wait(max(rest.total_seconds(), 0))

    def _leave(self, run: Run) -> None:
        """The last work of the thread."""

    def _has_ended(self, run: Run, seconds: float) -> bool:
        assert run.thread is not None
        run.thread.join(seconds)
        return not run.thread.is_alive()


class PeriodicService(Service[CountsT]):
    """A service whose rounds are on a scheduler's grid.

    While a round takes longer than `interval`, later rounds are skipped.

    After a pause longer than `interval` a new grid begins: a job that only finds that it is too early would cost 0.04 %
    of a core if it ran every second.
    """

    def __init__(self, context: Context, scheduler: BackgroundScheduler, interval: timedelta) -> None:
        super().__init__(context)
        self._scheduler = scheduler
        self._interval = interval

    def _begin(self, run: Run) -> None:
        run.job_id = f"{self.name} {id(run)}"
        self._scheduler.add_job(
            self._due,
            "interval",
            args=(run,),
            id=run.job_id,
            seconds=self._interval.total_seconds(),
            next_run_time=datetime.now(UTC),
        )

    def _due(self, run: Run) -> None:
        with run.in_round:
            if not run.stopping.is_set() and self._context.clock.monotonic() >= run.not_before:
                pause = self._round(run)
                run.not_before = self._context.clock.monotonic() + pause.total_seconds()
                if pause > self._interval:
                    with suppress(JobLookupError):
                        self._scheduler.modify_job(run.job_id, next_run_time=datetime.now(UTC) + pause)
            if run.stopping.is_set():
                run.close()

    def _has_ended(self, run: Run, seconds: float) -> bool:
        with suppress(JobLookupError):
            self._scheduler.remove_job(run.job_id)
        has_ended = run.in_round.acquire(timeout=seconds)
        if has_ended:
            run.in_round.release()
        return has_ended


def tell_unreadable(what: str, positions: Sequence[int]) -> None:
    """Log that a round has skipped unreadable records, which producers never write."""
    if positions:
        fields = {"count": len(positions), "kind": what, "first_log_pos": positions[0]}
        sentence = "skipped %(count)s %(kind)s that no producer can have sent, first at position %(first_log_pos)s"
        logger.warning(sentence, fields, extra=fields)


def create_scheduler() -> BackgroundScheduler:
    """A scheduler for periodic services, which the caller starts and shuts down."""
    # It would log every round, and every round skipped by a long one.
    logging.getLogger("apscheduler").setLevel(logging.ERROR)
    defaults = {"coalesce": True, "max_instances": 1, "misfire_grace_time": None}
    return BackgroundScheduler(timezone=UTC, job_defaults=defaults)
