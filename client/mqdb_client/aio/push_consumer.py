"""The push consumer for asyncio, with the names, options, errors and guarantees of `PushConsumer`."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from mqdb.common.message import MessageQueue
from mqdb.common.received_message import ReceivedMessage
from mqdb.errors import IllegalState, NotSupported, ShutdownTimedOut
from mqdb_client.abandoned_clients import closed_loops, watch
from mqdb_client.aio.in_threads import Wrapper, in_thread, start_in_thread
from mqdb_client.aio.stop_signals import on_loop_stop_signal
from mqdb_client.client_config import configured_by
from mqdb_client.consumer.listeners.consume_hooks import ConsumeMessageHook
from mqdb_client.consumer.listeners.loop_calls import LoopCalls
from mqdb_client.consumer.listeners.loop_tasks import LoopTasks
from mqdb_client.consumer.listeners.message_listener import (
    ConsumeConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyContext,
    ConsumeOrderlyStatus,
)
from mqdb_client.consumer.push_consumer import PushConsumer
from mqdb_client.consumer.push_consumer_config import PushConsumerConfig
from mqdb_client.consumer.push_strategy import Consumption

if TYPE_CHECKING:  # it requires greenlet
    from sqlalchemy.ext.asyncio import AsyncConnection

_Answer: TypeAlias = Coroutine[Any, Any, ConsumeConcurrentlyStatus | None]
_OrderlyAnswer: TypeAlias = Coroutine[Any, Any, ConsumeOrderlyStatus | None]

#: Runs in many tasks at once, each with 1 to `consume_message_batch_max_size` messages of one queue, ascending.
AsyncMessageListener: TypeAlias = (
    Callable[[list[ReceivedMessage]], _Answer] | Callable[[list[ReceivedMessage], ConsumeConcurrentlyContext], _Answer]
)

#: Runs in one task per queue.
AsyncMessageListenerOrderly: TypeAlias = (
    Callable[[list[ReceivedMessage]], _OrderlyAnswer]
    | Callable[[list[ReceivedMessage], ConsumeOrderlyContext], _OrderlyAnswer]
)

#: Runs in a transaction that commits its writes together with the offset; orderly listeners get the other context.
AsyncMessageListenerExactlyOnce: TypeAlias = (
    Callable[[list[ReceivedMessage], "AsyncConnection"], Coroutine[Any, Any, Any]]
    | Callable[[list[ReceivedMessage], "AsyncConnection", ConsumeConcurrentlyContext], Coroutine[Any, Any, Any]]
    | Callable[[list[ReceivedMessage], "AsyncConnection", ConsumeOrderlyContext], Coroutine[Any, Any, Any]]
)


class AsyncPushConsumer(Wrapper["_Below"]):
    """A member of a consumer group whose listener is a coroutine function.

        async def bill(messages):
            await ...
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

        consumer = AsyncPushConsumer("billing")
        await consumer.subscribe("orders", "paid")
        consumer.register_listener(bill)
        await consumer.run()

    Up to `consume_thread_nums` calls of the listener run at once, as tasks of the loop in which the consumer was
    started. Membership, pulls and offsets use separate threads, so a consumer keeps its queues even while the loop is
    blocked. If the loop is closed without a shutdown, the consumer leaves its group. Messages of a cancelled task count
    as failed. Everything else works as in `PushConsumer`.
    """

    @configured_by(PushConsumerConfig)
    def __init__(self, config: PushConsumerConfig) -> None:
        """Create a consumer that does not run yet. Raises NameInvalid, ParameterInvalid, SettingInvalid."""
        super().__init__(_Below(config))
        self._consumption: Consumption | None = None
        self._is_started = False
        self._stopped = asyncio.Event()

    @property
    def group(self) -> str:
        """The name of the group."""
        return self._below.group

    @property
    def assignment(self) -> tuple[MessageQueue, ...]:
        """The queues that this member currently reads on all brokers, in order."""
        return self._below.assignment

    # -- before the start -----------------------------------------------------------------------

    subscribe = in_thread(PushConsumer.subscribe)
    unsubscribe = in_thread(PushConsumer.unsubscribe)

    def register_listener(
        self,
        listener: AsyncMessageListener | AsyncMessageListenerOrderly | AsyncMessageListenerExactlyOnce,
        *,
        orderly: bool = False,
        exactly_once: bool = False,
    ) -> None:
        """Set the coroutine function for all messages.

        The function is called with the messages and, if it takes a second argument, with a context.
        `orderly` and `exactly_once` are as for `PushConsumer.register_listener`. The connection of an exactly-once
        listener is an AsyncConnection of SQLAlchemy, which requires greenlet: `sqlalchemy[asyncio]`.
        Raises ParameterInvalid if `listener` is not a coroutine function, cannot be called with these arguments, or
        neither returns a status nor takes a context; NotSupported after the start.
        """
        if self._is_started:
            raise NotSupported("register_listener() of a consumer that is running")
        self._consumption = Consumption(listener, orderly, exactly_once, is_asynchronous=True)

    def register_consume_message_hook(self, hook: ConsumeMessageHook) -> None:
        """Call `hook` around each call of the listener: in the loop, or in a thread if the listener is orderly.

        Raises ParameterInvalid.
        """
        self._below.register_consume_message_hook(hook)

    # -- life -----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connect, join the group and consume, in this loop. Raises the errors of `PushConsumer.start`.

        If the task that awaits the start is cancelled, the consumer is shut down.
        """
        if self._consumption is not None and not self._is_started:
            self._below.register(replace(self._consumption, loop=asyncio.get_running_loop()))
        await start_in_thread(self._below)
        self._is_started = True

    def suspend(self) -> None:
        """Stop pulling until `resume`, and keep the queues. See `PushConsumer.suspend`."""
        self._below.suspend()

    def resume(self) -> None:
        """Resume after `suspend`. See `PushConsumer.resume`."""
        self._below.resume()

    def update_consume_thread_nums(self, consume_thread_nums: int) -> None:
        """Set how many calls of the listener run at once, from 1 to 1,000. Raises ParameterInvalid, IllegalState."""
        self._below.update_consume_thread_nums(consume_thread_nums)

    async def shutdown(self, timeout: timedelta | None = None) -> None:
        """Leave the group: stop calling the listener, wait for running calls, and commit the offsets.

        Calls that still run after `timeout` (default: `shutdown_timeout`) are cancelled, and ShutdownTimedOut is
        raised. Everything else works as in `PushConsumer.shutdown`.
        Raises IllegalState in a listener, because the shutdown would wait for this listener.
        """
        tasks = self._below.tasks
        if tasks is not None and tasks.is_own_thread():
            raise IllegalState(repr(self), "waiting for this listener; call shutdown() in another task")
        try:
            await asyncio.to_thread(self._below.shutdown, timeout)
        except ShutdownTimedOut:
            if tasks is not None:
                tasks.cancel()
            raise
        finally:
            self._stopped.set()

    async def run(self) -> None:
        """Consume until SIGINT, SIGTERM, `shutdown` by another task, or the end of this task.

        Starts the consumer if needed.
        Raises the errors of `start` and `shutdown`.
        """
        with on_loop_stop_signal(self._stopped.set):
            if not self._is_started or self._stopped.is_set():  # the latter is refused
                await self.start()  # if the start fails, it can be repeated
            try:
                await self._stopped.wait()
            except asyncio.CancelledError:
                with suppress(ShutdownTimedOut):  # it was logged
                    await self.shutdown()
                raise
            await self.shutdown()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            await self.shutdown()
        except ShutdownTimedOut:
            if kind is None:  # otherwise it was logged, and the error that ends the block is raised
                raise

    def __repr__(self) -> str:
        return f"AsyncPushConsumer(group={self.group!r})"


class _Below(PushConsumer):
    """The synchronous consumer: membership, pulls, offsets."""

    def __init__(self, config: PushConsumerConfig) -> None:
        self._configure(config)
        self._end_watch: Callable[[], None] = lambda: None

    def register(self, consumption: Consumption) -> None:
        """Register a listener that is called in its event loop."""
        with self._lifecycle:
            self._consumption = consumption

    def start(self) -> None:
        """Start like a PushConsumer. If the loop is closed, even during the start, the consumer leaves the group."""
        with self._lifecycle:
            super().start()
            assert self._consumption is not None
            assert self._consumption.loop is not None
            is_closed = partial(closed_loops, [self._consumption.loop])
            # Calls that still run cannot return.
            leave = partial(self.shutdown, timedelta(0))
            self._end_watch = watch(f"AsyncPushConsumer(group={self.group!r})", is_closed, leave)

    def shutdown(self, timeout: timedelta | None = None) -> None:
        """Shut down like a PushConsumer."""
        try:
            super().shutdown(timeout)
        finally:
            if self._members is None:  # otherwise it was refused
                self._end_watch()

    @property
    def tasks(self) -> LoopTasks | LoopCalls | None:
        """The tasks of the listener; None unless the consumer is running."""
        return None if self._strategy is None else self._strategy.tasks
