"""The one shape of all services.

    start ──▶ round, pause, round, pause, ... ──▶ stop

A service does its work in rounds, on a connection of its own, which it opens when the first round needs it. A
round that fails costs the connection and a pause that doubles; a series of failures is logged when it begins, every
10 minutes, and when it ends, and no other service notices. Starting a started service and stopping a stopped one have
no effect; a stopped one may be started again.

`LoopService` has a thread and chooses its pauses, which `wake` can end; `PeriodicService` is a job of a scheduler.
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

#: The time that `stop` waits for a round that it has cut off.
_CUT_SECONDS: Final = 0.3

#: The time after which the log says again that a service fails.
_REMINDER_SECONDS: Final = 600.0

#: So often a service fails for want of a broker before the log says so, if it is not leadership: some 10 s.
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
    """Opens a connection in AUTOCOMMIT, straight to the database; raises BrokerUnavailable."""
    may_act: Callable[[], bool] = _always
    """Asked before each round: whether this process still is the leader."""
    on_round: Callable[[object], None] = _unheard
    """Gets the counts of each round, or its error: what tests wait on."""
    clock: Clock = field(default_factory=SystemClock)


class Service(ABC, Generic[CountsT]):
    """A service; subclasses say what a round does."""

    name: ClassVar[str]
    longest_backoff: ClassVar[timedelta] = timedelta(seconds=5)
    #: Whether the first failure of this service because of a missing broker is logged.
    tells_of_outages: ClassVar[bool] = False
    #: The time that `stop` gives a round to finish by itself.
    grace: timedelta = timedelta(milliseconds=500)

    def __init__(self, context: Context) -> None:
        self._context = context
        self._guard = threading.RLock()
        self._run: Run | None = None

    @property
    def waiting(self) -> Run | None:
        """The run, if its round waits for the server for too long."""
        run = self._run
        return run if run is not None and run.is_late(time.monotonic()) else None

    def cut(self, reason: str) -> None:
        """End the round that goes on; the next one is on a new connection."""
        if (run := self._run) is not None:
            run.cut(reason)

    @abstractmethod
    def run_once(self, connection: Connection) -> CountsT:
        """One round: does what is due now, and says how much that was."""

    def start(self) -> None:
        """Begin with the rounds. Touches no database, so it cannot fail for want of one."""
        with self._guard:
            if self._run is None:
                self._run = Run()
                self._begin(self._run)

    def halt(self) -> None:
        """Begin no further round. Returns at once; `stop` waits for the one that goes on."""
        run = self._run
        if run is not None:
            run.stop()

    def stop(self) -> None:
        """Prevent further rounds, and end the running one: by force, if that takes longer than `grace`.

        The server finishes a statement that it has begun; no round relies on being the only one.
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
        """Let rounds happen until `run.stopping` is set."""

    @abstractmethod
    def _has_ended(self, run: Run, seconds: float) -> bool:
        """Wait so long for the end of the round that goes on."""

    def prepare(self, connection: Connection) -> None:
        """Session settings that the rounds rely on."""

    def pause_after(self, counts: CountsT) -> timedelta:
        """Time to wait after a round with these counts."""
        return timedelta(0)

    def _failed(self, error: Exception) -> None:
        """A round has failed; its connection is about to be closed."""

    def _round(self, run: Run) -> timedelta:
        """One round with all that belongs to it; returns the pause after it."""
        outcome: object
        run.waits_since = time.monotonic()
        try:
            connection = run.connection or self._open(run)
            if run.stopping.is_set() or not self._context.may_act():
                return _FORBIDDEN_PAUSE
            with translated(connection):
                outcome = counts = self.run_once(connection)
        except Exception as error:  # noqa: BLE001 - the edge of the loop
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
            # PostgreSQL 17 and newer have this one as well; older ones take no start of a session that names it.
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
        # Leadership fails with all other services, and stops them: one line is enough, unless one fails alone.
        is_told = is_outage and not self.tells_of_outages and run.failures < _FAILURES_ALONE
        if is_news and not is_told and not run.stopping.is_set():
            run.last_error, run.told_at = kind, now
            # Our own errors say all there is to say in their sentence.
            trace = None if isinstance(error, MqdbError) else error
            fields = {"service": self.name, "failures": run.failures, "reason": run.why_cut or str(error)}
            self._tell_failure(fields, trace)
        run.why_cut = ""
        backoff: timedelta = _FIRST_BACKOFF * 2 ** min(run.failures - 1, 16)
        return min(backoff, self.longest_backoff)


class LoopService(Service[CountsT]):
    """A service with a thread of its own, for pauses of milliseconds. `wake` ends a pause early."""

    def wake(self) -> None:
        """There may be work. The next round begins after `pause_when_woken`. Returns at once."""
        run = self._run
        if run is not None:
            run.wake()

    def pause_when_woken(self, since_round: timedelta) -> timedelta:
        """Time to wait for the next round when woken so long after the last one."""
        return timedelta(0)

    @property
    def _has_waker(self) -> bool:
        """Whether this service is woken by others. If not, it has to look for work."""
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
        """The pause between two rounds; ends early when the service stops, or when it is woken after a good round."""
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
    """A service whose rounds are on a scheduler's grid. A round that takes longer than `interval` skips some.

    After a pause that is longer than `interval` a new grid begins: a job that only finds that it is too early costs
    0.04 % of a core, if it runs each second.
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
    """Log that a round has skipped unreadable records, which no producer writes."""
    if positions:
        fields = {"count": len(positions), "kind": what, "first_log_pos": positions[0]}
        sentence = "skipped %(count)s %(kind)s that no producer can have sent, first at position %(first_log_pos)s"
        logger.warning(sentence, fields, extra=fields)


def create_scheduler() -> BackgroundScheduler:
    """A scheduler for periodic services, to be started and shut down by the caller."""
    # It would report every round, and every one that a long round has skipped.
    logging.getLogger("apscheduler").setLevel(logging.ERROR)
    defaults = {"coalesce": True, "max_instances": 1, "misfire_grace_time": None}
    return BackgroundScheduler(timezone=UTC, job_defaults=defaults)
