"""Groups: how their names look, how members share messages, and what the broker keeps of each.

RocketMQ: Validators.checkGroup, MessageModel, ConsumeFromWhere, SubscriptionGroupConfig.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, NamedTuple

from mqdb.common.topic import MAX_QUEUE_NUMS, check_name
from mqdb.errors import NameInvalid, ParameterInvalid

#: RocketMQ 5.3.4; earlier versions took 255.
MAX_GROUP_LENGTH: Final = 120

DEFAULT_CONSUMER: Final = "DEFAULT_CONSUMER"
DEFAULT_PRODUCER: Final = "DEFAULT_PRODUCER"

_MAX_INTEGER: Final = 2**31 - 1


class MessageModel(StrEnum):
    """Whether the members of a group share the messages, or each gets all of them."""

    CLUSTERING = "CLUSTERING"
    BROADCASTING = "BROADCASTING"


class ConsumeFromWhere(StrEnum):
    """Where a group starts in a queue of which it has no stored offset."""

    LAST_OFFSET = "LAST_OFFSET"
    FIRST_OFFSET = "FIRST_OFFSET"
    TIMESTAMP = "TIMESTAMP"


class StartingPoint(NamedTuple):
    """Where a group begins in a topic of which it has no offset. `time`, which knows its zone, is for TIMESTAMP."""

    where: ConsumeFromWhere = ConsumeFromWhere.LAST_OFFSET
    time: datetime | None = None


FROM_FIRST_OFFSET: Final = StartingPoint(ConsumeFromWhere.FIRST_OFFSET)
FROM_LAST_OFFSET: Final = StartingPoint()


def check_group_name(name: str, reserved: str = DEFAULT_CONSUMER) -> None:
    """Raise NameInvalid unless `name` may name a group.

    `reserved` is the one good-looking name that is refused: DEFAULT_CONSUMER for a consumer,
    DEFAULT_PRODUCER for a producer. Users who forgot to choose would all meet in that group.
    Source: Validators.checkGroup, checkConfig of the consumer and the producer.
    """
    check_name("group", name, MAX_GROUP_LENGTH)
    if name == reserved:
        raise NameInvalid("group", name, "is reserved; choose a name of your own")


@dataclass(frozen=True, slots=True)
class SubscriptionGroupConfig:
    """What the broker keeps of a consumer group.

    RocketMQ's settings about slave brokers and about notifying members are left out: PostgreSQL
    does the replication, and members are always notified.
    """

    name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    #: At least 1: in RocketMQ a message that is sent back without any is gone.
    retry_queue_nums: int = 1
    #: Deliveries after the first one; with 0 the first failure goes to the DLQ.
    retry_max_times: int = 16
    consume_timeout: timedelta = timedelta(minutes=15)

    def __post_init__(self) -> None:
        check_group_name(self.name)
        _check_count("retry_queue_nums", self.retry_queue_nums, 1, MAX_QUEUE_NUMS)
        _check_count("retry_max_times", self.retry_max_times, 0, _MAX_INTEGER)
        if self.consume_timeout <= timedelta(0):
            raise ParameterInvalid("consume_timeout", str(self.consume_timeout), "must be longer than 0 seconds")


def _check_count(name: str, value: object, lowest: int, highest: int) -> None:
    if not isinstance(value, int) or not lowest <= value <= highest:
        raise ParameterInvalid(name, value, f"must be from {lowest} to {highest:,}")
