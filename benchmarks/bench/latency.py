"""`do.py bench latency`: the time of a message from the call of send to the call of the listener.

    latency          one topic
    latency-tasks    the same with an asyncio producer and consumer, against threads
    latency-topics   the same rate over many topics of one consumer, against one topic; also the consumer's start, and
                     the CPU of its process and its backends while nothing is sent

There are three processes, as in real life: one runs dispatch and the other services, one sends at a steady rate, and
one consumes. The sender writes the time into the body. The time comes from the machine's monotonic clock, which all
processes share. The sender has several threads, so that a slow send does not delay later ones.
"""

import asyncio
import os
import struct
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection as Pipe
from typing import Any, Final, NamedTuple, TypeAlias

from benchmarks.bench import message_sample
from benchmarks.bench.clients import settings_for
from benchmarks.bench.comparison import Side, SideComparison
from benchmarks.bench.figures import Goal, Measurement, percentile
from benchmarks.bench.machine import ProcessClock
from benchmarks.bench.testbed import Testbed, Topic
from benchmarks.bench.workers import LoadWorker
from mqdb.common.dsn import BrokerDsn
from mqdb.common.group import ConsumeFromWhere
from mqdb.common.message import Message
from mqdb.common.received_message import ReceivedMessage
from mqdb.errors import MqdbError
from mqdb.server import Server
from mqdb_client import ConsumeConcurrentlyStatus, Producer, PushConsumer
from mqdb_client.aio import AsyncProducer, AsyncPushConsumer

NAMES: Final = ("latency", "latency-tasks", "latency-topics")
#: That of asyncio.
ASYNC: Final = ("latency-tasks",)

QUEUES: Final = 4
_SENDING_THREADS: Final = 8
WARM_UP_SECONDS: Final = 1.0
_ARRIVAL_SECONDS: Final = 30.0
_LOOK_SECONDS: Final = 0.02

#: The round of what is there before the consumer starts.
_START: Final = 0
_START_RATE: Final = 10_000.0

_NO_OPTIONS: Final[Mapping[str, Any]] = {}

#: Round and time of a message, at the beginning of its body.
_STAMP: Final = struct.Struct(">qq")


class MessagesMissing(MqdbError):
    """Sent messages did not reach the listener in time."""

    missing: int
    sent: int
    sentence = "{missing:,} of {sent:,} messages have not arrived"


class _Order(NamedTuple):
    """An order to send, or wait for, the messages of a round. `rate` is per second."""

    number: int
    rate: float
    seconds: float

    @property
    def messages(self) -> int:
        return max(round(self.rate * self.seconds), 1)


class _Idle(NamedTuple):
    """An order to report the CPU time that the process uses in this many seconds."""

    seconds: float


def comparisons(testbed: Testbed, *, rate: float, seconds: float, topics: int) -> Generator[SideComparison, None, None]:
    """The comparisons, in milliseconds; those over several topics only if `topics` is more than one."""
    topic = testbed.topic("latency", QUEUES)
    with served(testbed), staged(testbed, [topic]) as stage:
        stage.measure(rate, WARM_UP_SECONDS)
        one = Side(
            f"send to listener, median, {rate:g} messages/s",
            lambda: stage.measure(rate, seconds),
            [Goal(5.0, at_least=False), Goal(20.0, "p99_ms", at_least=False)],
        )
        yield SideComparison("latency", "ms", one, lower_is_better=True)
        with staged(testbed, [testbed.topic("latency_tasks", QUEUES)], is_async=True) as tasks:
            tasks.measure(rate, WARM_UP_SECONDS)
            yield SideComparison(
                "latency-tasks",
                "ms",
                Side("the same by tasks of event loops", lambda: tasks.measure(rate, seconds)),
                [Side("by threads", one.measure)],
                lower_is_better=True,
            )
        if topics > 1:
            several = [testbed.topic(f"latency_{number}", QUEUES) for number in range(topics)]
            with staged(testbed, several) as wide:
                wide.measure(rate, WARM_UP_SECONDS)
                details = {"start_s": wide.start_seconds, "idle_cpu_percent": wide.idle_cpu(testbed, seconds) * 100}

                def measure() -> Measurement:
                    found = wide.measure(rate, seconds)
                    return Measurement(found.value, {**found.details, **details})

                goals = [Goal(3.0, "start_s", at_least=False), Goal(2.0, "idle_cpu_percent", at_least=False)]
                yield SideComparison(
                    "latency-topics",
                    "ms",
                    Side(f"the same over {topics:,} topics of one consumer", measure, goals),
                    [Side("one topic", one.measure, [Goal(0.5)])],
                    lower_is_better=True,
                )


@contextmanager
def served(testbed: Testbed) -> Iterator[None]:
    """Starts a process that runs the services, unless another process already does."""
    with ExitStack() as stack:
        if not testbed.is_served():
            _started(stack, _serve, testbed.broker)
        yield


@contextmanager
def staged(
    testbed: Testbed, topics: Sequence[Topic], options: Mapping[str, Any] = _NO_OPTIONS, *, is_async: bool = False
) -> "Iterator[Stage]":
    """Both clients, each in a separate process. `options` are added to each message."""
    names = [topic.name for topic in topics]
    with ExitStack() as stack:
        sender, _ = _started(stack, _send_in_tasks if is_async else _send, testbed.broker, names, options)
        # One for each topic. To have had them is to have started.
        sender.tell(_Order(_START, _START_RATE, len(topics) / _START_RATE))
        sender.answer()
        receiver, (start_seconds, pid) = _started(stack, _receive, testbed.broker, names, is_async)
        yield Stage(receiver, sender, start_seconds, pid)


def _started(stack: ExitStack, function: Callable[..., None], *arguments: object) -> tuple[LoadWorker, Any]:
    """A new process, and its first answer."""
    worker = LoadWorker(function, *arguments)
    stack.callback(worker.close)
    return worker, worker.answer()


class Stage:
    """The two running clients."""

    def __init__(self, receiver: LoadWorker, sender: LoadWorker, start_seconds: float, pid: int) -> None:
        """`start_seconds` is the time that the consumer took to start, and `pid` is its process."""
        self._receiver = receiver
        self._sender = sender
        self.start_seconds = start_seconds
        self._pid = pid
        self._rounds = 0

    def measure(self, rate: float, seconds: float) -> Measurement:
        """Run one round. Raises the error of another process that failed."""
        self._rounds += 1
        order = _Order(self._rounds, rate, seconds)
        self._receiver.tell(order)
        self._sender.tell(order)
        elapsed, latest = self._sender.answer()
        latencies: list[int] = sorted(self._receiver.answer())
        details = {
            "min_ms": latencies[0] / 1e6,
            "p90_ms": percentile(latencies, 90) / 1e6,
            "p99_ms": percentile(latencies, 99) / 1e6,
            "max_ms": latencies[-1] / 1e6,
            "messages_per_second": order.messages / elapsed,
            "sender_late_ms": latest * 1e3,
        }
        return Measurement(percentile(latencies, 50) / 1e6, details)

    def idle_cpu(self, testbed: Testbed, seconds: float) -> float:
        """The share of a core that the consumer and its backends use while nothing is sent."""
        backends = [ProcessClock(pid) for (pid,) in testbed.below.execute(_BACKENDS, (f"%@{self._pid}#%",))]
        time.sleep(WARM_UP_SECONDS)
        before = [clock.seconds() or 0.0 for clock in backends]
        self._receiver.tell(_Idle(seconds))
        used: float = self._receiver.answer()
        after = [clock.seconds() or 0.0 for clock in backends]
        return (used + sum(after) - sum(before)) / seconds


_BACKENDS: Final = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE %s AND datname = current_database()"


def _serve(pipe: Pipe, broker: BrokerDsn) -> None:
    """Run the services of `mqdb serve` until the pipe is closed."""
    with Server(settings_for(broker)) as server:
        deadline = time.monotonic() + _ARRIVAL_SECONDS
        while not server.is_leader and time.monotonic() < deadline:
            time.sleep(0.01)
        pipe.send("ready")
        pipe.recv()


def _receive(pipe: Pipe, broker: BrokerDsn, topics: Sequence[str], is_async: bool) -> None:
    """Consume until the pipe is closed.

    Reports the time until a message of each topic has arrived, and then the latencies of each round's messages in
    nanoseconds.
    """
    latencies: defaultdict[int, list[int]] = defaultdict(list)

    def listener(messages: list[ReceivedMessage]) -> ConsumeConcurrentlyStatus:
        now = time.monotonic_ns()
        for message in messages:
            number, sent = _STAMP.unpack_from(message.body)
            latencies[number].append(now - sent)
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    began = time.monotonic()
    with (_consuming_in_loop if is_async else _consuming)(broker, topics, listener):
        while len(latencies[_START]) < len(topics):
            if pipe.poll(_LOOK_SECONDS):
                return
        pipe.send((time.monotonic() - began, os.getpid()))
        while True:
            order: _Order | _Idle = pipe.recv()
            if isinstance(order, _Idle):
                cpu = time.process_time()
                time.sleep(order.seconds)
                pipe.send(time.process_time() - cpu)
                continue
            found = latencies[order.number]
            deadline = time.monotonic() + order.seconds + _ARRIVAL_SECONDS
            while len(found) < order.messages:
                if time.monotonic() > deadline:
                    raise MessagesMissing(order.messages - len(found), order.messages)
                if pipe.poll(_LOOK_SECONDS):  # nothing comes now but the end of the pipe
                    return
            pipe.send(found)


_Listener: TypeAlias = Callable[[list[ReceivedMessage]], ConsumeConcurrentlyStatus]


@contextmanager
def _consuming(broker: BrokerDsn, topics: Sequence[str], listener: _Listener) -> Iterator[None]:
    consumer = PushConsumer(**_consumer_options(broker))
    for topic in topics:
        consumer.subscribe(topic)
    consumer.register_listener(listener)
    with consumer:
        yield


@contextmanager
def _consuming_in_loop(broker: BrokerDsn, topics: Sequence[str], listener: _Listener) -> Iterator[None]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    consumer = AsyncPushConsumer(**_consumer_options(broker))

    async def listen(messages: list[ReceivedMessage]) -> ConsumeConcurrentlyStatus:
        return listener(messages)

    async def start() -> None:
        for topic in topics:
            await consumer.subscribe(topic)
        consumer.register_listener(listen)
        await consumer.start()

    thread.start()
    asyncio.run_coroutine_threadsafe(start(), loop).result()
    try:
        yield
    finally:
        asyncio.run_coroutine_threadsafe(consumer.shutdown(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


def _consumer_options(broker: BrokerDsn) -> dict[str, Any]:
    return {
        "group": f"mqdb_bench_{time.monotonic_ns()}",
        "settings": settings_for(broker),
        "consume_from_where": ConsumeFromWhere.FIRST_OFFSET,
    }


def _send_in_tasks(pipe: Pipe, broker: BrokerDsn, topics: Sequence[str], options: Mapping[str, Any]) -> None:
    """Send as `_send` does, with a task for each message."""

    async def work() -> None:
        async with AsyncProducer("mqdb_bench_tasks", settings=settings_for(broker)) as producer:
            pipe.send("ready")
            while True:
                order: _Order = await asyncio.to_thread(pipe.recv)
                began, latest = time.monotonic(), 0.0
                async with asyncio.TaskGroup() as tasks:
                    for number in range(order.messages):
                        due = began + number / order.rate
                        if (wait := due - time.monotonic()) > 0:
                            await asyncio.sleep(wait)
                        latest = max(latest, time.monotonic() - due)
                        tasks.create_task(producer.send(_message(topics, options, order, number)))
                pipe.send((time.monotonic() - began, latest))

    asyncio.run(work())


def _send(pipe: Pipe, broker: BrokerDsn, topics: Sequence[str], options: Mapping[str, Any]) -> None:
    """Send until the pipe is closed; reports each round's duration, and the largest delay of a send, in seconds."""
    with Producer("mqdb_bench_producer", settings=settings_for(broker)) as producer:
        pipe.send("ready")
        while True:
            order: _Order = pipe.recv()
            began = time.monotonic()
            threads = [_Sender(producer, topics, options, order, began, first) for first in range(_SENDING_THREADS)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            for thread in threads:
                if thread.error is not None:
                    raise thread.error
            pipe.send((time.monotonic() - began, max(thread.latest for thread in threads)))


class _Sender(threading.Thread):
    """Sends every eighth message, each when due."""

    def __init__(
        self,
        producer: Producer,
        topics: Sequence[str],
        options: Mapping[str, Any],
        order: _Order,
        began: float,
        first: int,
    ) -> None:
        super().__init__(daemon=True)
        self._producer = producer
        self._topics = topics
        self._options = options
        self._order = order
        self._began = began
        self._first = first
        self.latest = 0.0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            for number in range(self._first, self._order.messages, _SENDING_THREADS):
                due = self._began + number / self._order.rate
                time.sleep(max(due - time.monotonic(), 0.0))
                self.latest = max(self.latest, time.monotonic() - due)
                self._producer.send(_message(self._topics, self._options, self._order, number))
        except BaseException as error:  # noqa: BLE001 - the process raises it
            self.error = error


def _message(topics: Sequence[str], options: Mapping[str, Any], order: _Order, number: int) -> Message:
    form = message_sample.message(topics[number % len(topics)], number)
    body = _STAMP.pack(order.number, time.monotonic_ns()) + form.body[_STAMP.size :]
    return Message(
        form.topic, body, form.tag, form.keys, form.properties, **(options if order.number != _START else {})
    )
