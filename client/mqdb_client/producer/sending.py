"""Sending: what happens to a delivery until it is stored or given up.

    begin      choose a queue, make the records, call the hooks
    append     by the group append of the queue's broker
    finish     the results                                         ── or ──
    judge      what a failure means: try again, and where; or raise

A try whose answer is missing may have stored the messages, and no other broker can know. So the next one goes to the
same broker, after its backend has ended and its log has been searched for them. RocketMQ would store them twice.
RocketMQ: DefaultMQProducerImpl.sendDefaultImpl, MQClientAPIImpl.onExceptionImpl.
"""

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, NamedTuple, NoReturn

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
from mqdb.message import MessageQueue, SendResult, SendStatus
from mqdb.store.commit_log import Record
from mqdb.unique_id import format_unique_id
from mqdb_client.batch import check_batch_size
from mqdb_client.broker_link import BrokerLink
from mqdb_client.durability import Durability, status_of
from mqdb_client.fault_tolerance import LatencyFaultTolerance
from mqdb_client.group_append import Appended, OutcomeUnknown, Terms
from mqdb_client.producer.config import ProducerConfig
from mqdb_client.producer.delivery import Delivery
from mqdb_client.producer.publish_queues import PublishRoutes
from mqdb_client.producer.unknown import UnknownSends, settle
from mqdb_client.producer_hooks import Hooks, SendMessageContext, SendMode

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

FindQueueOffset = Callable[[BrokerLink, str, int, int], int]


class Attempt(NamedTuple):
    """One try: these records to this queue."""

    link: BrokerLink
    queue: MessageQueue
    queue_key: int
    records: list[Record]
    terms: Terms
    began: float
    context: SendMessageContext | None


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
            appended: Appended | None
            try:
                appended = attempt.link.appends.append(attempt.records, delivery.topic, attempt.terms)
            except (MqdbError, OutcomeUnknown) as error:
                appended = self.judge(delivery, attempt, error)
            if appended is not None and (results := self.finish(delivery, attempt, appended)) is not None:
                return results
            if appended is None and delivery.results is not None:
                return delivery.results

    def begin(self, delivery: Delivery) -> Attempt:
        """The next try of a delivery.

        Raises what `PublishRoutes.find` and `PublishQueues.choose` raise, BatchTooLarge, and what a
        CheckForbiddenHook raises.
        """
        queues = self._routes.find(delivery.topic, delivery.deadline, delivery.timeout_seconds)
        queue = queues.choose(delivery)
        link, queue_key = queues.place(queue)
        records = self._records(delivery, queue_key)
        context = None
        if not self._hooks.is_empty:
            context = SendMessageContext(
                self._config.group, delivery.messages, delivery.message_ids, queue, delivery.mode, self._born_host
            )
            self._hooks.begin(context)
        delivery.brokers_sent.append(link.name)
        terms = Terms(delivery.deadline, delivery.timeout_seconds, self._is_patient(delivery, link))
        return Attempt(link, queue, queue_key, records, terms, time.monotonic(), context)

    def finish(self, delivery: Delivery, attempt: Attempt, appended: Appended) -> list[SendResult] | None:
        """The results of a try that has stored the messages; None when they are to be sent to another broker, too."""
        if self._faults is not None:
            self._faults.update(attempt.link.name, time.monotonic() - attempt.began, is_isolated=False)
        topic, status, queue = delivery.topic, appended.status, attempt.queue
        results = [
            SendResult(
                status,
                format_unique_id(unique_id),
                queue,
                log_pos,
                partial(self._find_queue_offset, attempt.link, topic, attempt.queue_key, log_pos),
            )
            for unique_id, log_pos in zip(delivery.unique_ids, appended.positions, strict=True)
        ]
        if attempt.context is not None:
            self._hooks.end(attempt.context, results)
        if status is not SendStatus.SEND_OK and self._wants_another_broker(delivery):
            delivery.results, delivery.avoid = results, attempt.link.name
            return None
        return results

    def judge(self, delivery: Delivery, attempt: Attempt, error: MqdbError | OutcomeUnknown) -> Appended | None:
        """What to make of a failed try: where the messages are stored after all; None: try again.

        Raises when there is nothing left to try.
        """
        delivery.queue = None
        if self._faults is not None:
            self._faults.update(attempt.link.name, time.monotonic() - attempt.began, is_isolated=True)
        try:
            if isinstance(error, OutcomeUnknown):
                found = self._settle(delivery, attempt.link, error)
                if found is not None:
                    return found
                delivery.queue = attempt.queue  # it answers, and is known to have nothing
                error = BrokerUnavailable(attempt.link.instance.target, f"{error.reason}; nothing was stored")
            self._refuse_or_go_on(delivery, attempt, error)
        except MqdbError as verdict:
            if attempt.context is not None:
                self._hooks.end(attempt.context, error=verdict)
            if delivery.results is None:
                raise
            return None
        if attempt.context is not None:
            self._hooks.end(attempt.context, error=error)
        return None

    def _settle(self, delivery: Delivery, link: BrokerLink, unknown: OutcomeUnknown) -> Appended | None:
        unique_ids = list(delivery.unique_ids)
        open_end = SendOutcomeUnknown(delivery.topic, link.name, delivery.message_ids, unknown.reason)
        open_end.__cause__ = unknown
        if delivery.mode is SendMode.ONEWAY:
            raise open_end
        try:
            found = settle(link, unknown, unique_ids, delivery.deadline, open_end)
        except MqdbError as error:
            self.unknown.remember(link, unknown, unique_ids)
            if error is not open_end:
                raise open_end from error
            raise
        if not found:
            return None
        return Appended([found[unique_id].log_pos for unique_id in unique_ids], self._settled_status(delivery, link))

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
            self._routes.forget(delivery.topic)
            if not delivery.has_asked_again and time.monotonic() < delivery.deadline:
                # Deleted since its route was learnt, and perhaps made again: this was no try.
                delivery.has_asked_again = True
                delivery.brokers_sent.pop()
                return
        if not _is_retryable(delivery, error) or not delivery.has_tries_left:
            _raise_with_story(delivery, error)
        delivery.avoid = attempt.link.name

    def _records(self, delivery: Delivery, queue_key: int) -> list[Record]:
        born_time, born_host = delivery.born_time, self._born_host
        if len(delivery.messages) == 1:
            message, config = delivery.messages[0], self._config
            body, sys_flag = compressed(message.body, config.compression, config.compress_message_body_threshold)
            return [send.record(message, queue_key, delivery.unique_ids[0], born_time, born_host, body, sys_flag)]
        records = [
            send.record(message, queue_key, unique_id, born_time, born_host)
            for message, unique_id in zip(delivery.messages, delivery.unique_ids, strict=True)
        ]
        check_batch_size(records)
        return records

    def _is_patient(self, delivery: Delivery, link: BrokerLink) -> bool:
        """Whether to wait for a connection that is lost: not while another broker can be tried."""
        if len(self._links) == 1 or not delivery.target.is_free or delivery.queue is not None:
            return True
        others_are_lost = all(other.connection.is_lost for other in self._links if other is not link)
        return others_are_lost or len(delivery.brokers_sent) >= delivery.times

    def _wants_another_broker(self, delivery: Delivery) -> bool:
        return (
            self._config.retry_another_broker_when_not_store_ok
            and delivery.mode is SendMode.SYNC
            and delivery.target.is_free
            and delivery.has_tries_left
        )


def _is_retryable(delivery: Delivery, error: MqdbError) -> bool:
    if isinstance(error, BrokerUnavailable):
        return True
    return delivery.mode is SendMode.SYNC and error.code in RETRY_RESPONSE_CODES and not isinstance(error, IllegalState)


def _raise_with_story(delivery: Delivery, error: MqdbError) -> NoReturn:
    if len(delivery.brokers_sent) > 1:
        error.add_note(delivery.story)
    raise error
