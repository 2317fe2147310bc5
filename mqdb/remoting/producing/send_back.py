"""Messages that a client failed to consume: code 36, and messages that it sends to its group's retry topic itself.

    36                        the front copies the message to its delay level, or to the DLQ
    10, 310 to %RETRY%group   the client has made the copy: orderly consumers at their limit, and others if 36 fails

RocketMQ: AbstractSendMessageProcessor.consumerSendMsgBack, handleRetryAndDLQ.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Final

from sqlalchemy import Connection as DatabaseConnection

from mqdb.broker.consumers.send_back import SendBackRequest, send_back
from mqdb.broker.log.messages import locate
from mqdb.broker.log.query import queue_offset_of
from mqdb.broker.topics.route import find_or_create_dlq_topic
from mqdb.common.failure import Failure
from mqdb.common.group import check_group_name
from mqdb.common.message import MessageQueue
from mqdb.common.property import Property
from mqdb.common.retry import Retry
from mqdb.common.topic import RETRY_PREFIX
from mqdb.errors import GroupNotFound, MessageGone
from mqdb.fronts.access_keys import topic_right
from mqdb.fronts.database import Database
from mqdb.remoting.session.access import FrameAccess
from mqdb.remoting.session.connection import Connection
from mqdb.remoting.wire.answers import Answer
from mqdb.remoting.wire.frame import Frame
from mqdb.store.acl import Access
from mqdb.store.consumers.groups import find as find_group
from mqdb.store.consumers.queue_locks import has_locks
from mqdb.store.topics.topics import TopicRoute

_NO_LIMIT: Final = -1


class SendBack:
    """Takes back messages that a front's clients failed to consume."""

    def __init__(self, database: Database, access: FrameAccess) -> None:
        self._database = database
        self._access = access
        self._instance = database.instance

    async def send_back(self, connection: Connection, frame: Frame) -> Answer:
        """Code 36: schedule a message for retry, or store it as a dead letter.

        Raises the errors of `mqdb.broker.consumers.send_back`.

        The access key needs the right to read the message's topic, too, because the copy is for members of the group.
        """
        group, log_pos = frame.text("group"), frame.number("offset")
        most = frame.number("maxReconsumeTimes", _NO_LIMIT)
        retry = Retry(frame.number("delayLevel"), max_reconsume_times=None if most == _NO_LIMIT else most)
        failure = _failure(connection)
        if self._access.are_asked_for:
            topic = (await self._database.run(partial(locate, log_pos=log_pos))).topic
            await self._access.require(frame, topic_right(Access.READ, topic))
        await self._database.run(partial(self._send_back, group=group, log_pos=log_pos, failure=failure, retry=retry))
        return Answer()

    def _send_back(
        self, connection: DatabaseConnection, group: str, log_pos: int, failure: Failure, retry: Retry
    ) -> None:
        copy = locate(connection, log_pos)
        queue = MessageQueue(copy.topic, self._instance.broker_name, copy.queue_id)
        queue_offset = queue_offset_of(connection, copy.queue_key, log_pos)
        if queue_offset is None:  # it cannot have been consumed
            raise MessageGone(str(queue), 0, log_pos)
        send_back(connection, group, [SendBackRequest(log_pos, queue, queue_offset, failure, retry)])

    async def dead_letters(self, topic: str, reconsume_times: int, most: int | None) -> TopicRoute | None:
        """The DLQ, if a message that a client sends to a retry topic has failed too often; None if it is retried.

        Raises GroupNotFound, NameInvalid. An orderly consumer of 4.9.8 sends its last failure with the maximum number
        of failures; one of 5.x, and consumers that are not orderly, send it with one more.
        """
        group = topic.removeprefix(RETRY_PREFIX)
        check_group_name(group)
        return await self._database.run(partial(_dead_letters, group=group, reconsume_times=reconsume_times, most=most))


def _dead_letters(
    connection: DatabaseConnection, group: str, reconsume_times: int, most: int | None
) -> TopicRoute | None:
    config = find_group(connection, group)
    if config is None:
        raise GroupNotFound(group)
    limit = config.retry_max_times if most is None or most == _NO_LIMIT else most
    if reconsume_times > limit or (reconsume_times == limit and has_locks(connection, group)):
        return find_or_create_dlq_topic(connection, group)
    return None


def dead_properties(connection: Connection, properties: Mapping[str, str], attempt: int) -> dict[str, str]:
    """The properties of a dead letter that a client has sent, with the client that failed it and without a delay."""
    own = {name: value for name, value in properties.items() if name != Property.DELAY}
    return own | _failure(connection).properties(attempt)


def _failure(connection: Connection) -> Failure:
    return Failure.later(connection.client_id or connection.peer, datetime.now(UTC))
