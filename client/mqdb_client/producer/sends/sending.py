"""Sending: the steps of a send until its messages are stored or given up.

    begin      an attempt: choose a queue, call the hooks
    append     the group append of the queue's broker makes and stores the records
    finish     the results                                         ── or ──
    judge      after a failure: decide whether and where to retry, or raise

An attempt without an answer may have stored the messages, and only its broker can tell. So the next attempt goes to the
same broker, after the backend has ended and the log has been searched for the messages. RocketMQ would store the
messages twice. RocketMQ: DefaultMQProducerImpl.sendDefaultImpl, MQClientAPIImpl.onExceptionImpl.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

from mqdb.broker.log.send import record
from mqdb.broker.schedule.recall_handles import recall_handle_of
from mqdb.common.compression import compressed
from mqdb.common.delivery_schedule import Half
from mqdb.common.durability import Durability
from mqdb.common.message import Message, MessageQueue, SendStatus, check_message
from mqdb.common.unique_id import UniqueIdGenerator, format_unique_id
from mqdb.errors import (
    BrokerUnavailable,
    MqdbError,
    SendGivenUp,
    SendOutcomeUnknown,
    TopicNotFound,
)
from mqdb.store.log.commit_log import LogPlace
from mqdb_client.producer.append.append_plan import NoAnswer, Unit
from mqdb_client.producer.append.broker_link import BrokerLink
from mqdb_client.producer.append.durability import status_of
from mqdb_client.producer.config import ProducerConfig
from mqdb_client.producer.queues.fault_tolerance import LatencyFaultTolerance
from mqdb_client.producer.queues.publish_routes import PublishRoutes
from mqdb_client.producer.queues.queue_choice import ANYWHERE, SendPlace, Target
from mqdb_client.producer.sends.batch import MessageBatch, check_batch_size
from mqdb_client.producer.sends.retry_policy import is_retryable, most_tries
from mqdb_client.producer.sends.send_hooks import Hooks, SendMessageContext, SendMode
from mqdb_client.producer.sends.send_result import SendResult
from mqdb_client.producer.sends.unknown import UnknownSends, settle

FindQueueOffset = Callable[[SendPlace, int, UUID, bool], int]


@dataclass(slots=True, eq=False)
class PendingSend:
    """One send from call to end: messages of one topic that are stored together, and the attempts so far.

    `began` and `deadline` are values of time.monotonic.
    """

    messages: Sequence[Message]
    id_generator: UniqueIdGenerator
    born_time: datetime
    target: Target
    mode: SendMode
    timeout_seconds: float
    began: float
    deadline: float
    #: Whether this is a half message, which waits for the end of its transaction.
    is_half: bool = False
    #: The broker of each attempt so far.
    brokers_sent: tuple[str, ...] = ()
    #: The queue of an attempt whose outcome had to be determined; the next attempt uses it, too.
    queue: MessageQueue | None = None
    #: The broker that failed last.
    avoid: str | None = None
    #: The results if the messages are stored without the requested durability; another attempt is under way.
    results: list[SendResult] | None = None
    #: Data that hooks keep over all attempts, if there are hooks.
    hook_attributes: dict[str, Any] | None = None
    _unique_ids: list[UUID] | None = field(default=None, init=False)

    @property
    def topic(self) -> str:
        """The topic of all messages of the send."""
        return self.messages[0].topic

    @property
    def unique_ids(self) -> list[UUID]:
        """The ids of the messages, in order; made on first use, and the same for all attempts."""
        if self._unique_ids is None:
            self._unique_ids = self.id_generator.take(len(self.messages), self.born_time)
        return self._unique_ids

    @property
    def message_ids(self) -> tuple[str, ...]:
        """The unique ids as readable strings."""
        return tuple(map(format_unique_id, self.unique_ids))


class Attempt(Unit):
    """One attempt of a send: its messages to one queue.

    An attempt has `results` and `status` once its messages are stored.
    """

    __slots__ = ("_sending", "began", "context", "pending", "place", "results", "status")

    results: list[SendResult]
    status: SendStatus

    def __init__(self, sending: "Sending", pending: PendingSend, place: SendPlace, is_patient: bool) -> None:
        super().__init__(place.queue.topic, pending.deadline, pending.timeout_seconds, is_patient)
        self._sending = sending
        self.pending = pending
        self.place = place
        self.began = time.monotonic()
        #: The context for hooks, if there are hooks.
        self.context: SendMessageContext | None = None

    def make_records(self, messages: Sequence[Message] | None = None) -> None:
        """Make the records of the messages of the send, or of `messages` instead. Raises BatchTooLarge."""
        pending, place, config, born_host = self.pending, self.place, self._sending.config, self._sending.born_host
        queue_key, history, born_time = place.queue_key, place.history, pending.born_time
        records = [
            record(message, queue_key, unique_id, born_time, born_host, history=history)
            for message, unique_id in zip(messages or pending.messages, pending.unique_ids, strict=True)
        ]
        if isinstance(pending.messages, MessageBatch):
            check_batch_size(records)
        elif config.compression is not None:
            threshold = config.compress_message_body_threshold_bytes
            body, sys_flag = compressed(records[0].body, config.compression, threshold)
            records[0] = records[0]._replace(body=body, sys_flag=sys_flag)
        if pending.is_half:
            records[0] = records[0]._replace(wait=Half())
        self.records = records

    def succeed(self, places: Sequence[LogPlace], status: SendStatus) -> None:
        place, find = self.place, self._sending.find_queue_offset
        waits = self.records[0].wait is not None
        self.results = [
            SendResult(
                status,
                format_unique_id(record.msg_id),
                place.queue,
                log_pos,
                partial(find, place, log_pos, record.msg_id, waits),
                queue_offset,
            )
            for record, (log_pos, queue_offset) in zip(self.records, places, strict=True)
        ]
        if waits:  # alone
            self.results[0].recall_handle = recall_handle_of(self.records[0], place.queue)
        self.status = status


class Sending:
    """The common part of all sends of a producer. Thread-safe."""

    def __init__(
        self,
        config: ProducerConfig,
        links: Mapping[str, BrokerLink],
        routes: PublishRoutes,
        hooks: Hooks,
        faults: LatencyFaultTolerance | None,
        born_host: str,
        client_id: str,
        find_queue_offset: FindQueueOffset,
    ) -> None:
        self.config = config
        self._links = tuple(links.values())
        self._is_single = len(self._links) == 1
        self._routes = routes
        self._hooks = hooks
        self._faults = faults
        self.born_host = born_host
        self._client_id = client_id
        self.find_queue_offset = find_queue_offset
        self.unknown = UnknownSends()

    def send(self, pending: PendingSend) -> list[SendResult]:
        """Retry until the messages are stored; returns the results in order.

        Raises SendOutcomeUnknown, or the error of the last attempt with a note about all attempts.
        """
        while True:
            try:
                attempt = self.begin(pending)
            except Exception:
                if pending.results is None:
                    raise
                return pending.results
            try:
                attempt.place.link.appends.append(attempt)
                is_stored = True
            except (MqdbError, NoAnswer) as error:
                is_stored = self.judge(pending, attempt, error)
            if is_stored and (results := self.finish(pending, attempt)) is not None:
                return results
            if not is_stored and pending.results is not None:
                return pending.results

    def end_late(self) -> None:
        """End submitted sends whose time is up, on all brokers."""
        for link in self._links:
            link.appends.end_late()

    def trouble_since(self, moment: float) -> MqdbError | None:
        """The reason why one of the brokers had no connection, unless that was before `moment`."""
        return next(filter(None, (link.trouble_since(moment) for link in self._links)), None)

    def begin(self, pending: PendingSend) -> Attempt:
        """Begin the next attempt of a send.

        Raises the errors of `PublishRoutes.find` and `PublishQueues.choose`, BatchTooLarge, the errors of a
        CheckForbiddenHook, and the errors of `check_message` for a message that a hook has changed.
        """
        topic = pending.topic
        queues = self._routes.known.get(topic)
        if queues is None or not queues.is_current:
            queues = self._routes.find(topic, pending.deadline, pending.timeout_seconds)
        if pending.queue is None:
            place = queues.choose(pending.messages[0], pending.target, pending.avoid)
        else:
            place = queues.place(pending.queue)
        link = place.link
        pending.brokers_sent += (link.name,)
        attempt = Attempt(self, pending, place, self._is_single or self._is_patient(pending, link))
        if not self._hooks.is_empty:
            self._begin_with_hooks(attempt)
        elif not self._can_wait_for_records(pending):
            attempt.make_records()
        return attempt

    def _begin_with_hooks(self, attempt: Attempt) -> None:
        """Call the hooks, then make the records, because a hook may add properties.

        RocketMQ: DefaultMQProducerImpl.sendKernelImpl.
        """
        pending = attempt.pending
        if pending.hook_attributes is None:
            pending.hook_attributes = {}
        context = SendMessageContext(
            self.config.group,
            pending.messages,
            pending.message_ids,
            attempt.place.queue,
            pending.mode,
            self.born_host,
            attributes=pending.hook_attributes,
            client_id=self._client_id,
        )
        self._hooks.begin(context)
        try:
            messages = context.messages_to_store()
            for message in messages:
                check_message(message, self.config.max_message_size_bytes)
            attempt.make_records(messages)
        except BaseException as error:
            self._hooks.end(context, error=error)
            raise
        attempt.context = context

    def finish(self, pending: PendingSend, attempt: Attempt) -> list[SendResult] | None:
        """The results of an attempt that stored the messages; None if they also have to be sent to another broker."""
        if self._faults is not None:
            self._faults.update(attempt.place.link.name, time.monotonic() - attempt.began, is_isolated=False)
        results = attempt.results
        if attempt.context is not None:
            self._hooks.end(attempt.context, () if pending.mode is SendMode.ONEWAY else results)
        if attempt.status is not SendStatus.SEND_OK and self._wants_another_broker(pending):
            pending.results, pending.avoid = results, attempt.place.link.name
            return None
        return results

    def judge(self, pending: PendingSend, attempt: Attempt, error: MqdbError | NoAnswer) -> bool:
        """Judge a failed attempt.

        Returns True if the messages are stored nevertheless, and False if the send has to be retried.

        Raises the final error if no retry is left.
        """
        pending.queue = None
        if self._faults is not None:
            self._faults.update(attempt.place.link.name, time.monotonic() - attempt.began, is_isolated=True)
        try:
            if isinstance(error, NoAnswer):
                if self._settle(pending, attempt, error):
                    return True
                pending.queue = attempt.place.queue  # it answers, and has certainly stored nothing
                error = BrokerUnavailable(attempt.place.link.instance.target, f"{error.reason}; nothing was stored")
            self._refuse_or_go_on(pending, attempt, error)
        except MqdbError as verdict:
            if attempt.context is not None:
                self._hooks.end(attempt.context, error=verdict)
            if pending.results is None:
                raise
            return False
        if attempt.context is not None:
            self._hooks.end(attempt.context, error=error)
        return False

    def _settle(self, pending: PendingSend, attempt: Attempt, unknown: NoAnswer) -> bool:
        """Find out whether the messages are stored."""
        unique_ids, link = pending.unique_ids, attempt.place.link
        open_end = SendOutcomeUnknown(pending.topic, link.name, pending.message_ids, unknown.reason)
        open_end.__cause__ = unknown
        if pending.mode is SendMode.ONEWAY:
            raise open_end
        try:
            found = unknown.found
            if found is None:
                found = settle(link, unknown, unique_ids, pending.deadline, open_end)
        except (MqdbError, NoAnswer) as error:
            self.unknown.remember(pending.topic, link, unknown, unique_ids)
            if error is not open_end:
                raise open_end from error
            raise
        if found:
            places = [LogPlace(found[unique_id].log_pos) for unique_id in unique_ids]
            attempt.succeed(places, self._settled_status(pending, link))
        return bool(found)

    def _settled_status(self, pending: PendingSend, link: BrokerLink) -> SendStatus:
        """The status of messages that are stored although there was no answer.

        If the backend was waiting for a standby, the end of the backend also ended this wait.
        """
        if link.durability is not Durability.SYNC_MASTER:
            return SendStatus.SEND_OK
        late = SendGivenUp(pending.topic, pending.timeout_seconds)
        try:
            return link.ask(status_of, pending.deadline, late)
        except MqdbError:
            return SendStatus.FLUSH_SLAVE_TIMEOUT  # the message is stored

    def _refuse_or_go_on(self, pending: PendingSend, attempt: Attempt, error: MqdbError) -> None:
        """Prepare another attempt if one is allowed, or raise the error."""
        if isinstance(error, TopicNotFound):
            # The topic was deleted, or the log has another history than the route. The next answer shows which.
            self._routes.forget(attempt.place)
            if time.monotonic() >= pending.deadline:
                raise SendGivenUp(pending.topic, pending.timeout_seconds, "its queues have changed") from error
            pending.brokers_sent = pending.brokers_sent[:-1]  # this does not count as an attempt
            return
        if not is_retryable(pending.mode, error) or not self._has_tries_left(pending):
            if len(pending.brokers_sent) > 1:
                seconds, brokers = time.monotonic() - pending.began, ", ".join(pending.brokers_sent)
                error.add_note(f"sent {len(pending.brokers_sent)} times in {seconds:.2f} s, to {brokers}")
            raise error
        pending.avoid = attempt.place.link.name

    def _can_wait_for_records(self, pending: PendingSend) -> bool:
        """Whether the leading thread may make the records.

        The leading thread may not make the records if that can fail or take long, or if the caller continues and may
        change the properties.
        """
        return (
            pending.mode is SendMode.SYNC
            and len(pending.messages) == 1
            and not pending.is_half
            and self.config.compression is None
        )

    def _is_patient(self, pending: PendingSend, link: BrokerLink) -> bool:
        """Whether to wait for a lost connection: not while another broker can be tried."""
        if pending.target is not ANYWHERE or pending.queue is not None:
            return True
        others_are_lost = all(other.connection.is_lost for other in self._links if other is not link)
        return others_are_lost or len(pending.brokers_sent) >= most_tries(pending.mode, pending.target, self.config)

    def _wants_another_broker(self, pending: PendingSend) -> bool:
        return (
            self.config.retry_another_broker_when_not_store_ok
            and pending.mode is SendMode.SYNC
            and pending.target is ANYWHERE
            and self._has_tries_left(pending)
        )

    def _has_tries_left(self, pending: PendingSend) -> bool:
        """Whether another attempt is allowed, with enough time left."""
        most = most_tries(pending.mode, pending.target, self.config)
        return len(pending.brokers_sent) < most and time.monotonic() < pending.deadline
