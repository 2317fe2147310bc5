"""The number of attempts of a send, and the errors after which it is retried: pure rules.

RocketMQ: DefaultMQProducerImpl.sendDefaultImpl, sendSelectImpl, MQClientAPIImpl.onExceptionImpl.
"""

from typing import Final

from mqdb.errors import BrokerUnavailable, IllegalState, MqdbError, ResponseCode
from mqdb_client.producer.config import ProducerConfig
from mqdb_client.producer.queues.queue_choice import ANYWHERE, Target
from mqdb_client.producer.sends.send_hooks import SendMode

#: The errors after which a sync send is retried. Source: DefaultMQProducer.retryResponseCodes.
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


def most_tries(mode: SendMode, target: Target, config: ProducerConfig) -> int:
    """The maximum number of attempts of a send."""
    match mode:
        case SendMode.SYNC if target is ANYWHERE:
            return 1 + config.retry_times_when_send_failed
        case SendMode.ASYNC:
            return 1 + config.retry_times_when_send_async_failed
        case _:
            return 1


def is_retryable(mode: SendMode, error: MqdbError) -> bool:
    """Whether another attempt may have a different outcome."""
    if isinstance(error, BrokerUnavailable):
        return True
    return mode is SendMode.SYNC and error.code in RETRY_RESPONSE_CODES and not isinstance(error, IllegalState)
