"""Messages: find the stored copies of a message, and read one of them."""

import time
from typing import Final, NamedTuple
from uuid import UUID

from sqlalchemy import Connection, select

from mqdb.broker.consumers.pull import PullRequest, pull
from mqdb.broker.dispatch import index_keys
from mqdb.broker.log import query
from mqdb.common.message import MessageQueue
from mqdb.common.received_message import ReceivedMessage
from mqdb.common.topic import HALF_TOPIC, SCHEDULE_TOPIC
from mqdb.errors import DispatchTimeout, ParameterInvalid, QueueNotFound, TopicNotFound
from mqdb.store.engine import transaction, translates
from mqdb.store.log import message_index
from mqdb.store.server_state import can_write
from mqdb.store.tables import commit_log, queue, topic
from mqdb.store.topics import topics
from mqdb.store.topics.topics import TopicRoute

#: Dispatch takes place within milliseconds if `mqdb serve` runs.
_DISPATCH_SECONDS: Final = 2.0
_LOOK_SECONDS: Final = 0.01


class StoredCopy(NamedTuple):
    """A record of a message. A delayed, retried or dead message has several records with the same unique id."""

    topic: str
    queue_id: int
    queue_key: int
    log_pos: int


@translates
def find_copies(connection: Connection, unique_id: UUID) -> list[StoredCopy]:
    """The consumable copies of a message, as they were stored; [] if there are no such copies.

    Copies that wait for a time or for the end of their transaction, and copies in deleted topics, are left out.
    """
    with transaction(connection):
        positions = [log_pos for _, log_pos, _ in message_index.find(connection, [unique_id], 0)]
        return [copy for position in sorted(positions) for copy in _at(connection, position)]


@translates
def find_by_key(connection: Connection, route: TopicRoute, key: str) -> list[StoredCopy]:
    """The messages with a key in the readable queues of a topic, in the order in which they were stored.

    First brings the key index up to date, which takes long if no `mqdb serve` has run for a long time. A read-only
    session, as on a standby, finds only keys that are already indexed.
    RocketMQ: QueryMessageProcessor.
    """
    if can_write(connection):
        while index_keys(connection).more:
            pass
    # A topic whose number of queues was reduced keeps the messages of the other queues.
    ids = {queue_key: queue_id for queue_id, queue_key in enumerate(route.read_queue_keys)}
    with transaction(connection):
        found = message_index.find_key(connection, route.topic_id, key)
    return [StoredCopy(route.config.name, ids[each], each, log_pos) for log_pos, each in found if each in ids]


@translates
def locate(connection: Connection, log_pos: int) -> StoredCopy:
    """The copy at a position. Raises ParameterInvalid if there is no consumable message."""
    copies = _at(connection, log_pos)
    if not copies:
        raise ParameterInvalid("log_pos", log_pos, "there is no message that can be consumed")
    return copies[0]


def read_copy(connection: Connection, broker_name: str, copy: StoredCopy) -> ReceivedMessage:
    """The message as consumers get it. Waits for dispatch, and raises DispatchTimeout if that takes too long."""
    ends = time.monotonic() + _DISPATCH_SECONDS
    while (offset := query.queue_offset_of(connection, copy.queue_key, copy.log_pos)) is None:
        if time.monotonic() >= ends:
            raise DispatchTimeout(copy.topic, copy.log_pos, _DISPATCH_SECONDS)
        # For people who look at very recent messages; consumers do not use this.
        time.sleep(_LOOK_SECONDS)
    return read_message(connection, MessageQueue(copy.topic, broker_name, copy.queue_id), offset)


@translates
def read_message(connection: Connection, where: MessageQueue, offset: int) -> ReceivedMessage:
    """The message at an offset.

    Raises TopicNotFound, QueueNotFound; ParameterInvalid for an offset without a message.
    """
    route = topics.existing_topic(connection, where.topic)
    if not 0 <= where.queue_id < len(route.queue_keys):
        raise QueueNotFound(where.topic, where.queue_id, len(route.queue_keys))
    results, _ = pull(connection, [PullRequest(where, route.queue_keys[where.queue_id], offset)], limit=1)
    if not results:
        raise TopicNotFound(where.topic)  # it was deleted in the meantime
    (result,) = results
    if not result.messages:
        reason = f"queue {where} has offsets {result.min_offset} to before {result.max_offset}"
        raise ParameterInvalid("queue_offset", offset, reason)
    return result.messages[0]


def _at(connection: Connection, log_pos: int) -> list[StoredCopy]:
    rows = connection.execute(
        select(topic.c.topic, queue.c.queue_id, queue.c.queue_key, commit_log.c.log_pos)
        .join_from(commit_log, queue, queue.c.queue_key == commit_log.c.queue_key)
        .join(topic, topic.c.topic_id == queue.c.topic_id)
        .where(commit_log.c.log_pos == log_pos, topic.c.topic.not_in((SCHEDULE_TOPIC, HALF_TOPIC)))
    )
    return [StoredCopy(*row) for row in rows]
