"""The header of a send, with RocketMQ's names; codes 310 and 320 use short names.

RocketMQ: SendMessageRequestHeader, SendMessageRequestHeaderV2.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from mqdb.common.property import MAX_PROPERTIES_BYTES, Property
from mqdb.common.topic import RETRY_PREFIX
from mqdb.errors import ParameterInvalid, PropertiesTooLarge
from mqdb.remoting.wire.codes import RequestCode
from mqdb.remoting.wire.frame import Frame
from mqdb.remoting.wire.messages import decode_properties

#: Bits of `sys_flag`: for a half message, only the first is set.
HALF_FLAG, ROLLBACK_FLAG = 4, 8

#: Source: SendMessageRequestHeaderV2.
_SHORT_NAMES: Final = dict(
    zip(
        "abcdefghijklm",
        ("producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag", "bornTimestamp",
         "flag", "properties", "reconsumeTimes", "unitMode", "maxReconsumeTimes", "batch"),
        strict=True,
    )
)  # fmt: skip
_SHORT: Final = {long: short for short, long in _SHORT_NAMES.items()}
_LONG: Final = {long: long for long in _SHORT}

#: Range of times that the database accepts: the domain `message_time`.
_EARLIEST: Final = datetime(1970, 1, 1, tzinfo=UTC)
_PAST_TIMES: Final = datetime(9999, 1, 1, tzinfo=UTC)

_LONG_CODES: Final = frozenset({RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE})

#: Source: MixAll.REPLY_MESSAGE_FLAG.
_REPLY: Final = "reply"


# Not frozen: each send creates one, which takes 3.4 µs instead of 4.1 µs.
@dataclass(slots=True)
class SendHeader:
    """The header of a send or of a batch. Raises ParameterInvalid for a number or a time that cannot be parsed."""

    producer_group: str
    topic: str
    queue_nums: int
    queue_id: int
    sys_flag: int
    born_time: datetime
    flag: int
    properties: Mapping[str, str]
    reconsume_times: int
    max_reconsume_times: int | None

    @classmethod
    def of(cls, frame: Frame) -> "SendHeader":
        """Read the header from a frame, which has long names (code 10) or short names."""
        names, fields = _LONG if frame.code in _LONG_CODES else _SHORT, frame.fields
        text = fields.get(names["properties"], "")
        if len(text) > MAX_PROPERTIES_BYTES or len(text.encode()) > MAX_PROPERTIES_BYTES:
            raise PropertiesTooLarge(len(text.encode()), MAX_PROPERTIES_BYTES)
        most = names["maxReconsumeTimes"]
        born_time = frame.moment(names["bornTimestamp"])
        if not _EARLIEST <= born_time < _PAST_TIMES:
            raise ParameterInvalid(names["bornTimestamp"], str(born_time), "must be since 1970, and before 9999")
        return cls(
            fields.get(names["producerGroup"], ""),
            fields.get(names["topic"], ""),
            frame.integer(names["defaultTopicQueueNums"], 4),
            frame.integer(names["queueId"]),
            frame.integer(names["sysFlag"], 0),
            born_time,
            frame.integer(names["flag"], 0),
            decode_properties(text),
            frame.integer(names["reconsumeTimes"], 0),
            frame.integer(most) if most in fields else None,
        )

    @property
    def is_half(self) -> bool:
        """Whether the message is a half message."""
        return self.sys_flag & (HALF_FLAG | ROLLBACK_FLAG) == HALF_FLAG

    @property
    def is_retry(self) -> bool:
        """Whether a consumer sends a message that it failed to consume to its own retry topic."""
        return self.topic.startswith(RETRY_PREFIX)

    @property
    def is_request(self) -> bool:
        """Whether the sender waits for a reply."""
        return Property.REPLY_TO_CLIENT in self.properties and self.properties.get(Property.MSG_TYPE) != _REPLY
