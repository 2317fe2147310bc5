"""Sending: what happens to a delivery until it is stored or given up.

    begin      choose a queue, call the hooks, make the records
    append     by the group append of the queue's broker
    finish     the results                                         ── or ──
    judge      what a failure means: try again, and where; or raise

A try whose answer is missing may have stored the messages, and no other broker can know. So the next one goes to the
same broker, after its backend has ended and its log has been searched for them. RocketMQ would store them twice.
RocketMQ: DefaultMQProducerImpl.sendDefaultImpl, MQClientAPIImpl.onExceptionImpl.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, NoReturn
from uuid import UUID

from mqdb.broker import send
from mqdb.compression import compressed
from mqdb.errors import (
    BrokerUnavailable,
    IllegalState,
    MqdbError,
    ResponseCode,
    SendGivenUp,
    SendOutcomeUnknown,
    TopicNotFound,
)
from mqdb.message import SendResult, SendStatus, check_message
from mqdb.store.commit_log import Record
from mqdb.unique_id import format_unique_id
from mqdb_client.producer.append_unit import NoAnswer, Unit
from mqdb_client.producer.batch import MessageBatch, check_batch_size
from mqdb_client.producer.broker_link import BrokerLink
from mqdb_client.producer.config import ProducerConfig
from mqdb_client.producer.delivery import ANYWHERE, Delivery
from mqdb_client.producer.durability import Durability, status_of
from mqdb_client.producer.fault_tolerance import LatencyFaultTolerance
from mqdb_client.producer.publish_queues import Place, PublishRoutes
from mqdb_client.producer.recalling import recall_handle_of
from mqdb_client.producer.send_hooks import Hooks, SendMessageContext, SendMode
from mqdb_client.producer.unknown import UnknownSends, settle

#: What a sync send is tried again for. Source: DefaultMQProducer.retryResponseCodes.
RETRY_RESPONSE_CODES: Final = frozenset(
    {
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.NO_PERMISSION,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
        ResponseCode.GO_AWAY,
    }
)

FindQueueOffset = Callable[[Place, int, UUID, bool], int]


class Attempt(Unit):
    """One try of a delivery: its messages to one queue. It has `results` and `status` once they are stored."""

    __slots__ = ("_sending", "began", "context", "delivery", "place", "results", "status")

    results: list[SendResult]
    status: SendStatus

    def __init__(self, sending: "Sending", delivery: Delivery, place: Place, is_patient: bool) -> None:
        super().__init__(place.queue.topic, delivery.deadline, delivery.timeout_seconds, is_patient)
        self._sending = sending
        self.delivery = delivery
        self.place = place
        self.began = time.monotonic()
        #: What hooks get, where there are any.
        self.context: SendMessageContext | None = None

    def make_records(self) -> None:
        self.records = self._sending.records_of(self.delivery, self.place)

    def succeed(self, positions: Sequence[int], status: SendStatus) -> None:
        self.results = self._sending.results_of(self.records, self.place, positions, status)
        self.status = status


class Sending:
    """What the sends of a producer have in common. Any thread may use it."""

    def __init__(
        self,
        config: ProducerConfig,
        links: Mapping[str, BrokerLink],
        routes: PublishRoutes,
        hooks: Hooks,
        faults: LatencyFaultTolerance | None,
        born_host: str,
        find_queue_offset: FindQueueOffset,
    ) -> None:
        self._config = config
        self._links = tuple(links.values())
        self._is_single = len(self._links) == 1
        self._routes = routes
        self._hooks = hooks
        self._faults = faults
        self._born_host = born_host
        self._find_queue_offset = find_queue_offset
        self.unknown = UnknownSends()

    def send(self, delivery: Delivery) -> list[SendResult]:
        """Try until the messages are stored; the results in their order.

        Raises what made the last try fail, with a note that tells of all; SendOutcomeUnknown.
        """
        while True:
            try:
                attempt = self.begin(delivery)
            except Exception:
                if delivery.results is None:
                    raise
                return delivery.results
            try:
                attempt.place.link.appends.append(attempt)
                is_stored = True
            except (MqdbError, NoAnswer) as error:
                is_stored = self.judge(delivery, attempt, error)
            if is_stored and (results := self.finish(delivery, attempt)) is not None:
                return results
            if not is_stored and delivery.results is not None:
                return delivery.results

    def end_late(self) -> None:
        """End what was handed in and whose time is up, on all brokers."""
        for link in self._links:
            link.appends.end_late()

    def trouble_since(self, moment: float) -> MqdbError | None:
        """Why one of the brokers had no connection, if that was not before `moment`."""
        return next(filter(None, (link.trouble_since(moment) for link in self._links)), None)

    def begin(self, delivery: Delivery) -> Attempt:
        """The next try of a delivery.

        Raises what `PublishRoutes.find` and `PublishQueues.choose` raise, BatchTooLarge, and what a
        CheckForbiddenHook raises; what `check_message` raises, for what a hook has made of the message.
        """
        queues = self._routes.find(delivery.topic, delivery.deadline, delivery.timeout_seconds)
        place = queues.choose(delivery)
        link = place.link
        delivery.brokers_sent += (link.name,)
        attempt = Attempt(self, delivery, place, self._is_single or self._is_patient(delivery, link))
        if not self._hooks.is_empty:
            self._begin_with_hooks(attempt)
        elif not self._can_wait_for_records(delivery):
            attempt.make_records()
        return attempt

    def _begin_with_hooks(self, attempt: Attempt) -> None:
        """A hook may add properties. RocketMQ: DefaultMQProducerImpl.sendKernelImpl, which encodes them after it."""
        delivery = attempt.delivery
        context = SendMessageContext(
            self._config.group,
            delivery.messages,
            delivery.message_ids,
            attempt.place.queue,
            delivery.mode,
            self._born_host,
        )
        self._hooks.begin(context)
        try:
            for message in delivery.messages:
                check_message(message, self._config.max_message_size_bytes)
            attempt.make_records()
        except BaseException as error:
            self._hooks.end(context, error=error)
            raise
        attempt.context = context

    def finish(self, delivery: Delivery, attempt: Attempt) -> list[SendResult] | None:
        """The results of a try that has stored the messages; None when they are to be sent to another broker, too."""
        if self._faults is not None:
            self._faults.update(attempt.place.link.name, time.monotonic() - attempt.began, is_isolated=False)
        results = attempt.results
        if attempt.context is not None:
            self._hooks.end(attempt.context, () if delivery.mode is SendMode.ONEWAY else results)
        if attempt.status is not SendStatus.SEND_OK and self._wants_another_broker(delivery):
            delivery.results, delivery.avoid = results, attempt.place.link.name
            return None
        return results

    def judge(self, delivery: Delivery, attempt: Attempt, error: MqdbError | NoAnswer) -> bool:
        """What to make of a failed try: whether the messages are stored after all; else try again.

        Raises when there is nothing left to try.
        """
        delivery.queue = None
        if self._faults is not None:
            self._faults.update(attempt.place.link.name, time.monotonic() - attempt.began, is_isolated=True)
        try:
            if isinstance(error, NoAnswer):
                if self._settle(delivery, attempt, error):
                    return True
                delivery.queue = attempt.place.queue  # it answers, and is known to have nothing
                error = BrokerUnavailable(attempt.place.link.instance.target, f"{error.reason}; nothing was stored")
            self._refuse_or_go_on(delivery, attempt, error)
        except MqdbError as verdict:
            if attempt.context is not None:
                self._hooks.end(attempt.context, error=verdict)
            if delivery.results is None:
                raise
            return False
        if attempt.context is not None:
            self._hooks.end(attempt.context, error=error)
        return False

    def _settle(self, delivery: Delivery, attempt: Attempt, unknown: NoAnswer) -> bool:
        """Whether the messages turn out to be stored."""
        unique_ids, link = delivery.unique_ids, attempt.place.link
        open_end = SendOutcomeUnknown(delivery.topic, link.name, delivery.message_ids, unknown.reason)
        open_end.__cause__ = unknown
        if delivery.mode is SendMode.ONEWAY:
            raise open_end
        try:
            found = unknown.found
            if found is None:
                found = settle(link, unknown, unique_ids, delivery.deadline, open_end)
        except (MqdbError, NoAnswer) as error:
            self.unknown.remember(delivery.topic, link, unknown, unique_ids)
            if error is not open_end:
                raise open_end from error
            raise
        if found:
            positions = [found[unique_id].log_pos for unique_id in unique_ids]
            attempt.succeed(positions, self._settled_status(delivery, link))
        return bool(found)

    def _settled_status(self, delivery: Delivery, link: BrokerLink) -> SendStatus:
        """To end the backend has ended its wait for a standby as well, if that was what it did."""
        if self._config.durability is not Durability.SYNC_MASTER:
            return SendStatus.SEND_OK
        late = SendGivenUp(delivery.topic, delivery.timeout_seconds)
        try:
            return link.ask(status_of, delivery.deadline, late)
        except MqdbError:
            return SendStatus.FLUSH_SLAVE_TIMEOUT  # stored it is

    def _refuse_or_go_on(self, delivery: Delivery, attempt: Attempt, error: MqdbError) -> None:
        """Raises the error unless there is another try, which is made ready."""
        if isinstance(error, TopicNotFound):
            # The topic was deleted, or the log has another history than the route. The next answer tells which.
            self._routes.forget(attempt.place)
            if time.monotonic() >= delivery.deadline:
                raise SendGivenUp(delivery.topic, delivery.timeout_seconds, "its queues have changed") from error
            delivery.brokers_sent = delivery.brokers_sent[:-1]  # this was no try
            return
        if not _is_retryable(delivery, error) or not self._has_tries_left(delivery):
            _raise_with_story(delivery, error)
        delivery.avoid = attempt.place.link.name

    def _can_wait_for_records(self, delivery: Delivery) -> bool:
        """Whether the thread that leads makes the records: not where that may fail, or takes long.

        Nor where the caller goes on, who may change its properties.
        """
        return (
            delivery.mode is SendMode.SYNC
            and len(delivery.messages) == 1
            and delivery.placement is None
            and self._config.compression is None
        )

    def records_of(self, delivery: Delivery, place: Place) -> list[Record]:
        """The records of a delivery. Raises BatchTooLarge, and what a placement raises."""
        queue_key, history, born_time, born_host = place.queue_key, place.history, delivery.born_time, self._born_host
        records = [
            send.record(message, queue_key, unique_id, born_time, born_host, history=history)
            for message, unique_id in zip(delivery.messages, delivery.unique_ids, strict=True)
        ]
        if isinstance(delivery.messages, MessageBatch):
            check_batch_size(records)
        elif self._config.compression is not None:
            body, sys_flag = compressed(
                records[0].body, self._config.compression, self._config.compress_message_body_threshold_bytes
            )
            records[0] = records[0]._replace(body=body, sys_flag=sys_flag)
        if (placement := delivery.placement) is not None:
            records = [placement(record, place.queue, place.link) for record in records]
        return records

    def results_of(
        self, records: Sequence[Record], place: Place, positions: Sequence[int], status: SendStatus
    ) -> list[SendResult]:
        """The results of records that are stored at these positions."""
        queue, find, waits = place.queue, self._find_queue_offset, records[0].wait is not None
        results = [
            SendResult(
                status,
                format_unique_id(record.msg_id),
                queue,
                log_pos,
                partial(find, place, log_pos, record.msg_id, waits),
            )
            for record, log_pos in zip(records, positions, strict=True)
        ]
        if waits:  # alone
            results[0].recall_handle = recall_handle_of(records[0], queue)
        return results

    def _is_patient(self, delivery: Delivery, link: BrokerLink) -> bool:
        """Whether to wait for a connection that is lost: not while another of several brokers can be tried."""
        if delivery.target is not ANYWHERE or delivery.queue is not None:
            return True
        others_are_lost = all(other.connection.is_lost for other in self._links if other is not link)
        return others_are_lost or len(delivery.brokers_sent) >= self._times(delivery)

    def _wants_another_broker(self, delivery: Delivery) -> bool:
        return (
            self._config.retry_another_broker_when_not_store_ok
            and delivery.mode is SendMode.SYNC
            and delivery.target is ANYWHERE
            and self._has_tries_left(delivery)
        )

    def _has_tries_left(self, delivery: Delivery) -> bool:
        return len(delivery.brokers_sent) < self._times(delivery) and time.monotonic() < delivery.deadline

    def _times(self, delivery: Delivery) -> int:
        """How often a delivery may be tried. Source: DefaultMQProducerImpl.sendDefaultImpl, sendSelectImpl."""
        match delivery.mode:
            case SendMode.SYNC if delivery.target is ANYWHERE:
                return 1 + self._config.retry_times_when_send_failed
            case SendMode.ASYNC:
                return 1 + self._config.retry_times_when_send_async_failed
            case _:
                return 1


def _is_retryable(delivery: Delivery, error: MqdbError) -> bool:
    if isinstance(error, BrokerUnavailable):
        return True
    return delivery.mode is SendMode.SYNC and error.code in RETRY_RESPONSE_CODES and not isinstance(error, IllegalState)


def _raise_with_story(delivery: Delivery, error: MqdbError) -> NoReturn:
    if len(delivery.brokers_sent) > 1:
        error.add_note(delivery.story)
    raise error
