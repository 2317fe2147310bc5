"""The transaction producer for asyncio, with the names, options, errors and guarantees of `TransactionProducer`."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Annotated, Any, Protocol, TypeAlias

from mqdb.common.message import Message
from mqdb.common.received_message import ReceivedMessage
from mqdb.common.transaction import LocalTransactionState
from mqdb.errors import IllegalState
from mqdb_client.abandoned_clients import closed_loops, watch
from mqdb_client.aio.loop_sends import note_ids
from mqdb_client.aio.producer import AsyncProducer, ProducerBelow
from mqdb_client.client_config import configured_by
from mqdb_client.consumer.listeners.loop_calls import LoopCalls
from mqdb_client.producer.config import ProducerConfig
from mqdb_client.producer.running_producer import RunningProducer
from mqdb_client.producer.sends.send_result import SendResult
from mqdb_client.producer.sends.sending import PendingSend
from mqdb_client.transaction.transaction_listener import PreparedMessage, TransactionAnswer, TwoCallables, listener_of
from mqdb_client.transaction.transaction_producer import TransactionProducer, TransactionSendResult, prepared_of

_Answer: TypeAlias = Coroutine[Any, Any, LocalTransactionState | None]


class AsyncTransactionListener(Protocol):
    """A TransactionListener whose methods are coroutine functions. These methods run in the producer's event loop."""

    def execute_local_transaction(self, message: PreparedMessage, argument: Any) -> _Answer:
        """Run the local transaction, in the task that sends, and return its state.

        Store `message.message_id` in the transaction, so that `check_local_transaction` can look it up.
        """

    def check_local_transaction(self, message: ReceivedMessage) -> _Answer:
        """Return the state of a local transaction, which may have run in another process of the group.

        Calls for one broker are made one at a time, in the loop in which the producer was started. Return UNKNOWN while
        the transaction is still running.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncTransactionProducerConfig(ProducerConfig):
    """The options of an AsyncTransactionProducer: a listener, or two coroutine functions instead."""

    listener: Annotated[AsyncTransactionListener | None, "Executes and checks local transactions."] = None
    execute_local_transaction: Annotated[
        Callable[[PreparedMessage, Any], _Answer] | None,
        "A coroutine function that executes a local transaction, if there is no listener.",
    ] = None
    check_local_transaction: Annotated[
        Callable[[ReceivedMessage], _Answer] | None,
        "A coroutine function that checks a local transaction, if there is no listener.",
    ] = None


class AsyncTransactionProducer(AsyncProducer):
    """Sends messages with local transactions, and answers the broker's checks for its group.

        async def execute(message, order):
            async with AsyncSession(engine) as session, session.begin():
                session.add(Order(id=order, message_id=message.message_id))
            return LocalTransactionState.COMMIT

        async def check(message):
            ...  # is there an order with this message_id?

        producer = AsyncTransactionProducer("orders", execute_local_transaction=execute, check_local_transaction=check)
        async with producer:
            await producer.send_in_transaction(Message("orders", b"..."), 17)

    Everything else works as in `TransactionProducer`. An AsyncTransactionProducer can also do everything that an
    AsyncProducer can.
    """

    _below: "_Below"

    @configured_by(AsyncTransactionProducerConfig)
    def __init__(self, config: AsyncTransactionProducerConfig) -> None:
        """Create a producer without connecting. Pass either a listener or two coroutine functions.

        Raises the errors of AsyncProducer, and ParameterInvalid if there is no listener or a function is not a
        coroutine function.
        """
        self._listener = listener_of(
            config.listener, config.execute_local_transaction, config.check_local_transaction, is_asynchronous=True
        )
        self._calls: LoopCalls | None = None
        self._configure(_Below(config))

    async def start(self) -> None:
        """Connect, join the group, and answer checks of the group's transactions, in this loop.

        If the loop is closed without a shutdown, the producer leaves the group, because it can no longer answer. Raises
        the errors of `TransactionProducer.start`. If the task that awaits the start is cancelled, the producer is shut
        down.
        """
        loop = asyncio.get_running_loop()
        calls = self._calls = LoopCalls(loop)
        self._below.loop = loop
        self._below.listen(
            TwoCallables(
                calls.blocking(self._listener.execute_local_transaction),
                calls.blocking(self._listener.check_local_transaction),
            )
        )
        await super().start()

    async def shutdown(self) -> None:
        """Stop answering checks, wait for the sends under way, leave the group and disconnect.

        Calling it twice has no effect.
        Raises IllegalState in `check_local_transaction`, because the shutdown would wait for this call.
        """
        if self._calls is not None and self._calls.is_own_thread():
            raise IllegalState(f"producer {self.group!r}", "answering a check; call shutdown() in another task")
        await super().shutdown()

    async def send_in_transaction(
        self,
        message: Message,
        argument: Any = None,
        *,
        sharding_key: str | None = None,
        timeout: timedelta | None = None,
    ) -> TransactionSendResult:
        """Store an invisible half message, run the local transaction, then commit the message or roll it back.

        See `TransactionProducer.send_in_transaction`. If the task is cancelled after its message has become part of a
        statement, the broker checks the local transaction; the CancelledError contains the id of the message.
        """
        running = self._below.work()
        pending = self._below.half(message, sharding_key, timeout)
        (sent,) = await self._sends(running).send(pending)
        try:
            state = LocalTransactionState.ROLLBACK
            if (prepared := prepared_of(pending, sent)) is not None:
                with TransactionAnswer(
                    "execute_local_transaction", self.group, prepared.topic, sent.message_id
                ) as answer:
                    answer.given = await self._listener.execute_local_transaction(prepared, argument)
                state = answer.state
            return await asyncio.to_thread(self._below.end, running, sent, state)
        except asyncio.CancelledError as error:
            note_ids(error, pending)
            raise


class _Below(ProducerBelow, TransactionProducer):
    """The synchronous producer: it answers checks, and reports the outcomes of transactions to brokers in a thread."""

    #: The loop in which it answers checks.
    loop: asyncio.AbstractEventLoop

    def __init__(self, config: ProducerConfig) -> None:
        self._configure(config)
        self._answers = ()
        self._end_watch: Callable[[], None] = lambda: None

    def start(self) -> None:
        """Start like a TransactionProducer.

        If the loop is closed, even during the start, the producer leaves the group.
        """
        with self._life:
            super().start()
            self._end_watch = watch(f"producer {self.group!r}", partial(closed_loops, [self.loop]), self.shutdown)

    def shutdown(self) -> None:
        """Shut down like a TransactionProducer."""
        try:
            super().shutdown()
        finally:
            if self._running is None:  # otherwise it was refused
                self._end_watch()

    def listen(self, listener: TwoCallables) -> None:
        """Set the listener that answers checks, before the start."""
        self._listener = listener

    def half(self, message: Message, sharding_key: str | None, timeout: timedelta | None) -> PendingSend:
        """A new send of a half message, whose timeout begins now."""
        return self._half(message, sharding_key, timeout)

    def end(self, running: RunningProducer, sent: SendResult, state: LocalTransactionState) -> TransactionSendResult:
        """Report the outcome of the local transaction to the broker, if the outcome is known."""
        return self._end(running, sent, state)
