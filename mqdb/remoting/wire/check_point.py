"""Check points: the text with which a client acknowledges a popped message, and the offsets in the answer to a pop.

    first offset, time of the pop, invisible ms, revive queue, kind of topic, broker, queue id, offset, receipt handle

RocketMQ's clients read the first eight fields by position, and send the whole text back. The text is the message's
property POP_CK; a client creates it only if it is missing. The receipt handle contains everything that an
acknowledgement needs.
RocketMQ: ExtraInfoUtil, PopMessageResponseHeader.
"""

from collections.abc import Iterable
from datetime import timedelta
from typing import Final

from mqdb.common.receipt_handle import expires_ms, is_handle
from mqdb.common.received_message import ReceivedMessage
from mqdb.errors import ParameterInvalid

#: Kind of each topic here: the other kinds are RocketMQ's retry topics for pops.
_NORMAL: Final = 0
_REVIVE_QUEUE: Final = 0

_MILLISECOND: Final = timedelta(milliseconds=1)


def encode_check_point(message: ReceivedMessage, broker_name: str, invisible: timedelta) -> str:
    """The check point of a message that was popped for the duration `invisible`."""
    handle, offset = str(message.receipt_handle), message.queue_offset
    times = f"{pop_ms(handle, invisible)} {invisible // _MILLISECOND}"
    return f"{offset} {times} {_REVIVE_QUEUE} {_NORMAL} {broker_name} {message.queue.queue_id} {offset} {handle}"


def handle_of(check_point: str) -> str:
    """The receipt handle in a check point. Raises ParameterInvalid if there is no handle."""
    handle = check_point.rpartition(" ")[2]
    if not is_handle(handle):
        raise ParameterInvalid("extraInfo", check_point, "has no receipt handle at its end")
    return handle


def pop_ms(handle: str, invisible: timedelta) -> int:
    """The time when a message was popped, by the clock of the database, in milliseconds since 1970."""
    return expires_ms(handle) - invisible // _MILLISECOND


def times_of(popped_ms: int, invisible: timedelta) -> dict[str, str]:
    """Fields that clients require in an answer."""
    return {
        "popTime": str(popped_ms),
        "invisibleTime": str(invisible // _MILLISECOND),
        "reviveQid": str(_REVIVE_QUEUE),
    }


def offsets_of(messages: Iterable[ReceivedMessage]) -> dict[str, str]:
    """Fields of an answer with the offsets of the messages, by queue."""
    offsets: dict[int, list[int]] = {}
    for message in messages:
        offsets.setdefault(message.queue.queue_id, []).append(message.queue_offset)
    return {
        "startOffsetInfo": ";".join(f"{_NORMAL} {queue_id} {min(each)}" for queue_id, each in offsets.items()),
        "msgOffsetInfo": ";".join(
            f"{_NORMAL} {queue_id} {','.join(map(str, each))}" for queue_id, each in offsets.items()
        ),
    }
