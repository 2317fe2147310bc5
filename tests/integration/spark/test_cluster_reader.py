"""Reads of two brokers on real databases, without a JVM: rows, checkpoints, limits, and brokers that join or leave."""

from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

import pytest
from sqlalchemy import Connection, text

from mqdb.errors import BrokerMisnamed, BrokerUnavailable, TopicNotFound
from mqdb.pipeline.errors import DataLoss, OptionInvalid, StreamUnreadable
from mqdb.pipeline.read import engines
from mqdb.pipeline.source import MqdbDataSource
from mqdb.store.topics.topics import TopicRoute, find_topic
from tests.fixtures.broker import topic
from tests.fixtures.postgres import Database, with_parts
from tests.fixtures.producers import TwoBrokers, dsn_of_two
from tests.fixtures.spark_source import Row, Stream, bodies, read, retain_from, rows_of, send
from tests.fixtures.variants import usually


@pytest.fixture(autouse=True)
def _no_idle_connection() -> Iterator[None]:
    """Leave no idle connection, because databases are dropped after each test."""
    yield
    engines.close_idle()


@pytest.fixture
def cluster(two_brokers: TwoBrokers) -> Database:
    """A database object whose DSN lists both brokers."""
    return Database(two_brokers.dsn)


@pytest.fixture
def started() -> Iterator[list[Stream]]:
    """Streams that are stopped at the end of the test."""
    streams: list[Stream] = []
    yield streams
    for each in streams:
        each.reader.stop()


def start(started: list[Stream], database: Database, offset: dict[str, Any] | None = None, **options: str) -> Stream:
    started.append(Stream(database, offset, **{"startingOffsets": "earliest"} | options))
    return started[-1]


Both: TypeAlias = tuple[Connection, Connection]
Work: TypeAlias = Callable[[], object]

NOTHING_READ: Final[dict[str, Any]] = {"brokers": {}}


def fill(both: Both) -> None:
    """Store three messages on the first broker and two on the second, in queues with the same numbers."""
    for connection, messages in zip(both, ("abc", "de"), strict=True):
        send(connection, topic(connection, queues=2), *messages, queue_id=1)


def orders(connection: Connection) -> TopicRoute:
    route = find_topic(connection, "orders")
    assert route is not None
    return route


def test_a_batch_reads_all_brokers_and_rows_say_which(both: Both, cluster: Database) -> None:
    fill(both)

    rows = read(cluster)

    found = sorted((row["broker"], row["queue_id"], row["queue_offset"], row["body"].decode()) for row in rows)
    assert found == [
        ("broker-a", 1, 0, "a"),
        ("broker-a", 1, 1, "b"),
        ("broker-a", 1, 2, "c"),
        ("broker-b", 1, 0, "d"),
        ("broker-b", 1, 1, "e"),
    ]
    assert sorted(row["broker"] for row in read(cluster, columns="broker")) == ["broker-a"] * 3 + ["broker-b"] * 2


@pytest.mark.parametrize("engine_name", usually("adbc", of=["adbc", "psycopg"]))
def test_partitions_of_kafka_are_unique(both: Both, cluster: Database, engine_name: str) -> None:
    fill(both)

    rows = read(cluster, rowFormat="kafka", engine=engine_name)

    found = sorted((row["partition"], row["offset"], row["value"].decode()) for row in rows)
    assert found == [(1, 0, "a"), (1, 1, "b"), (1, 2, "c"), (100_001, 0, "d"), (100_001, 1, "e")]


def test_a_topic_may_be_on_some_of_the_brokers(both: Both, cluster: Database, started: list[Stream]) -> None:
    a, b = both
    send(a, topic(a), "a")
    send(b, topic(b, "flights"), "b")

    assert bodies(read(cluster, subscribe="orders,flights")) == ["a", "b"]
    works: list[Work] = [
        lambda: read(cluster, subscribe="orders,nowhere"),
        start(started, cluster, NOTHING_READ, subscribe="orders,nowhere").trigger,
        lambda: assigned(cluster, '{"nowhere": [0]}'),
    ]
    for work in works:
        with pytest.raises(TopicNotFound, match="'nowhere' does not exist"):
            work()


def assigned(cluster: Database, queues: str) -> list[Row]:
    """The messages in these queues."""
    whole = MqdbDataSource({"url": cluster.dsn, "assign": queues})
    one = whole.reader(whole.schema())
    return rows_of(one, list(one.partitions()))


def test_queues_and_offsets_are_named_for_each_broker(both: Both, cluster: Database) -> None:
    fill(both)
    offsets = '{"broker-a": {"orders": {"0": -2, "1": 2}}, "broker-b": {"orders": {"0": 0, "1": 1}}}'

    assert bodies(read(cluster, startingOffsets=offsets)) == ["c", "e"]
    assert bodies(read(cluster, startingOffsets='{"orders": {"0": 0, "1": 1}}')) == ["b", "c", "e"]
    assert bodies(assigned(cluster, '{"broker-b": {"orders": [1]}}')) == ["d", "e"]
    assert bodies(assigned(cluster, '{"orders": [1]}')) == ["a", "b", "c", "d", "e"]
    with pytest.raises(OptionInvalid, match="does not contain topic 'orders', queue 0") as caught:
        read(cluster, startingOffsets='{"broker-a": {"orders": {"0": -2, "1": 2}}}')
    assert caught.value.__notes__ == ["while broker 'broker-b' was queried"]


def test_a_stream_reads_what_comes_on_any_broker_once(both: Both, cluster: Database, started: list[Stream]) -> None:
    fill(both)
    stream = start(started, cluster)
    first = stream.trigger()
    for connection, body in zip(both, "fg", strict=True):
        send(connection, orders(connection), body)

    assert bodies(first) == ["a", "b", "c", "d", "e"]
    assert list(stream.offset["brokers"]) == ["broker-a", "broker-b"]
    restarted = start(started, cluster, stream.offset)
    assert bodies(restarted.trigger()) == ["f", "g"]
    assert restarted.trigger() == []


def test_limits_count_over_all_brokers(both: Both, cluster: Database, started: list[Stream]) -> None:
    fill(both)
    stream = start(started, cluster, maxOffsetsPerTrigger="2")
    sizes = []
    while rows := stream.trigger():
        sizes.append(len(rows))

    assert sizes == [2, 2, 1]
    patient = start(started, cluster, minOffsetsPerTrigger="6")
    assert patient.trigger() == []
    send(both[1], orders(both[1]), "f")
    assert len(patient.trigger()) == 6


@pytest.mark.long
def test_available_now_reads_to_where_each_broker_ended(both: Both, cluster: Database, started: list[Stream]) -> None:
    fill(both)
    stream = start(started, cluster, minOffsetsPerTrigger="100")
    stream.reader.prepareForTriggerAvailableNow()  # type: ignore[attr-defined]
    send(both[1], orders(both[1]), "late")

    assert bodies(stream.trigger()) == ["a", "b", "c", "d", "e"]
    assert stream.trigger() == []


def test_a_broker_that_joins_is_read_from_its_beginning(
    both: Both, two_brokers: TwoBrokers, cluster: Database, started: list[Stream]
) -> None:
    """A broker that joins is read from its beginning.

    The checkpoint is that of a single broker, whose url had no name.
    """
    fill(both)
    alone = start(started, two_brokers.a)
    assert bodies(alone.trigger()) == ["a", "b", "c"]

    joined = start(started, cluster, alone.offset, startingOffsets="latest")

    assert bodies(joined.trigger()) == ["d", "e"]
    retain_from(both[1], orders(both[1]), 1, queue_id=1)
    with pytest.raises(DataLoss, match="queue 1, from offset 0 on: retention has dropped") as caught:
        start(started, cluster, alone.offset).trigger()
    assert caught.value.__notes__ == ["while broker 'broker-b' was queried"]


def test_a_broker_that_is_left_out_ends_the_stream_or_keeps_its_place(
    both: Both, two_brokers: TwoBrokers, cluster: Database, started: list[Stream]
) -> None:
    fill(both)
    stream = start(started, cluster)
    stream.trigger()
    for connection, body in zip(both, "fg", strict=True):
        send(connection, orders(connection), body)
    alone = Database(f"broker-b={two_brokers.b.dsn}")

    with pytest.raises(StreamUnreadable, match="has offsets of broker 'broker-a', and the url leads to 'broker-b'"):
        start(started, alone, stream.offset).trigger()
    lenient = start(started, alone, stream.offset, failOnDataLoss="false")
    assert bodies(lenient.trigger()) == ["g"]
    assert bodies(start(started, cluster, lenient.offset).trigger()) == ["f"]


def test_a_url_that_leads_to_another_broker_is_refused(
    both: Both, two_brokers: TwoBrokers, started: list[Stream]
) -> None:
    fill(both)
    swapped = Database(dsn_of_two(two_brokers.b.dsn, two_brokers.a.dsn))

    works: list[Work] = [lambda: read(swapped), start(started, swapped, NOTHING_READ).trigger]
    for work in works:
        with pytest.raises(BrokerMisnamed, match="is broker 'broker-b', not 'broker-a'"):
            work()


@pytest.mark.long
def test_a_broker_that_is_away_is_not_passed_over(both: Both, two_brokers: TwoBrokers, started: list[Stream]) -> None:
    fill(both)
    away = Database(dsn_of_two(two_brokers.a.dsn, with_parts(two_brokers.b.dsn, port=1)))

    stream = start(started, away, NOTHING_READ, brokerWaitSeconds="0")
    works: list[Work] = [lambda: read(away, brokerWaitSeconds="0"), stream.trigger]
    for work in works:
        with pytest.raises(BrokerUnavailable):
            work()


@pytest.mark.long
def test_each_broker_shows_the_progress_of_its_queues(both: Both, cluster: Database, started: list[Stream]) -> None:
    fill(both)
    stream = start(started, cluster, group="stats")
    stream.trigger()
    stream.trigger()

    for connection, read_to in zip(both, (3, 2), strict=True):
        sql = "SELECT next_offset FROM mqdb.consumer_lag WHERE group_name = 'stats' AND queue_id = 1"
        assert connection.scalar(text(sql)) == read_to
