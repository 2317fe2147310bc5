"""The stages: the work done with each side, and the resulting figures.

A stage returns the tasks of a side. The tasks of one side run one after another in one fresh database; a repeated task
finds the messages that the first attempt left, and adds those that it needs.
"""

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

from benchmarks.peers.clients import Work
from benchmarks.peers.rocketmq_servers import make_topic
from benchmarks.peers.servers import Running, run_mqdb
from benchmarks.peers.sides import Side
from benchmarks.peers.span import Span, start_client, work
from benchmarks.peers.workers.work import BATCH

Figures: TypeAlias = dict[str, float | None]

#: Of a paced run these first seconds do not count: consumers find their queues, the JVM compiles.
_WARM_UP_SECONDS: Final = 2.0
#: Sends of one thread that wait for an answer, of those that do not make it wait.
UNDER_WAY: Final = 64
#: From a consumer's READY until it has its queues.
_JOINING_SECONDS: Final = 4.0


@dataclass(frozen=True, slots=True)
class Settings:
    """The amount of work of each measurement. None stands for a value that suits the stage."""

    seconds: float | None = None
    messages: int | None = None
    rates: Sequence[int] = (200, 500, 1_000, 2_000)


@dataclass(frozen=True, slots=True)
class Task:
    """One task to measure. `way` says how the consumer reads, if that matters."""

    work: str
    way: str
    measure: Callable[[Running], Figures]


def produce(side: Side, settings: Settings) -> list[Task]:
    """Rate and cost of sending: 1 and 16 threads, batches of 100; in Java also without waiting for each answer.

    The gRPC SDK has no batches.
    """

    def measure(server: Running, options: Mapping[str, int]) -> Figures:
        done, figures = _measured(server, "produce", seconds=settings.seconds or 5.0, **options)
        return {"rate": done.rate, **figures}

    ways = {
        "1 thread": {"senders": 1},
        "16 threads": {"senders": 16},
    }
    if not side.speaks_grpc:
        ways[f"batches of {BATCH}"] = {"senders": 1, "batch": BATCH}
    if side.is_java:
        ways[f"{UNDER_WAY} under way"] = {"senders": 1, "under-way": UNDER_WAY}
    return [Task(name, "", partial(measure, options=options)) for name, options in ways.items()]


def consume(side: Side, settings: Settings) -> list[Task]:
    """Rate and cost of consuming waiting messages, without any sender."""

    def measure(server: Running, way: str) -> Figures:
        messages = settings.messages or 100_000
        group = _new_name("g")
        topic = _loaded(server, messages, group)
        return _drain(server, topic, way, group, count=messages, seconds=settings.seconds or 60.0)

    return [Task("a backlog", way, partial(measure, way=way)) for way in _consuming_ways(side)]


def backlog(side: Side, settings: Settings) -> list[Task]:
    """Rates while a million messages wait: a consumer for 10 s, then 16 senders for 5 s."""
    messages = settings.messages or 1_000_000
    usual = [way for way in _consuming_ways(side) if way != "batch100"]

    def drain(server: Running, way: str) -> Figures:
        group = _new_name("g")
        topic = _loaded(server, messages, group)
        return _drain(server, topic, way, group, count=messages, seconds=settings.seconds or 10.0)

    def send(server: Running) -> Figures:
        _loaded(server, messages, _new_name("g"))
        (task,) = (task for task in produce(side, settings) if task.work == "16 threads")
        return task.measure(server)

    if not usual or side.is_java:
        return []
    return [
        *(Task(f"consume, {messages:,} wait", way, partial(drain, way=way)) for way in usual),
        Task(f"send, {messages:,} wait", "", send),
    ]


def latency(side: Side, settings: Settings) -> list[Task]:
    """Time from send to consumer at given rates, with one sender and one consumer."""
    way = next(iter(side.ways), "")

    def measure(server: Running, rate: int) -> Figures:
        seconds = (settings.seconds or 20.0) + _WARM_UP_SECONDS
        sending = {"role": "pace", "rate": rate}
        skipped = int(rate * _WARM_UP_SECONDS)
        return _together(server, way, seconds, sending, skipped)

    return [Task(f"{rate:,}/s", "", partial(measure, rate=rate)) for rate in settings.rates]


def snapshot(side: Side, settings: Settings) -> list[Task]:
    """The whole life of messages, sent in batches and consumed at once, with and without a held snapshot."""

    def measure(server: Running, way: str, is_held: bool) -> Figures:
        _empty(server)
        with _held_snapshot(server, is_held):
            sending = {"role": "produce", "batch": BATCH}
            return _together(server, way, settings.seconds or 30.0, sending, None)

    ways = [way for way in _consuming_ways(side) if way not in ("push100", "batch100")]
    held = (("free", False), ("snapshot held", True))
    if side.is_java:
        return []
    return [Task(name, way, partial(measure, way=way, is_held=is_held)) for way in ways for name, is_held in held]


def disk(side: Side, settings: Settings) -> list[Task]:
    """Bytes of WAL and on disk for each message: messages are stored in batches of 100, then consumed."""
    messages = settings.messages or 100_000
    if side.is_java:
        return []

    def store(server: Running) -> Figures:
        assert server.database is not None
        _empty(server)
        before = server.database.size()
        done, figures = _measured(server, "load", count=messages, batch=BATCH)
        return {**figures, "disk": (server.database.size() - before) / done.count}

    def take(server: Running, way: str) -> Figures:
        group = _new_name("g")
        _loaded(server, messages, group)
        return _drain(server, None, way, group, count=messages, seconds=60.0)

    return [Task("store", "", store), *(Task("consume", way, partial(take, way=way)) for way in side.ways)]


STAGES: Final[Mapping[str, Callable[[Side, Settings], list[Task]]]] = {
    "produce": produce,
    "consume": consume,
    "latency": latency,
    "disk": disk,
    "snapshot": snapshot,
    "backlog": backlog,
}


def _consuming_ways(side: Side) -> Sequence[str]:
    # A broker that flushes later reads as fast as one that flushes at once.
    return () if side.flush == "ASYNC_FLUSH" else tuple(side.ways)


def _loaded(server: Running, messages: int, group: str) -> str | None:
    """Make `messages` wait for a group. Returns the topic if it is new, as for every RocketMQ client."""
    database = server.database
    topic = None
    waiting = 0
    if server.side.is_java:
        topic = _new_topic(server, group)
    else:
        assert database is not None
        assert server.side.waiting is not None
        waiting = database.ask(server.side.waiting)
    load: Mapping[str, object] = {"batch": BATCH}
    if server.side.speaks_grpc:
        work(server, "join", group=group, **_named(topic))
        load = {"under-way": UNDER_WAY}
    if waiting < messages:
        work(server, "load", count=messages - waiting, **load, **_named(topic))
    return topic


def _drain(server: Running, topic: str | None, way: str, group: str, *, count: int, seconds: float) -> Figures:
    options = {"way": way, "count": count, "seconds": seconds, "group": group, **_named(topic)}
    done, figures = _measured(server, "consume", **options)
    return {"rate": done.rate, **figures}


def _measured(server: Running, role: str, **options: object) -> tuple[Work, Figures]:
    """Run one client program; returns its result and its cost."""
    server.calm()
    with start_client(server, role, **options) as client:
        client.wait_until_ready()
        span = Span(server, client)
        done = client.finish()
    return done, span.figures(done.count, done)


def _together(server: Running, way: str, seconds: float, sending: Mapping[str, object], skipped: int | None) -> Figures:
    """Run a sender and a consumer at once. The rate is the consumer's; the cost of each message includes both."""
    topic = None
    group = _new_name("g")
    _empty(server)
    if server.side.is_java:
        topic = _new_topic(server, group)
    more = {**_named(topic), "seconds": seconds}
    server.calm()
    with start_client(
        server, "consume", way=way, follows=not server.side.is_java, skipped=skipped, group=group, **more
    ) as consumer:
        consumer.wait_until_ready()
        time.sleep(_JOINING_SECONDS)
        options = {name: value for name, value in sending.items() if name != "role"}
        with start_client(server, str(sending["role"]), **options, **more) as sender:
            sender.wait_until_ready()
            span = Span(server, sender, consumer)
            sent = sender.finish()
            got = consumer.finish()
    figures = span.figures(got.count, sent, got)
    percentiles = {name: got.more.get(name) for name in ("p50", "p99") if skipped is not None}
    late = sent.more.get("late", 0) / sent.count if "late" in sent.more else None
    return {"rate": got.rate, "sent_rate": sent.rate, "late": late, **percentiles, **figures}


def _empty(server: Running) -> None:
    """Remove waiting messages that a consumer would find. A new group of mqdb starts at the end."""
    if server.database is None or server.side.database == "mqdb":
        return
    emptying = {
        "pgmq": "TRUNCATE pgmq.q_bench",
        "pgqueuer": "TRUNCATE pgqueuer",
        "procrastinate": "TRUNCATE procrastinate_jobs CASCADE",
    }
    with server.database.connect() as connection:
        connection.execute(emptying[server.database.name].encode())


@contextmanager
def _held_snapshot(server: Running, is_held: bool) -> Iterator[None]:
    """Hold an idle REPEATABLE READ transaction with a snapshot."""
    if not is_held or server.database is None:
        yield
        return
    with server.database.connect() as connection:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT 1")
        yield
        connection.execute("ROLLBACK")


def _new_topic(server: Running, group: str) -> str:
    """A new topic, and in RocketMQ a group."""
    topic = _new_name("t")
    if server.database is None:
        make_topic(server, topic, group)
    else:
        run_mqdb(server.database, "topic", "create", topic, "--queues", "4")
    return topic


def _new_name(prefix: str) -> str:
    return prefix + secrets.token_hex(4)


def _named(topic: str | None) -> Mapping[str, object]:
    return {} if topic is None else {"topic": topic}
