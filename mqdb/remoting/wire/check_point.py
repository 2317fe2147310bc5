"""Check points: the text by which a client acknowledges a popped message, and what a pop answers of its queues.

    first offset, time of the pop, invisible ms, revive queue, kind of topic, broker, queue id, offset, receipt handle

Clients of RocketMQ read the first eight fields by their places, and send the whole text back. It is the property POP_CK
of the message: a client makes it itself only if it is missing. The receipt handle says all that an acknowledgement
needs.
RocketMQ: ExtraInfoUtil, PopMessageResponseHeader.
"""

from collections.abc import Iterable
from datetime import timedelta
from typing import Final

from mqdb.common.receipt_handle import expires_ms, is_handle
from mqdb.common.received_message import ReceivedMessage
from mqdb.errors import ParameterInvalid

#: The kind of each topic here: the other kinds are RocketMQ's retry topics for pops.
_NORMAL: Final = 0
_REVIVE_QUEUE: Final = 0

_MILLISECOND: Final = timedelta(milliseconds=1)


def encode_check_point(message: ReceivedMessage, broker_name: str, invisible: timedelta) -> str:
    """The check point of a message that was popped for so long."""
    handle, offset = str(message.receipt_handle), message.queue_offset
    times = f"{pop_ms(handle, invisible)} {invisible // _MILLISECOND}"
    return f"{offset} {times} {_REVIVE_QUEUE} {_NORMAL} {broker_name} {message.queue.queue_id} {offset} {handle}"


def handle_of(check_point: str) -> str:
    """The receipt handle in a check point. Raises ParameterInvalid if it has no handle."""
    handle = check_point.rpartition(" ")[2]
    if not is_handle(handle):
        raise ParameterInvalid("extraInfo", check_point, "has no receipt handle at its end")
    return handle


def pop_ms(handle: str, invisible: timedelta) -> int:
    """When a message was popped, by the clock of the database."""
    return expires_ms(handle) - invisible // _MILLISECOND


def times_of(popped_ms: int, invisible: timedelta) -> dict[str, str]:
    """The fields of an answer that a client cannot do without."""
    return {
        "popTime": str(popped_ms),
        "invisibleTime": str(invisible // _MILLISECOND),
        "reviveQid": str(_REVIVE_QUEUE),
    }


def offsets_of(messages: Iterable[ReceivedMessage]) -> dict[str, str]:
    """The fields of an answer that name the offsets of messages by their queues."""
    offsets: dict[int, list[int]] = {}
    for message in messages:
        offsets.setdefault(message.queue.queue_id, []).append(message.queue_offset)
    return {
        "startOffsetInfo": ";".join(f"{_NORMAL} {queue_id} {min(each)}" for queue_id, each in offsets.items()),
        "msgOffsetInfo": ";".join(
            f"{_NORMAL} {queue_id} {','.join(map(str, each))}" for queue_id, each in offsets.items()
        ),
    }
