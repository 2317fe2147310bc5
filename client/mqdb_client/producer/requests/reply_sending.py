"""Replies by a role that does not own the broker: no right covers the reply topic, so a database function sends them.

The function looks up the request, so a reply goes to the broker from which the request was read.
"""

import logging
import time
from collections.abc import Mapping
from concurrent.futures import Future
from functools import partial

from mqdb.broker.log import replies
from mqdb.broker.log.replies import Reply
from mqdb.common.clock import Clock
from mqdb.common.message import MessageQueue, SendStatus
from mqdb.common.property import KEY_SEPARATOR
from mqdb.common.unique_id import UniqueIdGenerator, format_unique_id, parse_unique_id
from mqdb.errors import BrokerUnavailable, MqdbError, NotSupported
from mqdb.store.acl import is_guest
from mqdb_client.producer.append.broker_link import BrokerLink
from mqdb_client.producer.requests.request_reply import ReplyMessage
from mqdb_client.producer.sends.send_result import SendResult

logger = logging.getLogger(__name__)


class ReplySending:
    """The replies of one producer. Thread-safe."""

    def __init__(
        self, links: Mapping[str, BrokerLink], unique_ids: UniqueIdGenerator, clock: Clock, born_host: str
    ) -> None:
        self._links = links
        self._unique_ids = unique_ids
        self._clock = clock
        self._born_host = born_host
        self._are_guests: dict[str, bool] = {}

    def send(self, message: ReplyMessage, timeout_seconds: float) -> SendResult | None:
        """Send a reply; None if the role owns the broker, so the reply has to be sent like other messages.

        Raises the errors of `mqdb.broker.log.replies.send`, and BrokerUnavailable. After BrokerUnavailable, the reply
        may be stored; it can be sent again, because its requester accepts only one reply.
        """
        name = message.request.queue.broker_name
        link = self._links.get(name)
        if link is None:
            return None
        deadline = time.monotonic() + timeout_seconds
        late = BrokerUnavailable(link.instance.target, f"no answer within {timeout_seconds:g} s")
        if name not in self._are_guests:
            self._are_guests[name] = link.ask(is_guest, deadline, late)
        if not self._are_guests[name]:
            return None
        born_time = self._clock.now()
        [unique_id] = self._unique_ids.take(1, born_time)
        reply = Reply(
            message.request.log_pos,
            parse_unique_id(message.request.message_id),
            unique_id,
            born_time,
            self._born_host,
            KEY_SEPARATOR.join(message.keys) or None,
            message.properties,
            message.body,
            message.flag,
        )
        log_pos, queue_id = link.ask(partial(replies.send, reply=reply), deadline, late)
        queue = MessageQueue(message.topic, name, queue_id)
        return SendResult(SendStatus.SEND_OK, format_unique_id(unique_id), queue, log_pos, _no_offset)

    def send_async(self, message: ReplyMessage, timeout_seconds: float) -> "Future[SendResult] | None":
        """Send a reply in this thread; returns a completed future with the result or the error. See `send`."""
        done: Future[SendResult] = Future()
        try:
            sent = self.send(message, timeout_seconds)
        except MqdbError as error:
            done.set_exception(error)
            return done
        if sent is None:
            return None
        done.set_result(sent)
        return done

    def send_oneway(self, message: ReplyMessage, timeout_seconds: float) -> bool:
        """Send a reply and only log a failure. Returns False if the reply has to be sent like other messages."""
        sending = self.send_async(message, timeout_seconds)
        if sending is not None and (error := sending.exception()) is not None:
            fields = {"topic": message.topic, "reason": str(error)}
            logger.warning("oneway reply to topic %(topic)s failed: %(reason)s", fields, extra=fields)
        return sending is not None


def _no_offset() -> int:
    raise NotSupported("the queue offset of a reply, for a role that does not own the broker")
