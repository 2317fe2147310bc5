"""The options of a lite pull consumer, with RocketMQ's names, defaults and ranges.

Source: DefaultLitePullConsumer, DefaultLitePullConsumerImpl.checkConfig.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Final

from mqdb_client.client_config import ConsumerConfig
from mqdb_client.option_rules import DURATION, FLAG, duration, whole

#: Source: DefaultLitePullConsumer.MIN_AUTOCOMMIT_INTERVAL_MILLIS.
MIN_AUTO_COMMIT_INTERVAL: Final = timedelta(seconds=1)

POLL_TIMEOUT: Final = duration(timedelta(0))


@dataclass(frozen=True, slots=True, kw_only=True)
class LitePullConsumerConfig(ConsumerConfig):
    """The options of a lite pull consumer, checked on construction. Raises NameInvalid, ParameterInvalid."""

    pull_batch_size: Annotated[
        int,
        whole(1, 1_024),
        "The maximum number of messages that a poll returns. A pull may return more messages, which are "
        "kept for the next polls.",
    ] = 10
    poll_timeout: Annotated[timedelta, POLL_TIMEOUT, "The maximum time that a poll waits for messages."] = timedelta(
        seconds=5
    )
    auto_commit: Annotated[bool, FLAG, "Commit, at regular intervals, the messages that polls have returned."] = True
    auto_commit_interval: Annotated[
        timedelta, duration(MIN_AUTO_COMMIT_INTERVAL), "The time between two automatic commits."
    ] = timedelta(seconds=5)
    pull_threshold_for_all: Annotated[
        int, whole(1, 6_553_500), "Pulling pauses while more messages of all queues are in hand."
    ] = 10_000
    consume_max_span: Annotated[
        int, whole(1, 65_535), "A queue is not pulled while the offsets of its messages in hand are farther apart."
    ] = 2_000
    topic_metadata_check_interval: Annotated[
        timedelta,
        DURATION,
        "The time between checks for new queues, for topics that have a listener for changes of their queues.",
    ] = timedelta(seconds=30)
