"""The client reaper: removes dead clients from their groups, so that other members take over their queues.

A client that leaves announces this. A client whose connection ends abruptly is noticed by its presence lock within a
second, a hanging client by its missing heartbeats. Messages that were popped before their group switched to pulling no
longer have a consumer: the reaper sends them back. RocketMQ: ClientHousekeepingService.
"""

import logging
import math
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from apscheduler.schedulers.background import BackgroundScheduler
from sqlalchemy import Connection

from mqdb.broker.clients.membership import CLIENT_EXPIRY, reap
from mqdb.broker.consumers.leftovers import return_leftovers
from mqdb.service.service import Context, PeriodicService

logger = logging.getLogger(__name__)

#: The time between checks for leftover messages.
_LEFTOVER_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class ClientReaperConfig:
    """Configuration of the client reaper."""

    interval: timedelta = timedelta(seconds=1)
    client_expiry: timedelta = CLIENT_EXPIRY
    """The time without a heartbeat after which a client is removed."""


@dataclass(frozen=True, slots=True)
class ReaperCounts:
    """The result of a round."""

    groups: tuple[str, ...]
    """The groups that lost a member; they have been notified."""
    returned: int = 0
    """The number of messages that were popped in groups that now pull."""


class ClientReaper(PeriodicService[ReaperCounts]):
    """Removes what dead clients left behind."""

    name = "client reaper"

    def __init__(
        self, context: Context, scheduler: BackgroundScheduler, config: ClientReaperConfig = ClientReaperConfig()
    ) -> None:
        super().__init__(context, scheduler, config.interval)
        self._config = config
        self._look_at = -math.inf

    def run_once(self, connection: Connection) -> ReaperCounts:
        """Remove all dead clients."""
        groups = tuple(reap(connection, self._config.client_expiry))
        if groups:
            logger.info("removed clients that were gone", extra={"groups": groups})
        return ReaperCounts(groups, self._return_leftovers(connection))

    def _return_leftovers(self, connection: Connection) -> int:
        now = self._context.clock.monotonic()
        if now < self._look_at:
            return 0
        self._look_at = now + _LEFTOVER_SECONDS
        return return_leftovers(connection)
