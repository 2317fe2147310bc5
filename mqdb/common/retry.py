"""Retry: what happens to a message that was not consumed.

The message is redelivered after a delay that grows with each failure, and finally goes to the group's dead letter
queue. RocketMQ: AbstractSendMessageProcessor.consumerSendMsgBack.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final, NamedTuple

#: The delay level after the first failure: 10 s in the usual table. Each further failure waits one level more.
FIRST_RETRY_LEVEL: Final = 3


class Retry(NamedTuple):
    """The retry that a listener requests for a failed message."""

    delay_level: int = 0
    """0: the broker decides; above 0: this level; below 0: to the DLQ immediately."""
    delay: timedelta | None = None
    """Instead of a level: redelivery after exactly this time."""
    max_reconsume_times: int | None = None
    """Retries before the message is dead; None uses the consumer's or the group's setting."""


@dataclass(frozen=True, slots=True)
class Later:
    """The message is redelivered after the delay of this level, which may be above the last level of the table."""

    level: int


@dataclass(frozen=True, slots=True)
class Dead:
    """The message goes to the dead letter queue immediately."""


def decide(reconsume_times: int, requested_level: int, max_reconsume_times: int) -> Later | Dead:
    """Decide what happens to a message that has just failed, and has been delivered `reconsume_times` + 1 times.

    `requested_level`: 0 leaves the level to the broker, above 0 it is the delay level, below 0 the message is dead.
    `max_reconsume_times`: retries before the message is dead; with 0 the first failure is the last. The caller has
    replaced -1 by the group's maximum. The code that schedules the message clamps the level to the table
    (`DelayLevels.clamp`), so that with a larger maximum the last delay repeats. In both cases the copy's reconsume
    times are `reconsume_times` + 1.
    """
    if reconsume_times >= max_reconsume_times or requested_level < 0:
        return Dead()
    return Later(requested_level or FIRST_RETRY_LEVEL + reconsume_times)
