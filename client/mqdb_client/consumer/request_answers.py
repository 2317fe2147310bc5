"""Request answers: a consumer answers requests that people send through a broker, while it continues to consume.

    NOTIFY c:<client id> ──▶ notification thread ──▶ the thread here ──▶ a thread for each request ──▶ answer

A listener that hangs in a directly consumed message blocks neither the next request nor anything else, until
MAX_REQUESTS listeners hang in one client: further requests then wait as rows. RocketMQ: ClientRemotingProcessor.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from sqlalchemy import Connection

from mqdb.broker.clients import client_requests
from mqdb.broker.clients.client_requests import RequestKind
from mqdb.broker.log import messages
from mqdb.common.message import MessageQueue
from mqdb.common.received_message import ReceivedMessage
from mqdb.common.user_error import log_error, reason_of
from mqdb.errors import MqdbError, NotSupported, ParameterInvalid
from mqdb.store.clients.client_requests import ClientRequest
from mqdb_client.callbacks import Callback, CallbackHandle
from mqdb_client.consumer.listeners.direct_consumption import ConsumeMessageDirectlyResult
from mqdb_client.outage import Outage

logger = logging.getLogger(__name__)

T = TypeVar("T")

_RETRY_SECONDS: Final = 1.0


class AnswersRequests(Protocol):
    """The requests that a consumer answers. Separate threads call these methods, several at a time."""

    def describe(self) -> dict[str, Any]:
        """The status of the consumer, as JSON types.

        The keys are `state`; `queues`, a list with `queue`, `next_offset`, `in_hand` and other facts about each queue;
        and `listeners`, a list of the calls that have not returned, with `thread`, `seconds`, `queue`, `queue_offset`,
        `messages` and `stack`. Other numbers and strings are shown unchanged.
        """

    def consume_directly(self, message: ReceivedMessage) -> ConsumeMessageDirectlyResult:
        """Call the listener with the message, without an effect on offsets and retries."""


class Asked(Protocol):
    """The part of ClientInstance that is needed here."""

    client_id: str
    broker_name: str
    request_slots: threading.BoundedSemaphore
    outage: Outage

    def connect(self) -> Connection:
        """A connection in AUTOCOMMIT mode, as a context manager."""

    def on_request(self, callback: "Callback[frozenset[str] | None]") -> CallbackHandle:
        """Call `callback` when there may be a request."""


#: Makes an answer from the arguments of a request. An MqdbError is an answer, too.
Answer: TypeAlias = Callable[[Mapping[str, Any]], Mapping[str, Any]]


class RequestAnswers:
    """The answers of one consumer to one broker. RequestAnswers is started once, then stopped once."""

    def __init__(self, instance: Asked, group: str, consumer: AnswersRequests) -> None:
        self._instance = instance
        self._group = group
        self._consumer = consumer
        self._answers: dict[str, Answer] = {
            RequestKind.STATUS: lambda _: consumer.describe(),
            RequestKind.CONSUME_DIRECTLY: self._consume_directly,
        }
        self._in_progress: set[int] = set()
        self._guard = threading.Lock()
        #: Held while connected, so that a flood of requests uses only one connection.
        self._connecting = threading.Lock()
        self._wake = threading.Event()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name=f"mqdb-{group}-requests", daemon=True)

    def start(self) -> None:
        """Answer requests from now on, including earlier requests."""
        self._thread.start()
        self._callback = self._instance.on_request(lambda _: self._wake.set())
        self._wake.set()

    def stop(self) -> None:
        """Stop taking requests. A listener may still be consuming a message of an earlier request."""
        self._callback.cancel()
        self._is_stopping = True
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        retry_seconds: float | None = None
        while True:
            self._wake.wait(retry_seconds)
            self._wake.clear()
            if self._is_stopping:
                self._instance.outage.leave(self)
                return
            try:
                # Another consumer of this client may hold all slots, and does not announce when it frees one.
                retry_seconds = None if self._begin_all() else _RETRY_SECONDS
                self._instance.outage.works(self)
            except Exception as error:
                if not self._instance.outage.covers(self, error) and retry_seconds is None:
                    unexpected = None if isinstance(error, MqdbError) else error
                    fields = {"group": self._group, "reason": str(error)}
                    sentence = "could not read requests to group %(group)s; will retry: %(reason)s"
                    logger.warning(sentence, fields, extra=fields, exc_info=unexpected)
                retry_seconds = _RETRY_SECONDS

    def _begin_all(self) -> bool:
        """Start the waiting requests. Returns True if all were started, and False if no slot was left."""
        slots = self._instance.request_slots
        while slots.acquire(blocking=False):
            begun = False
            try:
                begun = self._begin_oldest()
            finally:
                if not begun:
                    slots.release()
            if not begun:
                return True
        return False

    def _begin_oldest(self) -> bool:
        with self._guard:
            in_progress = list(self._in_progress)
        with self._connecting, self._instance.connect() as connection:
            client_id = self._instance.client_id
            waiting = client_requests.open_requests(connection, client_id, self._group, in_progress, limit=1)
        for request in waiting:
            # Held until the request is noted, because it may be done before.
            with self._guard:
                name = f"mqdb-{self._group}-request-{request.request_id}"
                threading.Thread(target=self._take, args=(request,), name=name, daemon=True).start()
                self._in_progress.add(request.request_id)
        return bool(waiting)

    def _take(self, request: ClientRequest) -> None:
        fields = {"group": self._group, "kind": request.kind, "request_id": request.request_id}
        answered = False
        try:
            self._reply(request)
            answered = True
            logger.debug("answered a request", extra=fields)
        except MqdbError as error:
            fields["reason"] = str(error)
            sentence = "could not answer request %(request_id)s (%(kind)s) to group %(group)s: %(reason)s"
            logger.warning(sentence, fields, extra=fields)
        except Exception:
            sentence = "could not answer request %(request_id)s (%(kind)s) to group %(group)s"
            logger.exception(sentence, fields, extra=fields)
        finally:
            with self._guard:
                self._in_progress.discard(request.request_id)
            self._instance.request_slots.release()
        if answered:
            # For requests that wait for a slot. A request that could not be answered would fail again immediately.
            self._wake.set()

    def _reply(self, request: ClientRequest) -> None:
        """Answer a request. If this raises, there is no answer, and the request times out."""
        reason = ""
        result: Mapping[str, Any] = {}
        try:
            result = self._answer_to(request)
        except MqdbError as error:
            reason = str(error)
        except Exception as error:  # noqa: BLE001 - an internal error, which is also the answer
            fields = {"group": self._group, "kind": request.kind, "request_id": request.request_id}
            log_error(logger, "request %(request_id)s (%(kind)s) to group %(group)s failed", error, fields)
            reason = reason_of(error)
        with self._connecting, self._instance.connect() as connection:
            if reason:
                client_requests.refuse(connection, request.request_id, reason)
            else:
                client_requests.answer(connection, request.request_id, result)

    def _answer_to(self, request: ClientRequest) -> Mapping[str, Any]:
        answer = self._answers.get(request.kind)
        if answer is None:
            raise NotSupported(f"request {request.kind!r}")
        return answer(request.arguments)

    def _consume_directly(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        broker_name = self._instance.broker_name
        with self._connecting, self._instance.connect() as connection:
            if "log_pos" in arguments:
                copy = messages.locate(connection, _argument(arguments, "log_pos", int))
                message = messages.read_copy(connection, broker_name, copy)
            else:
                topic, queue_id = _argument(arguments, "topic", str), _argument(arguments, "queue_id", int)
                where = MessageQueue(topic, broker_name, queue_id)
                message = messages.read_message(connection, where, _argument(arguments, "queue_offset", int))
        return asdict(self._consumer.consume_directly(message))


def _argument(arguments: Mapping[str, Any], name: str, type_: type[T]) -> T:
    """Check and return an argument: any role with rights on the table may have written the request."""
    value = arguments.get(name)
    if not isinstance(value, type_):
        raise ParameterInvalid(name, value, f"must be {type_.__name__}")
    return value
