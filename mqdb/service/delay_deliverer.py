"""The delay deliverer: delivers delayed messages and retries to their queues when their time has come.

The deliverer checks exactly when the next known message is due. It also checks after the dispatcher has worked, at most
ten times a second, because a new message of a short level may be due first. RocketMQ: ScheduleMessageService.
"""

import logging
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import Connection

from mqdb.broker.schedule.delay import DelayRound, deliver_due
from mqdb.service.deliverer import Deliverer, DelivererConfig
from mqdb.service.service import Context, tell_unreadable

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DelayDelivererConfig(DelivererConfig):
    """The configuration of the delay deliverer."""

    longest_sleep: timedelta = timedelta(seconds=10)
    """The time after which it checks without being woken, while no message arrives or waits."""


class DelayDeliverer(Deliverer[DelayRound]):
    """Runs `deliver_due` round by round."""

    name = "delay deliverer"

    def __init__(self, context: Context, config: DelayDelivererConfig = DelayDelivererConfig()) -> None:
        super().__init__(context, config)
        self._longest_sleep = config.longest_sleep
        self._missing: frozenset[tuple[int, int]] = frozenset()

    def run_once(self, connection: Connection) -> DelayRound:
        """Deliver the messages that are due now, or as many as one round may take."""
        counts = deliver_due(connection, self._messages, self._first_segment)
        self._first_segment = counts.first_segment
        self._adapt(counts.messages, counts.took)
        for topic, count in counts.skipped.items():
            fields = {"topic": topic, "count": count}
            sentence = "skipped %(count)s delayed messages of topic %(topic)s: the topic or its group is gone"
            logger.warning(sentence, fields, extra=fields)
        tell_unreadable("delayed messages", counts.unreadable)
        self._tell_missing(counts)
        return counts

    def pause_after(self, counts: DelayRound) -> timedelta:
        config = self._config
        is_awake = counts.is_held_up or not self._has_waker
        if counts.next_due_in is None:
            return config.longest_pause if is_awake else self._longest_sleep
        if not counts.next_due_in:
            return timedelta(0)
        longest = config.longest_pause if is_awake else config.longest_wait
        return min(max(counts.next_due_in, config.shortest_pause), longest)

    def _tell_missing(self, counts: DelayRound) -> None:
        missing = frozenset((error.queue_key, error.queue_offset) for error in counts.missing)
        for error in counts.missing:
            if (error.queue_key, error.queue_offset) not in self._missing:
                fields = {"reason": str(error)}
                logger.error("a delay level is stuck: %(reason)s", fields, extra=fields)
        self._missing = missing
