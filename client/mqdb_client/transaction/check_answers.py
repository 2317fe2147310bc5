"""Check answers: a transaction producer answers the broker's checks of local transactions.

    NOTIFY c:<client id> ──▶ notification thread ──▶ a thread for each broker: checks ──▶ listener ──▶ END

A check is a row on the broker until it is answered, so these rows form the queue, and no check is refused for lack of
space. A check that this process does not answer goes to another producer. RocketMQ: ClientRemotingProcessor.
"""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Final, TypeVar

from sqlalchemy import Connection

from mqdb.broker.transactions.transactions import Ended, EndTransaction, end
from mqdb.common.received_message import ReceivedMessage
from mqdb.common.transaction import LocalTransactionState
from mqdb.common.unique_id import parse_unique_id
from mqdb.errors import BrokerUnavailable, MqdbError
from mqdb.store.transactions.half_checks import HalfCheck, open_checks
from mqdb_client.process_hooks import ClientOperation, OperationContext, operations
from mqdb_client.producer.append.broker_link import BrokerLink
from mqdb_client.transaction.transaction_listener import TransactionAnswer, TransactionListener

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Few, because a slow listener delays the last of them, which then go to another producer.
_READ_AT_ONCE: Final = 16

_RETRY_SECONDS: Final = 1.0


class CheckAnswers:
    """Answers the checks of one broker for one producer. CheckAnswers is started once, then stopped once."""

    def __init__(self, link: BrokerLink, group: str, listener: TransactionListener, timeout_seconds: float) -> None:
        """`timeout_seconds` is the time limit for each request to the broker."""
        self._link = link
        self._group = group
        self._listener = listener
        self._timeout_seconds = timeout_seconds
        self._wake = threading.Event()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name=f"mqdb-{group}-checks-{link.name}", daemon=True)

    def start(self) -> None:
        """Answer checks from now on, including earlier checks."""
        self._callback = self._link.instance.on_request(lambda _: self._wake.set())
        self._wake.set()
        self._thread.start()

    def is_own_thread(self) -> bool:
        """Whether `stop` would wait for this thread."""
        return threading.current_thread() is self._thread

    def stop(self) -> None:
        """Stop calling the listener. Waits for the current call, for as long as an answer may take."""
        self._callback.cancel()
        self._is_stopping = True
        self._wake.set()
        self._thread.join(self._timeout_seconds)

    def _run(self) -> None:
        retry_seconds: float | None = None
        while True:
            self._wake.wait(retry_seconds)
            self._wake.clear()
            if self._is_stopping:
                self._link.instance.outage.leave(self)
                return
            try:
                while checks := self._open():
                    self._answer_all(checks)
                retry_seconds = None
                self._link.instance.outage.works(self)
            except Exception as error:
                if not self._link.instance.outage.covers(self, error) and retry_seconds is None:
                    unexpected = None if isinstance(error, MqdbError) else error
                    fields = {"group": self._group, "broker": self._link.name, "reason": str(error)}
                    sentence = "could not answer checks of group %(group)s on broker %(broker)s; will retry: %(reason)s"
                    logger.warning(sentence, fields, extra=fields, exc_info=unexpected)
                retry_seconds = _RETRY_SECONDS

    def _open(self) -> list[HalfCheck]:
        if self._is_stopping:
            return []
        broker_name, client_id = self._link.name, self._link.instance.client_id
        return self._ask(lambda connection: open_checks(connection, broker_name, client_id, self._group, _READ_AT_ONCE))

    def _answer_all(self, checks: list[HalfCheck]) -> None:
        """Answer checks.

        An answer that the broker refuses counts as UNKNOWN. Raises BrokerUnavailable and its subclasses.
        """
        for check in checks:
            if self._is_stopping:
                return
            message = check.message
            with self._seen(ClientOperation.CHECK_TRANSACTION, message) as context:
                # Also sys.exit(), which would end the thread and leave all later checks unanswered.
                with TransactionAnswer(
                    "check_local_transaction", self._group, message.topic, message.message_id, BaseException
                ) as answer:
                    answer.given = self._listener.check_local_transaction(message)
                state = answer.state
                if context is not None:
                    context.outcome = state
            fields: dict[str, object] = {
                "group": self._group,
                "broker": self._link.name,
                "topic": message.topic,
                "transaction_id": message.message_id,
                "answer": state,
            }
            try:
                ended = self._end(check, state)
            except BrokerUnavailable:
                raise
            except MqdbError as error:
                # Perhaps its topic is gone: the next check finds out, and the checks behind it do not wait.
                refused = fields | {"reason": str(error)}
                logger.warning(
                    "broker %(broker)s refused answer %(answer)s of group %(group)s to the check of transaction "
                    "%(transaction_id)s in topic %(topic)s: %(reason)s",
                    refused,
                    extra=refused,
                )
                ended = self._end(check, LocalTransactionState.UNKNOWN)
            logger.debug("answered a check", extra=fields | {"state": ended.state, "check_times": check.check_times})

    def _end(self, check: HalfCheck, state: LocalTransactionState) -> Ended:
        request = EndTransaction(
            self._group,
            check.log_pos,
            parse_unique_id(check.message.message_id),
            state,
            asked_client=self._link.instance.client_id,
        )
        with self._seen(ClientOperation.END_TRANSACTION, check.message) as context:
            if context is not None:
                context.outcome = state
            return self._ask(partial(end, request=request))

    def _seen(
        self, operation: ClientOperation, message: ReceivedMessage
    ) -> AbstractContextManager[OperationContext | None]:
        if operations.is_empty:
            return operations.around(operation, self._group, self._link.instance.client_id)
        return operations.around(
            operation,
            self._group,
            self._link.instance.client_id,
            message.topic,
            self._link.name,
            (message.message_id,),
            (message,),
        )

    def _ask(self, work: Callable[[Connection], T]) -> T:
        late = BrokerUnavailable(self._link.instance.target, f"no answer within {self._timeout_seconds:g} s")
        return self._link.ask(work, time.monotonic() + self._timeout_seconds, late)
