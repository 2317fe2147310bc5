"""What the benchmarks make of their measurements."""

from mqdb.cli.bench.figures import Figure, Goal, Measurement, Series
from mqdb.cli.bench.rounds import Comparison, Plan, Side


def series(*values: float, **details: float) -> Series:
    return Series("a side", [Measurement(value, details) for value in values])


def test_the_ratio_is_the_median_of_the_ratios_of_the_rounds() -> None:
    # In the second round the machine was busy, which tells nothing about either side.
    figure = Figure("append", "messages/s", series(90, 9, 80), series(100, 10, 100))

    assert figure.ratio == 0.9


def test_where_lower_is_better_a_ratio_above_one_is_better_too() -> None:
    figure = Figure("latency", "ms", series(4.0), series(6.0), lower_is_better=True)

    assert figure.ratio == 1.5


def test_a_figure_without_reference_has_no_ratio_and_misses_no_goal_for_it() -> None:
    figure = Figure("latency", "ms", series(4.0), goals=[Goal(0.9)])

    assert figure.ratio is None
    assert figure.as_json()["goals"] == []


def test_a_goal_is_about_the_ratio_the_value_or_a_detail() -> None:
    goals = [Goal(0.8), Goal(3.0, "value", at_least=False), Goal(20.0, "p99_ms", at_least=False)]
    figure = Figure("figure", "ms", series(4.0, p99_ms=12.5), series(5.0), goals)

    assert figure.as_json()["goals"] == [
        {"of": "ratio", "at_least": 0.8, "value": 0.8, "reached": True},
        {"of": "value", "at_most": 3.0, "value": 4.0, "reached": False},
        {"of": "p99_ms", "at_most": 20.0, "value": 12.5, "reached": True},
    ]


def test_both_sides_are_measured_in_turn() -> None:
    order: list[str] = []

    def side(label: str) -> Side:
        def measure() -> Measurement:
            order.append(label)
            return Measurement(1.0)

        return Side(label, measure)

    figure = Plan("", rounds=3).carry_out(Comparison("append", "messages/s", side("mqdb"), side("PostgreSQL")))

    assert order == ["mqdb", "PostgreSQL"] * 3
    assert [len(found.rounds) for found in (figure.measured, figure.reference) if found] == [3, 3]
