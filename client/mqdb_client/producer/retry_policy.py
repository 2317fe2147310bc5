"""How often a send is tried, and after which errors: pure rules.

RocketMQ: DefaultMQProducerImpl.sendDefaultImpl, sendSelectImpl, MQClientAPIImpl.onExceptionImpl.
"""

import time
from typing import TYPE_CHECKING, Final

from mqdb.errors import BrokerUnavailable, IllegalState, MqdbError, ResponseCode
from mqdb_client.producer.config import ProducerConfig
from mqdb_client.producer.queue_choice import ANYWHERE
from mqdb_client.producer.send_hooks import SendMode

if TYPE_CHECKING:
    from mqdb_client.producer.sending import PendingSend

#: What a sync send is tried again for. Source: DefaultMQProducer.retryResponseCodes.
RETRY_RESPONSE_CODES: Final = frozenset(
    {
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.NO_PERMISSION,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
        ResponseCode.GO_AWAY,
    }
)


def most_tries(pending: "PendingSend", config: ProducerConfig) -> int:
    """How often a send may be tried."""
    match pending.mode:
        case SendMode.SYNC if pending.target is ANYWHERE:
            return 1 + config.retry_times_when_send_failed
        case SendMode.ASYNC:
            return 1 + config.retry_times_when_send_async_failed
        case _:
            return 1


def has_tries_left(pending: "PendingSend", config: ProducerConfig) -> bool:
    """Whether a send may be tried once more, and has time for it."""
    return len(pending.brokers_sent) < most_tries(pending, config) and time.monotonic() < pending.deadline


def is_retryable(pending: "PendingSend", error: MqdbError) -> bool:
    """Whether another try may end otherwise."""
    if isinstance(error, BrokerUnavailable):
        return True
    return pending.mode is SendMode.SYNC and error.code in RETRY_RESPONSE_CODES and not isinstance(error, IllegalState)
