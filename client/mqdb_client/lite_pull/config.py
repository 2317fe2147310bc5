"""What a lite pull consumer can be told, with RocketMQ's names, defaults and ranges.

Source: DefaultLitePullConsumer, DefaultLitePullConsumerImpl.checkConfig.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any, Final

from mqdb.group import ConsumeFromWhere, check_group_name
from mqdb.rebalance import AllocationStrategy
from mqdb_client.options import (
    AWARE_TIME,
    DURATION,
    FLAG,
    INSTANCE_NAME,
    SHUTDOWN_TIMEOUT,
    STRATEGY,
    check_options,
    duration,
    one_of,
    or_none,
    whole,
)

#: Source: DefaultLitePullConsumer.MIN_AUTOCOMMIT_INTERVAL_MILLIS.
MIN_AUTO_COMMIT_INTERVAL: Final = timedelta(seconds=1)

_POLL_TIMEOUT: Final = duration(timedelta(0))


@dataclass(frozen=True, slots=True, kw_only=True)
class LitePullConsumerConfig:
    """Checked when it is made. Raises NameInvalid, ParameterInvalid."""

    group: str
    #: Where a group starts that has no offset yet.
    consume_from_where: Annotated[ConsumeFromWhere, one_of(ConsumeFromWhere)]
    #: Aware; where it starts under TIMESTAMP. None: half an hour before the start.
    consume_timestamp: Annotated[datetime | None, or_none(AWARE_TIME)]
    #: Names the client; DEFAULT: a new name for each process.
    instance_name: Annotated[str, INSTANCE_NAME]
    #: Which of a topic's queues are whose; the same for all members.
    allocate_message_queue_strategy: Annotated[AllocationStrategy[Any], STRATEGY]
    #: Of what is subscribed to. Members that subscribe to something else need a higher one.
    subscription_version: Annotated[int, whole(0, 2**63 - 1)]
    #: Messages that one poll returns, and messages of each queue in one answer of the broker, at most.
    pull_batch_size: Annotated[int, whole(1, 1_024)]
    #: How long a poll waits for messages.
    poll_timeout: Annotated[timedelta, _POLL_TIMEOUT]
    #: Whether what polls have returned is committed without being asked for.
    auto_commit: Annotated[bool, FLAG]
    #: Between such commits.
    auto_commit_interval: Annotated[timedelta, duration(MIN_AUTO_COMMIT_INTERVAL)]
    #: With more messages in hand, those of all queues together, nothing is pulled.
    pull_threshold_for_all: Annotated[int, whole(1, 6_553_500)]
    #: A queue with more messages in hand is not pulled.
    pull_threshold_for_queue: Annotated[int, whole(1, 65_535)]
    #: A queue with more bytes of bodies in hand is not pulled; in MiB.
    pull_threshold_size_for_queue: Annotated[int, whole(1, 1_024)]
    #: A queue whose messages in hand are farther apart is not pulled.
    consume_max_span: Annotated[int, whole(1, 65_535)]
    #: Between looks for queues that were added to the topics that somebody listens for.
    topic_metadata_check_interval: Annotated[timedelta, DURATION]
    #: Between rebalances that nothing has caused.
    rebalance_interval: Annotated[timedelta, DURATION]
    #: A queue that rebalance has moved here is taken by force when its owner has kept it for so long.
    hand_over_grace: Annotated[timedelta, DURATION]
    #: How long a shutdown waits for listeners that run.
    shutdown_timeout: Annotated[timedelta, SHUTDOWN_TIMEOUT]

    def __post_init__(self) -> None:
        check_group_name(self.group)
        check_options(self)


def check_poll_timeout(timeout: object) -> None:
    """Raise ParameterInvalid unless a poll can wait so long."""
    _POLL_TIMEOUT.check("poll_timeout", timeout)
