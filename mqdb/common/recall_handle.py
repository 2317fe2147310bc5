"""Recall handles, with which a sender recalls a message before its time of delivery. No I/O.

    base64url("v1 topic broker deliver-time unique-id")

RocketMQ: RecallMessageHandle.HandleV1.
"""

import binascii
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from mqdb.common.unique_id import unique_id_of
from mqdb.errors import RecallHandleInvalid

_VERSION: Final = "v1"
_HANDLE = re.compile(r"v1 (\S+) (\S+) (\d{1,19}) (\S+)", re.ASCII)


@dataclass(frozen=True, slots=True)
class RecallHandle:
    """A scheduled message to recall: its topic, its broker, and its unique id."""

    topic: str
    broker_name: str
    deliver_ms: int
    """The time of delivery by the sender's clock, in milliseconds since 1970."""
    message_id: str
    """The unique id, in the sender's form."""

    @property
    def unique_id(self) -> UUID:
        """The unique id, in the broker's form."""
        return unique_id_of(self.message_id)


def encode_handle(handle: RecallHandle) -> str:
    """The text of a handle, as returned to a sender."""
    fields = _VERSION, handle.topic, handle.broker_name, str(handle.deliver_ms), handle.message_id
    return urlsafe_b64encode(" ".join(fields).encode()).decode()


def decode_handle(text: str) -> RecallHandle:
    """The inverse of `encode_handle`. Raises RecallHandleInvalid."""
    if not isinstance(text, str):
        raise RecallHandleInvalid(text, f"is {type(text).__name__}, not text")
    try:
        fields = urlsafe_b64decode(text.encode("ascii")).decode()
    except (UnicodeError, binascii.Error) as error:
        raise RecallHandleInvalid(text, "is not URL-safe base64 of a text") from error
    found = _HANDLE.fullmatch(fields)
    if found is None:
        raise RecallHandleInvalid(text, "does not contain 'v1', a topic, a broker, a time and a message id")
    topic, broker_name, deliver_ms, message_id = found.groups()
    return RecallHandle(topic, broker_name, int(deliver_ms), message_id)
