"""The timer keeper: drops the slots of timers when all of their messages are delivered.

The keeper's steps and other sessions never wait for each other longer than `lock_timeout`: a blocked step is left for a
later round.
"""

import logging
from dataclasses import dataclass
from datetime import timedelta

from apscheduler.schedulers.background import BackgroundScheduler
from sqlalchemy import Connection, func, select

from mqdb.service.service import Context, PeriodicService
from mqdb.store.schedule import timer_slots, timer_steps
from mqdb.store.segments import partitions

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TimerKeeperConfig:
    """Configuration of the timer keeper."""

    interval: timedelta = timedelta(seconds=10)
    lock_timeout: timedelta = timedelta(milliseconds=200)


@dataclass(slots=True)
class TimerKeeperCounts:
    """The result of a round."""

    dropped: int = 0
    waiting: bool = False
    """Whether a lock prevented a drop; the next round tries again."""
    recalls_pruned: int = 0


class TimerKeeper(PeriodicService[TimerKeeperCounts]):
    """Drops delivered slots, and the recalls in them."""

    name = "timer keeper"

    def __init__(
        self, context: Context, scheduler: BackgroundScheduler, config: TimerKeeperConfig = TimerKeeperConfig()
    ) -> None:
        super().__init__(context, scheduler, config.interval)
        self._config = config

    def prepare(self, connection: Connection) -> None:
        milliseconds = self._config.lock_timeout // timedelta(milliseconds=1)
        connection.execute(select(func.set_config("lock_timeout", f"{milliseconds}ms", False)))

    def run_once(self, connection: Connection) -> TimerKeeperCounts:
        """Drop the delivered slots."""
        counts = TimerKeeperCounts()
        for slot in timer_slots.find_delivered(connection, timer_steps.newest(connection).delivered_ms):
            if not partitions.remove(connection, "timer", slot):
                counts.waiting = True
                break
            timer_slots.forget(connection, slot)
            counts.dropped += 1
        if counts.dropped:
            logger.info("dropped slots of delivered timers", extra={"count": counts.dropped})
            counts.recalls_pruned = timer_steps.prune_recalls(connection)
        return counts
