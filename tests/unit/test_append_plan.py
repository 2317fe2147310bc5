"""The plan of a group append: which unit leads, and which units are stored together.

Every unit ends once, with the true result.
"""

import ast
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqdb.broker.log import send
from mqdb.broker.log.outcome import Backend
from mqdb.common.message import Message, SendStatus
from mqdb.common.unique_id import UniqueIdGenerator
from mqdb.errors import (
    BodyInvalid,
    BrokerUnavailable,
    IllegalState,
    MqdbError,
    SendGivenUp,
    StorageRefused,
    TopicNotFound,
)
from mqdb.store.log.commit_log import LogPlace, Record
from mqdb_client.producer.append import append_plan
from mqdb_client.producer.append.append_plan import AppendPlan, NoAnswer, Turn, Unit, UnitState
from tests.fixtures.fuzz import fuzz_cases

_ids = UniqueIdGenerator()
NOW = 1_000.0
BACKEND = Backend(7, datetime.now(UTC), 100)
POISON = 13


class Lost:
    """A connection that is lost, or may be lost."""

    why_lost: MqdbError | None = None
    trouble: MqdbError | None = None

    def trouble_since(self, _moment: float) -> MqdbError | None:
        return self.trouble


class Given(Unit):
    """A unit with a record. The unit records its result, and how often the end was reported."""

    positions: Sequence[int] = ()

    def __init__(self, seconds: float, queue_key: int = 1, fault: Exception | None = None, **options: bool) -> None:
        super().__init__("orders", NOW + seconds, timeout_seconds=3.0, is_patient=options.get("is_patient", True))
        self.is_handed_in = options.get("is_handed_in", False)
        self.given = send.record(Message("orders", "x"), queue_key, _ids.next(), datetime.now(UTC), "test")
        self.fault = fault
        self.told = 0

    def make_records(self) -> None:
        if self.fault is not None:
            raise self.fault
        self.records = [self.given]

    def succeed(self, places: Sequence[LogPlace], status: SendStatus) -> None:
        self.positions = [place.log_pos for place in places]

    def have_told(self) -> None:
        self.told += 1


def arrive(plan: AppendPlan, unit: Given) -> Turn:
    """Let a unit arrive, as the unit's thread does."""
    if unit.is_handed_in:
        unit.tell = unit.have_told
    turn = plan.arrive(unit)
    if turn is Turn.WAIT:
        unit.tell = unit.have_told
    return turn


def tell(plan: AppendPlan) -> None:
    while plan.ended:
        told = plan.ended.popleft().tell
        assert told is not None
        told()


def plan_of(*waiting: Given) -> tuple[AppendPlan, Given]:
    """A plan whose leader already has a unit in its statement while the given units wait.

    Returns the plan and the leader.
    """
    plan, leader = AppendPlan(Lost()), Given(30)
    assert arrive(plan, leader) is Turn.LEAD
    plan.take([leader], leader, BACKEND, NOW)
    assert [arrive(plan, unit) for unit in waiting] == [Turn.WAIT] * len(waiting)
    return plan, leader


# -- who leads --------------------------------------------------------------------------------


def test_a_lone_send_leads_and_the_append_thread_is_not_called() -> None:
    plan, unit = AppendPlan(Lost()), Given(30)

    assert arrive(plan, unit) is Turn.LEAD
    assert plan.take([unit], unit, BACKEND, NOW) == [unit.given]
    plan.stored([unit], [LogPlace(17)], SendStatus.SEND_OK)

    assert not plan.done()
    assert (unit.positions, unit.state, list(plan.ended)) == ([17], UnitState.DONE, [])


def test_a_lone_unit_that_no_thread_waits_for_needs_the_append_thread() -> None:
    plan, unit = AppendPlan(Lost()), Given(30, is_handed_in=True)

    assert arrive(plan, unit) is Turn.CALL
    assert plan.leading is None
    assert plan.first(NOW) is unit


def test_those_who_gather_are_taken_together_when_the_leader_is_done() -> None:
    waiting = [Given(30), Given(30, is_handed_in=True)]
    plan, leader = plan_of(*waiting)

    plan.stored([leader], [LogPlace(1)], SendStatus.SEND_OK)
    assert plan.done()

    batch: list[Unit] = []
    assert plan.first(NOW) is waiting[0]
    assert plan.take(batch, waiting[0], BACKEND, NOW) == [unit.given for unit in waiting]
    plan.stored(batch, [LogPlace(2), LogPlace(3)], SendStatus.SEND_OK)
    assert not plan.done()
    tell(plan)
    assert [(unit.positions, unit.told) for unit in waiting] == [([2], 1), ([3], 1)]


def test_a_unit_that_is_not_patient_does_not_wait_for_a_lost_connection() -> None:
    lost = Lost()
    plan, first, waiting, late = AppendPlan(lost), Given(30), Given(30, is_patient=False), Given(30, is_patient=False)
    arrive(plan, first)
    assert arrive(plan, waiting) is Turn.WAIT
    lost.why_lost = BrokerUnavailable("here", "refused")

    assert arrive(plan, late) is Turn.ENDED
    plan.await_connection(lost.why_lost)

    assert all(isinstance(unit.error, BrokerUnavailable) for unit in (late, waiting))
    assert (late.told, list(plan.ended), list(plan.waiting)) == (0, [waiting], [])


def test_after_the_end_nothing_is_taken() -> None:
    plan = AppendPlan(Lost())
    plan.is_closed = True

    with pytest.raises(IllegalState, match="shut down"):
        plan.arrive(Given(30))


# -- whose time is up -------------------------------------------------------------------------


def test_nobody_is_taken_into_the_statement_of_one_whose_time_is_as_good_as_over() -> None:
    leader, other = Given(0.02), Given(30)
    plan = AppendPlan(Lost())
    arrive(plan, leader)
    arrive(plan, other)

    assert plan.take([leader], leader, None, NOW) == [leader.given]
    assert plan.take([], leader, None, NOW) == []
    assert (other.state, list(plan.waiting)) == (UnitState.WAITING, [other])


def test_whose_time_is_as_good_as_over_is_given_up_and_the_next_one_leads() -> None:
    late, other, later = [Given(0.02) for _ in range(3)], Given(30), Given(0.02)
    plan, _ = plan_of(*late, other, later)

    assert plan.first(NOW) is other
    assert [type(each.error) for each in late] == [SendGivenUp] * 3
    assert list(plan.waiting) == [other, later]


def test_one_that_is_given_up_says_what_was_in_its_way_last() -> None:
    """A unit that is given up reports its last obstacle.

    The connection may be back by then, but too late for this unit.
    """
    lost, late = Lost(), Given(0.02)
    lost.trouble = BrokerUnavailable("here", "FATAL:  sorry, too many clients already")
    plan = AppendPlan(lost)
    arrive(plan, Given(30))
    arrive(plan, late)

    assert plan.first(NOW) is None

    assert isinstance(late.error, SendGivenUp)
    assert str(late.error).endswith("nothing was stored: no broker at here: FATAL:  sorry, too many clients already")


def test_who_has_waited_all_in_vain_waits_in_the_same_order_again() -> None:
    """Units that have waited in vain keep their order.

    A statement was refused because of one unit, and was repeated in parts until the time was over.
    """
    units = [Given(30) for _ in range(7)]
    plan, leader = plan_of(*units)
    plan.stored([leader], [LogPlace(1)], SendStatus.SEND_OK)
    plan.done()
    batch: list[Unit] = []
    plan.take(batch, units[0], BACKEND, NOW)
    new = Given(30)
    arrive(plan, new)

    for part in plan.refused(batch, StorageRefused("22P05", "poison")):
        plan.take_again(part, BACKEND)
        plan.give_up(part, units[0], None)
    plan.done()

    assert list(plan.waiting) == [*units[1:], new]


def test_who_leaves_a_statement_under_way_does_not_know_its_outcome_and_above_which_position_to_look() -> None:
    waiting, handed_in = Given(1), Given(1, is_handed_in=True)
    plan, leader = plan_of(waiting, handed_in)
    plan.stored([leader], [LogPlace(150)], SendStatus.SEND_OK)
    plan.done()
    plan.take([], waiting, BACKEND, NOW)

    plan.expire(waiting)
    plan.end_late(NOW + 2)

    for unit in (waiting, handed_in):
        assert isinstance(unit.error, NoAnswer)
        assert (unit.error.backend, unit.error.after_pos) == (BACKEND, 150)
    plan.stored(plan.batch, [LogPlace(151), LogPlace(152)], SendStatus.SEND_OK)
    tell(plan)
    assert [(unit.told, unit.positions) for unit in (waiting, handed_in)] == [(0, ()), (1, ())]


def test_the_plan_knows_no_thread_no_clock_and_no_connection() -> None:
    """The plan uses no thread, clock or connection, so an event loop could use it as well."""
    tree = ast.parse(Path(append_plan.__file__).read_text())
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}

    assert {name.partition(".")[0] for name in imported} == {
        "abc", "collections", "copy", "enum", "itertools", "mqdb", "mqdb_client", "typing", "uuid",
    }  # fmt: skip


# -- any interleaving -------------------------------------------------------------------------


class Server:
    """A log, and a driver that does to the plan what threads do. Events come in any order that threads allow."""

    def __init__(self) -> None:
        self.lost = Lost()
        self.plan = AppendPlan(self.lost)
        self.now = NOW
        self.units: list[Given] = []
        self.stored: list[Given] = []
        #: Statements to be run by the one who leads: a batch and whether it is a part. None while nobody leads.
        self.statements: list[tuple[list[Unit], bool]] | None = None
        self.timekeeper: Unit | None = None
        self.is_called = False
        #: The records of the statement that the server was asked to run; None while it was asked for none.
        self.records: list[Record] | None = None

    def come(self, kind: int, seconds: float, queue_key: int) -> None:
        fault = BodyInvalid("cannot be read") if kind == 5 else None
        unit = Given(self.now - NOW + seconds, queue_key, fault, is_handed_in=kind in (1, 2), is_patient=kind != 3)
        turn = arrive(self.plan, unit)
        self.units.append(unit)
        if turn is Turn.LEAD:
            assert self.statements is None, "two lead"
            assert not self.is_called, "two lead"
            unit.fault = None  # a thread makes the records of such a unit before
            self.statements, self.timekeeper = [([unit], False)], unit
        elif turn is Turn.CALL:
            assert self.statements is None
            assert not self.is_called
            self.is_called = True

    def lead(self) -> None:
        """The next step of the leader."""
        if self.statements is None:
            if not self.is_called:
                return
            self.is_called = False
            self.timekeeper = self.plan.first(self.now)
            self.statements = [] if self.timekeeper is None else [([], False)]
        if not self.statements:
            tell(self.plan)
            self.statements = None
            self.is_called = self.plan.done()
            self.plan.leading = None

    def go_on(self, outcome: int) -> None:
        """The server receives the leader's next statement, or answers."""
        if not self.statements:
            return
        plan, timekeeper, (batch, is_part) = self.plan, self.timekeeper, self.statements[0]
        assert timekeeper is not None
        if self.records is None:
            if outcome == 0:  # there is no connection
                del self.statements[0]
                plan.give_up(batch, timekeeper, BrokerUnavailable("here", "refused"))
            elif is_part:
                self.records = plan.take_again(batch, BACKEND)
            else:
                self.records = plan.take(batch, timekeeper, BACKEND, self.now)
                assert len(self.records) <= 4
            return
        records, self.records = self.records, None
        del self.statements[0]
        is_poisoned = any(record.queue_key == POISON for record in records)
        if not records:
            plan.stored(batch, [], SendStatus.SEND_OK)
        elif outcome == 1:
            plan.interrupt(batch, timekeeper, KeyboardInterrupt())
            self.statements.clear()
        elif outcome == 2:
            plan.give_up(batch, timekeeper, None)
        elif is_poisoned:
            error = TopicNotFound("orders") if outcome % 2 else StorageRefused("22P05", "poison")
            self.statements[:0] = [(part, True) for part in plan.refused(batch, error)]
        else:
            self.stored += [unit for unit in batch if isinstance(unit, Given)]
            if outcome == 3:  # its answer is lost
                plan.unknown(batch, "no answer in time", None)
            else:
                plan.stored(batch, [LogPlace(number) for number in range(len(records))], SendStatus.SEND_OK)
        tell(plan)

    def leave(self, number: int) -> None:
        """Interrupt the thread of a waiting unit, or let its time run out."""
        waiting = [unit for unit in self.units if unit.tell is not None and not unit.is_handed_in]
        if waiting:
            unit = waiting[number % len(waiting)]
            if unit.state not in (UnitState.DONE, UnitState.ABANDONED):
                (self.plan.leave if number % 2 else self.plan.expire)(unit)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.plan.end_late(self.now)
        tell(self.plan)


def events(server: Server, keys: list[int]) -> list[st.SearchStrategy[partial[None]]]:
    times = st.sampled_from([0.01, 0.5, 3.0, 60.0])
    come = st.builds(partial, st.just(server.come), st.integers(0, 5), times, st.sampled_from(keys))
    go_on = st.builds(partial, st.just(server.go_on), st.integers(0, 12))
    leave = st.builds(partial, st.just(server.leave), st.integers(0, 20))
    time = st.builds(partial, st.just(server.pass_time), times)
    return [come, come, come, st.just(partial(server.lead)), go_on, go_on, leave, time]


@given(st.data(), st.sampled_from([[1], [1, 2, POISON]]))
@settings(max_examples=min(3 * fuzz_cases(), 1_000), deadline=None)
def test_in_any_order_of_events_every_unit_ends_once_and_with_the_truth(data: st.DataObject, keys: list[int]) -> None:
    server = Server()
    choices = events(server, keys)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(append_plan, "MAX_GATHERED_MESSAGES", 4)
        for choice in data.draw(st.lists(st.sampled_from(choices), min_size=20, max_size=60)):
            data.draw(choice)()
            assert not (server.statements is not None and server.is_called), "two lead"
        while server.plan.is_busy:
            server.lead()
            server.go_on(12)

    for unit in server.units:
        count = server.stored.count(unit)
        assert unit.state in (UnitState.DONE, UnitState.ABANDONED)
        is_told = unit.tell is not None and (unit.is_handed_in or unit.state is UnitState.DONE)
        assert unit.told == is_told, "each is told once"
        if unit.error is not None:
            assert not unit.positions
            assert count <= isinstance(unit.error, NoAnswer), "it is stored, and its error says that it is not"
        elif unit.state is UnitState.DONE:
            assert (count, len(unit.positions)) == (1, 1)
        else:  # its thread was interrupted
            assert count <= 1
    if POISON not in keys:
        assert server.stored == sorted(server.stored, key=server.units.index), "not in their order"
