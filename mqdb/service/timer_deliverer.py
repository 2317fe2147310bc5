"""The timer deliverer: delivers messages to their queues at their times of delivery.

The deliverer checks exactly when the next known message is due. It also checks after the dispatcher has worked, at most
ten times a second, because a new message may be due first. RocketMQ: TimerMessageStore.
"""

import logging
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import Connection

from mqdb.broker.schedule.timers import TimerRound, deliver_due
from mqdb.service.deliverer import Deliverer, DelivererConfig
from mqdb.service.service import Context, tell_unreadable

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TimerDelivererConfig(DelivererConfig):
    """The configuration of the timer deliverer."""

    late: timedelta = timedelta(seconds=1)
    """The minimum lateness that is reported to operators."""


class TimerDeliverer(Deliverer[TimerRound]):
    """Runs `deliver_due` round by round."""

    name = "timer deliverer"

    def __init__(self, context: Context, config: TimerDelivererConfig = TimerDelivererConfig()) -> None:
        super().__init__(context, config)
        self._late = config.late
        self._late_messages = 0
        self._latest = timedelta(0)

    def run_once(self, connection: Connection) -> TimerRound:
        """Deliver the messages that are due now, or as many as one round may take."""
        counts = deliver_due(connection, self._messages, self._first_segment)
        self._first_segment = counts.first_segment
        self._adapt(max(counts.messages, counts.collected), counts.took)
        self._tell(counts)
        return counts

    def pause_after(self, counts: TimerRound) -> timedelta:
        if not counts.next_due_in:
            # Another session may be recalling a message.
            return timedelta(0) if counts.messages or counts.collected else self._config.shortest_pause
        is_awake = counts.is_held_up or not self._has_waker
        longest = self._config.longest_pause if is_awake else self._config.longest_wait
        return min(max(counts.next_due_in, self._config.shortest_pause), longest)

    def _tell(self, counts: TimerRound) -> None:
        if counts.messages:
            milliseconds = counts.late // timedelta(milliseconds=1)
            logger.debug("delivered timers", extra={"messages": counts.messages, "late_ms": milliseconds})
        for topic, count in counts.skipped.items():
            fields = {"topic": topic, "count": count}
            logger.warning("skipped %(count)s timers of topic %(topic)s: the topic is gone", fields, extra=fields)
        tell_unreadable("timers", counts.unreadable)
        if counts.missing:
            missing = {"count": counts.missing}
            logger.error("the log lost %(count)s timers that were not collected", missing, extra=missing)
        self._tell_lateness(counts)

    def _tell_lateness(self, counts: TimerRound) -> None:
        """Log when messages begin to be late, and the maximum lateness when they are on time again."""
        if counts.messages and counts.late >= self._late:
            if not self._late_messages:
                fields = {"late_seconds": round(counts.late.total_seconds(), 1)}
                logger.warning("timers are %(late_seconds)s s late", fields, extra=fields)
            self._late_messages += counts.messages
            self._latest = max(self._latest, counts.late)
        elif self._late_messages and counts.next_due_in:
            latest = round(self._latest.total_seconds(), 1)
            logger.info("timers are on time again", extra={"messages": self._late_messages, "latest_seconds": latest})
            self._late_messages, self._latest = 0, timedelta(0)
