"""Loads that measure the client: consumers as a program uses them."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final

from sqlalchemy import Column, Connection, LargeBinary, MetaData, Table, Text

from benchmarks.bench.clients import settings_for
from benchmarks.bench.workers import Exhausted, Operation
from mqdb.broker.consumers.pull import DEFAULT_LIMIT
from mqdb.common.dsn import BrokerDsn
from mqdb.common.group import ConsumeFromWhere
from mqdb.common.received_message import ReceivedMessage
from mqdb_client import ConsumeConcurrentlyStatus, ConsumeOrderlyStatus, LitePullConsumer, PushConsumer
from mqdb_client.aio import AsyncPushConsumer

_POLL_TIMEOUT: Final = timedelta(seconds=1)

#: Between two looks at what a consumer has had.
_LOOK_SECONDS: Final = 0.01


class Way(StrEnum):
    """The way in which messages are consumed."""

    CONCURRENTLY = "concurrently"
    ORDERLY = "orderly"
    EXACTLY_ONCE = "exactly once"


#: The table that an exactly-once listener writes into, in the schema of the benchmark's own tables.
business = Table(
    "consumed", MetaData(schema="mqdb_bench"), Column("message_id", Text, primary_key=True), Column("body", LargeBinary)
)


@contextmanager
def consume(
    broker: BrokerDsn,
    threads: int,
    *,
    topic: str,
    messages: int,
    batch: int,
    way: Way = Way.CONCURRENTLY,
    group: str | None = None,
) -> Iterator[Sequence[Operation]]:
    """One push consumer with a listener that only counts; an exactly-once listener also inserts a row for each message.

    The consumer is in a new group, or in `group`. The operation ends when the consumer has received `messages`
    messages.
    """
    # Nobody serves while this is measured, on purpose.
    logging.getLogger("mqdb_client.dispatch_watch").setLevel(logging.ERROR)
    counts: list[int] = []
    begin = threading.Event()
    consumer = PushConsumer(
        group or f"mqdb_bench_{time.monotonic_ns()}",
        settings=settings_for(broker),
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        consume_message_batch_max_size=batch,
        pull_batch_size=max(batch, DEFAULT_LIMIT),
    )
    consumer.subscribe(topic)
    consumer.register_listener(
        _listener(way, counts, begin), orderly=way is Way.ORDERLY, exactly_once=way is Way.EXACTLY_ONCE
    )
    with consumer:
        try:
            yield [_Progress(begin, counts, messages)] * threads
        finally:
            begin.set()


@contextmanager
def consume_in_loop(
    broker: BrokerDsn, threads: int, *, topic: str, messages: int, at_once: int, await_seconds: float
) -> Iterator[Sequence[Operation]]:
    """One asyncio push consumer in a new group, with up to `at_once` calls of one message each, which await and count.

    The event loop has a separate thread. The operation ends when the consumer has received `messages` messages.
    """
    logging.getLogger("mqdb_client.dispatch_watch").setLevel(logging.ERROR)
    counts: list[int] = []
    begin, end = threading.Event(), threading.Event()

    async def listener(received: list[ReceivedMessage]) -> ConsumeConcurrentlyStatus:
        while not begin.is_set():
            await asyncio.sleep(_LOOK_SECONDS)
        await asyncio.sleep(await_seconds)
        counts.append(len(received))
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    consumer = AsyncPushConsumer(
        f"mqdb_bench_{time.monotonic_ns()}",
        settings=settings_for(broker),
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        consume_message_batch_max_size=1,
        consume_thread_nums=at_once,
    )
    consumer.register_listener(listener)

    async def work(is_started: Future[None]) -> None:
        await consumer.subscribe(topic)
        async with consumer:
            is_started.set_result(None)
            await asyncio.to_thread(end.wait)

    started: Future[None] = Future()
    with ThreadPoolExecutor(1) as executor:
        done = executor.submit(asyncio.run, work(started))
        try:
            wait([started, done], return_when=FIRST_COMPLETED)
            if done.done():
                done.result()
            yield [_Progress(begin, counts, messages)] * threads
        finally:
            begin.set()
            end.set()
            done.result()


@contextmanager
def poll(broker: BrokerDsn, threads: int, *, topic: str, messages: int, batch: int) -> Iterator[Sequence[Operation]]:
    """One lite pull consumer in a new group that commits the messages of each poll. Ends after `messages` messages."""
    logging.getLogger("mqdb_client.dispatch_watch").setLevel(logging.ERROR)
    consumer = LitePullConsumer(
        f"mqdb_bench_{time.monotonic_ns()}",
        settings=settings_for(broker),
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        pull_batch_size=batch,
        auto_commit=False,
    )
    consumer.subscribe(topic)
    missing = messages

    def operation() -> int:
        nonlocal missing
        if missing <= 0:
            raise Exhausted
        received = consumer.poll(_POLL_TIMEOUT)
        consumer.commit()
        missing -= len(received)
        return len(received)

    with consumer:
        yield [operation] * threads


def _listener(way: Way, counts: list[int], begin: threading.Event) -> Callable[..., Any]:
    # By the start of the round some thousand messages are pulled, and no more for want of room.
    def count(received: list[ReceivedMessage]) -> ConsumeConcurrentlyStatus:
        begin.wait()
        counts.append(len(received))
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    def count_in_order(received: list[ReceivedMessage]) -> ConsumeOrderlyStatus:
        count(received)
        return ConsumeOrderlyStatus.SUCCESS

    def insert(received: list[ReceivedMessage], connection: Connection) -> ConsumeConcurrentlyStatus:
        begin.wait()
        rows = [{"message_id": message.message_id, "body": message.body} for message in received]
        connection.execute(business.insert(), rows)
        return count(received)

    listeners: dict[Way, Callable[..., Any]] = {
        Way.CONCURRENTLY: count,
        Way.ORDERLY: count_in_order,
        Way.EXACTLY_ONCE: insert,
    }
    return listeners[way]


class _Progress:
    """An operation that waits a moment, and returns how many messages the consumer has received since the last call."""

    def __init__(self, begin: threading.Event, counts: list[int], messages: int) -> None:
        self._begin = begin
        self._counts = counts
        self._missing = messages
        self._seen = 0

    def __call__(self) -> int:
        self._begin.set()
        if self._missing <= 0:
            raise Exhausted
        time.sleep(_LOOK_SECONDS)
        end = len(self._counts)
        fresh = sum(self._counts[self._seen : end])
        self._seen = end
        self._missing -= fresh
        return fresh
