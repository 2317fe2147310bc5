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
    """The options. They are checked when the object is made. Raises NameInvalid, ParameterInvalid."""

    #: Messages that one poll returns at most. An answer of the broker may have more, which the next polls return.
    pull_batch_size: Annotated[int, whole(1, 1_024)] = 10
    #: How long a poll waits for messages.
    poll_timeout: Annotated[timedelta, POLL_TIMEOUT] = timedelta(seconds=5)
    #: Whether what polls have returned is committed without being asked for.
    auto_commit: Annotated[bool, FLAG] = True
    #: Between such commits.
    auto_commit_interval: Annotated[timedelta, duration(MIN_AUTO_COMMIT_INTERVAL)] = timedelta(seconds=5)
    #: With more messages in hand, those of all queues together, nothing is pulled.
    pull_threshold_for_all: Annotated[int, whole(1, 6_553_500)] = 10_000
    #: A queue whose messages in hand are farther apart is not pulled.
    consume_max_span: Annotated[int, whole(1, 65_535)] = 2_000
    #: Between looks for queues that were added to the topics that somebody listens for.
    topic_metadata_check_interval: Annotated[timedelta, DURATION] = timedelta(seconds=30)
