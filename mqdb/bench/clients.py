"""Loads that are about the client: producers as a program uses them."""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from itertools import count, cycle
from typing import Final

from mqdb.bench import sample
from mqdb.bench.workers import Operation
from mqdb.common.dsn import BrokerDsn
from mqdb.common.message import Message, SendResult
from mqdb.settings import Settings
from mqdb_client import Producer

#: Different messages that are sent in turn; to make a message is the work of the program, not of the client.
_MESSAGES: Final = 1_000


def settings_for(*brokers: BrokerDsn) -> Settings:
    """Settings that name these brokers, and nothing of what the environment or a file says."""
    return Settings(dsn=";".join(f"{broker.name}={broker.dsn}" for broker in brokers))


@contextmanager
def send(
    broker: BrokerDsn, threads: int, *, topic: str, others: Sequence[BrokerDsn] = ()
) -> Iterator[Sequence[Operation]]:
    """One producer, over this broker and the others; each of its threads sends one message after the other."""
    messages = [sample.message(topic, number) for number in range(_MESSAGES)]
    with Producer("mqdb_bench_producer", settings=settings_for(broker, *others)) as producer:
        yield [partial(_send, producer, messages, count(number)) for number in range(threads)]


def _send(producer: Producer, messages: list[Message], numbers: Iterator[int]) -> int:
    producer.send(messages[next(numbers) % _MESSAGES])
    return 1


@contextmanager
def send_batch(broker: BrokerDsn, threads: int, *, topic: str, batch: int) -> Iterator[Sequence[Operation]]:
    """One producer; each of its threads sends one batch after the other."""
    messages = [sample.message(topic, number) for number in range(batch)]
    with Producer("mqdb_bench_producer", settings=settings_for(broker)) as producer:

        def operation() -> int:
            return len(producer.send_batch(messages))

        yield [operation] * threads


@contextmanager
def send_async(broker: BrokerDsn, threads: int, *, topic: str) -> Iterator[Sequence[Operation]]:
    """One producer; each of its threads hands in one message after the other, as fast as back-pressure lets it."""
    messages = [sample.message(topic, number) for number in range(_MESSAGES)]
    with Producer("mqdb_bench_producer", settings=settings_for(broker)) as producer:
        yield [_AsyncSends(producer, messages) for _ in range(threads)]


class _AsyncSends:
    """Async sends of one thread, which looks at each future once: a failure ends the round."""

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
        """Wait for all that is under way."""
        ended = len(self._futures)
        while self._futures:
            self._futures.popleft().result()
        return ended
