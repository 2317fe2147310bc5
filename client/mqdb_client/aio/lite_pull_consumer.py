"""The lite pull consumer for asyncio, with the names, options, errors and guarantees of `LitePullConsumer`."""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from inspect import iscoroutinefunction
from typing import Any, Final, Self, TypeAlias
from weakref import WeakSet

from mqdb.common.message import MessageQueue
from mqdb.common.received_message import ReceivedMessage
from mqdb.errors import ParameterInvalid, ShutdownTimedOut
from mqdb_client.aio.in_threads import Wrapper, in_thread, start_in_thread
from mqdb_client.client_config import configured_by
from mqdb_client.consumer.listeners.loop_calls import LoopCalls
from mqdb_client.lite_pull.lite_pull_config import LitePullConsumerConfig
from mqdb_client.lite_pull.lite_pull_consumer import LitePullConsumer
from mqdb_client.lite_pull.poll_buffer import PollBuffer
from mqdb_client.lite_pull.poll_strategy import SubscribedPolls
from mqdb_client.process_hooks import operations

#: Called with the topic and all its readable queues, in order.
AsyncTopicMessageQueueChangeListener: TypeAlias = Callable[[str, tuple[MessageQueue, ...]], Coroutine[Any, Any, None]]

#: The maximum time for which polls that need not wait may keep a loop from other work.
_TURN_SECONDS: Final = 0.001


class _Turn(threading.local):
    """The time at which a poll last let this thread's event loop do other work."""

    at = 0.0


_turn: Final = _Turn()


class AsyncLitePullConsumer(Wrapper["_Below"]):
    """A consumer that polls for messages and decides when they are done.

        consumer = AsyncLitePullConsumer("billing")
        await consumer.subscribe("orders")
        async with consumer:
            async for message in consumer:
                ...

    A poll waits in the loop without blocking a thread. A cancelled poll takes no messages: the next poll returns them.
    All other waiting methods run in threads; if a task is cancelled, its thread still runs to the end. Membership,
    pulls and offsets use separate threads. As in `LitePullConsumer`, the message at which an `async for` was left
    counts as done only after the next poll or iteration, `commit`, or the end of the `async with`. If all loops that
    have started or polled the consumer are closed without a shutdown, the consumer leaves its group. Everything else
    works as in `LitePullConsumer`, with tasks instead of threads.
    """

    @configured_by(LitePullConsumerConfig)
    def __init__(self, config: LitePullConsumerConfig) -> None:
        """Create a consumer that does not run yet. Raises NameInvalid, ParameterInvalid, SettingInvalid."""
        super().__init__(_Below(config))
        self._calls: list[LoopCalls] = []  # of each topic listener

    @property
    def group(self) -> str:
        """The name of the group."""
        return self._below.group

    @property
    def is_running(self) -> bool:
        """Whether the consumer has been started and not shut down."""
        return self._below.is_running

    @property
    def assignment(self) -> tuple[MessageQueue, ...]:
        """The queues assigned by the user, or by rebalance so far, in order."""
        return self._below.assignment

    # -- reading ----------------------------------------------------------------------------------

    subscribe = in_thread(LitePullConsumer.subscribe)
    unsubscribe = in_thread(LitePullConsumer.unsubscribe)
    assign = in_thread(LitePullConsumer.assign)
    fetch_message_queues = in_thread(LitePullConsumer.fetch_message_queues)

    async def register_topic_message_queue_change_listener(
        self, topic: str, listener: AsyncTopicMessageQueueChangeListener
    ) -> None:
        """Run the coroutine function `listener(topic, queues)` in this loop when the queues of a topic change.

        See `LitePullConsumer.register_topic_message_queue_change_listener`. Raises NameInvalid, ParameterInvalid.
        """
        if not any(map(iscoroutinefunction, (listener, type(listener).__call__))):
            raise ParameterInvalid("listener", listener, "is not a coroutine function; write async def")
        calls = LoopCalls(asyncio.get_running_loop())
        self._calls.append(calls)
        await asyncio.to_thread(
            self._below.register_topic_message_queue_change_listener, topic, calls.blocking(listener)
        )

    # -- messages ---------------------------------------------------------------------------------

    async def poll(self, timeout: timedelta | None = None) -> list[ReceivedMessage]:
        """Wait for messages and return up to `pull_batch_size`; [] after `timeout` (default: `poll_timeout`).

        Also returns [] if another task shuts the consumer down during the poll. Raises ParameterInvalid, and
        IllegalState if the consumer is not running. If the task is cancelled, no message is taken.
        """
        self._below.note_loop()
        strategy, limit, seconds = self._below.begin_poll(timeout)
        return await _poll(strategy, limit, seconds)

    def __aiter__(self) -> Self:
        """Iterate over messages until the consumer is shut down.

        Raises IllegalState if the consumer has not been started.
        """
        self._below.begin_poll(None)
        return self

    async def __anext__(self) -> ReceivedMessage:
        self._below.note_loop()
        while (strategy := self._below.strategy) is not None:
            for message in await _poll(strategy, 1, self._below.poll_seconds):
                return message
        raise StopAsyncIteration

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Stop returning messages of these queues until `resume`. See `LitePullConsumer.pause`."""
        self._below.pause(queues)

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Resume paused queues. See `LitePullConsumer.resume`."""
        self._below.resume(queues)

    # -- offsets ----------------------------------------------------------------------------------

    seek = in_thread(LitePullConsumer.seek)
    seek_to_begin = in_thread(LitePullConsumer.seek_to_begin)
    seek_to_end = in_thread(LitePullConsumer.seek_to_end)
    offset_for_timestamp = in_thread(LitePullConsumer.offset_for_timestamp)
    committed = in_thread(LitePullConsumer.committed)
    commit = in_thread(LitePullConsumer.commit)

    # -- life -------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connect and start reading.

        See `LitePullConsumer.start`. If the task is cancelled, the consumer is shut down.
        """
        self._below.note_loop()
        await start_in_thread(self._below)

    async def shutdown(self) -> None:
        """Commit done messages and leave the group; a poll in another task returns. Calling it twice has no effect.

        If a topic listener has not returned within `shutdown_timeout`, it is cancelled, and this raises
        ShutdownTimedOut after the consumer has left the group.
        """
        is_listening = any(calls.is_own_thread() for calls in self._calls)
        try:
            await asyncio.to_thread(self._below.leave, is_listening=is_listening)
        except ShutdownTimedOut:
            for calls in self._calls:
                calls.cancel()
            raise

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._below.finish()
        try:
            await self.shutdown()
        except ShutdownTimedOut:
            if kind is None:  # otherwise it was logged, and the error that ends the block is raised
                raise

    def __repr__(self) -> str:
        return f"AsyncLitePullConsumer(group={self.group!r})"


class _Below(LitePullConsumer):
    """The synchronous consumer: membership, pulls, offsets."""

    _loops: "WeakSet[asyncio.AbstractEventLoop]"

    def __init__(self, config: LitePullConsumerConfig) -> None:
        self._configure(config)
        self._loops = WeakSet()

    def note_loop(self) -> None:
        """Record that this loop uses the consumer. The consumer leaves its group when all recorded loops are closed."""
        self._loops.add(asyncio.get_running_loop())

    def begin_poll(self, timeout: timedelta | None) -> tuple[SubscribedPolls, int, float]:
        """The arguments of a poll: the strategy to use, the maximum number of messages, and the seconds to wait.

        Raises the errors of `poll`.
        """
        seconds = self._poll_seconds(timeout)
        return self._require_running().strategy, self._config.pull_batch_size, seconds

    @property
    def strategy(self) -> SubscribedPolls | None:
        """The strategy that polls use; None unless the consumer is running."""
        running = self._running  # read once: another thread may shut it down
        return None if running is None else running.strategy

    @property
    def poll_seconds(self) -> float:
        """The default timeout of a poll in seconds."""
        return self._poll_seconds(None)

    def finish(self) -> None:
        """Mark all messages returned by polls as done."""
        self._finish()

    def leave(self, *, is_listening: bool) -> None:
        """Shut down, perhaps in a topic listener."""
        self._leave(is_listening=is_listening)


async def _poll(strategy: SubscribedPolls, limit: int, seconds: float) -> list[ReceivedMessage]:
    """Poll for messages from a task. See `SubscribedPolls.poll`."""
    if operations.is_empty:
        return await _wait(strategy.buffer, limit, seconds)
    with strategy.seen() as note:
        return note(await _wait(strategy.buffer, limit, seconds))


async def _wait(buffer: PollBuffer, limit: int, seconds: float) -> list[ReceivedMessage]:
    """Wait for messages in a task. See `PollBuffer.poll`.

    Nothing is awaited between taking messages and returning them.
    """
    if time.monotonic() - _turn.at > _TURN_SECONDS:
        # While there are messages, polls never wait: without this the loop could do nothing else.
        await asyncio.sleep(0)
        _turn.at = time.monotonic()
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    messages = buffer.poll(limit, 0.0)
    while not messages:
        future: asyncio.Future[None] = loop.create_future()
        timer = loop.call_at(deadline, _set, future)
        wake = partial(_tell, loop, future)
        try:
            if (taken := buffer.take(limit, wake)) is not None:
                return taken
            if loop.time() >= deadline:
                break
            await future
        finally:
            timer.cancel()
            buffer.forget(wake)
    return messages


def _tell(loop: asyncio.AbstractEventLoop, future: "asyncio.Future[None]") -> None:
    with suppress(RuntimeError):  # the loop is closed, so no task waits
        loop.call_soon_threadsafe(_set, future)


def _set(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
