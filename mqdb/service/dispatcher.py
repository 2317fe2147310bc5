"""The dispatcher: gives new messages their queue offsets, a few milliseconds after their commit.

It only calls; the work is done in the database, where a lock and the checkpoint's key let no two dispatches count
for one, whoever calls.

    asleep    waits until a sender notifies it: nobody sends, or seldom. Each message is dispatched at once
    awake     looks every few milliseconds: messages come so fast that one batch takes several

Senders notify only a dispatcher that sleeps, because commits that notify wait for one another. It sleeps as long as it
has rounds to spare: a token bucket limits them. PostgreSQL wakes every listener of the server for every announcement,
so with many of them the dispatcher makes fewer, larger batches; without any consumer, too, because nobody waits.
"""

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
    is_woken,
    stay_awake,
    wake_and_dispatch,
)
from mqdb.common.wake_limit import WakeLimit
from mqdb.errors import MqdbError
from mqdb.service.pace import Pace
from mqdb.service.run import Run
from mqdb.service.service import Context, LoopService
from mqdb.store.clients import clients
from mqdb.store.engine import driver

PACE: Final = Pace(busy=timedelta(milliseconds=2), idle=timedelta(milliseconds=10))

#: After a batch of few messages: they come so seldom that to wait for more would save little.
QUICK_PACE: Final = Pace(busy=timedelta(milliseconds=1), idle=timedelta(milliseconds=10))
_FEW_MESSAGES: Final = 2

#: At most 100 batches a second. 100 listeners cost 17 % of the throughput then, 75 % at 1,600 a second.
RELAXED_PACE: Final = Pace(busy=timedelta(milliseconds=10), idle=timedelta(milliseconds=10))

#: So many messages may come without a pause, and it still sleeps between them; one batch counts for a few at most.
_BURST: Final = 20
_MOST_OF_BATCH: Final = 5

#: How soon a dispatcher that sleeps notices that it should stop.
_STOP_SECONDS: Final = 0.2

#: How often it looks whether senders still take it to be asleep: another session may have told them that it is awake.
_LOOK_SECONDS: Final = 1.0
#: The same on a server with prepared transactions or synchronous standbys, where not all senders notify.
_LOOK_UNNOTIFIED_SECONDS: Final = 0.01

#: A transaction with records that stays open keeps the dispatcher awake. It asks again after this long, then seldom.
_FIRST_RETRY: Final = timedelta(milliseconds=5)
_LONGEST_RETRY: Final = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class DispatcherConfig:
    """How the dispatcher works."""

    max_rows: int = MAX_ROWS
    pace: Pace = PACE
    quick_pace: Pace = QUICK_PACE
    lone_messages_per_second: float = 250.0
    """Up to so many it sleeps after each."""
    many_consumers: int = 50
    """From so many on, and without any, `relaxed_pace` and `relaxed_lone_messages_per_second` count."""
    relaxed_pace: Pace = RELAXED_PACE
    relaxed_lone_messages_per_second: float = 100.0
    counts_valid: timedelta = timedelta(seconds=1)
    """How long a count of the consumers is believed."""
    longest_sleep: timedelta = timedelta(seconds=10)
    """After so long it dispatches without a notification."""


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
        """`on_dispatched` is called after each round, for services whose work begins with dispatched records.

        Also after those that found nothing: another session may have dispatched what has woken this one.
        """
        super().__init__(context)
        self._config = config
        self._on_dispatched = on_dispatched
        self._pause = timedelta(0)
        self._consumers = 0
        self._count_again_at = 0.0
        self._is_asleep = False
        self._is_notified = True
        monotonic = context.clock.monotonic
        self._lone_messages = WakeLimit(_BURST, config.lone_messages_per_second, monotonic)
        self._relaxed_lone_messages = WakeLimit(_BURST, config.relaxed_lone_messages_per_second, monotonic)
        self._retry = _FIRST_RETRY
        self._retry_at = 0.0

    def prepare(self, connection: Connection) -> None:
        self._is_asleep = False
        driver(connection).execute(f"LISTEN {WAKE_CHANNEL}")
        stay_awake(connection)

    def run_once(self, connection: Connection) -> DispatchResult:
        """One batch; two if it falls asleep, for what came before all senders knew."""
        now = self._context.clock.monotonic()
        result = self._dispatch(connection, now)
        self._on_dispatched()
        # Behind the batch, so that no message waits for it.
        if now >= self._count_again_at:
            self._consumers = clients.count_consumers(connection)
            self._is_notified = is_notified(connection)
            self._count_again_at = now + self._config.counts_valid.total_seconds()
        return result

    def _dispatch(self, connection: Connection, now: float) -> DispatchResult:
        # Awake first: the commit of a batch notifies, too, and a sender that notifies would wait for it.
        was_asleep, self._is_asleep = self._is_asleep, False
        result = (wake_and_dispatch if was_asleep else dispatch)(connection, self._config.max_rows)
        # A wake that finds nothing counts, too: anybody can notify, at any rate.
        if self._comes_fast(max(result.messages, int(was_asleep))):
            return result
        if result.outcome is DispatchOutcome.LOCKED or result.more or now < self._retry_at:
            return result
        last = fall_asleep(connection, self._config.max_rows)
        if last is None:
            self._retry_at = now + self._retry.total_seconds()
            self._retry = min(self._retry * 2, _LONGEST_RETRY)
            return result
        self._is_asleep = True
        self._retry = _FIRST_RETRY
        is_last = last.outcome is not DispatchOutcome.IDLE
        return last._replace(messages=result.messages + last.messages) if is_last else result

    def pause_after(self, counts: DispatchResult) -> timedelta:
        if self._is_asleep and counts.outcome is not DispatchOutcome.LOCKED and not counts.more:
            return self._config.longest_sleep
        # If the lock is held, somebody is busy.
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

    def _comes_fast(self, messages: int) -> bool:
        """Count these messages; True if too many have come to dispatch each by itself."""
        limit = self._relaxed_lone_messages if self._is_relaxed else self._lone_messages
        if not limit.seconds_left():
            limit.spend(min(messages, _MOST_OF_BATCH))
        return limit.seconds_left() > 0

    def _wait(self, run: Run, pause: timedelta) -> None:
        if not self._is_asleep or pause < self._config.longest_sleep or run.connection is None:
            super()._wait(run, pause)
            return
        give_up_at = time.monotonic() + pause.total_seconds()
        # The next round tells of a lost connection.
        with suppress(MqdbError, psycopg.Error, OSError):
            look_seconds = _LOOK_SECONDS if self._is_notified else _LOOK_UNNOTIFIED_SECONDS
            _wait_until_woken(run, run.connection, give_up_at, look_seconds)

    def _leave(self, run: Run) -> None:
        if self._is_asleep and run.connection is not None:
            with suppress(MqdbError):  # nobody is left to be woken
                stay_awake(run.connection)


def _wait_until_woken(run: Run, connection: Connection, give_up_at: float, look_seconds: float) -> None:
    """Wait until a notification comes, or a look finds it woken, `give_up_at` is over, or the service has to stop.

    It waits on the socket, because the driver's own wait wakes up ten times a second. The driver is asked first, as the
    last answer may have brought a notification along, and whenever the socket has something.
    """
    below = driver(connection)
    look_at = time.monotonic() + look_seconds
    with selectors.DefaultSelector() as selector:
        selector.register(below, selectors.EVENT_READ)
        while not list(below.notifies(timeout=0, stop_after=1)):
            while not selector.select(min(_STOP_SECONDS, look_seconds)):
                now = time.monotonic()
                if run.stopping.is_set() or now >= give_up_at:
                    return
                if now >= look_at:
                    if is_woken(connection):
                        return
                    look_at = now + look_seconds
                    break
