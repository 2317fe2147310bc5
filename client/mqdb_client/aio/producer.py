"""The producer for asyncio, with the names, options, errors and guarantees of `Producer`."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar

import psycopg

from mqdb.common.message import Message, MessageQueue, check_message
from mqdb.common.received_message import ReceivedMessage
from mqdb.common.unique_id import parse_unique_id
from mqdb.errors import IllegalState, ParameterInvalid
from mqdb_client.aio.in_threads import Wrapper, in_thread, start_in_thread
from mqdb_client.aio.loop_sends import LoopSends
from mqdb_client.client_config import configured_by
from mqdb_client.producer.config import ProducerConfig
from mqdb_client.producer.joined.callers_connection import BridgedConnection
from mqdb_client.producer.joined.joined_send import check_untimed
from mqdb_client.producer.producer import Producer
from mqdb_client.producer.queues.queue_choice import Target, target_of
from mqdb_client.producer.queues.queue_selector import MessageQueueSelector
from mqdb_client.producer.requests.request_reply import ReplyMessage
from mqdb_client.producer.running_producer import RunningProducer
from mqdb_client.producer.sends.batch import MessageBatch, check_batch, list_of_messages
from mqdb_client.producer.sends.send_hooks import CheckForbiddenHook, SendMessageHook, SendMode
from mqdb_client.producer.sends.send_result import SendResult
from mqdb_client.producer.sends.sending import PendingSend

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session

    #: The types of the `connection` whose transaction a send joins.
    CallersAsyncConnection: TypeAlias = (
        AsyncConnection | AsyncSession | async_scoped_session[Any] | psycopg.AsyncConnection[Any]
    )
else:
    CallersAsyncConnection: TypeAlias = Any  # SQLAlchemy's asyncio part need not be installed

T = TypeVar("T")


class AsyncProducer(Wrapper["ProducerBelow"]):
    """Sends messages for a producer group, from the tasks of one or several event loops.

        async with AsyncProducer("orders-service") as producer:
            await producer.send(Message("orders", b"...", tag="paid", keys="order-17"), sharding_key="customer-4")

    Concurrent sends share statements. If a task is cancelled during a send, either nothing is sent, or the
    CancelledError contains the ids of the messages (see `ids_that_may_be_stored`) and `outcome` returns their outcomes.
    Everything else works as in `Producer`.
    """

    @configured_by(ProducerConfig)
    def __init__(self, config: ProducerConfig) -> None:
        """Create a producer without connecting.

        Raises NameInvalid, ParameterInvalid, and SettingInvalid for the settings.
        """
        self._configure(ProducerBelow(config))

    def _configure(self, below: "ProducerBelow") -> None:
        super().__init__(below)
        below.end_sends = self._end_sends
        below.has_sends_of_this_loop = self._has_sends_of_this_loop
        self._guard = threading.Lock()
        self._by_loop: dict[asyncio.AbstractEventLoop, LoopSends] = {}

    @property
    def group(self) -> str:
        """The name of the group."""
        return self._below.group

    @property
    def synchronous(self) -> Producer:
        """The same producer for threads that run no event loop."""
        return self._below

    # -- life ---------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connect and join the group. Raises the errors of `Producer.start`.

        If the task is cancelled, the producer is shut down.
        """
        await start_in_thread(self._below)

    async def shutdown(self) -> None:
        """Wait for the sends under way, leave the group and disconnect. Calling it twice has no effect."""
        await asyncio.to_thread(self._below.shutdown)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.shutdown()

    # -- sending ------------------------------------------------------------------------------

    async def send(
        self,
        message: Message,
        sharding_key: str | None = None,
        *,
        queue: MessageQueue | None = None,
        selector: MessageQueueSelector | None = None,
        selector_argument: object = None,
        connection: "CallersAsyncConnection | None" = None,
        timeout: timedelta | None = None,
    ) -> SendResult:
        """Send one message, and return when it is stored. See `Producer.send`.

        With `connection`, an AsyncConnection or AsyncSession of SQLAlchemy or a psycopg.AsyncConnection, the message
        becomes part of the connection's transaction.
        """
        if connection is not None:
            check_untimed(timeout)
            send = partial(
                self._below.send,
                message,
                sharding_key,
                queue=queue,
                selector=selector,
                selector_argument=selector_argument,
            )
            return await _joined(send, connection)
        if isinstance(message, ReplyMessage):
            return await asyncio.to_thread(self._below.send, message, sharding_key, queue=queue, timeout=timeout)
        running = self._below.work()
        check_message(message, running.sending.config.max_message_size_bytes)
        target = target_of(message, sharding_key, queue, selector, selector_argument)
        pending = self._below.pending((message,), target, SendMode.SYNC, timeout)
        return (await self._sends(running).send(pending))[0]

    async def send_batch(
        self,
        messages: Sequence[Message],
        sharding_key: str | None = None,
        *,
        queue: MessageQueue | None = None,
        connection: "CallersAsyncConnection | None" = None,
        timeout: timedelta | None = None,
    ) -> list[SendResult]:
        """Send messages of one topic together: to one queue, in order, all or none. See `Producer.send_batch`."""
        if connection is not None:
            check_untimed(timeout)
            return await _joined(partial(self._below.send_batch, messages, sharding_key, queue=queue), connection)
        running = self._below.work()
        messages = list_of_messages(messages)
        check_batch(messages, running.sending.config.max_message_size_bytes)
        if not messages:
            return []
        target = target_of(messages[0], sharding_key, queue)
        pending = self._below.pending(MessageBatch(messages), target, SendMode.SYNC, timeout)
        return list(await self._sends(running).send(pending))

    async def send_oneway(
        self,
        message: Message,
        sharding_key: str | None = None,
        *,
        queue: MessageQueue | None = None,
        selector: MessageQueueSelector | None = None,
        selector_argument: object = None,
    ) -> None:
        """Send one message without returning a result. There is only one attempt, and a failure is only logged.

        Waits while too many sends are under way, and for a route that is not cached yet.
        """
        running = self._below.work()
        check_message(message, running.sending.config.max_message_size_bytes)
        target = target_of(message, sharding_key, queue, selector, selector_argument)
        if isinstance(message, ReplyMessage):
            await asyncio.to_thread(self._below.send_oneway, message, queue=queue)
            return
        await self._sends(running).send_oneway(self._below.pending((message,), target, SendMode.ONEWAY, None))

    async def request(self, message: Message, timeout: timedelta, sharding_key: str | None = None) -> ReceivedMessage:
        """Send a message and wait for its reply. See `Producer.request`."""
        replied = await asyncio.to_thread(self._below.request_async, message, timeout, sharding_key)
        return await asyncio.wrap_future(replied)

    fetch_publish_queues = in_thread(Producer.fetch_publish_queues)
    recall = in_thread(Producer.recall)

    async def outcome(self, message_id: str) -> SendResult | None:
        """The result of a send, by the unique id of the message; None if the message is not stored.

        See `Producer.outcome`.
        If the send was cancelled and is still under way, this waits for its end.
        """
        running = self._below.work()
        await self._sends(running).settled(parse_unique_id(message_id))
        return await asyncio.to_thread(self._below.outcome, message_id)

    # -- hooks --------------------------------------------------------------------------------

    def register_send_message_hook(self, hook: SendMessageHook) -> None:
        """Call `hook` before and after each attempt, in the loop or in a thread."""
        self._below.register_send_message_hook(hook)

    def register_check_forbidden_hook(self, hook: CheckForbiddenHook) -> None:
        """Let `hook` decide about each attempt. See `Producer.register_check_forbidden_hook`."""
        self._below.register_check_forbidden_hook(hook)

    def _sends(self, running: RunningProducer) -> LoopSends:
        """The sends of the running loop."""
        loop = asyncio.get_running_loop()
        if (sends := self._by_loop.get(loop)) is None:
            with self._guard:
                gone = [self._by_loop.pop(each) for each in list(self._by_loop) if each.is_closed()]
                sends = self._by_loop[loop] = LoopSends(running)
            for each in gone:
                each.close()
        return sends

    def _end_sends(self) -> None:
        for sends in list(self._by_loop.values()):
            sends.close()

    def _has_sends_of_this_loop(self) -> bool:
        return asyncio._get_running_loop() in self._by_loop


class ProducerBelow(Producer):
    """The synchronous producer: it connects, and does rare work in a thread."""

    #: Waits for the end of the loops' sends.
    end_sends: Callable[[], None]
    #: Whether this thread runs an event loop that has sent.
    has_sends_of_this_loop: Callable[[], bool]

    def __init__(self, config: ProducerConfig) -> None:
        self._configure(config)

    def start(self) -> None:
        """Start like a Producer. At shutdown, the sends of all loops end before the producer closes."""
        super().start()
        self.work().at_close(self.end_sends)

    def shutdown(self) -> None:
        """Shut down like a Producer.

        Raises IllegalState in a loop with sends, because the shutdown would wait for this loop.
        """
        if self._running is not None and self.has_sends_of_this_loop():
            reason = "waiting for this event loop; await AsyncProducer.shutdown() or App.aclose() instead"
            raise IllegalState(self._name, reason)
        super().shutdown()

    def work(self) -> RunningProducer:
        """The running producer. Raises IllegalState unless the producer has been started."""
        return self._work()

    def pending(
        self, messages: Sequence[Message], target: Target, mode: SendMode, timeout: timedelta | None
    ) -> PendingSend:
        """A new send, whose timeout begins now."""
        return self._pending(messages, target, mode, timeout)


async def _joined(send: Callable[..., T], connection: "CallersAsyncConnection") -> T:
    """Run `send` in the transaction of an asynchronous connection."""
    if isinstance(connection, psycopg.AsyncConnection):
        bridged = BridgedConnection(connection, asyncio.get_running_loop())
        try:
            return await asyncio.to_thread(send, connection=bridged)
        except asyncio.CancelledError:
            bridged.leave()
            raise
    run_sync = getattr(connection, "run_sync", None)
    if run_sync is None:
        reason = "give an AsyncConnection or AsyncSession of SQLAlchemy, or a psycopg.AsyncConnection"
        raise ParameterInvalid("connection", f"{type(connection).__module__}.{type(connection).__qualname__}", reason)
    sent: T = await run_sync(lambda below: send(connection=below))
    return sent
