"""`mqdb bench produce`: how fast messages get into the commit log.

    append       single records by many connections to one queue, against INSERT
    batch        batches by as many connections, against COPY
    send         a producer that sends one message after the other, against INSERT through psycopg
    send-batch   a producer that sends batches, against `unnest` through psycopg
    send-many    many threads that share a producer, which coalesces what they send, against the same

The first two are about the database and leave the driver out; the others are about the client. No dispatcher runs.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from typing import Final

from mqdb.cli.bench import clients, reference, sample
from mqdb.cli.bench.figures import Goal, Measurement
from mqdb.cli.bench.rounds import Comparison, Side
from mqdb.cli.bench.testbed import Testbed
from mqdb.cli.bench.wire import prepared, session
from mqdb.cli.bench.workers import Crew, Load, Operation, per_connection
from mqdb.dsn import BrokerDsn
from mqdb.store.commit_log import APPEND_MANY, APPEND_ONE, Record

NAMES: Final = ("append", "batch", "send", "send-batch", "send-many")
UNIT: Final = "messages/s"

#: More than any machine appends in a second, so that no round runs out of partitions.
_MOST_A_SECOND: Final = 200_000

_SENDING_THREADS: Final = 64


@per_connection
def append(broker: BrokerDsn, record: Record) -> Iterator[Operation]:
    """One record by one statement."""
    with session(broker) as connection:
        yield prepared(connection, APPEND_ONE, record._asdict(), 1)


@per_connection
def append_many(broker: BrokerDsn, records: Sequence[Record]) -> Iterator[Operation]:
    """A batch of records by one statement."""
    with session(broker) as connection:
        yield prepared(connection, APPEND_MANY, reference.columns_of(records), len(records))


def comparisons(
    testbed: Testbed, *, connections: int, jobs: int, seconds: float, batch: int
) -> Generator[Comparison, None, None]:
    """What is measured, one after the other."""
    topic = testbed.topic("produce", 1)
    records = sample.records(topic.name, topic.queue_keys[0], batch)
    one = records[0]

    def crew(connections: int, jobs: int) -> Crew:
        return Crew(testbed.broker, connections=connections, jobs=jobs, server=testbed.server)

    def side(label: str, crew: Crew, load: Load) -> Side:
        return Side(label, _measuring(testbed, crew, load, seconds))

    with crew(connections, jobs) as many:
        yield Comparison(
            "append",
            UNIT,
            side(f"append of 1, {connections} connections, one queue", many, partial(append, record=one)),
            side("INSERT without index", many, partial(reference.insert, record=one)),
            [Goal(0.8)],
        )
        yield Comparison(
            "batch",
            UNIT,
            side(f"append of {batch}, {connections} connections", many, partial(append_many, records=records)),
            side(f"binary COPY of {batch} without index", many, partial(reference.copy, records=records)),
            [Goal(0.5)],
        )
    unnest = f"psycopg INSERT of {batch} by unnest, without index"
    insert_many = partial(reference.driver_insert_many, records=records)
    with crew(1, 1) as alone, crew(_SENDING_THREADS, 1) as threads:
        yield Comparison(
            "send",
            UNIT,
            side("Producer.send, one thread", alone, partial(clients.send, topic=topic.name)),
            side("psycopg INSERT without index", alone, partial(reference.driver_insert, record=one)),
            [Goal(0.6)],
        )
        send_batch = partial(clients.send_batch, topic=topic.name, batch=batch)
        yield Comparison(
            "send-batch",
            UNIT,
            side(f"Producer.send_batch of {batch}, one thread", alone, send_batch),
            side(unnest, alone, insert_many),
            [Goal(0.5), Goal(25_000, "value")],
        )
        yield Comparison(
            "send-many",
            UNIT,
            side(f"Producer.send, {_SENDING_THREADS} threads", threads, partial(clients.send, topic=topic.name)),
            side(unnest, alone, insert_many),
        )


def _measuring(testbed: Testbed, crew: Crew, load: Load, seconds: float) -> Callable[[], Measurement]:
    def measure() -> Measurement:
        testbed.make_room(int(seconds * _MOST_A_SECOND))
        reference.clear(testbed.below)
        return crew.measure(load, seconds)

    return measure
