"""`do.py bench spark`: how fast Spark reads, writes and follows a topic.

    read-jdbc    all columns of all messages through JDBC, with the predicates that mqdb plans
    read-mqdb    the same through the data source
    sink         messages from Parquet files into a topic, all of them in one commit
    batch        a micro-batch of a few messages without a sink, as timed by Spark
    batch-sink   the same micro-batch into another topic, exactly once

The reads are compared with one binary COPY of the same rows, which one connection reads and discards: the least work
that PostgreSQL has to do for them. The messages are real flights, repeated as often as necessary. Spark runs in one
process beside PostgreSQL. No dispatcher runs.
"""

import time
from collections.abc import Callable, Generator
from contextlib import ExitStack
from functools import cached_property, partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

import psycopg

from benchmarks.bench import message_sample
from benchmarks.bench.comparison import Side, SideComparison
from benchmarks.bench.figures import Goal, Measurement, durations
from benchmarks.bench.memory import cpu_seconds_of, memory_of
from benchmarks.bench.testbed import Testbed, Topic
from mqdb.errors import IllegalState

if TYPE_CHECKING:
    from benchmarks.bench.spark_load import Follower, SparkLoad

NAMES: Final = ("read-jdbc", "read-mqdb", "sink", "batch", "batch-sink")
UNIT: Final = "messages/s"
_QUEUES: Final = 8

#: All flights of a year, in the order of their departure.
FLIGHTS: Final = Path(__file__).parents[2] / "examples" / "data" / "flights.parquet"

#: Ten for each queue: the smallest batch that has something of all of them.
_SMALL_BATCH: Final = 80
_BATCHES: Final = 30
#: The first ones are slower: their code is still being compiled.
_WARM_UP_BATCHES: Final = 20

#: The columns of the data source, each as the view has it.
_COPY: Final = """
COPY (SELECT topic, queue_id, queue_offset, msg_id, keys, tags, sys_flag, properties, body, born_time, store_time
      FROM mqdb.message WHERE topic = %s) TO STDOUT (FORMAT binary)
"""

#: One process, with the plan that is best for all rows: a hash join, as the data source has it.
_ONE_STREAM: Final = "-c max_parallel_workers_per_gather=0 -c jit=off -c enable_nestloop=off -c work_mem=32MB"


def comparisons(testbed: Testbed, *, messages: int) -> Generator[SideComparison, None, None]:
    """The comparisons, one after another. Raises ParameterInvalid if `mqdb serve` is working at the same time."""
    from benchmarks.bench.spark_load import spark_load

    testbed.check_unserved("do.py bench spark")
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="mqdb-bench-")))
        load = stack.enter_context(spark_load(testbed.broker.dsn))
        stage = _Stage(testbed, load, directory, messages)
        copy = Side("COPY ... TO STDOUT (FORMAT binary), one stream", stage.copy, [Goal(0.6)])
        for name, label, read in (
            ("read-jdbc", "JDBC", load.read_by_jdbc),
            ("read-mqdb", 'format("mqdb")', load.read),
        ):
            yield SideComparison(name, UNIT, Side(f"{label} into nothing, {load.master}", _Read(stage, read)), [copy])
        sink = Side(f"Parquet files to a topic, {load.master}", stage.write, [Goal(25_000)])
        yield SideComparison("sink", UNIT, sink)
        for name, label, into, goals in (
            ("batch", "nothing", False, [Goal(300, at_least=False)]),
            ("batch-sink", "a topic, exactly once", True, []),
        ):
            with ExitStack() as following:
                follow = _Follow(stage, following, name, has_sink=into)
                side = Side(f"a micro-batch of {_SMALL_BATCH} messages into {label}, median", follow, goals)
                yield SideComparison(name, "ms", side, lower_is_better=True)


class _Stage:
    """The common parts of the figures, created when the first figure needs them."""

    def __init__(self, testbed: Testbed, load: "SparkLoad", directory: Path, messages: int) -> None:
        self.testbed = testbed
        self.load = load
        self.directory = directory
        self.messages = messages

    @cached_property
    def prepared(self) -> Path:
        """Messages in Parquet files, in the form that the sink accepts."""
        path = self.directory / "messages"
        self.load.prepare(FLIGHTS, self.messages, path)
        return path

    @cached_property
    def topic(self) -> Topic:
        """A topic with all messages, written by the sink."""
        topic = self.testbed.topic("spark", _QUEUES)
        self.load.write(self.prepared, topic.name)
        self.testbed.dispatch_all()
        self.testbed.below.execute("ANALYZE mqdb.commit_log, mqdb.queue_run")
        if (found := self.load.count(topic.name)) != self.messages:
            raise IllegalState(f"topic {topic.name}", f"of {found:,} messages instead of {self.messages:,}")
        return topic

    @cached_property
    def sink(self) -> Topic:
        """The topic for messages that are written while they are measured."""
        return self.testbed.topic("spark_sink", _QUEUES)

    def write(self) -> Measurement:
        """Messages per second from the start of the job until they are stored."""
        return self.timed(partial(self.load.write, self.prepared, self.sink.name))

    def copy(self) -> Measurement:
        """Messages per second of a single COPY stream."""
        topic = self.topic

        def copy() -> None:
            with connection.cursor().copy(_COPY, (topic.name,)) as stream:
                for _ in stream:
                    pass

        # Not the session of the benchmark, which plans without sequential scans, as clients do: half as fast.
        with psycopg.connect(self.testbed.broker.dsn, autocommit=True, options=_ONE_STREAM) as connection:
            return self.timed(copy, has_spark=False)

    def timed(self, work: Callable[[], None], *, has_spark: bool = True) -> Measurement:
        """Messages per second of work that handles all messages, with the CPU time of both sides and Spark's memory."""
        jvm, server = self.load.jvm_pid, self.testbed.server
        cpu_began, load_began, began = server.seconds(), cpu_seconds_of(jvm), time.perf_counter()
        work()
        elapsed, cpu_ended, load_ended = time.perf_counter() - began, server.seconds(), cpu_seconds_of(jvm)
        details = memory_of(jvm) if has_spark else {}
        if cpu_began is not None and cpu_ended is not None:
            details["server_cpu_us"] = (cpu_ended - cpu_began) / self.messages * 1e6
        if has_spark and load_began is not None and load_ended is not None:
            details["client_cpu_us"] = (load_ended - load_began) / self.messages * 1e6
        return Measurement(self.messages / elapsed, details)


class _Read:
    """Reads the topic on each call, with one extra read before the first, which is slower."""

    def __init__(self, stage: _Stage, read: Callable[[str], None]) -> None:
        self._stage = stage
        self._read = read
        self._is_warm = False

    def __call__(self) -> Measurement:
        work = partial(self._read, self._stage.topic.name)
        if not self._is_warm:
            work()
            self._is_warm = True
        return self._stage.timed(work)


class _Follow:
    """A query that follows a topic, and receives a few messages once it has handled the previous ones."""

    def __init__(self, stage: _Stage, stack: ExitStack, name: str, *, has_sink: bool) -> None:
        self._stage = stage
        self._stack = stack
        self._name = name
        self._has_sink = has_sink
        self._topic: Topic | None = None

    def __call__(self) -> Measurement:
        if self._topic is None:
            self._topic = self._stage.testbed.topic(f"spark_{self._name}", _QUEUES)
            self._follower = self._start(self._topic)
            self._batches(_WARM_UP_BATCHES)
        took = self._batches(_BATCHES)
        return Measurement(median(took), durations([each / 1e3 for each in took]) | memory_of(self._stage.load.jvm_pid))

    def _start(self, topic: Topic) -> "Follower":
        sink = self._stage.sink.name if self._has_sink else None
        checkpoint = self._stage.directory / self._name
        return self._stack.enter_context(self._stage.load.following(topic.name, checkpoint, sink))

    def _batches(self, number: int) -> list[float]:
        return [self._batch() for _ in range(number)]

    def _batch(self) -> float:
        assert self._topic is not None
        testbed = self._stage.testbed
        message_sample.fill(testbed.below, self._topic.queue_keys, _SMALL_BATCH)
        testbed.dispatch_all()
        return self._follower.batch_ms()
