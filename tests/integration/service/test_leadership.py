"""One of all processes leads; in these tests each is a thread."""

import logging
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

import pytest
from sqlalchemy import Connection, Engine

from mqdb.broker.dispatch import is_attended
from mqdb.common.clock import Clock, SystemClock
from mqdb.errors import BrokerUnavailable, IllegalState
from mqdb.service.leadership import Leadership, LeadershipConfig, LeadershipState
from mqdb.service.service import Context
from mqdb.store import leader
from mqdb.store.engine import driver
from tests.fixtures.clocks import ManualClock
from tests.fixtures.log import scalar
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.services import Rounds

LEASE = timedelta(seconds=60)

#: With a lease that neither runs out nor is renewed while a test waits.
PATIENT = LeadershipConfig(renewal=LEASE, lease=LEASE)


class Candidate(Leadership):
    """A leadership that records its reports."""

    def __init__(
        self, connect: Callable[[], Connection], rounds: Rounds, clock: Clock, holder: str, config: LeadershipConfig
    ) -> None:
        self.said: list[str] = []
        #: How long its services take to stop.
        self.seconds_to_stop = 0.0
        super().__init__(
            Context(connect, on_round=rounds, clock=clock),
            config,
            on_elected=lambda: self.said.append("elected"),
            on_lost=self._stop_services,
        )
        self.holder = holder

    def _stop_services(self) -> None:
        time.sleep(self.seconds_to_stop)
        self.said.append("lost")


Maker: TypeAlias = Callable[..., Candidate]


@pytest.fixture
def candidate(engine: Engine) -> Iterator[Maker]:
    """Makes candidates; they are stopped after the test."""
    made: list[Candidate] = []

    def make(holder: str, rounds: Rounds | None = None) -> Candidate:
        made.append(Candidate(engine.connect, rounds or Rounds(), SystemClock(), holder, PATIENT))
        return made[-1]

    yield make
    for candidate in made:
        candidate.stop()


def lease(database: Database) -> tuple[str, int, bool]:
    """Holder and epoch of the lease, and whether it has expired."""
    statement = "SELECT holder, epoch, expires_at < mqdb.now() FROM mqdb.leader"
    ((holder, epoch, is_over),) = database.connect().execute(statement).fetchall()
    return holder, epoch, is_over


def backend(database: Database) -> int:
    return int(scalar(database.connect(), "SELECT backend_pid FROM mqdb.leader"))


def test_one_of_two_leads(candidate: Maker, database: Database) -> None:
    rounds = Rounds()
    first, second = candidate("first"), candidate("second", rounds)
    first.start()
    wait_until(first.is_leader)
    second.start()

    for _ in range(3):
        assert rounds.next() is LeadershipState.FOLLOWER

    assert (first.said, second.said) == (["elected"], [])
    assert lease(database) == ("first", 1, False)


def test_when_the_leader_stops_another_follows_in_a_new_epoch(candidate: Maker, database: Database) -> None:
    first, second = candidate("first"), candidate("second")
    first.start()
    wait_until(first.is_leader)
    second.start()

    first.stop()

    assert first.said == ["elected", "lost"]
    assert not first.is_leader()
    wait_until(second.is_leader)
    assert lease(database) == ("second", 2, False)


def test_a_leader_that_stops_leaves_no_lease(candidate: Maker, database: Database) -> None:
    """A leader that stops leaves no lease, so clients see at once that they have to dispatch by themselves."""
    only = candidate("only")
    only.start()
    wait_until(only.is_leader)

    only.stop()

    assert lease(database) == ("only", 1, True)


def test_a_leader_resigns_also_after_services_that_took_their_time_to_stop(
    candidate: Maker, database: Database
) -> None:
    only = candidate("only")
    only.seconds_to_stop = 1.0
    only.start()
    wait_until(only.is_leader)

    only.stop()

    assert only.said == ["elected", "lost"]
    assert lease(database) == ("only", 1, True)


def test_a_leader_that_loses_its_connection_steps_down_at_once(candidate: Maker, database: Database) -> None:
    rounds = Rounds()
    only = candidate("only", rounds)
    only.start()
    wait_until(only.is_leader)

    database.connect().execute("SELECT pg_terminate_backend(%s)", [backend(database)])

    rounds.wait_for(lambda outcome: isinstance(outcome, BrokerUnavailable))
    assert only.said[:2] == ["elected", "lost"]
    wait_until(lambda: only.said[2:] == ["elected"])
    assert lease(database)[1] == 2


def test_a_leader_whose_lease_is_in_other_hands_steps_down(candidate: Maker, database: Database) -> None:
    rounds = Rounds()
    only = candidate("only", rounds)
    only.start()
    wait_until(only.is_leader)

    database.connect().execute("UPDATE mqdb.leader SET epoch = epoch + 1")

    rounds.wait_for(lambda outcome: isinstance(outcome, IllegalState))
    assert only.said[:2] == ["elected", "lost"]


def test_the_connection_of_a_leader_that_hangs_is_ended(
    engine: Engine, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """The connection of a hanging leader is terminated.

    By the clock of the second process a lease has passed without a renewal, whatever the server's clock says.
    """
    caplog.set_level(logging.WARNING, "mqdb.service.leadership")
    clock = ManualClock(datetime(2024, 1, 1, tzinfo=UTC))
    second = Candidate(engine.connect, Rounds(), clock, "second", PATIENT)
    with engine.connect() as hung, engine.connect() as connection:
        assert leader.elect(hung, "all", "hung", timedelta(days=1), None) == 1
        pid, looking = backend(database), database.connect()
        assert second.run_once(connection) is LeadershipState.FOLLOWER
        clock.advance(LEASE)
        assert second.run_once(connection) is LeadershipState.FOLLOWER

        clock.advance(timedelta(seconds=1))
        assert second.run_once(connection) is LeadershipState.LEADER

        wait_until(lambda: not looking.execute("SELECT FROM pg_stat_activity WHERE pid = %s", [pid]).fetchall())
        assert lease(database) == ("second", 2, False)
        hung.invalidate()
    assert [record.getMessage() for record in caplog.records] == ["ended the connection of the hung leader of epoch 1"]


@pytest.mark.parametrize("jump", ["-1 hour", "20 s", "1 hour"])
def test_a_leader_that_renews_is_left_alone_however_the_servers_clock_jumps(
    engine: Engine, database: Database, jump: str
) -> None:
    clock = ManualClock(datetime(2024, 1, 1, tzinfo=UTC))
    second = Candidate(engine.connect, Rounds(), clock, "second", LeadershipConfig())
    with engine.connect() as alive, engine.connect() as connection:
        assert leader.elect(alive, "all", "alive", timedelta(seconds=3), None) == 1
        for offset in ("0", jump, jump, "0", "0"):
            for session in (alive, connection):
                driver(session).execute(f"SET mqdb.clock_offset = '{offset}'")
            assert leader.renew(alive, "all", 1, timedelta(seconds=3))
            clock.advance(timedelta(seconds=2))

            assert second.run_once(connection) is LeadershipState.FOLLOWER
        assert leader.is_held(alive, "all", 1)


def test_of_two_candidates_that_follow_the_same_leader_one_succeeds(engine: Engine) -> None:
    with engine.connect() as first, engine.connect() as second:
        assert leader.elect(first, "all", "former", LEASE, None) == 1
        leader.resign(first, "all", 1)
        former = leader.find(first, "all")
        assert former is not None
        assert not former.is_connected

        assert leader.elect(first, "all", "first", LEASE, former) == 2
        assert leader.elect(second, "all", "second", LEASE, former) is None
        assert leader.elect(second, "all", "second", LEASE, None) is None


def test_a_backend_that_has_only_the_number_of_the_leaders_is_left_alone(engine: Engine, database: Database) -> None:
    """A backend that merely has the pid of the former leader is left alone.

    The leader has died, and its pid now belongs to another session: no process leads.
    """
    bystander = database.connect()
    with engine.connect() as former, engine.connect() as challenger:
        leader.elect(former, "all", "former", LEASE, None)
        bystander.execute("UPDATE mqdb.leader SET backend_pid = pg_backend_pid()")
        incumbent = leader.find(challenger, "all")

        assert incumbent is not None
        assert not incumbent.is_connected
        assert not leader.end_backend(challenger, "all", incumbent)
        assert scalar(bystander, "SELECT 1") == 1


def test_a_promise_that_lies_too_far_ahead_is_not_believed(engine: Engine, database: Database) -> None:
    """A lease that ends too far in the future is ignored.

    The lease was taken while the clock was an hour ahead, and its leader has hung since then.
    """
    with engine.connect() as hung, engine.connect() as connection:
        driver(hung).execute("SET mqdb.clock_offset = '1 hour'")
        leader.elect(hung, "all", "hung", LEASE, None)

        assert not is_attended(connection)
        driver(connection).execute("SET mqdb.clock_offset = '1 hour'")
        assert is_attended(connection)


def test_a_lease_cannot_be_renewed_from_another_session(engine: Engine) -> None:
    with engine.connect() as first, engine.connect() as second:
        epoch = leader.elect(first, "all", "first", LEASE, None)
        assert epoch is not None

        assert not leader.renew(second, "all", epoch, LEASE)
        assert not leader.is_held(second, "all", epoch)


def test_a_lease_that_was_not_renewed_in_time_is_over_before_any_look_at_the_database(engine: Engine) -> None:
    """A lease that was not renewed in time is over before any query.

    This protects a process that was stopped and resumes: no round of a service may rely on old state.
    """
    clock = ManualClock(datetime(2024, 1, 1, tzinfo=UTC))
    slept = Candidate(engine.connect, Rounds(), clock, "slept", LeadershipConfig())
    with engine.connect() as connection:
        assert slept.run_once(connection) is LeadershipState.LEADER
        clock.advance(timedelta(seconds=2.9))
        assert slept.is_leader()

        clock.advance(timedelta(seconds=0.2))

        assert not slept.is_leader()


def test_a_lease_is_renewed_every_second_from_when_it_was_asked_for(engine: Engine, database: Database) -> None:
    clock = ManualClock(datetime(2024, 1, 1, tzinfo=UTC))
    only = Candidate(engine.connect, Rounds(), clock, "only", LeadershipConfig())
    with engine.connect() as connection:
        only.run_once(connection)
        before = scalar(database.connect(), "SELECT expires_at FROM mqdb.leader")
        clock.advance(timedelta(seconds=0.9))
        only.run_once(connection)
        assert scalar(database.connect(), "SELECT expires_at FROM mqdb.leader") == before

        clock.advance(timedelta(seconds=0.2))
        only.run_once(connection)

        assert scalar(database.connect(), "SELECT expires_at FROM mqdb.leader") > before
        clock.advance(timedelta(seconds=2.9))
        assert only.is_leader()
