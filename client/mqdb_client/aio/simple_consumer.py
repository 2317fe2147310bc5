"""The simple consumer for asyncio, with the names, options, errors and guarantees of `SimpleConsumer`."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Self

from mqdb.common.received_message import ReceivedMessage
from mqdb.errors import MqdbError
from mqdb.selector.tags import ALL_TAGS
from mqdb_client.aio.in_threads import Wrapper, in_thread, start_in_thread
from mqdb_client.client_config import configured_by
from mqdb_client.consumer.message_selector import MessageSelector
from mqdb_client.simple.receiving import Receiving
from mqdb_client.simple.simple_config import SimpleConsumerConfig
from mqdb_client.simple.simple_consumer import SimpleConsumer


class AsyncSimpleConsumer(Wrapper["_Below"]):
    """A consumer that receives messages from any queue of its topics and acknowledges each message.

        async with AsyncSimpleConsumer("workers") as consumer:
            for message in await consumer.receive(10, timedelta(minutes=5)):
                await work(message)
                await consumer.ack(message)

    `receive` waits in the loop without blocking a thread; each pop uses a thread briefly. If a `receive` is cancelled,
    it first gives back the messages that it was about to return. Everything else works as in `SimpleConsumer`, with
    tasks instead of threads.
    """

    @configured_by(SimpleConsumerConfig)
    def __init__(self, config: SimpleConsumerConfig) -> None:
        """Create a consumer that does not run yet. Raises NameInvalid, ParameterInvalid, SettingInvalid."""
        super().__init__(_Below(config))

    @property
    def group(self) -> str:
        """The name of the group."""
        return self._below.group

    @property
    def is_running(self) -> bool:
        """Whether the consumer has been started and not shut down."""
        return self._below.is_running

    def subscribe(self, topic: str, expression: str | MessageSelector | None = ALL_TAGS) -> None:
        """Receive the messages of a topic. See `SimpleConsumer.subscribe`."""
        self._below.subscribe(topic, expression)

    async def receive(
        self, max_messages: int = 16, invisible_for: timedelta | None = None, timeout: timedelta | None = None
    ) -> list[ReceivedMessage]:
        """Receive up to `max_messages` as soon as there are any; [] after `timeout`. See `SimpleConsumer.receive`."""
        receiving = self._below.begin_receive(max_messages, invisible_for, timeout)
        woken = asyncio.Event()
        with receiving.woken_by(_in_loop(woken.set)):
            while (messages := await self._pop(receiving)) is None:
                with suppress(TimeoutError):
                    await asyncio.wait_for(woken.wait(), receiving.seconds)
                woken.clear()
        return messages

    async def _pop(self, receiving: Receiving) -> list[ReceivedMessage] | None:
        popping = asyncio.get_running_loop().run_in_executor(None, receiving.pop)
        try:
            return await asyncio.shield(popping)
        except asyncio.CancelledError:
            with suppress(MqdbError):  # otherwise they are redelivered when their time has passed
                if messages := await popping:
                    await asyncio.to_thread(receiving.give_back, messages)
            raise

    ack = in_thread(SimpleConsumer.ack)
    change_invisible = in_thread(SimpleConsumer.change_invisible)
    forward_to_dlq = in_thread(SimpleConsumer.forward_to_dlq)

    async def start(self) -> None:
        """Connect, and join the group.

        See `SimpleConsumer.start`. If the task that awaits the start is cancelled, the consumer is shut down.
        """
        await start_in_thread(self._below)

    async def shutdown(self) -> None:
        """Leave the group; a `receive` in another task returns. See `SimpleConsumer.shutdown`."""
        await asyncio.to_thread(self._below.shutdown)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.shutdown()

    def __repr__(self) -> str:
        return f"AsyncSimpleConsumer(group={self.group!r})"


class _Below(SimpleConsumer):
    """The synchronous consumer."""

    def __init__(self, config: SimpleConsumerConfig) -> None:
        self._configure(config)

    def begin_receive(self, max_messages: int, invisible_for: timedelta | None, timeout: timedelta | None) -> Receiving:
        """Start a call of `receive`. Raises the errors of `receive` for its arguments."""
        return self._begin_receive(max_messages, invisible_for, timeout)


def _in_loop(wake: Callable[[], None]) -> Callable[[], None]:
    loop = asyncio.get_running_loop()

    def tell() -> None:
        with suppress(RuntimeError):  # the loop is closed, so no task waits
            loop.call_soon_threadsafe(wake)

    return tell
