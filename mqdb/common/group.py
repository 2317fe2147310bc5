"""Groups: their names, how members share messages, and the limits of a group's settings.

RocketMQ: Validators.checkGroup, MessageModel, MessageRequestMode, ConsumeFromWhere, SubscriptionGroupConfig.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, NamedTuple

from mqdb.common.retry_delays import check_retry_delays
from mqdb.common.topic import MAX_QUEUE_NUMS, check_name
from mqdb.errors import NameInvalid, ParameterInvalid

#: As in RocketMQ 5.3.4; earlier versions allowed 255.
MAX_GROUP_LENGTH: Final = 120

DEFAULT_CONSUMER: Final = "DEFAULT_CONSUMER"
DEFAULT_PRODUCER: Final = "DEFAULT_PRODUCER"

_MAX_INTEGER: Final = 2**31 - 1


class MessageModel(StrEnum):
    """Whether the members of a group share the messages, or each gets all of them."""

    CLUSTERING = "CLUSTERING"
    BROADCASTING = "BROADCASTING"


class ConsumeMode(StrEnum):
    """The way in which members of a group share queues. Source: MessageRequestMode."""

    PULL = "PULL"
    """Each queue has one owner, which commits its offset."""
    POP = "POP"
    """All members take messages from all queues, and acknowledge each message."""


class ConsumeFromWhere(StrEnum):
    """The place at which a group starts in a queue without a stored offset."""

    LAST_OFFSET = "LAST_OFFSET"
    FIRST_OFFSET = "FIRST_OFFSET"
    TIMESTAMP = "TIMESTAMP"


class StartingPoint(NamedTuple):
    """The place at which a group starts in a topic without a stored offset.

    `time`, which is aware, is for TIMESTAMP.
    """

    where: ConsumeFromWhere | None = ConsumeFromWhere.LAST_OFFSET
    """None means the setting of the group."""
    time: datetime | None = None


FROM_FIRST_OFFSET: Final = StartingPoint(ConsumeFromWhere.FIRST_OFFSET)
FROM_LAST_OFFSET: Final = StartingPoint()
AS_THE_GROUP_SAYS: Final = StartingPoint(None)


def check_group_name(name: str, reserved: str = DEFAULT_CONSUMER) -> None:
    """Raise NameInvalid unless `name` is valid for a group.

    `reserved` is a well-formed name that is refused: DEFAULT_CONSUMER for a consumer, DEFAULT_PRODUCER for a producer.
    Users who forgot to choose a name would all share that group.
    Source: Validators.checkGroup, checkConfig of the consumer and the producer.
    """
    check_name("group", name, MAX_GROUP_LENGTH)
    if name == reserved:
        raise NameInvalid("group", name, "is reserved; choose another name")


def check_group(
    name: str,
    retry_queue_nums: int | None = None,
    retry_max_times: int | None = None,
    retry_delays: Sequence[timedelta] | None = None,
    consume_from_where: ConsumeFromWhere | None = None,
) -> None:
    """Raise NameInvalid or ParameterInvalid unless a group with this name may have these settings; None: not given.

    RocketMQ accepts 0 for `retry_queue_nums`, and then loses messages that are sent back. With 0 for `retry_max_times`
    the first failure goes to the DLQ.
    """
    check_group_name(name)
    _check_count("retry_queue_nums", retry_queue_nums, 1, MAX_QUEUE_NUMS)
    _check_count("retry_max_times", retry_max_times, 0, _MAX_INTEGER)
    if retry_delays is not None:
        check_retry_delays(retry_delays)
    if consume_from_where is ConsumeFromWhere.TIMESTAMP:
        raise ParameterInvalid("consume_from_where", consume_from_where, "must be LAST_OFFSET or FIRST_OFFSET")


def _check_count(name: str, value: object, lowest: int, highest: int) -> None:
    if value is not None and (not isinstance(value, int) or not lowest <= value <= highest):
        raise ParameterInvalid(name, value, f"must be from {lowest} to {highest:,}")
