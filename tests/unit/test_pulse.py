"""The live part of the overview: charts of series, and the group that needs help first."""

from datetime import UTC, datetime, timedelta

import pytest

from mqdb.dashboard.live.pulse import drain_seconds, groups_by_urgency, growth_since, span_of
from mqdb.drawing.charts import HEIGHT, WIDTH, Point, area_chart, in_columns, spark_line
from mqdb.web.time_series import BrokerFigure, TimeSeries

NOW = 10_000.0


def ago(*points: tuple[float, float]) -> list[Point]:
    return [Point(NOW - seconds, value) for seconds, value in points]


def test_a_column_is_the_mean_of_its_points_and_a_part_without_points_is_left_out() -> None:
    assert in_columns(ago((59, 9), (39, 1), (35, 3), (0, 7)), NOW, 60, 3) == [9, 2, 7]
    assert in_columns(ago((100, 9), (5, 1)), NOW, 60, 3) == [None, None, 1]


def test_areas_stand_on_one_another_below_a_round_number() -> None:
    chart = area_chart({"a": ago((30, 2), (10, 4)), "b": ago((10, 3))}, NOW, 40, columns=2)

    assert chart is not None
    assert chart.top == 10
    left, right = WIDTH / 4, WIDTH * 3 / 4
    at = {value: f"{HEIGHT * (1 - value / 10):.1f}" for value in (0, 2, 4, 7)}
    assert [area.path for area in chart.areas] == [
        f"M{left},{at[2]} L{right},{at[4]} L{right},{at[0]} L{left},{at[0]} Z",
        f"M{left},{at[2]} L{right},{at[7]} L{right},{at[4]} L{left},{at[2]} Z",
    ]
    assert [(area.name, area.last, area.mean, area.most) for area in chart.areas] == [("a", 4, 3, 4), ("b", 3, 3, 3)]


def test_without_points_there_is_no_chart_and_no_line() -> None:
    assert area_chart({"a": ago((100, 1))}, NOW, 60) is None
    assert spark_line([], NOW, 60) == ""


def test_a_single_point_is_a_line_of_two() -> None:
    assert spark_line(ago((0, 5)), NOW, 60, columns=1) == f"{WIDTH / 2},0.0 {WIDTH / 2},0.0"


@pytest.mark.parametrize(
    ("lags", "seconds"),
    [
        ([(50, 100), (0, 50)], 50),
        ([(50, 100), (0, 100)], None),
        ([(50, 100), (0, 120)], None),
        ([(0, 100)], None),
        ([(50, 100), (0, 0)], 0),
    ],
)
def test_the_time_to_drain_is_that_of_the_recent_points(lags: list[tuple[float, float]], seconds: float | None) -> None:
    assert drain_seconds(ago(*lags)) == seconds


def test_a_group_that_does_not_catch_up_comes_first_and_one_that_keeps_up_last() -> None:
    series = TimeSeries()
    lags = {"fresh": (5, 5), "draining": (100, 50), "slow": (100, 90), "stuck": (10, 20), "done": (9, 0)}
    lags |= {"left": (3, 3)}
    for step, at in enumerate((NOW - 30, NOW)):
        levels = {(BrokerFigure.LAG, name): float(lag[step]) for name, lag in lags.items()}
        ages = {(BrokerFigure.LAG_SECONDS, name): 2.0 if name in ("fresh", "left") else 60.0 for name in lags}
        members = {(BrokerFigure.MEMBERS, name): 0.0 if name == "left" else 1.0 for name in lags}
        series.add(at, {}, levels | ages | members)

    found = groups_by_urgency(series, NOW)

    assert [(each.name, each.keeps_up, each.drain_seconds) for each in found] == [
        ("stuck", False, None),
        ("left", False, None),
        ("slow", False, 270),
        ("draining", False, 30),
        ("fresh", True, None),
    ]


def test_dead_letters_count_from_midnight_or_from_the_first_sample() -> None:
    midnight = datetime.now(UTC) - timedelta(hours=2)
    day = ago((7_300, 10), (7_100, 12), (60, 15))

    assert growth_since(day, ago((0, 17)), NOW, midnight) == (7, midnight)
    letters, since = growth_since(day[1:], ago((0, 17)), NOW, midnight)
    assert letters == 5
    assert since is not None
    assert abs((since - midnight).total_seconds() - 100) < 1
    assert growth_since([], [], NOW, midnight) == (0, None)


@pytest.mark.parametrize(("age", "span"), [(0, 300), (299, 300), (301, 900), (901, 3_600), (9_999, 3_600)])
def test_a_chart_shows_a_span_that_the_process_fills(age: float, span: float) -> None:
    assert span_of(ago((age, 1)), NOW) == span
