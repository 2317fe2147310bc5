"""The behaviour that all services share, driven by a thread or by a scheduler."""

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, TypeAlias

import pytest
from apscheduler.schedulers.background import BackgroundScheduler
from sqlalchemy import Connection, Engine, text

from mqdb.common.clock import SystemClock
from mqdb.errors import BrokerUnavailable, MqdbError
from mqdb.service.service import Context, LoopService, PeriodicService
from tests.fixtures.log import scalar
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.services import Rounds

PAUSE = timedelta(milliseconds=10)


class Work:
    """The work of a round, which the test may change in between."""

    def __init__(self) -> None:
        self.statement = "SELECT pg_backend_pid()"

    def __call__(self, connection: Connection) -> int:
        return int(connection.execute(text(self.statement)).scalar_one())


class Loop(LoopService[int]):
    name = "loop under test"

    def __init__(self, context: Context, work: Work) -> None:
        super().__init__(context)
        self._work = work

    def run_once(self, connection: Connection) -> int:
        return self._work(connection)

    def pause_after(self, counts: int) -> timedelta:
        return PAUSE


class Periodic(PeriodicService[int]):
    name = "periodic under test"

    def __init__(self, context: Context, scheduler: BackgroundScheduler, work: Work) -> None:
        super().__init__(context, scheduler, PAUSE)
        self._work = work

    def run_once(self, connection: Connection) -> int:
        return self._work(connection)


Service: TypeAlias = Loop | Periodic
Maker: TypeAlias = Callable[..., Service]


@pytest.fixture
def work() -> Work:
    return Work()


@pytest.fixture(params=[Loop, Periodic])
def make(
    request: pytest.FixtureRequest, engine: Engine, scheduler: BackgroundScheduler, rounds: Rounds, work: Work
) -> Iterator[Maker]:
    """Makes a service; it is stopped after the test."""
    made: list[Service] = []

    def make(
        work: Work = work, rounds: Rounds = rounds, may_act: Callable[[], bool] = lambda: True, **options: Any
    ) -> Service:
        context = Context(engine.connect, may_act, rounds, **options)
        made.append(Loop(context, work) if request.param is Loop else Periodic(context, scheduler, work))
        return made[-1]

    yield make
    for service in made:
        service.stop()


@pytest.fixture
def service(make: Maker) -> Service:
    return make()


@pytest.fixture
def look(database: Database) -> Callable[[str], int]:
    """Count the sessions of an application."""
    connection = database.connect()
    return lambda name: scalar(connection, "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s", [name])


def test_rounds_happen_on_one_connection_that_says_whose_it_is(
    service: Service, rounds: Rounds, look: Callable[[str], int]
) -> None:
    service.start()

    assert rounds.next() == rounds.next()
    assert look(f"mqdb {service.name}") == 1


def test_starting_twice_is_starting_once(service: Service, rounds: Rounds, look: Callable[[str], int]) -> None:
    service.start()
    service.start()

    rounds.next()
    assert look(f"mqdb {service.name}") == 1


def test_stopping_what_was_never_started_has_no_effect(service: Service, rounds: Rounds) -> None:
    service.stop()

    service.start()
    rounds.next()


def test_a_stopped_service_does_nothing_and_leaves_no_connection(
    service: Service, rounds: Rounds, look: Callable[[str], int]
) -> None:
    service.start()
    rounds.next()

    service.stop()
    service.stop()

    while not rounds.have_paused():
        rounds.next()
    wait_until(lambda: look(f"mqdb {service.name}") == 0)
    assert rounds.have_paused()


def test_a_stopped_service_can_be_started_again(service: Service, rounds: Rounds) -> None:
    service.start()
    pid = rounds.next()
    service.stop()

    service.start()

    rounds.wait_for(lambda outcome: outcome != pid)


def test_stop_takes_less_than_a_second_whatever_the_round_waits_for(
    service: Service, work: Work, rounds: Rounds, database: Database
) -> None:
    work.statement = "SELECT pg_sleep(60) IS NULL"
    connection = database.connect()
    sleeping = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s AND wait_event = 'PgSleep'"

    def seconds_to_stop(rounds_begun: int) -> float:
        service.start()
        # The server lets those sleep on whose client has gone.
        wait_until(lambda: scalar(connection, sleeping, [f"mqdb {service.name}"]) == rounds_begun)
        began = time.monotonic()
        service.stop()
        return time.monotonic() - began

    # It waits for half a second before it uses force. A busy machine may lose the other half, but not each time.
    assert any(seconds_to_stop(rounds_begun) < 1 for rounds_begun in (1, 2, 3))
    assert isinstance(rounds.next(), MqdbError)


def test_halt_does_not_wait_and_stop_still_does(service: Service, rounds: Rounds) -> None:
    service.grace = timedelta(seconds=20)  # who is late is not given up
    service.start()
    rounds.next()

    service.halt()
    service.stop()

    assert not [thread for thread in threading.enumerate() if thread.name == f"mqdb-{service.name}"]


def test_a_lost_connection_is_replaced(service: Service, rounds: Rounds, database: Database) -> None:
    service.start()
    pid = rounds.next()

    database.connect().execute("SELECT pg_terminate_backend(%s)", [pid])

    assert isinstance(rounds.wait_for(lambda outcome: outcome != pid), BrokerUnavailable)
    assert rounds.next() > 0


def test_a_failing_round_is_logged_when_the_failures_begin_and_when_they_end(
    service: Service, work: Work, rounds: Rounds, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mqdb.service")
    work.statement = "SELECT 1 / 0"
    service.start()
    for _ in range(3):
        assert isinstance(rounds.next(), MqdbError)

    work.statement = "SELECT 1"
    rounds.wait_for(lambda outcome: outcome == 1)
    service.stop()

    failed, succeeded = caplog.records
    assert failed.getMessage().startswith(f"round of service {service.name} failed; will retry: ")
    assert succeeded.getMessage() == "rounds succeed again"
    assert [record.__dict__["service"] for record in caplog.records] == [service.name] * 2


class HurriedClock(SystemClock):
    """A clock that advances by more than 10 minutes with each reading."""

    def __init__(self) -> None:
        self._looks = itertools.count()

    def monotonic(self) -> float:
        return next(self._looks) * 700.0


def test_a_service_that_goes_on_failing_is_logged_again(
    make: Maker, work: Work, rounds: Rounds, caplog: pytest.LogCaptureFixture
) -> None:
    work.statement = "SELECT 1 / 0"
    service = make(clock=HurriedClock())
    service.start()

    wait_until(lambda: rounds.next() and len(caplog.records) >= 2)
    service.stop()

    told = caplog.records[:2]
    assert all(record.getMessage().startswith(f"round of service {service.name} failed") for record in told)
    assert told[1].__dict__["failures"] > told[0].__dict__["failures"] == 1
    assert "division by zero" in told[0].__dict__["reason"]
    assert told[0].exc_info is None


def test_after_failures_the_pause_doubles(service: Service, work: Work, rounds: Rounds) -> None:
    work.statement = "SELECT 1 / 0"

    began = time.monotonic()
    service.start()
    for _ in range(4):
        rounds.next()

    assert time.monotonic() - began >= 0.1 + 0.2 + 0.4


def test_a_failing_service_does_not_stop_the_others(make: Maker, work: Work, rounds: Rounds) -> None:
    failing = Work()
    failing.statement = "SELECT 1 / 0"
    failures = Rounds()
    make(failing, failures).start()
    assert isinstance(failures.next(), MqdbError)

    make().start()

    assert rounds.next() > 0


def test_no_round_begins_while_it_is_forbidden(make: Maker, rounds: Rounds) -> None:
    asked = threading.Event()
    allowed = threading.Event()

    def may_act() -> bool:
        asked.set()
        return allowed.is_set()

    make(may_act=may_act).start()
    assert asked.wait(10)
    assert rounds.have_paused()

    allowed.set()

    assert rounds.next() > 0
