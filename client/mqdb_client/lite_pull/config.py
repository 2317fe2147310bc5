"""What a lite pull consumer can be told, with RocketMQ's names, defaults and ranges.

Source: DefaultLitePullConsumer, DefaultLitePullConsumerImpl.checkConfig.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from mqdb.dsn import is_broker_name
from mqdb.errors import ParameterInvalid
from mqdb.group import ConsumeFromWhere, check_group_name
from mqdb.rebalance import AllocationStrategy

#: Source: DefaultLitePullConsumer.MIN_AUTOCOMMIT_INTERVAL_MILLIS.
MIN_AUTO_COMMIT_INTERVAL: Final = timedelta(seconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class LitePullConsumerConfig:
    """Checked when it is made. Raises NameInvalid, ParameterInvalid."""

    group: str
    #: Where a group starts that has no offset yet.
    consume_from_where: ConsumeFromWhere
    #: Aware; where it starts under TIMESTAMP. None: half an hour before the start.
    consume_timestamp: datetime | None
    #: Names the client; DEFAULT: a new name for each process.
    instance_name: str
    #: Which of a topic's queues are whose; the same for all members.
    allocate_message_queue_strategy: AllocationStrategy[Any]
    #: Of what is subscribed to. Members that subscribe to something else need a higher one.
    subscription_version: int
    #: Messages that one poll returns, and messages of each queue in one answer of the broker, at most.
    pull_batch_size: int
    #: How long a poll waits for messages.
    poll_timeout: timedelta
    #: Whether what polls have returned is committed without being asked for.
    auto_commit: bool
    #: Between such commits.
    auto_commit_interval: timedelta
    #: With more messages in hand, those of all queues together, nothing is pulled.
    pull_threshold_for_all: int
    #: A queue with more messages in hand is not pulled.
    pull_threshold_for_queue: int
    #: A queue with more bytes of bodies in hand is not pulled; in MiB.
    pull_threshold_size_for_queue: int
    #: A queue whose messages in hand are farther apart is not pulled.
    consume_max_span: int
    #: Between looks for queues that were added to the topics that somebody listens for.
    topic_metadata_check_interval: timedelta
    #: Between rebalances that nothing has caused.
    rebalance_interval: timedelta
    #: A queue that rebalance has moved here is taken by force when its owner has kept it for so long.
    hand_over_grace: timedelta

    def __post_init__(self) -> None:
        check_group_name(self.group)
        self._check_range("subscription_version", 0, 2**63 - 1)
        self._check_range("pull_batch_size", 1, 1_024)
        self._check_range("pull_threshold_for_all", 1, 6_553_500)
        self._check_range("pull_threshold_for_queue", 1, 65_535)
        self._check_range("pull_threshold_size_for_queue", 1, 1_024)
        self._check_range("consume_max_span", 1, 65_535)
        check_poll_timeout(self.poll_timeout)
        self._check_duration("auto_commit_interval", MIN_AUTO_COMMIT_INTERVAL)
        for name in ("topic_metadata_check_interval", "rebalance_interval", "hand_over_grace"):
            self._check_duration(name, timedelta.resolution)
        if self.consume_timestamp is not None and self.consume_timestamp.utcoffset() is None:
            fault = "must be aware, such as datetime(2024, 1, 1, tzinfo=UTC)"
            raise ParameterInvalid("consume_timestamp", self.consume_timestamp, fault)
        if not is_broker_name(self.instance_name):
            reason = "use letters, digits, and _ . @ - after the first"
            raise ParameterInvalid("instance_name", self.instance_name, reason)

    def _check_range(self, name: str, lowest: int, highest: int) -> None:
        value = getattr(self, name)
        if not isinstance(value, int) or not lowest <= value <= highest:
            raise ParameterInvalid(name, value, f"must be a whole number from {lowest:,} to {highest:,}")

    def _check_duration(self, name: str, lowest: timedelta) -> None:
        value = getattr(self, name)
        if not isinstance(value, timedelta) or value < lowest:
            limit = f"{lowest} at least" if lowest > timedelta.resolution else "more than 0"
            raise ParameterInvalid(name, value, f"must be a timedelta of {limit}")


def check_poll_timeout(timeout: object) -> None:
    """Raise ParameterInvalid unless a poll can wait so long."""
    if not isinstance(timeout, timedelta) or timeout < timedelta(0):
        raise ParameterInvalid("poll_timeout", timeout, "must be a timedelta, 0 or more")
