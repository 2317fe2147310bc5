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

#: A lock that outlives its owner blocks the queue, so a longer one is a mistake; PostgreSQL cannot represent its end.
_QUEUE_LOCK_EXPIRY: Final = duration(timedelta(milliseconds=1), timedelta(days=365))


#: Source: DefaultMQPushConsumerImpl.checkConfig.
_POP_INVISIBLE: Final = duration(timedelta(seconds=5), timedelta(seconds=300))


@dataclass(frozen=True, slots=True, kw_only=True)
class PushConsumerConfig(ConsumerConfig):
    """The options of a push consumer, checked on construction. Raises NameInvalid, ParameterInvalid."""

    message_model: Annotated[
        MessageModel,
        one_of(MessageModel),
        "CLUSTERING shares the messages among the members; with BROADCASTING each member gets all messages.",
    ] = MessageModel.CLUSTERING
    local_offset_directory: Annotated[
        str | Path | None,
        or_none(PATH),
        "In broadcasting, the directory of the offset file. None means a directory in the home directory, named after "
        "the instance.",
    ] = None
    consume_thread_nums: Annotated[int, whole(1, 1_000), "The number of listeners that run at the same time."] = 20
    consume_message_batch_max_size: Annotated[
        int, whole(1, 1_024), "The maximum number of messages in one call of the listener."
    ] = 1
    pull_batch_size: Annotated[int, whole(1, 1_024), "The maximum number of messages per queue in one pull."] = 32
    pull_threshold_for_topic: Annotated[
        int | None,
        whole_or_unlimited(1, 6_553_500),
        "The limit of messages in hand for all queues of a topic, divided evenly among the queues that are read. None "
        "means no limit.",
    ] = None
    pull_threshold_size_for_topic_mib: Annotated[
        int | None,
        whole_or_unlimited(1, 102_400),
        "The limit in MiB of bodies in hand for all queues of a topic, divided in the same way. None means no limit.",
    ] = None
    pull_interval: Annotated[
        timedelta,
        duration(timedelta(0), timedelta(milliseconds=65_535)),
        "The pause between two pulls of a queue that has more messages.",
    ] = timedelta(0)
    consume_concurrently_max_span: Annotated[
        int,
        whole(1, 65_535),
        "A queue is not pulled while the offsets of its messages in hand are farther apart, so one slow message can "
        "pause it.",
    ] = 2_000
    max_reconsume_times: Annotated[
        int | None,
        whole_or_unlimited(0, 2**31 - 1),
        "The number of retries before a message goes to the dead-letter queue. None means the group's limit, and no "
        "limit in orderly consumption.",
    ] = None
    consume_timeout: Annotated[
        timedelta,
        DURATION,
        "A call of the listener that has not returned after this time is given up, and its messages are sent back.",
    ] = timedelta(minutes=15)
    suspend_current_queue_time: Annotated[
        timedelta,
        duration(timedelta(milliseconds=10), timedelta(seconds=30)),
        "The pause of a queue when an orderly listener requests a pause.",
    ] = timedelta(seconds=1)
    queue_lock_expiry: Annotated[
        timedelta,
        _QUEUE_LOCK_EXPIRY,
        "In orderly consumption, how long the lock of a queue lasts after its owner's last renewal.",
    ] = timedelta(seconds=60)
    pop_invisible_time: Annotated[
        timedelta,
        _POP_INVISIBLE,
        "In a popping group, how long a message stays invisible to other members if this process dies. The client "
        "extends it while the listener runs.",
    ] = timedelta(seconds=60)
    persist_consumer_offset_interval: Annotated[timedelta, DURATION, "The time between two commits of offsets."] = (
        timedelta(seconds=5)
    )
