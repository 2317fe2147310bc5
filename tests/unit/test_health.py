"""Whether a process counts as alive and as ready, judged by the rounds of its loops."""

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Connection

from mqdb.errors import BrokerUnavailable, SchemaMissing
from mqdb.service.leadership import LeadershipState
from mqdb.service.service import Context
from mqdb.web.health import ANSWER_SECONDS, STUCK_SECONDS, Health
from mqdb.web.loop_rounds import Rounds
from mqdb.web.probe_report import Report
from tests.fixtures.clocks import ManualClock

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Process:
    """Leadership and one service, whose rounds the test runs."""

    def __init__(self) -> None:
        self.clock = ManualClock(NOW)
        self.rounds = Rounds(self.clock)
        self.leads = False
        self.may_act = True
        context = Context(self._connect, may_act=lambda: self.may_act)
        self.leadership = self.rounds.watch_leadership(context)
        self.service = self.rounds.watch("sweeper", context)
        self.health = Health(self.rounds, lambda: self.leads)
        self.health.begin()

    def after(self, seconds: float) -> None:
        self.clock.advance(timedelta(seconds=seconds))

    def lead(self) -> None:
        self.leadership.may_act()
        self.rounds.services_start()
        self.leads = True
        self.leadership.on_round(LeadershipState.LEADER)

    def _connect(self) -> Connection:
        raise BrokerUnavailable("h", "away")


@pytest.fixture
def process() -> Process:
    return Process()


def test_a_loop_without_rounds_is_stuck(process: Process) -> None:
    process.lead()
    process.after(STUCK_SECONDS)
    process.leadership.may_act()
    process.leadership.on_round(LeadershipState.LEADER)
    assert process.health.liveness().has_passed

    process.after(0.1)

    assert process.health.liveness().failing == ["sweeper"]
    process.service.may_act()
    process.service.on_round(0)
    assert process.health.liveness().has_passed


def test_a_round_may_wait_for_the_database_as_long_as_it_likes(process: Process) -> None:
    with pytest.raises(BrokerUnavailable):
        process.leadership.connect()
    process.after(10 * STUCK_SECONDS)

    assert process.health.liveness().has_passed


def test_a_loop_that_may_not_act_and_looks_again_is_not_stuck(process: Process) -> None:
    process.lead()
    process.may_act = False
    for _ in range(3):
        process.after(STUCK_SECONDS / 2)
        process.leadership.on_round(LeadershipState.LEADER)
        assert not process.service.may_act()

    assert process.health.liveness().has_passed


def test_services_count_while_the_process_leads(process: Process) -> None:
    process.lead()
    process.rounds.services_stop()
    process.after(2 * STUCK_SECONDS)
    process.leadership.on_round(LeadershipState.FOLLOWER)
    assert process.health.liveness().has_passed

    process.lead()

    assert process.health.liveness().has_passed


def test_what_runs_beside_the_loops_has_to_be_alive(process: Process) -> None:
    found = {"front": "ok"}
    process.health.beside = lambda: Report(found)
    process.health.is_starting = True
    process.lead()
    assert (process.health.liveness().failing, process.health.readiness().failing) == ([], ["process"])
    process.health.is_starting = False
    assert (process.health.liveness().checks["front"], process.health.readiness().has_passed) == ("ok", True)

    found = {"front": "its loop has not turned for 30 s"}

    assert (process.health.liveness().failing, process.health.readiness().failing) == (["front"], ["front"])
    process.health.end()
    assert (process.health.liveness().failing, process.health.readiness().failing) == ([], ["process"])


@pytest.mark.parametrize(
    ("outcome", "failing"),
    [
        (LeadershipState.LEADER, []),
        (LeadershipState.FOLLOWER, []),
        (BrokerUnavailable("h", "away"), ["database"]),
        (SchemaMissing("h"), ["schema"]),
    ],
)
def test_readiness_is_what_leadership_has_found(process: Process, outcome: object, failing: list[str]) -> None:
    process.leads = outcome is LeadershipState.LEADER
    assert process.health.readiness().failing == ["database"]

    process.leadership.may_act()
    process.leadership.on_round(outcome)

    assert process.health.readiness().failing == failing


def test_what_was_found_before_a_stop_does_not_count(process: Process) -> None:
    process.leadership.on_round(LeadershipState.FOLLOWER)
    process.health.end()
    assert process.health.readiness().failing == ["process"]

    process.health.begin()

    assert process.health.readiness().failing == ["database"]


def test_a_leader_whose_lease_is_over_is_not_ready(process: Process) -> None:
    process.lead()
    process.leads = False

    assert process.health.readiness().failing == ["leadership"]


def test_a_question_without_an_answer_is_a_database_that_is_away(process: Process) -> None:
    process.lead()
    process.leadership.may_act()
    process.after(ANSWER_SECONDS)
    assert process.health.readiness().has_passed

    process.after(0.1)

    assert process.health.readiness().failing == ["database"]
