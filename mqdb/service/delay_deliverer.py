"""The delay deliverer: brings delayed messages and retries to their queues when their time has come.

It looks when the dispatcher has worked, as a message of a short level may come behind all that waits, at most ten times
a second, and at the very moment when it knows that one is due. RocketMQ: ScheduleMessageService.
"""

import logging
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import Connection, func, select

from mqdb.broker.schedule.delay import MAX_MESSAGES, DelayRound, deliver_due
from mqdb.service.service import Context, LoopService, tell_unreadable

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DelayDelivererConfig:
    """How the delay deliverer works."""

    first_messages: int = 1_000
    """In a round at first; with full rounds that are short for the server they become more, with long ones less."""
    max_messages: int = MAX_MESSAGES
    long_round: timedelta = timedelta(milliseconds=250)
    """Where bodies are large, a round of fewer messages keeps the other levels from waiting."""
    longest_pause: timedelta = timedelta(milliseconds=100)
    """While messages come. Source: ScheduleMessageService.DELAY_FOR_A_WHILE."""
    longest_wait: timedelta = timedelta(seconds=1)
    """For a message that is not due, while no message comes: somebody may set the clock of the server."""
    longest_sleep: timedelta = timedelta(seconds=10)
    """While no message comes and none waits. After so long it looks without being woken."""
    shortest_pause: timedelta = timedelta(milliseconds=10)
    """So that messages which fall due one by one are delivered some at a time."""


class DelayDeliverer(LoopService[DelayRound]):
    """Runs `deliver_due` round by round."""

    name = "delay deliverer"

    def __init__(self, context: Context, config: DelayDelivererConfig = DelayDelivererConfig()) -> None:
        super().__init__(context)
        self._config = config
        self._messages = min(config.first_messages, config.max_messages)
        self._first_segment = 0
        self._missing: frozenset[tuple[int, int]] = frozenset()

    def prepare(self, connection: Connection) -> None:
        # A plan that is made while segments are empty would read them from end to end when they have filled.
        names = "enable_seqscan", "enable_bitmapscan"
        connection.execute(select(*(func.set_config(name, "off", False) for name in names)))
        self._first_segment = 0

    def run_once(self, connection: Connection) -> DelayRound:
        """Deliver what is due now, or as much of it as one round may take."""
        counts = deliver_due(connection, self._messages, self._first_segment)
        self._first_segment = counts.first_segment
        self._adapt(counts)
        for topic, count in counts.skipped.items():
            logger.warning(
                "skipped delayed messages, their topic or group is gone", extra={"topic": topic, "count": count}
            )
        tell_unreadable("delayed messages", counts.unreadable)
        self._tell_missing(counts)
        return counts

    def pause_after(self, counts: DelayRound) -> timedelta:
        config = self._config
        is_awake = counts.is_held_up or not self._has_waker
        if counts.next_due_in is None:
            return config.longest_pause if is_awake else config.longest_sleep
        if not counts.next_due_in:
            return timedelta(0)
        longest = config.longest_pause if is_awake else config.longest_wait
        return min(max(counts.next_due_in, config.shortest_pause), longest)

    def pause_when_woken(self, since_round: timedelta) -> timedelta:
        # Not at once: the message that has woken it is on its way to a consumer.
        return max(self._config.longest_pause - since_round, self._config.shortest_pause)

    def _adapt(self, counts: DelayRound) -> None:
        if counts.messages and counts.took > self._config.long_round:
            self._messages = max(self._messages // 2, 1)
        elif counts.messages == self._messages:
            self._messages = min(self._messages * 2, self._config.max_messages)

    def _tell_missing(self, counts: DelayRound) -> None:
        missing = frozenset((error.queue_key, error.queue_offset) for error in counts.missing)
        for error in counts.missing:
            if (error.queue_key, error.queue_offset) not in self._missing:
                logger.error("a delay level stands still", extra={"reason": str(error)})
        self._missing = missing
