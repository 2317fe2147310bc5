"""The service that sends recurring messages: on time, from one of two processes, and during faults."""

import logging
from collections import Counter
from collections.abc import Callable
from datetime import timedelta

import pytest
from sqlalchemy import Connection, Engine, text

from mqdb.broker.schedule.cron import CronRound, Firing
from mqdb.service.cron_sender import CronSender
from mqdb.service.service import Context
from tests.fixtures.broker import topic
from tests.fixtures.crons import add, sent, set_clock
from tests.fixtures.delay import records
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.services import Rounds

MS = timedelta(milliseconds=1)


def at(engine: Engine, time: str) -> Callable[[], Connection]:
    """Makes connections whose clock starts at a given time and runs on."""

    def connect() -> Connection:
        connection = engine.connect()
        set_clock(connection, time)
        return connection

    return connect


def counts(next_due_in: timedelta | None, *firings: Firing) -> CronRound:
    return CronRound(firings, {}, next_due_in)


def test_a_message_is_sent_at_its_time_and_not_before(broker: Connection, engine: Engine) -> None:
    topic(broker, "orders")
    set_clock(broker, "2026-07-14 09:05:00")
    add(broker)
    service = CronSender(Context(at(engine, "2026-07-14 09:09:59")))

    service.start()
    try:
        wait_until(lambda: sent(broker) != [])
    finally:
        service.stop()

    (record,) = records(broker)
    late = record["store_time"].timestamp() % 60
    assert 0 <= late < 30


def test_of_two_services_one_sends_each_message(broker: Connection, engine: Engine) -> None:
    topic(broker, "orders")
    set_clock(broker, "2026-07-14 09:05:00")
    for number in range(30):
        add(broker, name=f"tick-{number:02}")
    services = [CronSender(Context(at(engine, "2026-07-14 09:10:00"))) for _ in range(2)]

    for service in services:
        service.start()
    try:
        wait_until(lambda: broker.scalar(text("SELECT bool_and(sent > 0) FROM mqdb.cron")) is True)
    finally:
        for service in services:
            service.stop()

    found = Counter(record["properties"]["MQDB_CRON_NAME"] for record in records(broker))
    assert found == {f"tick-{number:02}": 1 for number in range(30)}


def test_it_goes_on_when_its_session_was_ended(
    broker: Connection, engine: Engine, database: Database, rounds: Rounds
) -> None:
    topic(broker, "orders")
    service = CronSender(Context(at(engine, "2026-07-14 09:10:00"), on_round=rounds))
    service.start()
    try:
        rounds.next()
        database.connect().execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'mqdb cron sender'"
        )
        rounds.wait_for(lambda outcome: isinstance(outcome, Exception))
        set_clock(broker, "2026-07-14 09:05:00")
        add(broker)
        rounds.wait_for(lambda outcome: isinstance(outcome, CronRound) and outcome.firings)
    finally:
        service.stop()

    assert sent(broker) == ["2026-07-14T09:10:00Z"]


@pytest.mark.parametrize(
    ("found", "pause"),
    [
        (counts(None), 1000 * MS),
        (counts(60_000 * MS), 1000 * MS),
        (counts(37 * MS), 37 * MS),
        (counts(0 * MS), 100 * MS),
    ],
    ids=["no cron", "not soon", "soon", "another session is at it"],
)
def test_the_pause_ends_when_the_next_message_is_due(engine: Engine, found: CronRound, pause: timedelta) -> None:
    assert CronSender(Context(engine.connect)).pause_after(found) == pause


def test_there_is_no_pause_while_it_catches_up(broker: Connection, engine: Engine) -> None:
    topic(broker, "orders")
    set_clock(broker, "2026-07-14 09:05:00")
    add(broker)
    set_clock(broker, "2026-07-14 09:10:00")
    service = CronSender(Context(engine.connect))

    found = service.run_once(broker)

    assert service.pause_after(found._replace(next_due_in=timedelta(0))) == 0 * MS


def test_what_is_not_sent_is_told(broker: Connection, engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mqdb.service")
    topic(broker, "orders")
    set_clock(broker, "2026-07-14 09:05:00")
    for name in ("a", "b", "c"):
        add(broker, name=name)
    broker.execute(text("UPDATE mqdb.cron SET topic = 'gone' WHERE name = 'a'"))
    broker.execute(text("UPDATE mqdb.cron SET cron = 'never' WHERE name = 'b'"))
    broker.execute(text("UPDATE mqdb.cron SET next_at = '2026-07-14 09:00:00 UTC' WHERE name = 'c'"))
    set_clock(broker, "2026-07-14 09:10:00")

    CronSender(Context(engine.connect)).run_once(broker)

    assert sorted((vars(line)["cron"], " ".join(line.getMessage().split()[:4])) for line in caplog.records) == [
        ("a", "skipped cron a at"),
        ("b", "paused cron b, which"),
        ("c", "skipped missed times of"),
    ]
