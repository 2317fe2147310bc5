"""The service that delivers delayed messages: on time, never early, and during faults."""

import logging
from collections.abc import Iterator
from datetime import timedelta

import pytest
from sqlalchemy import Connection, Engine, text

from mqdb.broker.schedule.delay import DelayRound
from mqdb.errors import MessageMissing
from mqdb.service.delay_deliverer import DelayDeliverer, DelayDelivererConfig
from mqdb.service.dispatcher import Dispatcher
from mqdb.service.service import Context
from tests.fixtures.broker import topic
from tests.fixtures.delay import delay, delivered, records, rewrite_entries, slow_appends
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.services import Rounds

MS = timedelta(milliseconds=1)


@pytest.fixture
def deliverer(engine: Engine, rounds: Rounds) -> Iterator[DelayDeliverer]:
    """A running deliverer."""
    service = DelayDeliverer(Context(engine.connect, on_round=rounds))
    service.start()
    yield service
    service.stop()


def counts(next_due_in: timedelta | None) -> DelayRound:
    nothing: dict[str, int] = {}
    return DelayRound(0, next_due_in, nothing, unreadable=(), missing=(), first_segment=1, took=0 * MS)


@pytest.mark.usefixtures("deliverer")
def test_messages_come_on_time(broker: Connection, engine: Engine, rounds: Rounds) -> None:
    """Messages arrive on time: level 1 is one second, so 1.0 to 1.2 s, never less."""
    topic(broker, "orders")
    dispatcher = Dispatcher(Context(engine.connect))
    dispatcher.start()
    medians: list[timedelta] = []
    try:
        # A stall of the machine makes all messages of one try late.
        while len(medians) < 5 and min(medians, default=timedelta.max) >= 1200 * MS:
            waited = delays_of_20(broker)
            assert min(waited) >= 1000 * MS
            medians.append(sorted(waited)[10])
    finally:
        dispatcher.stop()

    assert min(medians) < 1200 * MS


def delays_of_20(broker: Connection) -> list[timedelta]:
    """The delivery times of 20 messages of level 1 that are sent now."""
    before = len(delivered(broker))
    for n in range(20):
        delay(broker, 1, str(n), dispatched=False)
    wait_until(lambda: len(delivered(broker)) == before + 20)

    sent = {record["msg_id"]: record["store_time"] for record in records(broker, "SCHEDULE_TOPIC_XXXX")}
    return [record["store_time"] - sent[record["msg_id"]] for record in records(broker)[before:]]


@pytest.mark.parametrize(
    ("next_due_in", "pause"),
    [(None, 100 * MS), (5000 * MS, 100 * MS), (37 * MS, 37 * MS), (1 * MS, 10 * MS), (0 * MS, 0 * MS)],
    ids=["nothing waits", "not soon", "soon", "now and then", "more is due"],
)
def test_the_pause_ends_when_the_next_message_is_due(
    engine: Engine, next_due_in: timedelta | None, pause: timedelta
) -> None:
    assert DelayDeliverer(Context(engine.connect)).pause_after(counts(next_due_in)) == pause


def test_after_a_stop_it_catches_up_round_after_round(broker: Connection, engine: Engine, rounds: Rounds) -> None:
    topic(broker, "orders")
    delay(broker, 1, *map(str, range(95)))
    broker.execute(text("UPDATE mqdb.commit_log SET tags_code = 0"))
    rewrite_entries(broker, tags_code="0")
    service = DelayDeliverer(Context(engine.connect, on_round=rounds), DelayDelivererConfig(max_messages=10))

    service.start()
    try:
        found = [rounds.next() for _ in range(10)]
    finally:
        service.stop()

    assert [each.messages for each in found] == [10] * 9 + [5]
    assert [service.pause_after(each) for each in found] == [0 * MS] * 9 + [100 * MS]


@pytest.mark.parametrize(("long", "messages"), [(60_000 * MS, [4, 8, 10, 10, 8]), (10 * MS, [4, 2, 1, 1, 1])])
def test_rounds_become_larger_while_they_are_short_for_the_server(
    broker: Connection, engine: Engine, long: timedelta, messages: list[int]
) -> None:
    topic(broker, "orders")
    delay(broker, 1, *map(str, range(40)))
    broker.execute(text("SET mqdb.clock_offset = '1 hour'"))
    slow_appends(broker, 20 * MS)
    config = DelayDelivererConfig(first_messages=4, max_messages=10, long_round=long)
    service = DelayDeliverer(Context(engine.connect), config)

    assert [service.run_once(broker).messages for _ in messages] == messages


@pytest.mark.usefixtures("deliverer")
def test_it_goes_on_when_its_session_was_ended(broker: Connection, rounds: Rounds, database: Database) -> None:
    topic(broker, "orders")
    rounds.next()
    database.connect().execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'mqdb delay deliverer'"
    )
    rounds.wait_for(lambda outcome: isinstance(outcome, Exception))

    delay(broker, 1, "a")

    rounds.wait_for(lambda outcome: isinstance(outcome, DelayRound) and outcome.messages == 1)
    assert delivered(broker) == ["a"]


def test_a_topic_that_is_gone_is_told_once_a_round(
    broker: Connection, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mqdb.service")
    delay(broker, 1, "a", "b", topic="gone")
    broker.execute(text("SET mqdb.clock_offset = '1 hour'"))

    DelayDeliverer(Context(engine.connect)).run_once(broker)

    [line] = caplog.records
    assert (line.getMessage(), vars(line)["topic"], vars(line)["count"]) == (
        "skipped 2 delayed messages of topic gone: the topic or its group is gone",
        "gone",
        2,
    )


def test_a_level_that_stands_still_is_told_once(
    broker: Connection, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mqdb.service")
    delay(broker, 1, "a")
    broker.execute(text("DELETE FROM mqdb.commit_log"))
    broker.execute(text("SET mqdb.clock_offset = '1 hour'"))
    service = DelayDeliverer(Context(engine.connect))

    found = [service.run_once(broker) for _ in range(3)]

    assert all(isinstance(error, MessageMissing) for each in found for error in each.missing)
    [line] = caplog.records
    assert line.getMessage().startswith("a delay level is stuck: queue ")
    assert service.pause_after(found[-1]) == 100 * MS
