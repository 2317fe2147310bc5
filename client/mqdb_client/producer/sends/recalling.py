"""Recall: a sender takes a message back before its time of delivery. RocketMQ: DefaultMQProducerImpl.recallMessage."""

import time
from collections.abc import Mapping
from functools import partial

from mqdb.broker.schedule import timers
from mqdb.broker.schedule.timers import RecallStatus
from mqdb.common.recall_handle import decode_handle
from mqdb.errors import BrokerUnavailable, RecallHandleInvalid
from mqdb_client.producer.append.broker_link import BrokerLink


def recall(links: Mapping[str, BrokerLink], handle: str, timeout_seconds: float) -> RecallStatus:
    """Have the broker of a handle take the message back.

    Raises what `mqdb.broker.schedule.timers.recall` raises, RecallHandleInvalid for another broker than these, and
    BrokerUnavailable when it does not answer in time: whether the message was taken back is open then.
    """
    name = decode_handle(handle).broker_name
    link = links.get(name)
    if link is None:
        raise RecallHandleInvalid(handle, f"is of broker {name!r}; this producer has {', '.join(sorted(links))}")
    late = BrokerUnavailable(link.instance.target, f"no answer within {timeout_seconds:g} s")
    return link.ask(partial(timers.recall, handle=handle), time.monotonic() + timeout_seconds, late)
