"""Recall: a sender withdraws a message before its time of delivery. RocketMQ: DefaultMQProducerImpl.recallMessage."""

import time
from collections.abc import Mapping
from functools import partial

from mqdb.broker.schedule import timers
from mqdb.broker.schedule.timers import RecallStatus
from mqdb.common.recall_handle import decode_handle
from mqdb.errors import BrokerUnavailable, RecallHandleInvalid
from mqdb_client.producer.append.broker_link import BrokerLink


def recall(links: Mapping[str, BrokerLink], handle: str, timeout_seconds: float) -> RecallStatus:
    """Recall the message of a handle, on the handle's broker.

    Raises the errors of `mqdb.broker.schedule.timers.recall`, RecallHandleInvalid for a broker that is not in `links`,
    and BrokerUnavailable if the broker does not answer in time: it is then unknown whether the message was recalled.
    """
    name = decode_handle(handle).broker_name
    link = links.get(name)
    if link is None:
        raise RecallHandleInvalid(handle, f"is of broker {name!r}; this producer has {', '.join(sorted(links))}")
    late = BrokerUnavailable(link.instance.target, f"no answer within {timeout_seconds:g} s")
    return link.ask(partial(timers.recall, handle=handle), time.monotonic() + timeout_seconds, late)
