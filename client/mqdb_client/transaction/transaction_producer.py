"""The transaction producer: messages that are delivered if, and only if, a local transaction commits.

    send ──▶ half message, invisible ──▶ local transaction ──▶ COMMIT: its copy is delivered
                     │                                     └──▶ ROLLBACK: it is never delivered
                     └── no outcome ──▶ the broker checks with a producer of the group, repeatedly

If the local transaction runs in the broker's own database, use `Producer.send(connection=...)`, which needs no checks.
Use the transaction producer if the local transaction runs elsewhere. RocketMQ: TransactionMQProducer.
"""

import logging
import time
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Annotated, Any, ClassVar

from mqdb.broker.transactions.transactions import EndTransaction, end
from mqdb.common.delivery_schedule import SCHEDULE_PROPERTIES
from mqdb.common.message import Message, SendStatus, check_message
from mqdb.common.property import Property
from mqdb.common.transaction import LocalTransactionState
from mqdb.common.unique_id import parse_unique_id
from mqdb.errors import BrokerUnavailable, IllegalState, MqdbError
from mqdb_client.client_config import configured_by
from mqdb_client.process_hooks import ClientOperation, operations
from mqdb_client.producer.append.broker_link import BrokerLink
from mqdb_client.producer.config import ProducerConfig
from mqdb_client.producer.producer import Producer
from mqdb_client.producer.queues.queue_choice import target_of
from mqdb_client.producer.running_producer import RunningProducer
from mqdb_client.producer.sends.send_hooks import SendMode
from mqdb_client.producer.sends.send_result import SendResult
from mqdb_client.producer.sends.sending import PendingSend
from mqdb_client.transaction.check_answers import CheckAnswers
from mqdb_client.transaction.transaction_listener import (
    Check,
    Execute,
    PreparedMessage,
    TransactionAnswer,
    TransactionListener,
    listener_of,
)

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class TransactionSendResult(SendResult):
    """The result of sending a half message, with the state of its local transaction.

    `log_pos` and `queue_offset` are the positions of the half message; the copy that is delivered has other positions.
    """

    local_transaction_state: LocalTransactionState = field(kw_only=True)

    @property
    def transaction_id(self) -> str:
        """The unique id of the message."""
        return self.message_id


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionProducerConfig(ProducerConfig):
    """The options of a transaction producer: a listener, or two functions instead."""

    listener: Annotated[TransactionListener | None, "Executes and checks local transactions."] = None
    execute_local_transaction: Annotated[
        Execute | None, "A function that executes a local transaction, if there is no listener."
    ] = None
    check_local_transaction: Annotated[
        Check | None, "A function that checks a local transaction, if there is no listener."
    ] = None


class TransactionProducer(Producer):
    """Sends messages with local transactions, and answers the broker's checks for its group.

        def execute(message, order):
            with engine.begin() as connection:
                connection.execute(insert(orders), {"id": order, "message_id": message.message_id})
            return LocalTransactionState.COMMIT

        def check(message):
            ...  # is there an order with this message_id?

        producer = TransactionProducer("orders", execute_local_transaction=execute, check_local_transaction=check)
        with producer:
            producer.send_in_transaction(Message("orders", b"..."), 17)

    The broker may check any of the group's transactions in any process of the group, so `check` must use storage that
    all of these processes can read. A TransactionProducer can also do everything that a Producer can.
    """

    _checks_transactions: ClassVar[bool] = True

    @configured_by(TransactionProducerConfig)
    def __init__(self, config: TransactionProducerConfig) -> None:
        """Create a producer without connecting. Pass either a listener or two functions.

        Raises the errors of Producer, and ParameterInvalid if there is no listener.
        """
        self._listener = listener_of(config.listener, config.execute_local_transaction, config.check_local_transaction)
        self._configure(config)
        self._answers: tuple[CheckAnswers, ...] = ()

    def start(self) -> None:
        """Connect, join the group, and answer checks of the group's transactions.

        Raises the errors of `Producer.start`.
        """
        super().start()
        self._answers = tuple(
            CheckAnswers(link, self.group, self._listener, self._timeout_seconds)
            for link in self._work().links.values()
        )
        for answers in self._answers:
            answers.start()

    def shutdown(self) -> None:
        """Stop answering checks, wait for the sends under way, leave the group and disconnect.

        Calling it twice has no effect.
        Raises IllegalState in `check_local_transaction`, because the shutdown would wait for this call.
        """
        answers = () if self._is_forked else self._answers
        if any(each.is_own_thread() for each in answers):
            raise IllegalState(self._name, "answering a check; call shutdown() in another thread")
        self._answers = ()
        for each in answers:
            each.stop()
        super().shutdown()

    def send_in_transaction(
        self,
        message: Message,
        argument: Any = None,
        *,
        sharding_key: str | None = None,
        timeout: timedelta | None = None,
    ) -> TransactionSendResult:
        """Store an invisible half message, run the local transaction, then commit the message or roll it back.

        The listener gets `argument` with the message. If the status of the send is not SEND_OK, the listener does not
        run and the message is rolled back. A delay or a delivery time is ignored: the commit delivers the message. The
        producer sends the outcome to the broker once. If the report fails, or the state is UNKNOWN, the broker checks
        the transaction later. Raises the errors of `send` before the message is stored, and TransactionRefused if the
        broker does not accept transactions. If the send raises an error, the listener has not run.
        Source: DefaultMQProducerImpl.sendMessageInTransaction.
        """
        running = self._work()
        pending = self._half(message, sharding_key, timeout)
        (sent,) = running.sending.send(pending)
        state = LocalTransactionState.ROLLBACK
        if (prepared := prepared_of(pending, sent)) is not None:
            with TransactionAnswer("execute_local_transaction", self.group, prepared.topic, sent.message_id) as answer:
                answer.given = self._listener.execute_local_transaction(prepared, argument)
            state = answer.state
        return self._end(running, sent, state)

    def _half(self, message: Message, sharding_key: str | None, timeout: timedelta | None) -> PendingSend:
        """A new send of a half message, whose timeout begins now."""
        check_message(message, self._config.max_message_size_bytes)
        target = target_of(message, sharding_key)
        half = _half_of(message, self.group)
        check_message(half, self._config.max_message_size_bytes)  # its own properties count, too
        pending = self._pending((half,), target, SendMode.SYNC, timeout)
        pending.is_half = True
        return pending

    def _end(self, running: RunningProducer, sent: SendResult, state: LocalTransactionState) -> TransactionSendResult:
        """Report the outcome of the local transaction to the broker, if the outcome is known."""
        if state is not LocalTransactionState.UNKNOWN:
            self._tell(running.links[sent.queue.broker_name], sent, state)
        return TransactionSendResult(
            sent.status,
            sent.message_id,
            sent.queue,
            sent.log_pos,
            sent.find_queue_offset,
            local_transaction_state=state,
        )

    def _tell(self, link: BrokerLink, sent: SendResult, state: LocalTransactionState) -> None:
        """Report the outcome to the broker once; if the report is lost, the broker checks the transaction."""
        request = EndTransaction(self.group, sent.log_pos, parse_unique_id(sent.message_id), state)
        fields: dict[str, object] = {
            "group": self.group,
            "topic": sent.queue.topic,
            "transaction_id": sent.message_id,
            "outcome": state,
        }
        late = BrokerUnavailable(link.instance.target, f"no answer within {self._timeout_seconds:g} s")
        queue, client_id = sent.queue, link.instance.client_id
        try:
            with operations.around(
                ClientOperation.END_TRANSACTION, self.group, client_id, queue.topic, link.name, (sent.message_id,)
            ) as context:
                if context is not None:
                    context.outcome = state
                ended = link.ask(partial(end, request=request), time.monotonic() + self._timeout_seconds, late)
        except MqdbError as error:
            fields["reason"] = str(error)
            logger.warning(
                "could not report %(outcome)s of transaction %(transaction_id)s of group %(group)s in topic %(topic)s; "
                "the broker will ask: %(reason)s",
                fields,
                extra=fields,
            )
            return
        if not ended.has_changed:
            fields["state"] = ended.state
            logger.warning(
                "transaction %(transaction_id)s of group %(group)s in topic %(topic)s had ended as %(state)s before "
                "%(outcome)s was reported",
                fields,
                extra=fields,
            )


def prepared_of(pending: PendingSend, sent: SendResult) -> PreparedMessage | None:
    """The argument of the listener for a half message; None if the half message has to be rolled back."""
    if sent.status is not SendStatus.SEND_OK:
        fields = {"topic": pending.topic, "transaction_id": sent.message_id, "status": sent.status}
        logger.warning(
            "rolled back transaction %(transaction_id)s of topic %(topic)s: the send of its half message ended with "
            "%(status)s",
            fields,
            extra=fields,
        )
        return None
    (half,) = pending.messages
    return PreparedMessage(
        half.topic,
        half.body,
        half.tag,
        half.keys,
        half.properties,
        half.flag,
        half.system_properties,
        sent.message_id,
    )


def _half_of(message: Message, group: str) -> Message:
    """The half message for a message: with the properties of a half message, and without delays."""
    kept = {name: text for name, text in message.system_properties.items() if name not in SCHEDULE_PROPERTIES}
    its_own = {Property.TRAN_MSG.value: "true", Property.PGROUP.value: group}
    return Message(
        message.topic, message.body, message.tag, message.keys, message.properties, message.flag, kept | its_own
    )
