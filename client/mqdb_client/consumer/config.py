"""What a push consumer can be told, with RocketMQ's names, defaults and ranges.

Source: DefaultMQPushConsumer, DefaultMQPushConsumerImpl.checkConfig.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

from mqdb.group import ConsumeFromWhere, MessageModel, check_group_name
from mqdb.rebalance import AllocationStrategy
from mqdb_client.options import (
    AWARE_TIME,
    DURATION,
    INSTANCE_NAME,
    PATH,
    SHUTDOWN_TIMEOUT,
    STRATEGY,
    check_options,
    duration,
    one_of,
    or_none,
    whole,
    whole_or_unlimited,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PushConsumerConfig:
    """Checked when it is made. Raises NameInvalid, ParameterInvalid."""

    group: str
    #: Where a group starts that is new to a topic.
    consume_from_where: Annotated[ConsumeFromWhere, one_of(ConsumeFromWhere)]
    #: Aware; where it starts under TIMESTAMP. None: half an hour before the start.
    consume_timestamp: Annotated[datetime | None, or_none(AWARE_TIME)]
    message_model: Annotated[MessageModel, one_of(MessageModel)]
    #: Names the member in its group and, in broadcasting, its file of offsets; DEFAULT: a new name for each process.
    instance_name: Annotated[str, INSTANCE_NAME]
    #: In broadcasting: the directory of its file of offsets; None: one in the home directory.
    local_offset_directory: Annotated[str | Path | None, or_none(PATH)]
    #: Which of a topic's queues are whose; the same for all members.
    allocate_message_queue_strategy: Annotated[AllocationStrategy[Any], STRATEGY]
    #: Of what is subscribed to. Members that subscribe to something else need a higher one.
    subscription_version: Annotated[int, whole(0, 2**63 - 1)]
    #: Listeners that run at the same time.
    consume_thread_nums: Annotated[int, whole(1, 1_000)]
    #: Messages in one call of the listener, at most.
    consume_message_batch_max_size: Annotated[int, whole(1, 1_024)]
    #: Messages of each queue in one answer of the broker, at most.
    pull_batch_size: Annotated[int, whole(1, 1_024)]
    #: A queue with more messages in hand is not pulled.
    pull_threshold_for_queue: Annotated[int, whole(1, 65_535)]
    #: A queue with more bytes of bodies in hand is not pulled; in MiB.
    pull_threshold_size_for_queue: Annotated[int, whole(1, 1_024)]
    #: The same for all queues of a topic together, shared out evenly over those that are read; -1: no limit.
    pull_threshold_for_topic: Annotated[int, whole_or_unlimited(1, 6_553_500)]
    #: In MiB; -1: no limit.
    pull_threshold_size_for_topic: Annotated[int, whole_or_unlimited(1, 102_400)]
    #: Between two pulls of a queue that has more; 0: at once.
    pull_interval: Annotated[timedelta, duration(timedelta(0), timedelta(milliseconds=65_535))]
    #: A queue whose messages in hand are farther apart is not pulled: one message that takes long slows it down.
    consume_concurrently_max_span: Annotated[int, whole(1, 65_535)]
    #: A message that has failed more often goes to the dead letter queue; -1: as the group is set, or in orderly
    #: consumption never.
    max_reconsume_times: Annotated[int, whole_or_unlimited(0, 2**31 - 1)]
    #: A listener that has not returned for so long is given up, its messages are sent back.
    consume_timeout: Annotated[timedelta, DURATION]
    #: How long a queue stands still when an orderly listener asks for it.
    suspend_current_queue_time: Annotated[timedelta, duration(timedelta(milliseconds=10), timedelta(seconds=30))]
    #: Of a queue that is consumed in order: when nobody else may, without a sign of life of its owner.
    queue_lock_expiry: Annotated[timedelta, DURATION]
    #: Between commits of offsets.
    persist_consumer_offset_interval: Annotated[timedelta, DURATION]
    #: Between rebalances that nothing has caused.
    rebalance_interval: Annotated[timedelta, DURATION]
    #: A queue that rebalance has moved here is taken by force when its owner has kept it for so long.
    hand_over_grace: Annotated[timedelta, DURATION]
    #: How long a shutdown waits for listeners that run.
    shutdown_timeout: Annotated[timedelta, SHUTDOWN_TIMEOUT]

    def __post_init__(self) -> None:
        check_group_name(self.group)
        check_options(self)
