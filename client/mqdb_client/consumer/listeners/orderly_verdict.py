"""Orderly verdict: the meaning of an orderly listener's answer for its messages."""

import logging
from datetime import timedelta
from enum import Enum, auto
from typing import Final, NamedTuple

from mqdb.common.clock import Clock
from mqdb.common.failure import Failure
from mqdb.common.received_message import ReceivedMessage
from mqdb.errors import shown
from mqdb_client.consumer.listeners.message_listener import (
    ConsumeOrderlyContext,
    ConsumeOrderlyStatus,
    asked,
    status_of,
    where,
)

logger = logging.getLogger(__name__)

#: The limits of a suspend time. Source: ConsumeMessageOrderlyService.submitConsumeRequestLater.
SUSPEND_TIME_MIN, SUSPEND_TIME_MAX = timedelta(milliseconds=10), timedelta(seconds=30)


class Decision(Enum):
    """The decision about the messages of one call."""

    #: They are done, together with all kept messages.
    COMMIT = auto()
    #: They were consumed, and are done with the next COMMIT.
    KEEP = auto()
    #: They are redelivered, together with all kept messages.
    ROLL_BACK = auto()
    #: They are redelivered.
    SUSPEND = auto()


class OrderlyVerdict(NamedTuple):
    """A decision and its reasons."""

    decision: Decision
    #: The pause of the queue; None uses the consumer's setting.
    suspend_time: timedelta | None = None
    answer: object = None
    #: The retries that the listener requests; None uses the consumer's setting.
    max_reconsume_times: int | None = None
    error: BaseException | None = None

    @property
    def is_success(self) -> bool:
        """Whether the listener has consumed the messages."""
        return self.decision is Decision.COMMIT or self.decision is Decision.KEEP

    def failure(self, host: str, clock: Clock) -> Failure:
        """The reason why the messages were not consumed."""
        now = clock.now()
        if self.error is not None:
            return Failure.of(self.error, host, now)
        if status_of(self.answer) == ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT:
            return Failure.later(host, now)
        return Failure.no_answer(self.answer, host, now)


_WITH_AUTO_COMMIT: Final[dict[str, Decision]] = {
    ConsumeOrderlyStatus.SUCCESS: Decision.COMMIT,
    ConsumeOrderlyStatus.COMMIT: Decision.COMMIT,
    ConsumeOrderlyStatus.ROLLBACK: Decision.COMMIT,
    ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT: Decision.SUSPEND,
}
_WITHOUT_AUTO_COMMIT: Final[dict[str, Decision]] = _WITH_AUTO_COMMIT | {
    ConsumeOrderlyStatus.SUCCESS: Decision.KEEP,
    ConsumeOrderlyStatus.ROLLBACK: Decision.ROLL_BACK,
}


def verdict_of(
    group: str, answer: object, messages: list[ReceivedMessage], context: ConsumeOrderlyContext | None
) -> OrderlyVerdict:
    """The verdict for an answer. An answer that is not a status is logged, and counts as a request to suspend.

    Source: ConsumeMessageOrderlyService.processConsumeResult.
    """
    is_auto = context is None or context.auto_commit
    meanings = _WITH_AUTO_COMMIT if is_auto else _WITHOUT_AUTO_COMMIT
    status = status_of(answer)
    decision = None if status is None else meanings.get(status)
    if decision is None:
        fields = where(group, messages) | {"answer": shown(answer)}
        logger.error(
            "listener of group %(group)s returned %(answer)s instead of a ConsumeOrderlyStatus for message "
            "%(message_id)s of topic %(topic)s, delivery %(delivery)s, batch of %(count)s",
            fields,
            extra=fields,
        )
    elif is_auto and (status == ConsumeOrderlyStatus.COMMIT or status == ConsumeOrderlyStatus.ROLLBACK):
        fields = where(group, messages) | {"answer": status}
        logger.warning(
            "took %(answer)s as SUCCESS, because the listener of group %(group)s has auto_commit: message "
            "%(message_id)s of topic %(topic)s, delivery %(delivery)s, batch of %(count)s",
            fields,
            extra=fields,
        )
    return _verdict(group, decision or Decision.SUSPEND, context, answer=answer)


def failed(group: str, context: ConsumeOrderlyContext | None, error: BaseException) -> OrderlyVerdict:
    """The verdict on messages whose listener raised an error."""
    return _verdict(group, Decision.SUSPEND, context, error=error)


def _verdict(
    group: str,
    decision: Decision,
    context: ConsumeOrderlyContext | None,
    answer: object = None,
    error: BaseException | None = None,
) -> OrderlyVerdict:
    if context is None:
        return OrderlyVerdict(decision, answer=answer, error=error)
    wanted = asked(group, context, "suspend_current_queue_time")
    suspend_time = None if wanted is None else clamp(wanted)
    return OrderlyVerdict(decision, suspend_time, answer, asked(group, context, "max_reconsume_times"), error)


def clamp(suspend_time: timedelta) -> timedelta:
    """A suspend time within the limits of 10 ms and 30 s."""
    return min(max(suspend_time, SUSPEND_TIME_MIN), SUSPEND_TIME_MAX)
