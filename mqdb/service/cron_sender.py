"""The cron sender: sends recurring messages at their times.

The cron sender checks exactly when the next known cron is due. It also checks once a second, because a new cron may be
due before all other crons. RocketMQ has no counterpart.
"""

import logging
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import Connection

from mqdb.broker.schedule.cron import CronRound, fire_due
from mqdb.service.cron_times import next_time
from mqdb.service.service import Context, LoopService

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CronSenderConfig:
    """Configuration of the cron sender."""

    longest_pause: timedelta = timedelta(seconds=1)
    contended_pause: timedelta = timedelta(milliseconds=100)
    """The pause while another session fires due crons."""


class CronSender(LoopService[CronRound]):
    """Runs `fire_due` round by round."""

    name = "cron sender"

    def __init__(self, context: Context, config: CronSenderConfig = CronSenderConfig()) -> None:
        super().__init__(context)
        self._config = config

    def run_once(self, connection: Connection) -> CronRound:
        """Send the messages that are due now, or as many as one round may take."""
        counts = fire_due(connection, next_time)
        for firing in counts.firings:
            fields = {"cron": firing.name, "topic": firing.topic, "scheduled_at": firing.scheduled_at.isoformat()}
            if firing.skipped:
                sentence = (
                    "skipped cron %(cron)s at %(scheduled_at)s: topic %(topic)s does not exist or is not writable"
                )
                logger.warning(sentence, fields, extra=fields)
            if firing.left_out:
                sentence = "skipped missed times of cron %(cron)s of topic %(topic)s, from %(scheduled_at)s on"
                logger.warning(sentence, fields, extra=fields)
        for name, error in counts.broken.items():
            fields = {"cron": name, "reason": str(error)}
            logger.error("paused cron %(cron)s, which cannot be sent: %(reason)s", fields, extra=fields)
        return counts

    def pause_after(self, counts: CronRound) -> timedelta:
        config = self._config
        if counts.next_due_in is None:
            return config.longest_pause
        if counts.next_due_in <= timedelta(0):
            has_worked = counts.firings or counts.broken
            return timedelta(0) if has_worked else config.contended_pause
        return min(counts.next_due_in, config.longest_pause)
