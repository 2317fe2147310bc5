"""The service that checks transactions: its rounds, its reports, and its backlog after an outage."""

import logging
import re
from collections.abc import Iterator
from datetime import timedelta

import pytest
from apscheduler.schedulers.background import BackgroundScheduler
from sqlalchemy import Connection, Engine

from mqdb.broker.transactions.transaction_checks import CheckRules
from mqdb.service.service import Context
from mqdb.service.transaction_checker import CheckerCounts, TransactionChecker, TransactionCheckerConfig
from tests.fixtures.broker import dispatch_all, topic
from tests.fixtures.delay import delivered, move_clock
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.services import Rounds
from tests.fixtures.transactions import (
    COMMIT,
    SECOND,
    UNKNOWN,
    Asked,
    StartProducer,
    halves,
    let_the_log_begin_at,
    send_half,
)

#: Never gives up, however late an answer comes.
SOON = CheckRules(timedelta(milliseconds=50), check_interval=timedelta(milliseconds=50), check_max=10**6)


@pytest.fixture
def checker(engine: Engine, scheduler: BackgroundScheduler, rounds: Rounds) -> Iterator[TransactionChecker]:
    """A checker with short intervals; the test starts it."""
    service = TransactionChecker(Context(engine.connect, on_round=rounds), scheduler, TransactionCheckerConfig(SOON))
    yield service
    service.stop()


def test_producers_are_asked_and_what_they_answer_is_delivered(
    broker: Connection, checker: TransactionChecker, transactional_producer: StartProducer
) -> None:
    route = topic(broker)
    transactional_producer(Asked(UNKNOWN, COMMIT))
    for n in range(3):
        send_half(broker, route, str(n))

    checker.start()

    wait_until(lambda: sorted(delivered(broker)) == ["0", "1", "2"])


def test_what_has_ended_is_looked_at_once(broker: Connection, checker: TransactionChecker, rounds: Rounds) -> None:
    route = topic(broker)
    for _ in range(5):
        send_half(broker, route).end(broker, COMMIT)

    checker.start()

    assert rounds.next() == CheckerCounts(seen=5, committed=5)
    assert rounds.next() == CheckerCounts()


def test_what_is_given_up_is_told(
    broker: Connection,
    engine: Engine,
    scheduler: BackgroundScheduler,
    transactional_producer: StartProducer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    send_half(broker, topic(broker))
    transactional_producer(Asked(UNKNOWN, UNKNOWN))
    rules = CheckRules(SOON.transaction_timeout, SOON.check_interval, check_max=2)
    service = TransactionChecker(Context(engine.connect), scheduler, TransactionCheckerConfig(rules))

    service.start()
    try:
        wait_until(lambda: [half["state"] for half in halves(broker)] == ["DISCARDED"])
    finally:
        service.stop()

    warnings = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert [warning for warning in warnings if re.match("gave up [0-9]+ half messages", warning)]


def test_what_the_log_has_lost_is_told(
    broker: Connection, engine: Engine, scheduler: BackgroundScheduler, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    half = send_half(broker, topic(broker))
    service = TransactionChecker(Context(engine.connect), scheduler, TransactionCheckerConfig(SOON))
    move_clock(broker, SECOND)
    service.run_once(broker)
    let_the_log_begin_at(broker, half.log_pos + 1)
    move_clock(broker, 2 * SECOND)

    assert service.run_once(broker) == CheckerCounts(lost=1, pruned=1)
    (line,) = caplog.records
    assert (line.message, vars(line)["first_log_pos"]) == (
        f"gave up 1 half messages that the log lost, first at position {half.log_pos}",
        half.log_pos,
    )


def test_after_an_outage_a_round_takes_several_batches(
    broker: Connection, engine: Engine, scheduler: BackgroundScheduler
) -> None:
    route = topic(broker)
    for _ in range(25):
        send_half(broker, route, dispatched=False)
    dispatch_all(broker)
    # What one batch postpones must not be due again before the round is over.
    rules = CheckRules(transaction_timeout=SOON.transaction_timeout)
    config = TransactionCheckerConfig(rules, collected_at_once=10, checked_at_once=10)
    service = TransactionChecker(Context(engine.connect), scheduler, config)

    move_clock(broker, SECOND)

    assert service.run_once(broker) == CheckerCounts(seen=25, prepared=25, postponed=25)


@pytest.mark.parametrize(
    ("timeout", "check_interval", "interval"),
    [(6, 30, 1.0), (1, 30, 0.5), (6, 0.5, 0.25)],
    ids=["defaults", "short timeout", "short interval"],
)
def test_it_looks_often_enough(timeout: float, check_interval: float, interval: float) -> None:
    rules = CheckRules(timeout * SECOND, check_interval * SECOND)

    assert TransactionCheckerConfig(rules).interval == interval * SECOND


def test_a_connection_that_is_lost_ends_a_round_and_no_more(
    broker: Connection,
    database: Database,
    checker: TransactionChecker,
    rounds: Rounds,
    transactional_producer: StartProducer,
) -> None:
    route = topic(broker)
    transactional_producer(Asked(UNKNOWN, COMMIT))
    checker.start()
    rounds.next()
    ended = (
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
        "WHERE application_name = 'mqdb transaction checker' AND datname = current_database()"
    )

    assert database.connect().execute(ended).fetchall() == [(True,)]
    rounds.wait_for(lambda outcome: isinstance(outcome, Exception))
    send_half(broker, route)

    wait_until(lambda: delivered(broker) == ["half"])
