"""The dispatcher: gives new messages their queue offsets, a few milliseconds after their commit.

It only calls; the work is done in the database, where a lock and the checkpoint's key let no two dispatches count
for one, whoever calls. With a few listeners each batch announces its arrivals at once. PostgreSQL wakes every
listener of the server for every announcement, so with many of them the dispatcher makes fewer, larger batches.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from sqlalchemy import Connection

from mqdb.broker.dispatch import MAX_ROWS, DispatchOutcome, DispatchResult, dispatch
from mqdb.service.pace import Pace
from mqdb.service.service import Context, LoopService
from mqdb.store.clients import clients

PACE: Final = Pace(busy=timedelta(milliseconds=2), idle=timedelta(milliseconds=10))

#: At most 100 batches a second. 100 listeners cost 17 % of the throughput then, 75 % at 1,600 a second.
PACE_OF_MANY: Final = Pace(busy=timedelta(milliseconds=10), idle=timedelta(milliseconds=10))


@dataclass(frozen=True, slots=True)
class DispatcherConfig:
    """How the dispatcher works."""

    max_rows: int = MAX_ROWS
    pace: Pace = PACE
    many_consumers: int = 50
    """From so many on `pace_of_many` counts."""
    pace_of_many: Pace = PACE_OF_MANY
    counts_valid: timedelta = timedelta(seconds=1)
    """How long a count of the consumers is believed."""


class Dispatcher(LoopService[DispatchResult]):
    """Runs `mqdb.dispatch` batch by batch."""

    name = "dispatcher"

    def __init__(self, context: Context, config: DispatcherConfig = DispatcherConfig()) -> None:
        super().__init__(context)
        self._config = config
        self._pause = timedelta(0)
        self._consumers = 0
        self._count_again_at = 0.0

    def run_once(self, connection: Connection) -> DispatchResult:
        """One batch."""
        if self._context.clock.monotonic() >= self._count_again_at:
            self._consumers = clients.count_consumers(connection)
            self._count_again_at = self._context.clock.monotonic() + self._config.counts_valid.total_seconds()
        return dispatch(connection, self._config.max_rows)

    def pause_after(self, counts: DispatchResult) -> timedelta:
        config = self._config
        pace = config.pace_of_many if self._consumers >= config.many_consumers else config.pace
        # Where the lock is held, somebody is busy.
        has_worked = counts.outcome is not DispatchOutcome.IDLE
        self._pause = pace.pause(self._pause, has_worked=has_worked, has_more=counts.more)
        return self._pause
