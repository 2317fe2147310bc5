"""The services of timers: on time, never early, and slots that are dropped once delivered."""

import logging
from collections.abc import Iterator
from datetime import timedelta

import pytest
from apscheduler.schedulers.background import BackgroundScheduler
from sqlalchemy import Connection, Engine, text

from mqdb.broker.broker_settings import Change, change_settings
from mqdb.broker.schedule.timers import TimerRound
from mqdb.service.dispatcher import Dispatcher
from mqdb.service.service import Context
from mqdb.service.timer_deliverer import TimerDeliverer, TimerDelivererConfig
from mqdb.service.timer_keeper import TimerKeeper, TimerKeeperCounts
from mqdb.store import broker_settings
from mqdb.store.broker_settings import BrokerSettings
from tests.fixtures.broker import topic
from tests.fixtures.delay import delivered, move_clock, records, slow_appends
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.services import Rounds
from tests.fixtures.timers import column, deliver_all, slots, timer

MS = timedelta(milliseconds=1)
SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)


@pytest.fixture
def deliverer(engine: Engine, rounds: Rounds) -> Iterator[TimerDeliverer]:
    """A running timer deliverer."""
    service = TimerDeliverer(Context(engine.connect, on_round=rounds))
    service.start()
    yield service
    service.stop()


def counts(next_due_in: timedelta, messages: int = 0, late: timedelta = 0 * MS) -> TimerRound:
    nothing: dict[str, int] = {}
    return TimerRound(messages, 0, next_due_in, late, nothing, unreadable=(), missing=0, first_segment=1, took=0 * MS)


@pytest.mark.usefixtures("deliverer")
def test_messages_come_on_time(broker: Connection, engine: Engine) -> None:
    """Messages arrive on time in one of ten waves: a machine that stalls for a moment delays a whole wave.

    No message is ever early.
    """
    topic(broker)
    dispatcher = Dispatcher(Context(engine.connect))
    dispatcher.start()
    medians: list[float] = []
    try:
        while not medians or (medians[-1] >= 200 and len(medians) < 10):
            for n in range(20):
                timer(broker, SECOND, str(n), dispatched=False)
            wait_until(lambda: len(delivered(broker)) == 20 * (len(medians) + 1))
            due = {record["msg_id"]: record["tags_code"] for record in records(broker, "rmq_sys_wheel_timer")}
            late = [record["store_time"].timestamp() * 1000 - due[record["msg_id"]] for record in records(broker)]
            assert min(late) >= -0.001
            medians.append(sorted(late[-20:])[10])
    finally:
        dispatcher.stop()

    assert medians[-1] < 200, medians


@pytest.mark.parametrize(
    ("found", "pause"),
    [
        (counts(5000 * MS), 100 * MS),
        (counts(37 * MS), 37 * MS),
        (counts(1 * MS), 10 * MS),
        (counts(0 * MS, messages=3), 0 * MS),
        (counts(0 * MS), 10 * MS),
    ],
    ids=["not soon", "soon", "now and then", "more is due", "another session is at it"],
)
def test_the_pause_ends_when_the_next_message_is_due(engine: Engine, found: TimerRound, pause: timedelta) -> None:
    assert TimerDeliverer(Context(engine.connect)).pause_after(found) == pause


@pytest.mark.parametrize(("long", "messages"), [(60_000 * MS, [4, 8, 10, 10, 8]), (10 * MS, [4, 2, 1, 1, 1])])
def test_rounds_become_larger_while_they_are_short_for_the_server(
    broker: Connection, engine: Engine, long: timedelta, messages: list[int]
) -> None:
    topic(broker)
    timer(broker, HOUR, *map(str, range(40)))
    deliver_all(broker)
    move_clock(broker, 2 * HOUR)
    slow_appends(broker, 20 * MS)
    config = TimerDelivererConfig(first_messages=4, max_messages=10, long_round=long)
    service = TimerDeliverer(Context(engine.connect), config)

    assert [service.run_once(broker).messages for _ in messages] == messages


@pytest.mark.usefixtures("deliverer")
def test_it_goes_on_when_its_session_was_ended(broker: Connection, rounds: Rounds, database: Database) -> None:
    topic(broker)
    rounds.next()
    database.connect().execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'mqdb timer deliverer'"
    )
    rounds.wait_for(lambda outcome: isinstance(outcome, Exception))

    timer(broker, 0 * MS, "a")

    rounds.wait_for(lambda outcome: isinstance(outcome, TimerRound) and outcome.messages == 1)
    assert delivered(broker) == ["a"]


def test_what_goes_wrong_is_told(broker: Connection, engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mqdb.service")
    topic(broker)
    timer(broker, 0 * MS, "a", "b", topic="gone")
    timer(broker, 0 * MS, "lost")
    broker.execute(text("DELETE FROM mqdb.commit_log WHERE body = 'lost'"))

    TimerDeliverer(Context(engine.connect)).run_once(broker)

    assert [(line.getMessage(), vars(line).get("topic"), vars(line)["count"]) for line in caplog.records] == [
        ("skipped 2 timers of topic gone: the topic is gone", "gone", 2),
        ("the log lost 1 timers that were not collected", None, 1),
    ]


def test_lateness_is_told_when_it_begins_and_when_it_ends(
    broker: Connection, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mqdb.service")
    topic(broker)
    timer(broker, HOUR, *map(str, range(9)))
    deliver_all(broker)
    move_clock(broker, 2 * HOUR + SECOND)
    service = TimerDeliverer(Context(engine.connect), TimerDelivererConfig(first_messages=4, max_messages=4))

    for _ in range(6):
        service.run_once(broker)

    assert [line.msg for line in caplog.records] == ["timers are %(late_seconds)s s late", "timers are on time again"]
    begin, end = map(vars, caplog.records)
    assert (begin["late_seconds"] >= 3600, end["messages"], end["latest_seconds"] >= 3600) == (True, 9, True)


# -- the keeper -------------------------------------------------------------------------------


@pytest.fixture
def keeper(engine: Engine, scheduler: BackgroundScheduler) -> TimerKeeper:
    return TimerKeeper(Context(engine.connect), scheduler)


def partitions(connection: Connection) -> int:
    """The number of partitions of the timer table, except that of slot 0."""
    return int(column(connection, "SELECT count(*) - 1 FROM pg_inherits WHERE inhparent = 'mqdb.timer'::regclass")[0])


def test_a_slot_goes_when_all_of_it_is_delivered(broker: Connection, keeper: TimerKeeper) -> None:
    topic(broker)
    timer(broker, HOUR, "a")
    timer(broker, 30 * HOUR, "b")
    deliver_all(broker)
    assert (keeper.run_once(broker), partitions(broker)) == (TimerKeeperCounts(), 2)

    move_clock(broker, 3 * HOUR)
    deliver_all(broker)

    assert keeper.run_once(broker) == TimerKeeperCounts(dropped=1)
    assert (partitions(broker), slots(broker), delivered(broker)) == (1, ["24 h"], ["a"])
    move_clock(broker, 100 * HOUR)
    deliver_all(broker)
    assert keeper.run_once(broker) == TimerKeeperCounts(dropped=1)
    assert (partitions(broker), delivered(broker)) == (0, ["a", "b"])


def test_a_slot_that_somebody_reads_goes_later(
    broker: Connection, engine: Engine, scheduler: BackgroundScheduler, database: Database
) -> None:
    topic(broker)
    timer(broker, HOUR, "a")
    deliver_all(broker)
    move_clock(broker, 3 * HOUR)
    deliver_all(broker)
    reader = database.connect(autocommit=False)
    reader.execute("SELECT FROM mqdb.timer").fetchall()
    keeper = TimerKeeper(Context(engine.connect), scheduler)
    with engine.connect() as connection:
        keeper.prepare(connection)

        assert keeper.run_once(connection) == TimerKeeperCounts(waiting=True)
        timer(broker, HOUR, "b")
        deliver_all(broker)
        reader.rollback()

        assert keeper.run_once(connection) == TimerKeeperCounts(dropped=1)
    assert partitions(broker) == 1


def test_the_longest_delay_is_a_setting_of_the_broker(broker: Connection) -> None:
    limited, unlimited = BrokerSettings(timer_max_delay_ms=1), BrokerSettings()
    assert broker_settings.find(broker) == unlimited
    assert change_settings(broker, limited) == [Change("timer_max_delay_ms", None, 1)]
    assert change_settings(broker, limited) == []
    assert broker_settings.find(broker) == limited
    assert change_settings(broker, unlimited) == [Change("timer_max_delay_ms", 1, None)]
    assert broker_settings.find(broker) == unlimited
