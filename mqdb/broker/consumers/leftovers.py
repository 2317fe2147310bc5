"""Leftovers: messages that were popped and not acknowledged in a group that now pulls.

Leftovers are handled like failed messages of a pulling group: they are redelivered through its retry topic, or become
dead letters. The group's members have read past them since the change.
"""

import logging
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from sqlalchemy import Connection

from mqdb.broker.consumers.in_flight import read_in_flight
from mqdb.broker.consumers.pull import PullRequest
from mqdb.broker.consumers.send_back import SendBackRequest, send_back
from mqdb.broker.log.query import broker_info
from mqdb.common.failure import Failure
from mqdb.common.message import MessageQueue
from mqdb.common.retry import Retry
from mqdb.errors import BrokerUnavailable, MqdbError
from mqdb.store.consumers import pop_batches
from mqdb.store.consumers.pop_batches import Leftover
from mqdb.store.engine import transaction, translates

logger = logging.getLogger(__name__)

_AT_ONCE: Final = Retry(delay=timedelta(0))


#: The number of batches of one group at a time, so that it does not delay others. Each batch has up to 64 messages.
_MOST_BATCHES: Final = 64


@translates
def return_leftovers(connection: Connection) -> int:
    """Send back due messages, up to 4,096 per group; returns their number. Only for the owner of the schema.

    If a group's messages cannot be sent back now, the next call tries again.
    """
    count = 0
    for group in pop_batches.groups_with_leftovers(connection):
        try:
            for _ in range(_MOST_BATCHES):
                if not (returned := _return_batch(connection, group)):
                    break
                count += returned
        except BrokerUnavailable:
            raise
        except MqdbError as error:
            fields = {"group": group, "reason": str(error)}
            sentence = "could not send popped messages back to group %(group)s, which pulls; will retry: %(reason)s"
            logger.warning(sentence, fields, extra=fields)
    return count


@translates
def _return_batch(connection: Connection, group: str) -> int:
    with transaction(connection):
        leftovers = pop_batches.take_leftovers(connection, group)
        _send_back(connection, group, leftovers)
    return len(leftovers)


def _send_back(connection: Connection, group: str, leftovers: Sequence[Leftover]) -> None:
    broker_name, now = broker_info(connection).broker_name, datetime.now(UTC)
    queues = (MessageQueue(each.topic, broker_name, each.queue_id) for each in leftovers)
    places = {
        PullRequest(queue, each.queue_key, each.queue_offset, each.segment): each
        for queue, each in zip(queues, leftovers, strict=True)
    }
    failed: list[SendBackRequest] = []
    for request, message in read_in_flight(connection, group, list(places)).items():
        leftover = places[request]
        deliveries = message.reconsume_times + leftover.attempt
        failure = Failure.unacknowledged(leftover.client_id, now, deliveries)
        place = message.log_pos, message.queue, message.queue_offset
        failed.append(SendBackRequest(*place, failure, _AT_ONCE, deliveries - 1))
    send_back(connection, group, failed)
