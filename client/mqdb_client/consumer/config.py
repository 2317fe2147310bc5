"""What a push consumer can be told, with RocketMQ's names, defaults and ranges.

Source: DefaultMQPushConsumer, DefaultMQPushConsumerImpl.checkConfig.
"""

from dataclasses import dataclass
from datetime import timedelta

from mqdb.errors import NotSupported, ParameterInvalid
from mqdb.group import ConsumeFromWhere, MessageModel, check_group_name


@dataclass(frozen=True, slots=True, kw_only=True)
class PushConsumerConfig:
    """Checked when it is made. Raises NameInvalid, ParameterInvalid, NotSupported."""

    group: str
    #: Where a group starts that is new to a topic.
    consume_from_where: ConsumeFromWhere
    message_model: MessageModel
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
    #: A queue whose messages in hand are farther apart is not pulled: one message that takes long slows it down.
    consume_concurrently_max_span: int
    #: Between commits of offsets.
    persist_consumer_offset_interval: timedelta
    #: Between rebalances that nothing has caused.
    rebalance_interval: timedelta
    #: A queue that rebalance has moved here is taken by force when its owner has kept it for so long.
    hand_over_grace: timedelta

    def __post_init__(self) -> None:
        check_group_name(self.group)
        if self.consume_from_where is ConsumeFromWhere.TIMESTAMP:
            raise NotSupported("consume_from_where=TIMESTAMP")
        if self.message_model is MessageModel.BROADCASTING:
            raise NotSupported("message_model=BROADCASTING")
        self._check_range("consume_thread_nums", 1, 1_000)
        self._check_range("consume_message_batch_max_size", 1, 1_024)
        self._check_range("pull_batch_size", 1, 1_024)
        self._check_range("pull_threshold_for_queue", 1, 65_535)
        self._check_range("pull_threshold_size_for_queue", 1, 1_024)
        self._check_range("consume_concurrently_max_span", 1, 65_535)
        for name in ("persist_consumer_offset_interval", "rebalance_interval", "hand_over_grace"):
            self._check_duration(name)

    def _check_range(self, name: str, lowest: int, highest: int) -> None:
        value = getattr(self, name)
        if not isinstance(value, int) or not lowest <= value <= highest:
            raise ParameterInvalid(name, value, f"must be a whole number from {lowest:,} to {highest:,}")

    def _check_duration(self, name: str) -> None:
        value = getattr(self, name)
        if not isinstance(value, timedelta) or value <= timedelta(0):
            raise ParameterInvalid(name, value, "must be a timedelta of more than 0")
