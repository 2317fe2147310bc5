"""Leftovers: messages that were popped and not acknowledged in a group that pulls by now.

They come again as those that a group failed to consume while it pulled: by its retry topic, or they are dead. The
members of the group have read on behind them since the change.
"""

import logging
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection

from mqdb.broker.consumers.pull import PullRequest, pull
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

_AT_ONCE = Retry(delay=timedelta(0))


@translates
def return_leftovers(connection: Connection) -> int:
    """Send back what is due, a batch of each group; returns how many messages. For the owner of the schema only.

    A group whose messages cannot be sent back now is tried again the next time, and delays no other.
    """
    count = 0
    for group in pop_batches.groups_with_leftovers(connection):
        try:
            with transaction(connection):
                leftovers = pop_batches.take_leftovers(connection, group)
                _send_back(connection, group, leftovers)
                count += len(leftovers)
        except BrokerUnavailable:
            raise
        except MqdbError as error:
            fields = {"group": group, "reason": str(error)}
            logger.warning("messages that were popped cannot be sent back to a group that pulls", extra=fields)
    return count


def _send_back(connection: Connection, group: str, leftovers: Sequence[Leftover]) -> None:
    broker_name, now = broker_info(connection).broker_name, datetime.now(UTC)
    by_place = {(each.queue_key, each.queue_offset): each for each in leftovers}
    requests = [
        PullRequest(MessageQueue(each.topic, broker_name, each.queue_id), *place, each.segment)
        for place, each in by_place.items()
    ]
    failed: list[SendBackRequest] = []
    for result in pull(connection, requests, limit=1)[0]:
        request = result.request
        if not result.messages:
            fields = {"group": group, "queue": str(request.queue), "offset": request.offset}
            logger.warning("retention has dropped a message in flight", extra=fields)
        for message in result.messages:
            leftover = by_place[request.queue_key, request.offset]
            deliveries = message.reconsume_times + leftover.attempt
            failure = Failure.unacknowledged(leftover.client_id, now, deliveries)
            place = message.log_pos, message.queue, message.queue_offset
            failed.append(SendBackRequest(*place, failure, _AT_ONCE, deliveries - 1))
    send_back(connection, group, failed)
