"""`do.py bench produce`: how fast messages are written to the commit log.

    append       single records on many connections to one queue, against INSERT
    batch        batches on the same number of connections, against COPY
    send         a producer that sends one message after another, against INSERT through psycopg
    send-batch   a producer that sends batches, against `unnest` and COPY through psycopg
    send-async   a producer that sends without waiting for results, against the same `unnest`
    send-task    a task of an asyncio producer that sends one message after another, against a thread
    send-64-tasks  64 tasks of one loop, against one task, and against 64 threads; with --async, other numbers of both
    send-64      64 threads that share a producer, against one thread, and against 64 that only share a connection
    brokers-2    64 threads that share a producer with two brokers, against one broker

The first two measure the database without the driver; the others measure the client. No dispatcher runs.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from benchmarks.bench import clients, message_sample, reference
from benchmarks.bench.comparison import Side, SideComparison
from benchmarks.bench.figures import Goal, Measurement
from benchmarks.bench.testbed import Testbed
from benchmarks.bench.two_brokers import TwoBrokers
from benchmarks.bench.wire import appended, session
from benchmarks.bench.workers import Crew, Load, Operation, per_connection
from mqdb.common.dsn import BrokerDsn
from mqdb.store.log.commit_log import Record

NAMES: Final = (
    "append",
    "batch",
    "send",
    "send-batch",
    "send-async",
    "send-task",
    "send-64-tasks",
    "send-64",
    "brokers-2",
)
#: Those of asyncio.
ASYNC: Final = ("send-task", "send-64-tasks")
UNIT: Final = "messages/s"

_THREADS: Final = 64
_OTHER_TASKS: Final = (16, 512, 4_096)


@per_connection
def append(broker: BrokerDsn, record: Record) -> Iterator[Operation]:
    """Append one record with one statement."""
    with session(broker) as connection:
        yield appended(connection, [record])


@per_connection
def append_many(broker: BrokerDsn, records: Sequence[Record]) -> Iterator[Operation]:
    """Append a batch of records with one statement."""
    with session(broker) as connection:
        yield appended(connection, records)


def comparisons(
    testbed: Testbed, *, connections: int, jobs: int, seconds: float, batch: int, is_async: bool = False
) -> Generator[SideComparison, None, None]:
    """The comparisons, one after another; with `is_async` also other numbers of tasks and threads."""
    topic = testbed.topic("produce", 1)
    records = message_sample.records(topic.name, topic.queue_keys[0], batch)
    one = records[0]

    def crew(connections: int, jobs: int) -> Crew:
        return Crew(testbed.broker, connections=connections, jobs=jobs, servers=[testbed.server])

    def side(label: str, crew: Crew, load: Load, *goals: Goal, timed: bool = False) -> Side:
        return Side(label, _measuring(testbed, crew, load, seconds, timed), goals)

    with crew(connections, jobs) as many:
        yield SideComparison(
            "append",
            UNIT,
            side(f"append of 1, {connections} connections, one queue", many, partial(append, record=one)),
            [side("INSERT without index", many, partial(reference.insert, record=one), Goal(0.8))],
        )
        binary_copy = partial(reference.copy, records=records)
        yield SideComparison(
            "batch",
            UNIT,
            side(f"append of {batch}, {connections} connections", many, partial(append_many, records=records)),
            [side(f"binary COPY of {batch} without index", many, binary_copy, Goal(0.5))],
        )
    send = partial(clients.send, topic=topic.name)
    with crew(1, 1) as alone, crew(16, 1) as few_threads, crew(_THREADS, 1) as threads:
        insert = partial(reference.driver_insert, record=one)
        late = Goal(3.0, "p99_ms", at_least=False)
        yield SideComparison(
            "send",
            UNIT,
            side("Producer.send, one thread", alone, send, timed=True),
            [side("psycopg INSERT without index", alone, insert, Goal(0.6), late, timed=True)],
        )
        unnest = f"psycopg INSERT of {batch} by unnest, without index"
        insert_many = partial(reference.driver_insert_many, records=records)
        send_batch = partial(clients.send_batch, topic=topic.name, batch=batch)
        driver_copy = partial(reference.driver_copy, records=records)
        yield SideComparison(
            "send-batch",
            UNIT,
            side(f"Producer.send_batch of {batch}, one thread", alone, send_batch, Goal(25_000)),
            [
                side(unnest, alone, insert_many, Goal(0.5)),
                side(f"psycopg binary COPY of {batch}, without index", alone, driver_copy),
            ],
        )
        yield SideComparison(
            "send-async",
            UNIT,
            side("Producer.send_async, one thread", alone, partial(clients.send_async, topic=topic.name)),
            [side(unnest, alone, insert_many)],
        )
        one_task = side("AsyncProducer.send, one task", alone, partial(clients.send_tasks, topic=topic.name, tasks=1))
        one_thread = side("Producer.send, one thread", alone, send, Goal(0.95))
        yield SideComparison("send-task", UNIT, one_task, [one_thread])
        others = [
            *(
                side(f"{tasks:,} tasks", alone, partial(clients.send_tasks, topic=topic.name, tasks=tasks))
                for tasks in _OTHER_TASKS
            ),
            replace(one_thread, goals=()),
            side("16 threads", few_threads, send),
        ]
        many_tasks = partial(clients.send_tasks, topic=topic.name, tasks=_THREADS)
        yield SideComparison(
            f"send-{_THREADS}-tasks",
            UNIT,
            side(f"AsyncProducer.send, {_THREADS} tasks", alone, many_tasks),
            [
                replace(one_task, goals=(Goal(8.0),)),
                side(f"Producer.send, {_THREADS} threads", threads, send),
                *(others if is_async else ()),
            ],
        )
        yield SideComparison(
            f"send-{_THREADS}",
            UNIT,
            side(f"Producer.send, {_THREADS} threads", threads, send, timed=True),
            [
                side("the same, one thread", alone, send, Goal(8.0)),
                side(
                    f"hand-off from {_THREADS} threads to psycopg INSERT by unnest",
                    threads,
                    partial(reference.hand_off, record=one),
                    Goal(0.5),
                    timed=True,
                ),
            ],
        )
    if testbed.open_second is not None:
        with TwoBrokers(testbed, topic, _THREADS, seconds) as brokers:
            yield SideComparison(
                "brokers-2",
                UNIT,
                Side(f"Producer.send, {_THREADS} threads, two brokers", brokers.over_two),
                [Side("the same, one broker", brokers.over_one, [Goal(0.85)])],
            )


def _measuring(testbed: Testbed, crew: Crew, load: Load, seconds: float, timed: bool) -> Callable[[], Measurement]:
    def measure() -> Measurement:
        testbed.make_room(seconds)
        reference.clear(testbed.below)
        return crew.measure(load, seconds, timed=timed)

    return measure
