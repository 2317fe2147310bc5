"""Message listener: what a user writes to consume messages, and what it may answer.

RocketMQ: MessageListenerConcurrently, ConsumeConcurrentlyStatus.
"""

import logging
from collections.abc import Callable
from enum import StrEnum
from typing import TypeAlias

from mqdb.message import ReceivedMessage

logger = logging.getLogger(__name__)


class ConsumeConcurrentlyStatus(StrEnum):
    """The answer of a listener, for all messages that it was given."""

    CONSUME_SUCCESS = "CONSUME_SUCCESS"
    RECONSUME_LATER = "RECONSUME_LATER"


#: Called by several threads at once, with 1 to `consume_message_batch_max_size` messages of one queue, ascending.
MessageListener: TypeAlias = Callable[[list[ReceivedMessage]], ConsumeConcurrentlyStatus | None]

_SUCCESS = ConsumeConcurrentlyStatus.CONSUME_SUCCESS
_LATER = ConsumeConcurrentlyStatus.RECONSUME_LATER


def has_consumed(listener: MessageListener, messages: list[ReceivedMessage]) -> bool:
    """Call the listener; True when it says CONSUME_SUCCESS.

    RECONSUME_LATER is a request, and the listener's own affair. None, another answer and an exception count as
    RECONSUME_LATER, and are logged: the listener did not mean to. Source: ConsumeMessageConcurrentlyService.
    """
    try:
        # A copy: what the listener does to its list must not change which messages are done.
        answer = listener(messages[:])
    except BaseException:  # also sys.exit(), which would end the thread and leave its messages unfinished
        logger.exception("listener failed", extra=_where(messages))
        return False
    if answer == _SUCCESS:
        return True
    if answer != _LATER:
        logger.error("listener returned %r instead of a ConsumeConcurrentlyStatus", answer, extra=_where(messages))
    return False


def _where(messages: list[ReceivedMessage]) -> dict[str, object]:
    first = messages[0]
    return {"queue": str(first.queue), "queue_offset": first.queue_offset, "count": len(messages)}
