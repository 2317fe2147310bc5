"""Loads that measure the client: producers as a program uses them."""

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count, cycle
from typing import Final, Self

from benchmarks.bench import message_sample
from benchmarks.bench.workers import Operation
from mqdb.common.dsn import BrokerDsn
from mqdb.common.message import Message
from mqdb.settings import Settings
from mqdb_client import Producer
from mqdb_client.aio import AsyncProducer
from mqdb_client.producer.sends.send_result import SendResult

#: Different messages that are sent in turn; to make a message is the work of the program, not of the client.
_MESSAGES: Final = 1_000

#: How long a loop runs until somebody looks at the clock.
_MOMENT_SECONDS: Final = 0.02


def settings_for(*brokers: BrokerDsn) -> Settings:
    """Settings that name these brokers, and read neither the environment nor a file."""
    return Settings(dsn=";".join(f"{broker.name}={broker.dsn}" for broker in brokers))


@contextmanager
def send(
    broker: BrokerDsn, threads: int, *, topic: str, others: Sequence[BrokerDsn] = ()
) -> Iterator[Sequence[Operation]]:
    """One producer, for this broker and the others; each of its threads sends one message after another."""
    messages = [message_sample.message(topic, number) for number in range(_MESSAGES)]
    with Producer("mqdb_bench_producer", settings=settings_for(broker, *others)) as producer:
        yield [partial(_send, producer, messages, count(number)) for number in range(threads)]


def _send(producer: Producer, messages: list[Message], numbers: Iterator[int]) -> int:
    producer.send(messages[next(numbers) % _MESSAGES])
    return 1


@contextmanager
def send_batch(broker: BrokerDsn, threads: int, *, topic: str, batch: int) -> Iterator[Sequence[Operation]]:
    """One producer; each of its threads sends one batch after another."""
    messages = [message_sample.message(topic, number) for number in range(batch)]
    with Producer("mqdb_bench_producer", settings=settings_for(broker)) as producer:

        def operation() -> int:
            return len(producer.send_batch(messages))

        yield [operation] * threads


@contextmanager
def send_async(broker: BrokerDsn, threads: int, *, topic: str) -> Iterator[Sequence[Operation]]:
    """One producer; each of its threads submits one async send after another, as fast as back-pressure allows."""
    messages = [message_sample.message(topic, number) for number in range(_MESSAGES)]
    with Producer("mqdb_bench_producer", settings=settings_for(broker)) as producer:
        yield [_AsyncSends(producer, messages) for _ in range(threads)]


class _AsyncSends:
    """The async sends of one thread, which checks each future once: a failure ends the round."""

    def __init__(self, producer: Producer, messages: list[Message]) -> None:
        self._producer = producer
        self._messages = cycle(messages)
        self._futures: deque[Future[SendResult]] = deque()

    def __call__(self) -> int:
        futures = self._futures
        futures.append(self._producer.send_async(next(self._messages)))
        ended = 0
        while futures and futures[0].done():
            futures.popleft().result()
            ended += 1
        return ended

    def drain(self) -> int:
        """Wait for all sends under way."""
        ended = len(self._futures)
        while self._futures:
            self._futures.popleft().result()
        return ended


@contextmanager
def send_tasks(broker: BrokerDsn, threads: int, *, topic: str, tasks: int) -> Iterator[Sequence[Operation]]:
    """One asyncio producer and event loop for each thread; each of the loop's tasks sends one message after another."""
    messages = [message_sample.message(topic, number) for number in range(_MESSAGES)]
    with ExitStack() as stack:
        yield [stack.enter_context(_Tasks(broker, messages, tasks, number)) for number in range(threads)]


class _Tasks:
    """Tasks that send, as one operation: each call runs their event loop for a moment."""

    def __init__(self, broker: BrokerDsn, messages: list[Message], tasks: int, number: int) -> None:
        self._messages = messages
        self._count = tasks
        self._producer = AsyncProducer(f"mqdb_bench_producer_{number}", settings=settings_for(broker))
        self._runner = asyncio.Runner()
        self._tasks: list[asyncio.Task[None]] = []
        self._sent = 0

    def __enter__(self) -> Self:
        self._runner.run(self._producer.start())
        return self

    def __exit__(self, *_: object) -> None:
        with self._runner:
            self._runner.run(self._producer.shutdown())

    def __call__(self) -> int:
        return self._runner.run(self._go_on(_MOMENT_SECONDS))

    def drain(self) -> int:
        """Wait for all sends under way."""
        return self._runner.run(self._end())

    async def _go_on(self, seconds: float) -> int:
        before = self._sent
        if not self._tasks:
            self._tasks = [asyncio.create_task(self._send(count(number))) for number in range(self._count)]
        done, _ = await asyncio.wait(self._tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()  # it ends only by an error
        return self._sent - before

    async def _end(self) -> int:
        before = self._sent
        self._count = 0
        await asyncio.gather(*self._tasks)
        return self._sent - before

    async def _send(self, numbers: Iterator[int]) -> None:
        while self._count:
            await self._producer.send(self._messages[next(numbers) % _MESSAGES])
            self._sent += 1
