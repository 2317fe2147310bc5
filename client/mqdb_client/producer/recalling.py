"""Recall: what a sender gets so that it can take a message back before its time of delivery, and how it does that.

RocketMQ: DefaultMQProducerImpl.recallMessage, RecallMessageHandle.
"""

import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final

from mqdb.broker.schedule import timers
from mqdb.broker.schedule.timers import RecallStatus
from mqdb.common.message import MessageQueue
from mqdb.common.recall_handle import RecallHandle, decode_handle, encode_handle
from mqdb.common.schedule import DeliverAfter, DeliverAt
from mqdb.common.topic import RETRY_PREFIX
from mqdb.common.unique_id import format_unique_id
from mqdb.errors import BrokerUnavailable, RecallHandleInvalid
from mqdb.store.log.commit_log import Record
from mqdb_client.producer.broker_link import BrokerLink

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def recall_handle_of(record: Record, queue: MessageQueue, message_id: str | None = None) -> str | None:
    """The handle of a record that is for that queue; None where it has no time of delivery, or is a retry.

    `message_id` is how its sender knows it, if that is not its uuid.
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
    """The handle of a message that is due in that queue at a time, in milliseconds since 1970; None for a retry."""
    if queue.topic.startswith(RETRY_PREFIX):
        return None
    return encode_handle(RecallHandle(queue.topic, queue.broker_name, max(deliver_ms, 0), message_id))


def recall(links: Mapping[str, BrokerLink], handle: str, timeout_seconds: float) -> RecallStatus:
    """Have the broker of a handle take the message back.

    Raises what `mqdb.broker.schedule.timers.recall` raises, RecallHandleInvalid for another broker than these, and
    BrokerUnavailable when it does not answer in time: whether the message was taken back is open then.
    """
    name = decode_handle(handle).broker_name
    link = links.get(name)
    if link is None:
        raise RecallHandleInvalid(handle, f"is of broker {name!r}; this producer has {', '.join(sorted(links))}")
    late = BrokerUnavailable(link.instance.target, f"no answer within {timeout_seconds:g} s")
    return link.ask(partial(timers.recall, handle=handle), time.monotonic() + timeout_seconds, late)
