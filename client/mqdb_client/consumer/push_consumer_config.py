"""The options of a push consumer, with RocketMQ's names, defaults and ranges.

Source: DefaultMQPushConsumer, DefaultMQPushConsumerImpl.checkConfig.
"""

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Final

from mqdb.common.group import MessageModel
from mqdb_client.client_config import ConsumerConfig
from mqdb_client.option_rules import DURATION, PATH, duration, one_of, or_none, whole, whole_or_unlimited

#: A queue lock that outlives its owner holds up the queue: longer is a mistake, and PostgreSQL has no time for its end.
_QUEUE_LOCK_EXPIRY: Final = duration(timedelta(milliseconds=1), timedelta(days=365))


#: Source: DefaultMQPushConsumerImpl.checkConfig.
_POP_INVISIBLE: Final = duration(timedelta(seconds=5), timedelta(seconds=300))


@dataclass(frozen=True, slots=True, kw_only=True)
class PushConsumerConfig(ConsumerConfig):
    """The options. They are checked when the object is made. Raises NameInvalid, ParameterInvalid."""

    message_model: Annotated[MessageModel, one_of(MessageModel)] = MessageModel.CLUSTERING
    #: In broadcasting: the directory of its file of offsets; None: one in the home directory, by the instance name.
    local_offset_directory: Annotated[str | Path | None, or_none(PATH)] = None
    #: Listeners that run at the same time.
    consume_thread_nums: Annotated[int, whole(1, 1_000)] = 20
    #: Messages in one call of the listener, at most.
    consume_message_batch_max_size: Annotated[int, whole(1, 1_024)] = 1
    #: Messages of each queue in one answer of the broker, at most.
    pull_batch_size: Annotated[int, whole(1, 1_024)] = 32
    #: The threshold of all queues of a topic together, shared out evenly over those that are read; None: no limit.
    pull_threshold_for_topic: Annotated[int | None, whole_or_unlimited(1, 6_553_500)] = None
    #: The same for the MiB of their bodies.
    pull_threshold_size_for_topic_mib: Annotated[int | None, whole_or_unlimited(1, 102_400)] = None
    #: Between two pulls of a queue that has more; 0: at once.
    pull_interval: Annotated[timedelta, duration(timedelta(0), timedelta(milliseconds=65_535))] = timedelta(0)
    #: A queue whose messages in hand are farther apart is not pulled: one message that takes long slows it down.
    consume_concurrently_max_span: Annotated[int, whole(1, 65_535)] = 2_000
    #: A message that has failed more often goes to the dead letter queue; None: as the group is set, or in orderly
    #: consumption never.
    max_reconsume_times: Annotated[int | None, whole_or_unlimited(0, 2**31 - 1)] = None
    #: A listener that has not returned for so long is given up, its messages are sent back.
    consume_timeout: Annotated[timedelta, DURATION] = timedelta(minutes=15)
    #: How long a queue stands still when an orderly listener asks for it.
    suspend_current_queue_time: Annotated[timedelta, duration(timedelta(milliseconds=10), timedelta(seconds=30))] = (
        timedelta(seconds=1)
    )
    #: Of a queue that is consumed in order: when nobody else may, without a sign of life of its owner.
    queue_lock_expiry: Annotated[timedelta, _QUEUE_LOCK_EXPIRY] = timedelta(seconds=60)
    #: In a group that pops: how long a message is invisible to the other members if this process dies. It is prolonged
    #: while its listener runs.
    pop_invisible_time: Annotated[timedelta, _POP_INVISIBLE] = timedelta(seconds=60)
    #: Between commits of offsets.
    persist_consumer_offset_interval: Annotated[timedelta, DURATION] = timedelta(seconds=5)
