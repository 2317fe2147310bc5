"""Recall handles, with which a sender can recall a message. RocketMQ: RecallMessageHandle."""

from datetime import UTC, datetime, timedelta
from typing import Final

from mqdb.common.delivery_schedule import DeliverAfter, DeliverAt
from mqdb.common.message import MessageQueue
from mqdb.common.recall_handle import RecallHandle, encode_handle
from mqdb.common.topic import RETRY_PREFIX
from mqdb.common.unique_id import format_unique_id
from mqdb.store.log.commit_log import Record

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def recall_handle_of(record: Record, queue: MessageQueue, message_id: str | None = None) -> str | None:
    """The recall handle of a record for this queue; None if it has no delivery time, or is a retry.

    `message_id` is the id in the sender's form, if that is not the message's uuid.
    """
    match record.wait:
        case DeliverAt(milliseconds):
            deliver_ms = milliseconds
        case DeliverAfter(milliseconds):
            deliver_ms = milliseconds + (record.born_time - _EPOCH) // timedelta(milliseconds=1)
        case _:
            return None
    return handle_of(message_id or format_unique_id(record.msg_id), queue, deliver_ms)


def handle_of(message_id: str, queue: MessageQueue, deliver_ms: int) -> str | None:
    """The handle of a message that is due in this queue at a time in milliseconds since 1970; None for a retry."""
    if queue.topic.startswith(RETRY_PREFIX):
        return None
    return encode_handle(RecallHandle(queue.topic, queue.broker_name, max(deliver_ms, 0), message_id))
