"""What a push consumer can be told, with RocketMQ's names, defaults and ranges.

Source: DefaultMQPushConsumer, DefaultMQPushConsumerImpl.checkConfig.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from mqdb.dsn import is_broker_name
from mqdb.errors import ParameterInvalid
from mqdb.group import ConsumeFromWhere, MessageModel, check_group_name
from mqdb.rebalance import AllocationStrategy


@dataclass(frozen=True, slots=True, kw_only=True)
class PushConsumerConfig:
    """Checked when it is made. Raises NameInvalid, ParameterInvalid."""

    group: str
    #: Where a group starts that is new to a topic.
    consume_from_where: ConsumeFromWhere
    #: Aware; where it starts under TIMESTAMP. None: half an hour before the start.
    consume_timestamp: datetime | None
    message_model: MessageModel
    #: Names the member in its group and, in broadcasting, its file of offsets; DEFAULT: a new name for each process.
    instance_name: str
    #: In broadcasting: the directory of its file of offsets; None: one in the home directory.
    local_offset_directory: Path | None
    #: Which of a topic's queues are whose; the same for all members.
    allocate_message_queue_strategy: AllocationStrategy[Any]
    #: Of what is subscribed to. Members that subscribe to something else need a higher one.
    subscription_version: int
    #: Listeners that run at the same time.
    consume_thread_nums: int
    #: Messages in one call of the listener, at most.
    consume_message_batch_max_size: int
    #: Messages of each queue in one answer of the broker, at most.
    pull_batch_size: int
    #: A queue with more messages in hand is not pulled.
    pull_threshold_for_queue: int
    #: A queue with more bytes of bodies in hand is not pulled; in MiB.
    pull_threshold_size_for_queue: int
    #: The same for all queues of a topic together, shared out evenly over those that are read; -1: no limit.
    pull_threshold_for_topic: int
    #: In MiB; -1: no limit.
    pull_threshold_size_for_topic: int
    #: Between two pulls of a queue that has more; 0: at once.
    pull_interval: timedelta
    #: A queue whose messages in hand are farther apart is not pulled: one message that takes long slows it down.
    consume_concurrently_max_span: int
    #: A message that has failed more often goes to the dead letter queue; -1: as the group is set, or in orderly
    #: consumption never.
    max_reconsume_times: int
    #: A listener that has not returned for so long is given up, its messages are sent back.
    consume_timeout: timedelta
    #: How long a queue stands still when an orderly listener asks for it.
    suspend_current_queue_time: timedelta
    #: Of a queue that is consumed in order: when nobody else may, without a sign of life of its owner.
    queue_lock_expiry: timedelta
    #: Between commits of offsets.
    persist_consumer_offset_interval: timedelta
    #: Between rebalances that nothing has caused.
    rebalance_interval: timedelta
    #: A queue that rebalance has moved here is taken by force when its owner has kept it for so long.
    hand_over_grace: timedelta

    def __post_init__(self) -> None:
        check_group_name(self.group)
        self._check_range("consume_thread_nums", 1, 1_000)
        self._check_range("consume_message_batch_max_size", 1, 1_024)
        self._check_range("pull_batch_size", 1, 1_024)
        self._check_range("pull_threshold_for_queue", 1, 65_535)
        self._check_range("pull_threshold_size_for_queue", 1, 1_024)
        self._check_range("pull_threshold_for_topic", 1, 6_553_500, or_none=True)
        self._check_range("pull_threshold_size_for_topic", 1, 102_400, or_none=True)
        self._check_range("consume_concurrently_max_span", 1, 65_535)
        self._check_range("max_reconsume_times", 0, 2**31 - 1, or_none=True)
        self._check_range("subscription_version", 0, 2**63 - 1)
        self._check_duration("pull_interval", timedelta(0), timedelta(milliseconds=65_535))
        self._check_duration("suspend_current_queue_time", timedelta(milliseconds=10), timedelta(seconds=30))
        for name in (
            "persist_consumer_offset_interval",
            "rebalance_interval",
            "hand_over_grace",
            "consume_timeout",
            "queue_lock_expiry",
        ):
            self._check_duration(name)
        if self.consume_timestamp is not None and self.consume_timestamp.tzinfo is None:
            fault = "must be aware, such as datetime(2024, 1, 1, tzinfo=UTC)"
            raise ParameterInvalid("consume_timestamp", self.consume_timestamp, fault)
        if not is_broker_name(self.instance_name):
            reason = "use letters, digits, and _ . @ - after the first"
            raise ParameterInvalid("instance_name", self.instance_name, reason)

    def _check_range(self, name: str, lowest: int, highest: int, *, or_none: bool = False) -> None:
        value = getattr(self, name)
        if or_none and value == -1:
            return
        if not isinstance(value, int) or not lowest <= value <= highest:
            limits = f"must be a whole number from {lowest:,} to {highest:,}"
            raise ParameterInvalid(name, value, f"{limits}, or -1" if or_none else limits)

    def _check_duration(self, name: str, *limits: timedelta) -> None:
        value = getattr(self, name)
        if limits and not (isinstance(value, timedelta) and limits[0] <= value <= limits[1]):
            raise ParameterInvalid(name, value, f"must be a timedelta from {limits[0]} to {limits[1]}")
        if not isinstance(value, timedelta) or (not limits and value <= timedelta(0)):
            raise ParameterInvalid(name, value, "must be a timedelta of more than 0")
