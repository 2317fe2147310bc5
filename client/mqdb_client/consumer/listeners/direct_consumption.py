"""Direct consumption: an operator makes the listener consume one message, and gets the result.

This has no effect on offsets and retries, and an orderly listener gets the message even if another member has locked
the queue.
RocketMQ: ConsumeMessageService.consumeMessageDirectly, ConsumeMessageDirectlyResult, CMResult.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

from mqdb.common.failure import Failure
from mqdb.common.property import storable
from mqdb.common.received_message import ReceivedMessage
from mqdb.common.user_error import log_error
from mqdb.errors import shown
from mqdb_client.consumer.listeners.message_listener import (
    ConsumeConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyContext,
    ConsumeOrderlyStatus,
    status_of,
    where,
    with_context,
)

logger = logging.getLogger(__name__)


class DirectResult(StrEnum):
    """The outcome for the message. Source: CMResult."""

    CR_SUCCESS = "CR_SUCCESS"
    CR_LATER = "CR_LATER"
    CR_ROLLBACK = "CR_ROLLBACK"
    CR_COMMIT = "CR_COMMIT"
    CR_THROW_EXCEPTION = "CR_THROW_EXCEPTION"
    CR_RETURN_NULL = "CR_RETURN_NULL"


_RESULTS: Final[dict[str | None, DirectResult]] = {
    ConsumeConcurrentlyStatus.CONSUME_SUCCESS: DirectResult.CR_SUCCESS,
    ConsumeConcurrentlyStatus.RECONSUME_LATER: DirectResult.CR_LATER,
    ConsumeOrderlyStatus.SUCCESS: DirectResult.CR_SUCCESS,
    ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT: DirectResult.CR_LATER,
    ConsumeOrderlyStatus.COMMIT: DirectResult.CR_COMMIT,
    ConsumeOrderlyStatus.ROLLBACK: DirectResult.CR_ROLLBACK,
}


@dataclass(frozen=True, slots=True)
class ConsumeMessageDirectlyResult:
    """The listener's result for the message. All strings in the result can be stored in the database."""

    result: DirectResult
    #: The exception, or an answer that is not a status, as text; otherwise "".
    remark: str
    traceback: str
    spent_ms: float
    is_orderly: bool


def consume_directly(
    group: str, listener: Callable[..., Any], message: ReceivedMessage, *, orderly: bool = False
) -> ConsumeMessageDirectlyResult:
    """Call a concurrent or an orderly listener with one message."""
    context = ConsumeOrderlyContext(message.queue) if orderly else ConsumeConcurrentlyContext(message.queue)
    return judge(group, message, lambda: with_context(listener)([message], context), is_orderly=orderly)


def judge(
    group: str, message: ReceivedMessage, call: Callable[[], object], *, is_orderly: bool = False
) -> ConsumeMessageDirectlyResult:
    """Call the group's listener with this message, and interpret its answer or exception."""
    begin = time.monotonic()
    failure: Failure | None = None
    answer: object = None
    try:
        answer = call()
    except BaseException as error:  # noqa: BLE001 - also sys.exit(), which must not end the caller's thread
        sentence = (
            "direct consumption of message %(message_id)s of topic %(topic)s, delivery %(delivery)s, failed in the "
            "listener of group %(group)s"
        )
        log_error(logger, sentence, error, where(group, [message]), logging.WARNING)
        failure = Failure.of(error, "", datetime.now(UTC))
    spent_ms = round((time.monotonic() - begin) * 1_000, 3)
    if failure is not None:
        remark = f"{failure.exception}: {failure.message}" if failure.message else failure.exception
        thrown = DirectResult.CR_THROW_EXCEPTION
        told = storable(remark), storable(failure.traceback)
        return ConsumeMessageDirectlyResult(thrown, *told, spent_ms, is_orderly)
    result, remark = _meaning(answer)
    return ConsumeMessageDirectlyResult(result, remark, "", spent_ms, is_orderly)


def _meaning(answer: object) -> tuple[DirectResult, str]:
    if answer is None:
        return DirectResult.CR_RETURN_NULL, ""
    if (result := _RESULTS.get(status_of(answer))) is not None:
        return result, ""
    return DirectResult.CR_LATER, storable(f"the listener returned {shown(answer)}")
