"""Streams of format("mqdb") on a real database, without a JVM: offsets, limits, checkpoints, and lost messages."""

from collections.abc import Iterator
from datetime import UTC
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows
from sqlalchemy import Connection, text

from mqdb.broker.topics import topics as admin
from mqdb.errors import TopicNotFound
from mqdb.pipeline.errors import DataLoss, StreamUnreadable
from mqdb.pipeline.read import engines
from mqdb.pipeline.source import MqdbStreamReader
from mqdb.store.log import proofs
from mqdb.store.topics.topic_ranges import broker_identity
from mqdb.store.topics.topics import TopicRoute
from tests.fixtures import log as by_hand
from tests.fixtures.broker import topic
from tests.fixtures.postgres import Database
from tests.fixtures.spark_source import Stream, bodies, fill_segments, retain_from, rows_of, send


@pytest.fixture(autouse=True)
def _no_idle_connection() -> Iterator[None]:
    """Leave no idle connection, because databases are dropped after each test."""
    yield
    engines.close_idle()


@pytest.fixture
def orders(broker: Connection) -> TopicRoute:
    return topic(broker, queues=2)


def checkpoint(broker: Connection, route: TopicRoute, *offsets: int) -> dict[str, Any]:
    """The checkpoint of a stream that has reached these offsets in the topic's queues."""
    topics = {"orders": {str(queue_id): offset for queue_id, offset in enumerate(offsets)}}
    found = proofs.find(broker, dict(zip(route.queue_keys, offsets, strict=False)))
    before = {
        str(route.queue_keys.index(key)): [
            proof.log_pos,
            str(proof.msg_id),
            proof.store_time.astimezone(UTC).isoformat(),
        ]
        for key, proof in found.items()
    }
    of_one = {
        "created_at": broker_identity(broker).created_at.astimezone(UTC).isoformat(),
        "topic_ids": {"orders": route.topic_id},
        "topics": topics,
        "proofs": {"orders": before} if before else {},
    }
    return {"brokers": {"broker-a": of_one}}


@pytest.fixture
def started() -> Iterator[list[Stream]]:
    """Streams that are stopped at the end of the test."""
    streams: list[Stream] = []
    yield streams
    for each in streams:
        each.reader.stop()


def start(started: list[Stream], database: Database, offset: dict[str, Any] | None = None, **options: str) -> Stream:
    started.append(Stream(database, offset, **options))
    return started[-1]


def test_a_stream_reads_what_comes_once(
    broker: Connection, database: Database, orders: TopicRoute, started: list[Stream]
) -> None:
    send(broker, orders, "before")
    stream = start(started, database)

    send(broker, orders, *"ab")
    first = stream.trigger()
    send(broker, orders, "c", queue_id=1)

    assert bodies(first) == ["a", "b"]
    assert bodies(stream.trigger()) == ["c"]
    assert stream.trigger() == []
    assert stream.offset == checkpoint(broker, orders, 3, 1)


def test_a_stream_goes_on_at_its_checkpoint(
    broker: Connection, database: Database, orders: TopicRoute, started: list[Stream]
) -> None:
    send(broker, orders, *"abc")

    assert bodies(start(started, database, checkpoint(broker, orders, 1, 0)).trigger()) == ["b", "c"]
    other = {"brokers": {"broker-b": checkpoint(broker, orders, 1, 0)["brokers"]["broker-a"]}}
    with pytest.raises(StreamUnreadable, match="has offsets of broker 'broker-b', and the url leads to 'broker-a'"):
        start(started, database, other).trigger()


def test_a_batch_that_is_run_again_is_the_same(
    broker: Connection, database: Database, orders: TopicRoute, started: list[Stream]
) -> None:
    send(broker, orders, *"abc")
    stream = start(started, database, startingOffsets="earliest")
    begin, end = stream.offset, stream.end()
    first = rows_of(stream.reader, list(stream.reader.partitions(begin, end)))
    send(broker, orders, *"def")

    again = start(started, database, begin)

    assert rows_of(again.reader, list(again.reader.partitions(begin, end))) == first


def test_new_queues_are_read_from_their_first_message(
    broker: Connection, database: Database, orders: TopicRoute, started: list[Stream]
) -> None:
    stream = start(started, database)

    wider = admin.update_topic(broker, "orders", read_queue_nums=3, write_queue_nums=3)
    send(broker, wider, "new", queue_id=2)

    assert bodies(stream.trigger()) == ["new"]


def test_a_limit_cuts_a_backlog_into_batches(
    broker: Connection, database: Database, orders: TopicRoute, started: list[Stream]
) -> None:
    send(broker, orders, *"abcdef")
    send(broker, orders, *"uvw", queue_id=1)
    stream = start(started, database, startingOffsets="earliest", maxOffsetsPerTrigger="4")

    sizes = []
    while rows := stream.trigger():
        sizes.append(len(rows))

    assert stream.reader.getDefaultReadLimit() == ReadMaxRows(4)
    assert sizes == [4, 4, 1]
    reported = stream.reader.reportLatestOffset()
    assert reported is not None
    assert reported["brokers"]["broker-a"]["topics"] == stream.offset["brokers"]["broker-a"]["topics"]


def test_a_stream_may_wait_until_there_is_enough(
    broker: Connection, database: Database, orders: TopicRoute, started: list[Stream]
) -> None:
    stream = start(started, database, minOffsetsPerTrigger="3")
    send(broker, orders, *"ab")
    too_few = stream.trigger()
    send(broker, orders, "c", queue_id=1)

    assert stream.reader.getDefaultReadLimit() == ReadMinRows(3)
    assert too_few == []
    assert bodies(stream.trigger()) == ["a", "b", "c"]


def test_a_stream_waits_for_enough_no_longer_than_its_delay_and_then_takes_no_more_than_its_limit(
    broker: Connection, database: Database, orders: TopicRoute, started: list[Stream]
) -> None:
    patient, impatient = (
        start(started, database, minOffsetsPerTrigger="5", maxOffsetsPerTrigger="2", maxTriggerDelay=delay)
        for delay in ("1h", "0ms")
    )
    send(broker, orders, *"abc")

    assert patient.trigger() == []
    assert bodies(impatient.trigger()) == ["a", "b"]
    send(broker, orders, *"de")
    assert bodies(patient.trigger()) == ["a", "b"]


def test_available_now_reads_to_where_the_queues_ended_when_it_began(
    broker: Connection, database: Database, orders: TopicRoute, started: list[Stream]
) -> None:
    send(broker, orders, *"ab")
    stream = start(started, database, startingOffsets="earliest", minOffsetsPerTrigger="100")
    assert isinstance(stream.reader, MqdbStreamReader)

    stream.reader.prepareForTriggerAvailableNow()
    send(broker, orders, *"cd")

    assert bodies(stream.trigger()) == ["a", "b"]
    assert stream.trigger(ReadAllAvailable()) == []


def test_retention_that_passes_a_checkpoint_is_a_loss_or_skipped(
    broker: Connection, database: Database, orders: TopicRoute, started: list[Stream]
) -> None:
    send(broker, orders, *"abcd")
    offset = checkpoint(broker, orders, 1, 0)

    retain_from(broker, orders, 3)

    with pytest.raises(DataLoss, match="from offset 1 on: retention has dropped messages below 3"):
        start(started, database, offset).trigger()
    assert bodies(start(started, database, offset, failOnDataLoss="false").trigger()) == ["d"]


@pytest.mark.parametrize("limit", [{}, {"maxOffsetsPerTrigger": "100"}], ids=["no-limit", "limit"])
def test_a_queue_that_retention_has_reached_before_the_stream_knew_it_is_a_loss_or_skipped(
    broker: Connection, database: Database, orders: TopicRoute, started: list[Stream], limit: dict[str, str]
) -> None:
    offset = checkpoint(broker, orders, 0, 0)
    wider = admin.update_topic(broker, "orders", read_queue_nums=3, write_queue_nums=3)
    send(broker, wider, *"abcd", queue_id=2)

    retain_from(broker, wider, 3, queue_id=2)

    with pytest.raises(DataLoss, match="queue 2, from offset 0 on: retention has dropped messages below 3"):
        start(started, database, offset, **limit).trigger()
    assert bodies(start(started, database, offset, **limit, failOnDataLoss="false").trigger()) == ["d"]


@pytest.mark.parametrize("limit", [{}, {"maxOffsetsPerTrigger": "2"}], ids=["no-limit", "limit"])
def test_a_topic_that_was_made_again_is_a_loss_or_read_from_its_first_message(
    broker: Connection, database: Database, orders: TopicRoute, started: list[Stream], limit: dict[str, str]
) -> None:
    """A recreated topic counts as a loss, or is read from its first message.

    The new topic has as many messages as the stream had read of the old topic.
    """
    send(broker, orders, *"abc")
    offset = checkpoint(broker, orders, 2, 0)
    admin.delete_topic(broker, "orders")
    send(broker, topic(broker, queues=2), *"xyz")

    with pytest.raises(DataLoss, match="queue 0, at offset 2: its topic was deleted and recreated"):
        start(started, database, offset, **limit).trigger()
    lenient = start(started, database, offset, **limit, failOnDataLoss="false")
    found = []
    while rows := lenient.trigger():
        found += rows
    assert bodies(found) == ["x", "y", "z"]


def test_progress_on_a_topic_is_none_on_the_one_that_was_made_in_its_place(
    broker: Connection, database: Database, orders: TopicRoute, started: list[Stream]
) -> None:
    offset = checkpoint(broker, orders, 2, 0)
    admin.delete_topic(broker, "orders")
    topic(broker, queues=2)

    with pytest.raises(DataLoss):
        start(started, database, offset, group="stats").trigger()

    assert broker.scalar(text("SELECT count(*) FROM mqdb.consumer_offset")) == 0


def test_a_batch_of_a_topic_that_was_made_again_is_a_loss_when_it_is_run_again(
    broker: Connection, database: Database, orders: TopicRoute, started: list[Stream]
) -> None:
    send(broker, orders, *"abc")
    begin, end = checkpoint(broker, orders, 1, 0), checkpoint(broker, orders, 3, 0)
    admin.delete_topic(broker, "orders")
    send(broker, topic(broker, queues=2), *"xyz")

    with pytest.raises(DataLoss, match="recreated"):
        start(started, database, begin).reader.partitions(begin, end)
    lenient = start(started, database, begin, failOnDataLoss="false")
    assert list(lenient.reader.partitions(begin, end)) == []


def test_a_topic_that_vanishes_ends_the_stream(
    broker: Connection, database: Database, orders: TopicRoute, started: list[Stream]
) -> None:
    strict, lenient = start(started, database), start(started, database, failOnDataLoss="false")

    admin.delete_topic(broker, "orders")

    with pytest.raises(TopicNotFound):
        strict.trigger()
    assert lenient.trigger() == []


def test_a_stream_survives_the_loss_of_its_connection(
    broker: Connection, database: Database, orders: TopicRoute, started: list[Stream]
) -> None:
    stream = start(started, database)
    send(broker, orders, "a")

    others = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'mqdb-spark'"
    broker.execute(text(others))

    assert bodies(stream.trigger()) == ["a"]


def test_a_stream_finds_its_messages_over_segments(
    log: by_hand.Connection, database: Database, started: list[Stream]
) -> None:
    fill_segments(log, database)
    stream = start(started, database, startingOffsets="earliest", maxOffsetsPerTrigger="7")
    found: list[tuple[int, int]] = []

    while rows := stream.trigger():
        found += [(row["queue_id"], row["queue_offset"]) for row in rows]

    stored = log.execute("SELECT queue_id, queue_offset FROM mqdb.message ORDER BY 1, 2").fetchall()
    assert sorted(found) == stored
