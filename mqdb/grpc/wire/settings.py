"""Settings: the broker's answer to the settings of a client. RocketMQ: ClientActivity, GrpcClientSettingsManager."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Final

from mqdb.common.message import MAX_BODY_BYTES
from mqdb.grpc.wire.rocketmq_pb2 import (
    CustomizedBackoff,
    ExponentialBackoff,
    Language,
    Metric,
    RetryPolicy,
    Settings,
)
from mqdb.grpc.wire.times import duration

#: Number of messages that a push consumer requests at a time, and how long it waits for them.
MOST_RECEIVED: Final = 32
LONGEST_POLL: Final = timedelta(seconds=20)

#: Retries of a producer, which resends by itself.
_SEND_ATTEMPTS: Final = 3
_SEND_PAUSES: Final = ExponentialBackoff(
    initial=duration(timedelta(milliseconds=10)), max=duration(timedelta(seconds=1)), multiplier=2
)


def producer_settings(said: Settings) -> Settings:
    """The settings of a producer, including the broker's decisions."""
    settings = _answer(said)
    settings.backoff_policy.CopyFrom(RetryPolicy(max_attempts=_SEND_ATTEMPTS, exponential_backoff=_SEND_PAUSES))
    settings.publishing.max_body_size = MAX_BODY_BYTES
    # A topic of mqdb accepts messages of all types, as stated in the route.
    settings.publishing.validate_message_type = True
    return settings


def consumer_settings(said: Settings, *, is_orderly: bool, max_retries: int, delays: Iterable[timedelta]) -> Settings:
    """The settings of a consumer in a group: whether it reads in order, and when failed messages are redelivered."""
    settings = _answer(said)
    pauses = list(map(duration, delays))
    policy = RetryPolicy(max_attempts=max_retries + 1)
    if said.user_agent.language == Language.NODE_JS:  # the only policy that it supports
        policy.exponential_backoff.CopyFrom(ExponentialBackoff(initial=pauses[0], max=pauses[-1], multiplier=2))
    else:
        policy.customized_backoff.CopyFrom(CustomizedBackoff(next=pauses))
    settings.backoff_policy.CopyFrom(policy)
    settings.subscription.fifo = is_orderly
    settings.subscription.receive_batch_size = MOST_RECEIVED
    settings.subscription.long_polling_timeout.CopyFrom(duration(LONGEST_POLL))
    return settings


def _answer(said: Settings) -> Settings:
    settings = Settings()
    settings.CopyFrom(said)
    settings.metric.CopyFrom(Metric(on=False))
    return settings
