"""The options of a simple consumer, with RocketMQ's names and defaults.

Source: SimpleConsumerBuilder of rocketmq-clients, DefaultMQPushConsumer.popInvisibleTime.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Final

from mqdb.broker.consumers.pop import LONGEST_INVISIBLE, MAX_POPPED
from mqdb.common.group import ConsumeFromWhere, check_group_name
from mqdb_client.client_config import ClientConfig, StartOption, StartTimeOption, SubscriptionVersionOption
from mqdb_client.option_rules import check_options, duration, whole

#: The maximum number of messages that one call of `receive` returns.
MAX_MESSAGES: Final = whole(1, MAX_POPPED)

#: How long a received message is invisible to the rest of its group.
INVISIBLE: Final = duration(timedelta(milliseconds=1), LONGEST_INVISIBLE)

#: The time until a message is redelivered; 0 means immediately.
INVISIBLE_FROM_NOW: Final = duration(timedelta(0), LONGEST_INVISIBLE)

AWAIT: Final = duration(timedelta(0))


@dataclass(frozen=True, slots=True, kw_only=True)
class SimpleConsumerConfig(ClientConfig):
    """The options of a simple consumer, checked on construction. Raises NameInvalid, ParameterInvalid."""

    await_duration: Annotated[timedelta, AWAIT, "The maximum time that `receive` waits for messages."] = timedelta(
        seconds=30
    )
    invisible_duration: Annotated[
        timedelta,
        INVISIBLE,
        "The time for which received messages stay invisible to other members, unless another time is passed to "
        "`receive`.",
    ] = timedelta(seconds=60)
    consume_from_where: StartOption = ConsumeFromWhere.LAST_OFFSET
    consume_timestamp: StartTimeOption = None
    subscription_version: SubscriptionVersionOption = 0

    def __post_init__(self) -> None:
        check_group_name(self.group)
        check_options(self)
