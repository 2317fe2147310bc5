"""`mqdb bench latency`: how long a message takes from the call of send to the call of the listener.

Three processes as in real life: one that serves (dispatch and the other services), one that sends at a steady rate,
one that consumes. The sender writes the time into the body. It is the monotonic clock of the machine, which is the
same for all processes. The sender has several threads, so that a slow send does not put off those after it.
"""

import struct
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection as Pipe
from typing import Any, Final, NamedTuple

from mqdb.bench import sample
from mqdb.bench.clients import settings_for
from mqdb.bench.figures import Goal, Measurement, percentile
from mqdb.bench.rounds import Comparison, Side
from mqdb.bench.testbed import Testbed, Topic
from mqdb.bench.workers import Worker
from mqdb.common.dsn import BrokerDsn
from mqdb.common.group import ConsumeFromWhere
from mqdb.common.message import Message, ReceivedMessage
from mqdb.errors import MqdbError
from mqdb.server import Server
from mqdb_client import ConsumeConcurrentlyStatus, Producer, PushConsumer

NAMES: Final = ("latency",)

QUEUES: Final = 4
_SENDING_THREADS: Final = 8
WARM_UP_SECONDS: Final = 1.0
_ARRIVAL_SECONDS: Final = 30.0
_LOOK_SECONDS: Final = 0.02

_NO_OPTIONS: Final[Mapping[str, Any]] = {}

#: Round and time of a message, at the beginning of its body.
_STAMP: Final = struct.Struct(">qq")


class MessagesMissing(MqdbError):
    """Messages that were sent did not come to the listener in time."""

    missing: int
    sent: int
    sentence = "{missing:,} of {sent:,} messages have not arrived"


class _Order(NamedTuple):
    """Send, or wait for, the messages of a round. `rate` is per second."""

    number: int
    rate: float
    seconds: float

    @property
    def messages(self) -> int:
        return max(round(self.rate * self.seconds), 1)


def comparisons(testbed: Testbed, *, rate: float, seconds: float) -> Generator[Comparison, None, None]:
    """What is measured: one figure, in milliseconds."""
    topic = testbed.topic("latency", QUEUES)
    with served(testbed), staged(testbed, topic) as stage:
        stage.measure(rate, WARM_UP_SECONDS)
        yield Comparison(
            "latency",
            "ms",
            Side(
                f"send to listener, median, {rate:g} messages/s",
                lambda: stage.measure(rate, seconds),
                [Goal(5.0, at_least=False), Goal(20.0, "p99_ms", at_least=False)],
            ),
            lower_is_better=True,
        )


@contextmanager
def served(testbed: Testbed) -> Iterator[None]:
    """Sees to it that somebody runs the services: a process, unless one does already."""
    with ExitStack() as stack:
        if not testbed.is_served():
            _started(stack, _serve, testbed.broker)
        yield


@contextmanager
def staged(testbed: Testbed, topic: Topic, options: Mapping[str, Any] = _NO_OPTIONS) -> "Iterator[Stage]":
    """Both clients, each in a process of its own. `options` are what each message gets besides."""
    with ExitStack() as stack:
        receiver = _started(stack, _receive, testbed.broker, topic.name)
        yield Stage(receiver, _started(stack, _send, testbed.broker, topic.name, options))


def _started(stack: ExitStack, function: Callable[..., None], *arguments: object) -> Worker:
    worker = Worker(function, *arguments)
    stack.callback(worker.close)
    worker.answer()
    return worker


class Stage:
    """The two clients, started."""

    def __init__(self, receiver: Worker, sender: Worker) -> None:
        self._receiver = receiver
        self._sender = sender
        self._rounds = 0

    def measure(self, rate: float, seconds: float) -> Measurement:
        """One round. Raises what went wrong in the other processes."""
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


def _serve(pipe: Pipe, broker: BrokerDsn) -> None:
    """What `mqdb serve` runs, until the pipe is closed."""
    with Server(settings_for(broker)) as server:
        deadline = time.monotonic() + _ARRIVAL_SECONDS
        while not server.is_leader and time.monotonic() < deadline:
            time.sleep(0.01)
        pipe.send("ready")
        pipe.recv()


def _receive(pipe: Pipe, broker: BrokerDsn, topic: str) -> None:
    """Consumes; tells for each round how many nanoseconds its messages have taken."""
    latencies: defaultdict[int, list[int]] = defaultdict(list)

    def listener(messages: list[ReceivedMessage]) -> ConsumeConcurrentlyStatus:
        now = time.monotonic_ns()
        for message in messages:
            number, sent = _STAMP.unpack_from(message.body)
            latencies[number].append(now - sent)
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    consumer = PushConsumer(
        f"mqdb_bench_{time.monotonic_ns()}",
        settings=settings_for(broker),
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
    )
    consumer.subscribe(topic)
    consumer.register_listener(listener)
    with consumer:
        pipe.send("ready")
        while True:
            order: _Order = pipe.recv()
            found = latencies[order.number]
            deadline = time.monotonic() + order.seconds + _ARRIVAL_SECONDS
            while len(found) < order.messages:
                if time.monotonic() > deadline:
                    raise MessagesMissing(order.messages - len(found), order.messages)
                if pipe.poll(_LOOK_SECONDS):  # nothing comes now but the end of the pipe
                    return
            pipe.send(found)


def _send(pipe: Pipe, broker: BrokerDsn, topic: str, options: Mapping[str, Any]) -> None:
    """Sends; tells for each round how long it took, and how late the latest send began, in seconds."""
    with Producer("mqdb_bench_producer", settings=settings_for(broker)) as producer:
        pipe.send("ready")
        while True:
            order: _Order = pipe.recv()
            began = time.monotonic()
            threads = [_Sender(producer, topic, options, order, began, first) for first in range(_SENDING_THREADS)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            for thread in threads:
                if thread.error is not None:
                    raise thread.error
            pipe.send((time.monotonic() - began, max(thread.latest for thread in threads)))


class _Sender(threading.Thread):
    """Sends every eighth message, each when it is due."""

    def __init__(
        self, producer: Producer, topic: str, options: Mapping[str, Any], order: _Order, began: float, first: int
    ) -> None:
        super().__init__(daemon=True)
        self._producer = producer
        self._topic = topic
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
                self._producer.send(self._message(number))
        except BaseException as error:  # noqa: BLE001 - the process raises it
            self.error = error

    def _message(self, number: int) -> Message:
        form = sample.message(self._topic, number)
        stamp = _STAMP.pack(self._order.number, time.monotonic_ns())
        body = stamp + form.body[_STAMP.size :]
        return Message(form.topic, body, form.tag, form.keys, form.properties, **self._options)
