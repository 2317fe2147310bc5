"""Request and reply: a message that is answered by a second message to the process that sent the first message.

    requester ── request ──▶ its topic ──▶ a consumer's listener
        ▲                                        │ producer.send(create_reply_message(request, ...))
        └── reply reader ◀── <CLUSTER>_REPLY_TOPIC, tag = the requester's client id

A request is a plain message whose properties name the requester and the timeout; a reply is a plain message, too.
RocketMQ: DefaultMQProducerImpl.request, MessageUtil.createReplyMessage.
"""

import copy
import logging
import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Final

from mqdb.common.clock import Clock
from mqdb.common.message import Message
from mqdb.common.property import Property
from mqdb.common.received_message import ReceivedMessage
from mqdb.common.topic import reply_topic
from mqdb.errors import ParameterInvalid, ReplyImpossible
from mqdb_client.producer.append.broker_link import BrokerLink
from mqdb_client.producer.requests.reply_reader import ReplyReader
from mqdb_client.producer.requests.request_futures import RequestFutures, WaitingRequest
from mqdb_client.producer.sends.send_result import SendResult

logger = logging.getLogger(__name__)

# Source: MixAll.REPLY_MESSAGE_FLAG.
_REPLY: Final = "reply"

_MILLISECOND: Final = timedelta(milliseconds=1)

_NO_PROPERTIES: Final[Mapping[str, str]] = {}


@dataclass(frozen=True, slots=True, init=False, repr=False)
class ReplyMessage(Message):
    """A reply with its request: a role that does not own the broker can only reply to requests that it may read."""

    request: ReceivedMessage = field(compare=False)

    def __init__(
        self,
        topic: str,
        body: bytes | str,
        tag: str | None = None,
        keys: Iterable[str] | str = (),
        properties: Mapping[str, str] = _NO_PROPERTIES,
        flag: int = 0,
        system_properties: Mapping[str, str] = _NO_PROPERTIES,
        *,
        request: ReceivedMessage,
    ) -> None:
        Message.__init__(self, topic, body, tag, keys, properties, flag, system_properties)
        object.__setattr__(self, "request", request)


def create_reply_message(
    request: ReceivedMessage,
    body: bytes | str,
    *,
    keys: Iterable[str] | str = (),
    properties: Mapping[str, str] = _NO_PROPERTIES,
) -> ReplyMessage:
    """Make the reply to a request. The reply is sent like any message, by any producer of the cluster.

    A role that does not own the broker has to send the reply through a producer of the broker that has the request, as
    a single message and not in the caller's transaction. The role has to be a member of a group, and to have read the
    request. Raises ReplyImpossible if the message was sent without a request for a reply. Source:
    MessageUtil.createReplyMessage.
    """
    if not isinstance(request, ReceivedMessage):
        raise ReplyImpossible(f"{type(request).__name__} is not a received message; a listener gets a list of them")
    cluster_name = _property_of(request, Property.CLUSTER)
    client_id = _property_of(request, Property.REPLY_TO_CLIENT)
    system = {
        Property.MSG_TYPE.value: _REPLY,
        Property.CORRELATION_ID.value: _property_of(request, Property.CORRELATION_ID),
        Property.REPLY_TO_CLIENT.value: client_id,
    }
    if Property.TTL in request.properties:
        system[Property.TTL.value] = request.properties[Property.TTL]
    return ReplyMessage(reply_topic(cluster_name), body, client_id, keys, properties, 0, system, request=request)


def _property_of(request: ReceivedMessage, name: Property) -> str:
    value = request.properties.get(name)
    if not value:
        reason = f"message {request.message_id} has no property {name}; it was not sent with Producer.request"
        raise ReplyImpossible(reason)
    return value


class RequestReply:
    """The requests of one producer. Thread-safe; the first request creates the threads and the reply topic.

    Producers in a process that share client instances also share a client id: each producer reads all replies to that
    client, and keeps only the replies to its own requests.
    """

    def __init__(self, links: Sequence[BrokerLink], clock: Clock) -> None:
        """`links` lead to all brokers of the cluster; they are closed after this object."""
        self._links = links
        self._clock = clock
        self._client_id = links[0].instance.client_id
        self._futures = RequestFutures()
        self._news = threading.Condition()
        self._readers: tuple[ReplyReader, ...] = ()

    def request(
        self, message: Message, timeout: timedelta, send: Callable[[Message, timedelta], object]
    ) -> ReceivedMessage:
        """Send a message with `send`, which gets the remaining time, and return its reply.

        Raises RequestTimeout; the errors of `send`; ParameterInvalid for an invalid timeout; IllegalState if the
        producer is shut down during the wait; BrokerUnavailable and its subclasses, StorageRefused and NameInvalid if
        replies cannot be read from any broker. If replies cannot be read, nothing is sent.
        """
        waiting = self._wait_for_reply(message, timeout)
        try:
            send(self._request(message, timeout, waiting), waiting.time_left())
            return waiting.result()
        finally:
            self._futures.discard(waiting)

    def request_async(
        self, message: Message, timeout: timedelta, send: Callable[[Message, timedelta], "Future[SendResult]"]
    ) -> "Future[ReceivedMessage]":
        """Send a request without waiting for the reply. The future has the reply or the error, and cannot be cancelled.

        One thread completes these futures, so callbacks should be quick; they may send another request and wait for its
        reply. The first request waits until replies can be read from a broker, and raises the error that prevents it.
        """
        waiting = self._wait_for_reply(message, timeout, is_async=True)
        try:
            sending = send(self._request(message, timeout, waiting), waiting.time_left())
        except BaseException:
            self._futures.discard(waiting)
            raise
        sending.add_done_callback(partial(self._sent, waiting))
        return waiting.future

    def close(self) -> None:
        """End all requests with IllegalState, then end the threads. Waits for callbacks unless called by a callback.

        Calling it twice has no effect.
        """
        self._futures.close()
        with self._news:
            self._news.notify_all()
            readers = self._readers
        self._futures.join()
        for reader in readers:
            reader.stop()

    # -- how it is done -------------------------------------------------------------------------

    def _wait_for_reply(self, message: Message, timeout: timedelta, *, is_async: bool = False) -> WaitingRequest:
        check_timeout(timeout)
        waiting = WaitingRequest(message.topic, timeout, is_async=is_async)
        self._futures.add(waiting)
        return waiting

    def _request(self, message: Message, timeout: timedelta, waiting: WaitingRequest) -> Message:
        """Wait until replies can be read, and return the message to send."""
        reader = self._await_reader(waiting)
        return message.with_system_properties(
            {
                Property.CORRELATION_ID.value: waiting.correlation_id,
                Property.REPLY_TO_CLIENT.value: reader.address,
                Property.TTL.value: str(math.ceil(timeout / _MILLISECOND)),
                Property.CLUSTER.value: reader.cluster_name,
            }
        )

    def _await_reader(self, waiting: WaitingRequest) -> ReplyReader:
        """A reader that is ready: the reply topic exists, and no reply can be missed.

        Raises the error of the brokers if no broker can be used; RequestTimeout; IllegalState after `close`.
        """
        readers = self._started_readers()
        for reader in readers:
            reader.read()
        with self._news:
            while (ready := next((reader for reader in readers if reader.is_ready), None)) is None:
                self._futures.check_open()
                troubles = [reader.trouble for reader in readers if reader.trouble is not None]
                if len(troubles) == len(readers):
                    raise copy.copy(troubles[0]) from troubles[0].__cause__
                if not waiting.seconds_left:
                    raise waiting.late()
                self._news.wait(waiting.seconds_left)
        for reader in readers:
            reader.is_late = True
        return ready

    def _started_readers(self) -> tuple[ReplyReader, ...]:
        with self._news:
            self._futures.check_open()
            if not self._readers:
                self._readers = tuple(self._reader(link) for link in self._links)
            return self._readers

    def _reader(self, link: BrokerLink) -> ReplyReader:
        return ReplyReader(
            link,
            self._client_id,
            is_wanted=lambda: len(self._futures) > 0,
            deliver=self._deliver,
            on_news=self._tell_news,
        )

    def _tell_news(self) -> None:
        with self._news:
            self._news.notify_all()

    def _deliver(self, reply: ReceivedMessage) -> None:
        now_ms = self._clock.now().timestamp() * 1000
        reply.properties[Property.ARRIVE_TIME.value] = str(round(now_ms))
        correlation_id = reply.properties.get(Property.CORRELATION_ID, "")
        if not self._futures.end(correlation_id, reply):
            fields = {"correlation_id": correlation_id, "message_id": reply.message_id}
            logger.debug("dropped a reply without a waiting request", extra=fields)

    def _sent(self, waiting: WaitingRequest, sending: "Future[SendResult]") -> None:
        error = sending.exception()
        if error is not None:
            self._futures.end(waiting.correlation_id, error)


def check_timeout(timeout: object) -> None:
    """Raise ParameterInvalid if a timeout is invalid."""
    if not isinstance(timeout, timedelta) or timeout <= timedelta(0):
        raise ParameterInvalid("timeout", timeout, "must be a timedelta of more than 0")
