"""Exactly-once listener: it is called in a transaction, and its answer decides whether the transaction commits.

Failed messages are sent back in a separate transaction, which also commits the offset.
"""

import asyncio
import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from enum import Enum, auto
from typing import Any, Final, NamedTuple, TypeAlias

from sqlalchemy import Connection

from mqdb.broker.consumers import exactly_once
from mqdb.broker.consumers.exactly_once import ConsumedBatch
from mqdb.broker.consumers.send_back import SendBackRequest
from mqdb.common.clock import Clock
from mqdb.common.failure import Failure
from mqdb.common.received_message import ReceivedMessage
from mqdb.common.retry import Retry
from mqdb.common.user_error import attribute_of, chain_of, log_error, reason_of
from mqdb.errors import BrokerUnavailable, MqdbError, ParameterInvalid, QueueLost, shown
from mqdb.store.consumers.offset_commits import OffsetCommit
from mqdb_client.consumer.listeners.consume_hooks import ConsumeHooks, return_type_of
from mqdb_client.consumer.listeners.listener_transactions import ListenerTransactions, is_lost
from mqdb_client.consumer.listeners.loop_calls import LoopCalls, LoopClosed
from mqdb_client.consumer.listeners.message_listener import (
    LISTENER_FAILED,
    ConsumeConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyContext,
    ConsumeOrderlyStatus,
    MessageListenerExactlyOnce,
    status_of,
    takes_context,
    where,
)
from mqdb_client.consumer.listeners.running_calls import RunningCalls
from mqdb_client.consumer.listeners.send_back import seen_by_hooks
from mqdb_client.consumer.queues.process_queue import ProcessQueue
from mqdb_client.instance import ClientInstance
from mqdb_client.new_connection import require_history
from mqdb_client.outage import level_of

logger = logging.getLogger(__name__)

Context: TypeAlias = ConsumeConcurrentlyContext | ConsumeOrderlyContext

#: Whether an answer commits. In orderly consumption ROLLBACK really rolls back: there is no transaction to continue.
_COMMITS: Final[dict[str, bool]] = {
    ConsumeConcurrentlyStatus.CONSUME_SUCCESS: True,
    ConsumeConcurrentlyStatus.RECONSUME_LATER: False,
}
_COMMITS_ORDERLY: Final[dict[str, bool]] = {
    ConsumeOrderlyStatus.SUCCESS: True,
    ConsumeOrderlyStatus.COMMIT: True,
    ConsumeOrderlyStatus.ROLLBACK: False,
    ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT: False,
}

# serialization_failure and deadlock_detected. Source: PostgreSQL, "Serialization Failure Handling".
_COLLISIONS: Final = frozenset({"40001", "40P01"})


class End(Enum):
    """The outcome of a transaction."""

    COMMITTED = auto()
    #: Rolled back for a reason given by the listener.
    FAILED = auto()
    #: Rolled back because of a conflict with other transactions.
    COLLIDED = auto()
    #: Not committed, because the broker could not be reached.
    UNREACHED = auto()
    #: The queue has another owner, or it is unknown whether the transaction was committed.
    UNKNOWN = auto()


class ConsumeAttempt(NamedTuple):
    """One transaction, with the listener's answer or the error raised in it."""

    end: End
    answer: object = None
    error: BaseException | None = None
    context: Context | None = None

    @property
    def reason(self) -> str:
        """The error as a field of a log record; "" without an error."""
        return "" if self.error is None else reason_of(self.error)


class ExactlyOnceListener:
    """The listener of a consumer, and its transactions on one broker. Thread-safe."""

    def __init__(
        self,
        listener: MessageListenerExactlyOnce,
        group: str,
        instance: ClientInstance,
        *,
        is_orderly: bool,
        hooks: ConsumeHooks,
        calls: RunningCalls,
        consume_timeout: timedelta,
        clock: Clock,
        loop_calls: LoopCalls | None = None,
    ) -> None:
        """The transactions of an asynchronous listener run in the loop of `loop_calls`.

        Raises ParameterInvalid for a listener that does not take these arguments.
        """
        self._takes_context = takes_context(listener, plain=2, is_asynchronous=loop_calls is not None)
        self._group = group
        self._instance = instance
        self._loop_calls = loop_calls
        self._transactions = ListenerTransactions(instance, loop_calls)
        self._listener: Callable[..., Any] = self._transactions.blocking(listener)
        self._is_orderly = is_orderly
        self._commits = _COMMITS_ORDERLY if is_orderly else _COMMITS
        self._make_context = ConsumeOrderlyContext if is_orderly else ConsumeConcurrentlyContext
        self._hooks = hooks
        self._calls = calls
        self._consume_timeout = consume_timeout
        self._clock = clock

    def close(self) -> None:
        """Close the connections that are not in use."""
        self._transactions.close()

    def attempt(self, process_queue: ProcessQueue, messages: list[ReceivedMessage]) -> ConsumeAttempt:
        """Call the listener in a transaction.

        If the answer is success, commit the transaction together with the offset.
        """
        try:
            return self._transactions.run(lambda: self._attempt(process_queue, messages))
        except LoopClosed as error:  # before or during the attempt
            return ConsumeAttempt(End.UNKNOWN, error=error)

    def _attempt(self, process_queue: ProcessQueue, messages: list[ReceivedMessage]) -> ConsumeAttempt:
        with ExitStack() as stack:
            try:
                connection = stack.enter_context(self._transactions.begin())
                require_history(connection, process_queue.history)
            except MqdbError as error:
                return ConsumeAttempt(End.UNREACHED, error=error)
            observed = self._hooks.begin(process_queue.queue, messages)
            started_at = time.monotonic()
            attempt = self._call(connection, process_queue, messages)
        if observed is not None:
            is_success, seconds = attempt.end is End.COMMITTED, time.monotonic() - started_at
            end = return_type_of(attempt.answer, is_success, attempt.error, seconds, self._consume_timeout)
            self._hooks.end(observed, attempt.answer, end, attempt.error)
        return attempt

    def send_back(
        self,
        process_queue: ProcessQueue,
        messages: list[ReceivedMessage],
        attempt: ConsumeAttempt,
        retry: Retry,
        max_reconsume_times: int | None,
    ) -> End:
        """Send messages back to the broker for a retry; FAILED if the broker refuses them."""
        failure = self._failure(attempt)
        requests = [
            SendBackRequest(
                message.log_pos,
                message.queue,
                message.queue_offset,
                failure,
                retry,
                message.reconsume_times if self._is_orderly else None,
            )
            for message in messages
        ]
        fields = where(self._group, messages)
        try:
            with seen_by_hooks(self._group, messages, failure) as context, self._instance.connect() as connection:
                require_history(connection, process_queue.history)
                batch = self._batch(process_queue, messages)
                results = exactly_once.send_back(connection, batch, requests, max_reconsume_times)
                if context is not None:
                    context.outcome = results
        except (QueueLost, BrokerUnavailable) as error:
            fields["reason"] = str(error)
            sentence = (
                "could not confirm that message %(message_id)s of topic %(topic)s, delivery %(delivery)s, batch of "
                "%(count)s, was sent back for group %(group)s; will take queue %(queue)s again: %(reason)s"
            )
            logger.log(level_of(error), sentence, fields, extra=fields)
            return End.UNKNOWN
        except MqdbError as error:
            fields["reason"] = str(error)
            logger.warning(
                "could not send back message %(message_id)s of topic %(topic)s for group %(group)s, delivery "
                "%(delivery)s, batch of %(count)s; will consume it here again: %(reason)s",
                fields,
                extra=fields,
            )
            return End.FAILED
        return End.COMMITTED

    def _batch(self, process_queue: ProcessQueue, messages: list[ReceivedMessage]) -> ConsumedBatch:
        first, last = messages[0].queue_offset, messages[-1].queue_offset
        key, epoch, _, segment, history = process_queue.position()
        commit = OffsetCommit(key, epoch, first, last + 1, segment, history)
        return ConsumedBatch(self._group, self._instance.client_id, process_queue.queue, commit)

    def _failure(self, attempt: ConsumeAttempt) -> Failure:
        host, now = self._instance.client_id, self._clock.now()
        if attempt.error is not None:
            return Failure.of(attempt.error, host, now)
        if status_of(attempt.answer) in self._commits:
            return Failure.later(host, now)
        return Failure.no_answer(attempt.answer, host, now)

    def _call(
        self, connection: Connection, process_queue: ProcessQueue, messages: list[ReceivedMessage]
    ) -> ConsumeAttempt:
        """Call the listener. A failure that the listener requests is not logged; an unintended failure is logged."""
        context = self._make_context(process_queue.queue)
        task = None if self._loop_calls is None else asyncio.current_task()
        call = self._calls.begin(process_queue, messages, task)
        try:
            # A copy: changes by the listener must not affect which messages are done.
            answer = self._listener(messages[:], connection, *([context] if self._takes_context else []))
            _check_context(context)
        except BaseException as error:  # noqa: BLE001 - also sys.exit(), which would end the thread
            return self._rolled_back(connection, messages, ConsumeAttempt(End.FAILED, error=error, context=context))
        finally:
            self._calls.end(call)
        attempt = ConsumeAttempt(End.FAILED, answer, context=context)
        status = status_of(answer)
        does_commit = None if status is None else self._commits.get(status)
        if does_commit:
            return self._commit(connection, process_queue, messages, attempt)
        if does_commit is None:
            fields = where(self._group, messages) | {"answer": shown(answer)}
            logger.error(
                "listener of group %(group)s returned %(answer)s instead of one of its statuses for message "
                "%(message_id)s of topic %(topic)s, delivery %(delivery)s, batch of %(count)s",
                fields,
                extra=fields,
            )
        return attempt

    def _commit(
        self,
        connection: Connection,
        process_queue: ProcessQueue,
        messages: list[ReceivedMessage],
        attempt: ConsumeAttempt,
    ) -> ConsumeAttempt:
        if is_lost(connection):
            return attempt._replace(end=End.UNREACHED)
        try:
            exactly_once.commit(connection, self._batch(process_queue, messages))
        except (QueueLost, BrokerUnavailable, asyncio.CancelledError) as error:
            return attempt._replace(end=End.UNKNOWN, error=error)
        except MqdbError as error:
            return self._rolled_back(connection, messages, attempt._replace(error=error))
        return attempt._replace(end=End.COMMITTED)

    def _rolled_back(
        self, connection: Connection, messages: list[ReceivedMessage], attempt: ConsumeAttempt
    ) -> ConsumeAttempt:
        """The attempt, with the reason for its rollback: a lost connection, a collision, or the listener."""
        if is_lost(connection):
            return attempt._replace(end=End.UNREACHED)
        if attempt.error is not None and not _COLLISIONS.isdisjoint(_sqlstates(attempt.error)):
            return attempt._replace(end=End.COLLIDED)
        if attempt.error is not None:
            log_error(logger, LISTENER_FAILED, attempt.error, where(self._group, messages))
        return attempt


def _sqlstates(error: BaseException) -> Iterator[str]:
    """The SQLSTATEs of an error and of the errors that led to it.

    SQLAlchemy raises a DBAPIError from the driver's error, and a listener may raise its own error from the DBAPIError.
    """
    for each in chain_of(error):
        sqlstate = attribute_of(each, "sqlstate")
        if type(sqlstate) is str:
            yield sqlstate


def _check_context(context: Context) -> None:
    """Raise ParameterInvalid if the context requests something that is impossible in a transaction."""
    if isinstance(context, ConsumeOrderlyContext):
        if not context.auto_commit:
            raise ParameterInvalid("auto_commit", False, "a transaction cannot wait for the COMMIT of a later call")
    elif context.ack_index != sys.maxsize:
        reason = "a transaction is for all messages or none; raise an error, or answer RECONSUME_LATER"
        raise ParameterInvalid("ack_index", context.ack_index, reason)
