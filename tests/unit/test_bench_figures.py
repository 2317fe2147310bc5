"""The figures that the benchmarks compute from their measurements."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from benchmarks.bench.comparison import Plan, Side, SideComparison
from benchmarks.bench.figures import Figure, Goal, Measurement, Series, durations, percentile
from benchmarks.bench.running import Options
from benchmarks.bench.workers import Exhausted, run_shift
from mqdb.errors import ParameterInvalid
from mqdb.settings import load_settings


def series(*values: float, goals: list[Goal] | None = None, **details: float) -> Series:
    return Series("a side", [Measurement(value, details) for value in values], goals or [])


def options(
    *, hold_transaction: bool = False, hold_send: bool = False, pairs: int = 0, most_brokers: int = 1
) -> Options:
    return Options("produce", ["append"], 3, hold_transaction, hold_send, pairs, None, False, most_brokers)


# -- figures ----------------------------------------------------------------------------------


def test_the_ratio_is_the_median_of_the_ratios_of_the_rounds() -> None:
    # In the second round the machine was busy, which tells nothing about either side.
    reference = series(100, 10, 100)
    figure = Figure("append", "messages/s", series(90, 9, 80), [reference])

    assert figure.ratio_to(reference) == 0.9


def test_where_lower_is_better_a_ratio_above_one_is_better_too() -> None:
    reference = series(6.0)
    figure = Figure("latency", "ms", series(4.0), [reference], lower_is_better=True)

    assert figure.ratio_to(reference) == 1.5


def test_a_ratio_of_a_detail_is_not_turned_round() -> None:
    reference = series(6.0, p99_ms=8.0)
    figure = Figure("latency", "ms", series(4.0, p99_ms=12.0), [reference], lower_is_better=True)

    assert figure.ratio_to(reference, "p99_ms") == 1.5


def test_a_figure_has_a_ratio_to_each_of_its_references() -> None:
    figure = Figure("send-64", "messages/s", series(80.0), [series(10.0), series(160.0)])

    assert [reference["ratio"] for reference in figure.as_json()["references"]] == [8.0, 0.5]


def test_goals_of_the_measured_side_are_about_its_numbers() -> None:
    goals = [Goal(3.0, at_least=False), Goal(20.0, "p99_ms", at_least=False)]
    figure = Figure("figure", "ms", series(4.0, p99_ms=12.5, goals=goals), [series(5.0)])

    assert figure.as_json()["goals"] == [
        {"of": "value", "at_most": 3.0, "found": 4.0, "reached": False},
        {"of": "p99_ms", "at_most": 20.0, "found": 12.5, "reached": True},
    ]


def test_goals_of_a_reference_are_about_the_ratio_to_it() -> None:
    goals = [Goal(0.8), Goal(3.0, "p99_ms", at_least=False)]
    figure = Figure("figure", "ms", series(4.0, p99_ms=8.0), [series(5.0, p99_ms=2.0, goals=goals)])

    assert figure.as_json()["goals"] == [
        {"ratio_of": "value", "to": "a side", "at_least": 0.8, "found": 0.8, "reached": True},
        {"ratio_of": "p99_ms", "to": "a side", "at_most": 3.0, "found": 4.0, "reached": False},
    ]


def test_a_goal_for_a_detail_that_a_side_does_not_have_is_not_missed() -> None:
    figure = Figure("send", "messages/s", series(4.0, p99_ms=1.0), [series(5.0, goals=[Goal(3.0, "p99_ms")])])

    assert figure.as_json()["goals"] == []


def test_a_percentile_is_the_smallest_value_that_so_many_percent_do_not_exceed() -> None:
    hundred = [float(number) for number in range(1, 101)]

    assert [percentile(hundred, percent) for percent in (50, 90, 99, 100)] == [50.0, 90.0, 99.0, 100.0]
    assert [percentile([7.0], percent) for percent in (0, 50, 99)] == [7.0, 7.0, 7.0]


def test_durations_are_told_in_milliseconds_and_in_any_order_of_the_operations() -> None:
    assert durations([0.003, 0.001, 0.002]) == {"p50_ms": 2.0, "p99_ms": 3.0}
    assert durations([]) == {}


# -- rounds -----------------------------------------------------------------------------------


def side(label: str, order: list[str]) -> Side:
    def measure() -> Measurement:
        order.append(label)
        return Measurement(1.0)

    return Side(label, measure, [Goal(2.0)])


def test_all_sides_are_measured_in_turn() -> None:
    order: list[str] = []
    sides = [side(label, order) for label in ("mqdb", "INSERT", "COPY")]

    figure = Plan(rounds=3).carry_out(SideComparison("append", "messages/s", sides[0], sides[1:]))

    assert order == ["mqdb", "INSERT", "COPY"] * 3
    assert [len(found.rounds) for found in (figure.measured, *figure.references)] == [3, 3, 3]


def test_in_pairs_the_measured_side_alone_is_held_against_itself() -> None:
    order: list[str] = []

    @contextmanager
    def hold() -> Iterator[None]:
        order.append("begin")
        yield
        order.append("rollback")

    comparison = SideComparison("append", "messages/s", side("mqdb", order), [side("INSERT", order)])
    figure = Plan(2, hold, in_pairs=True).carry_out(comparison)

    assert order == ["begin", "mqdb", "rollback", "mqdb"] * 2
    assert [goal["at_least"] for goal in figure.as_json()["goals"]] == [0.9]


def test_one_transaction_is_held_open_over_all_rounds_of_all_sides() -> None:
    order: list[str] = []

    @contextmanager
    def hold() -> Iterator[None]:
        order.append("begin")
        yield
        order.append("rollback")

    Plan(2, hold).carry_out(SideComparison("append", "messages/s", side("mqdb", order), [side("INSERT", order)]))

    assert order == ["begin", "mqdb", "INSERT", "mqdb", "INSERT", "rollback"]


# -- shifts -----------------------------------------------------------------------------------


def test_a_shift_repeats_its_operation_until_its_end_and_times_each() -> None:
    began = time.monotonic()

    shift = run_shift([lambda: 5], began, 0.2)

    assert shift.ended_at >= began + 0.2
    assert shift.messages == 5 * len(shift.seconds) > 0
    assert sum(shift.seconds) <= shift.ended_at - began


def test_a_shift_counts_all_operations_and_ends_early_when_they_have_nothing_left_to_do() -> None:
    def operation(left: list[int]) -> int:
        if not left:
            raise Exhausted
        return left.pop()

    shift = run_shift([partial(operation, [3, 2]), partial(operation, [5])], time.monotonic(), 3600.0)

    assert shift.messages == 10


def test_what_is_under_way_at_the_end_of_a_shift_counts_and_so_does_the_time_that_it_takes() -> None:
    class Pipe:
        def __call__(self) -> int:
            raise Exhausted

        def drain(self) -> int:
            is_over.wait()
            return 7

    is_over = threading.Event()
    began = time.monotonic()
    threading.Timer(0.05, is_over.set).start()

    shift = run_shift([Pipe()], began, 3600.0)

    assert shift.messages == 7
    assert shift.ended_at - began >= 0.05


def test_a_shift_raises_what_an_operation_raises() -> None:
    def operation() -> int:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        run_shift([operation], time.monotonic(), 1.0)


# -- options ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chosen", "held"),
    [
        (options(), "no"),
        (options(hold_transaction=True), "yes"),
        (options(hold_send=True), "yes, with a send in it"),
        (options(pairs=5), "in every other round"),
        (options(hold_send=True, pairs=5), "in every other round, with a send in it"),
    ],
)
def test_the_report_says_what_is_held_open(chosen: Options, held: str) -> None:
    assert chosen.held == held


def test_only_brokers_that_are_given_as_an_argument_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MQDB_DSN", "postgresql://somebody/else")

    assert options().brokers(load_settings()) == ()
    assert [each.name for each in options().brokers(load_settings(dsn="a=postgresql://here/it"))] == ["a"]


def test_more_brokers_than_it_can_use_are_refused() -> None:
    settings = load_settings(dsn="a=postgresql://x:secret@one/db;b=postgresql://two/db")

    assert len(options(most_brokers=2).brokers(settings)) == 2
    with pytest.raises(ParameterInvalid, match="names 2 brokers; produce takes 1") as refused:
        options().brokers(settings)
    assert "secret" not in str(refused.value)
