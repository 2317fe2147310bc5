"""Streams of format("mqdb") whose database goes back or moves.

A checkpoint skips no message, and the stream reports the change.
"""

import logging
from collections.abc import Callable, Iterator

import pytest

from mqdb.pipeline import broker_wait
from mqdb.pipeline.errors import DatabaseReplaced, DataLoss, LogReplaced
from mqdb.pipeline.read import engines
from tests.fixtures.history import QUEUES, Past
from tests.fixtures.postgres import Database
from tests.fixtures.spark_source import Row, Stream, bodies
from tests.fixtures.variants import usually


@pytest.fixture
def database(past: Past) -> Iterator[Database]:
    yield Database(past.dsn)
    engines.close_idle()


def some(name: str, count: int = 3 * QUEUES) -> list[str]:
    """Messages, the same number for each queue."""
    return [f"{name} {number:02}" for number in range(count)]


def all_of(stream: Stream) -> list[Row]:
    rows: list[Row] = []
    while batch := stream.trigger():
        rows += batch
    stream.reader.stop()
    return rows


@pytest.mark.parametrize("way", usually("resumed", of=["running", "resumed"]))
def test_a_stream_whose_database_went_back_stops_or_reads_from_the_first_message(
    past: Past, database: Database, caplog: pytest.LogCaptureFixture, way: str
) -> None:
    """A stream whose database went back stops, or reads from the first message.

    By then each queue is longer than the part that the stream had read, so no offset is beyond an end.
    """
    past.store(*some("kept"))
    past.save("back-up")
    past.store(*some("lost"))
    stream = Stream(database, startingOffsets="earliest")
    assert bodies(stream.trigger()) == sorted(some("kept") + some("lost"))

    past.return_to("back-up")
    past.store(*some("new", 8 * QUEUES))

    if way == "resumed":
        stream.reader.stop()
        stream = Stream(database, stream.offset)
    with pytest.raises(
        LogReplaced, match=r"queue 0, at offset 6: the log does not have the previous message .* new che"
    ):
        stream.trigger()
    stream.reader.stop()
    lenient = Stream(database, stream.offset, failOnDataLoss="false")
    assert bodies(all_of(lenient)) == sorted(some("kept") + some("new", 8 * QUEUES))
    assert "read from its first message, topic 'orders', queue 3, at offset 6" in caplog.text
    assert all_of(Stream(database, lenient.offset)) == []


def test_queues_that_the_log_proves_go_on_beside_one_that_it_does_not(past: Past, database: Database) -> None:
    past.store(*some("kept"))
    past.save("back-up")
    past.store("lost")  # queue 0
    stream = Stream(database, startingOffsets="earliest")
    stream.trigger()
    stream.reader.stop()

    past.return_to("back-up")
    past.store(*some("new", QUEUES))

    lenient = Stream(database, stream.offset, failOnDataLoss="false")
    assert bodies(all_of(lenient)) == sorted(some("kept")[::QUEUES] + some("new", QUEUES))


@pytest.mark.parametrize("way", usually("end", of=["start", "end"]))
def test_a_batch_of_another_log_is_not_run_again(past: Past, database: Database, way: str) -> None:
    """A batch of another log is not run again.

    The batch is already in the checkpoint, so Spark does not request the latest offset before it runs.
    """
    past.store(*some("kept"))
    past.save("back-up")
    stream = Stream(database, startingOffsets="earliest")
    if way == "start":
        past.store(*some("lost"))
        stream.trigger()
    start = stream.offset
    past.store(*some("last"))
    end = stream.end()
    stream.reader.stop()

    past.return_to("back-up")
    past.store(*some("new", 8 * QUEUES))

    again = Stream(database, start)
    with pytest.raises(LogReplaced):
        again.reader.partitions(start, end)
    again.reader.stop()


@pytest.mark.parametrize("way", usually("resumed", of=["running", "resumed"]))
def test_another_database_with_the_broker_name_and_the_topic_is_called_that(
    past: Past, database: Database, caplog: pytest.LogCaptureFixture, way: str
) -> None:
    """Another database with the same broker name and topic is reported as such, even if its topic has the same id."""
    past.store(*some("old"))
    stream = Stream(database, startingOffsets="earliest")
    stream.trigger()

    past.replace()
    past.store(*some("new", 8 * QUEUES))

    if way == "resumed":
        stream.reader.stop()
        stream = Stream(database, stream.offset)
    with pytest.raises(DatabaseReplaced, match=r"another database: broker 'broker-a': the checkpoint is of a database"):
        stream.trigger()
    stream.reader.stop()
    lenient = Stream(database, stream.offset, failOnDataLoss="false")
    assert bodies(all_of(lenient)) == some("new", 8 * QUEUES)
    assert "read from its first message, each queue of broker 'broker-a'" in caplog.text


def test_another_database_is_called_that_before_its_lack_of_a_topic(past: Past, database: Database) -> None:
    past.create_topic("payments")
    stream = Stream(database, subscribe="payments", startingOffsets="earliest")
    end = stream.end()
    stream.reader.stop()

    past.replace()

    again = Stream(database, end, subscribe="payments")
    [(broker, of_broker)] = end["brokers"].items()
    nothing = {"brokers": {broker: {**of_broker, "topics": {}, "topic_ids": {}, "proofs": {}}}}
    with pytest.raises(DatabaseReplaced):
        again.trigger()
    with pytest.raises(DatabaseReplaced):
        again.reader.partitions(nothing, end)
    again.reader.stop()


def test_a_restored_database_is_no_other_one_and_its_topic_was_not_made_again(past: Past, database: Database) -> None:
    past.save("back-up")
    past.store(*some("lost"))
    stream = Stream(database, startingOffsets="earliest")
    stream.trigger()
    stream.reader.stop()

    past.return_to("back-up")
    past.dump_and_restore()
    past.store(*some("new", 8 * QUEUES))

    again = Stream(database, stream.offset)
    with pytest.raises(DataLoss) as caught:
        again.trigger()
    again.reader.stop()
    assert type(caught.value) is LogReplaced


def _restart(past: Past) -> None:
    past.restart()


def _dump_and_restore(past: Past) -> None:
    past.dump_and_restore()


def _lose_what_was_not_read(past: Past) -> None:
    past.save("back-up")
    past.store(*some("lost"))
    past.return_to("back-up")


@pytest.mark.parametrize(
    "happens", usually(_dump_and_restore, of=[_restart, _dump_and_restore, _lose_what_was_not_read])
)
@pytest.mark.parametrize("way", usually("resumed", of=["running", "resumed"]))
def test_a_stream_goes_on_at_its_checkpoint_if_the_log_has_all_that_it_has_read(
    past: Past, database: Database, caplog: pytest.LogCaptureFixture, happens: Callable[[Past], None], way: str
) -> None:
    past.store(*some("before"))
    stream = Stream(database, startingOffsets="earliest")
    stream.trigger()

    happens(past)
    past.store(*some("after"))

    if way == "resumed":
        stream.reader.stop()
        stream = Stream(database, stream.offset)
    assert bodies(all_of(stream)) == some("after")
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    # A stream that runs waits for the database that is away.
    assert [record for record in warnings if record.name != broker_wait.__name__] == []
