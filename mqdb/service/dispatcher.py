"""The dispatcher: assigns queue offsets to new messages, a few milliseconds after their commit.

The dispatcher only makes the calls; the work is done in the database. There a lock and the checkpoint's key prevent two
callers from dispatching the same batch.

    asleep    appends place their own records (`mqdb/sql/dispatch/take_places.sql`). One that cannot (two have met, a
              record waits, or joins a user's transaction) notifies the dispatcher
    awake     checks every few milliseconds: such records arrive so fast that one batch takes several

Senders notify only a sleeping dispatcher, because commits that notify wait for one another. The dispatcher sleeps as
soon as no message waits. If many messages arrive per second, it stays awake, and appends place no records: a batch
costs less than its messages one by one, and so do the wake-ups of consumers. PostgreSQL wakes every listener of the
server for every announcement. So with many listeners appends also place no records, and the dispatcher makes fewer,
larger batches. Both also happen if there are no consumers, because then no process waits for messages.
"""

import math
import selectors
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import psycopg
from sqlalchemy import Connection

from mqdb.broker.dispatch import (
    MAX_ROWS,
    WAKE_CHANNEL,
    DispatchOutcome,
    DispatchResult,
    dispatch,
    fall_asleep,
    is_notified,
    last_position,
    look,
    stay_awake,
    wake_and_dispatch,
)
from mqdb.errors import MqdbError
from mqdb.service.pace import Pace
from mqdb.service.run import Run
from mqdb.service.service import Context, LoopService
from mqdb.store.clients import clients
from mqdb.store.engine import driver

PACE: Final = Pace(busy=timedelta(milliseconds=2), idle=timedelta(milliseconds=10))

#: The pause after a batch of few messages, which are so rare that waiting for more would save little.
QUICK_PACE: Final = Pace(busy=timedelta(milliseconds=1), idle=timedelta(milliseconds=10))
_FEW_MESSAGES: Final = 2

#: At most 100 batches per second. 100 listeners then cost 17 % of the throughput, but 75 % at 1,600 per second.
RELAXED_PACE: Final = Pace(busy=timedelta(milliseconds=10), idle=timedelta(milliseconds=10))

#: The time within which a sleeping dispatcher notices that it should stop.
_STOP_SECONDS: Final = 0.2

#: How often it checks whether senders still treat it as asleep: another session may have announced that it is awake.
_LOOK_SECONDS: Final = 1.0
#: The same on a server with prepared transactions or synchronous standbys, where not all senders notify.
_LOOK_UNNOTIFIED_SECONDS: Final = 0.01

#: An open transaction with records keeps the dispatcher awake. It checks again after this time, and then rarely.
_FIRST_RETRY: Final = timedelta(milliseconds=5)
_LONGEST_RETRY: Final = timedelta(seconds=1)

#: A shorter sleep was not worthwhile: appends ran into the dispatcher as it fell asleep. After it the dispatcher stays
#: awake for a while.
_SHORTEST_SLEEP: Final = timedelta(milliseconds=4)
_AWAKE_AFTER_SHORT_SLEEP: Final = timedelta(milliseconds=10)


@dataclass(frozen=True, slots=True)
class DispatcherConfig:
    """The configuration of the dispatcher."""

    max_rows: int = MAX_ROWS
    pace: Pace = PACE
    quick_pace: Pace = QUICK_PACE
    most_placed_per_second: float = 600.0
    """If messages arrive at a higher rate, appends place no records, and the dispatcher does not sleep."""
    many_consumers: int = 50
    """With at least this many consumers, or without any, appends place no records, and the two fields below apply."""
    relaxed_pace: Pace = RELAXED_PACE
    relaxed_most_per_second: float = 100.0
    """If messages arrive at a higher rate, the dispatcher does not sleep."""
    consumers_valid: timedelta = timedelta(seconds=1)
    """The consumers are counted again after this time."""
    rate_valid: timedelta = timedelta(milliseconds=250)
    """The messages are counted again after this time; while the dispatcher sleeps, in its next round."""
    longest_sleep: timedelta = timedelta(seconds=10)
    """After this time the dispatcher dispatches even without a notification."""


class Dispatcher(LoopService[DispatchResult]):
    """Runs `mqdb.dispatch` batch by batch."""

    name = "dispatcher"

    def __init__(
        self,
        context: Context,
        config: DispatcherConfig = DispatcherConfig(),
        *,
        on_dispatched: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_dispatched` is called after each round, for services that work on dispatched records.

        The function is also called after rounds that found nothing: another session may have dispatched the records.
        """
        super().__init__(context)
        self._config = config
        self._on_dispatched = on_dispatched
        self._pause = timedelta(0)
        self._consumers = 0
        self._count_consumers_at = 0.0
        #: When positions were last counted, and up to which position.
        self._counted = (-math.inf, 0)
        self._messages_per_second = 0.0
        self._is_asleep = False
        self._asleep_since = 0.0
        #: Whether appends place their records during the current sleep.
        self._lets_place = False
        #: Whether it was not woken, and only stores the progress of placed records.
        self._sleeps_on = False
        self._is_notified = True
        self._retry = _FIRST_RETRY
        self._retry_at = 0.0

    def prepare(self, connection: Connection) -> None:
        self._is_asleep = False
        driver(connection).execute(f"LISTEN {WAKE_CHANNEL}")
        stay_awake(connection)

    def run_once(self, connection: Connection) -> DispatchResult:
        """Dispatch one batch; when falling asleep, one more, for records of senders that did not know this yet."""
        now = self._context.clock.monotonic()
        result = self._dispatch(connection, now)
        self._on_dispatched()
        # After the batch, so that no message waits for it.
        if now >= self._count_consumers_at:
            self._consumers = clients.count_consumers(connection)
            self._is_notified = is_notified(connection)
            self._count_consumers_at = now + self._config.consumers_valid.total_seconds()
        counted_at, counted_to = self._counted
        if now - counted_at >= self._config.rate_valid.total_seconds():
            self._counted = (now, last_position(connection))
            self._messages_per_second = (self._counted[1] - counted_to) / (now - counted_at)
        if self._is_asleep and self._lets_place and not self._places:
            self._is_asleep = False
            stay_awake(connection)
        return result

    def _dispatch(self, connection: Connection, now: float) -> DispatchResult:
        if self._is_asleep and self._sleeps_on:
            return dispatch(connection, self._config.max_rows)
        # First awake: the commit of a batch also notifies, and a notifying sender would wait for it.
        was_asleep, self._is_asleep = self._is_asleep, False
        result = (wake_and_dispatch if was_asleep else dispatch)(connection, self._config.max_rows)
        # Also for a needless wake-up: any role can notify, at any rate.
        if was_asleep and now - self._asleep_since < _SHORTEST_SLEEP.total_seconds():
            self._retry_at = now + _AWAKE_AFTER_SHORT_SLEEP.total_seconds()
        if result.outcome is DispatchOutcome.LOCKED or result.more or now < self._retry_at or self._comes_fast:
            return result
        self._lets_place = self._places
        last = fall_asleep(connection, self._config.max_rows, places=self._lets_place)
        if last is None:
            self._retry_at = now + self._retry.total_seconds()
            self._retry = min(self._retry * 2, _LONGEST_RETRY)
            return result
        self._retry = _FIRST_RETRY
        self._is_asleep = True
        self._asleep_since = self._context.clock.monotonic()
        is_last = last.outcome is not DispatchOutcome.IDLE
        return last._replace(messages=result.messages + last.messages) if is_last else result

    def pause_after(self, counts: DispatchResult) -> timedelta:
        if self._is_asleep and counts.outcome is not DispatchOutcome.LOCKED and not counts.more:
            return self._config.longest_sleep
        # If the lock is held, another session dispatches.
        has_worked = counts.outcome is not DispatchOutcome.IDLE
        if self._is_relaxed:
            pace = self._config.relaxed_pace
        elif counts.messages <= _FEW_MESSAGES and counts.outcome is not DispatchOutcome.LOCKED:
            pace = self._config.quick_pace
        else:
            pace = self._config.pace
        self._pause = pace.pause(self._pause, has_worked=has_worked, has_more=counts.more)
        return self._pause

    @property
    def _is_relaxed(self) -> bool:
        return not 0 < self._consumers < self._config.many_consumers

    @property
    def _comes_fast(self) -> bool:
        most = self._config.relaxed_most_per_second if self._is_relaxed else self._config.most_placed_per_second
        return self._messages_per_second > most

    @property
    def _places(self) -> bool:
        return not self._is_relaxed and not self._comes_fast

    def _wait(self, run: Run, pause: timedelta) -> None:
        if not self._is_asleep or pause < self._config.longest_sleep or run.connection is None:
            super()._wait(run, pause)
            return
        give_up_at = time.monotonic() + pause.total_seconds()
        self._sleeps_on = False
        # The next round notices a lost connection.
        with suppress(MqdbError, psycopg.Error, OSError):
            look_seconds = _LOOK_SECONDS if self._is_notified else _LOOK_UNNOTIFIED_SECONDS
            self._sleeps_on = not _wait_until_woken(run, run.connection, give_up_at, look_seconds)

    def _leave(self, run: Run) -> None:
        if self._is_asleep and run.connection is not None:
            with suppress(MqdbError):  # the sleeper no longer exists
                stay_awake(run.connection)


def _wait_until_woken(run: Run, connection: Connection, give_up_at: float, look_seconds: float) -> bool:
    """Wait for a notification, a check that finds the dispatcher woken, `give_up_at`, or the end of the service.

    Returns False once a second if there are new placed records. This function waits on the socket, because the driver's
    own wait wakes up ten times a second. The driver is queried first, because the last answer may have contained a
    notification, and whenever the socket has data.
    """
    below = driver(connection)
    placed_at = time.monotonic() + _LOOK_SECONDS
    look_at = time.monotonic() + look_seconds
    with selectors.DefaultSelector() as selector:
        selector.register(below, selectors.EVENT_READ)
        while not list(below.notifies(timeout=0, stop_after=1)):
            while not selector.select(min(_STOP_SECONDS, look_seconds)):
                now = time.monotonic()
                if run.stopping.is_set() or now >= give_up_at:
                    return True
                if now >= look_at:
                    found = look(connection)
                    if found.is_woken:
                        return True
                    if found.is_behind and now >= placed_at:
                        return False
                    look_at = now + look_seconds
                    break
    return True
