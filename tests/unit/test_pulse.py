"""The live part of the overview: charts of series, and the group that needs help first."""

from datetime import UTC, datetime, timedelta

import pytest

from mqdb.dashboard.live.pulse import (
    LateTime,
    cause_of_lag,
    drain_seconds,
    groups_by_urgency,
    growth_since,
    late_since,
    span_of,
)
from mqdb.dashboard.pages.overview import preceding
from mqdb.drawing.charts import HEIGHT, WIDTH, Point, area_chart, in_columns, spark_line
from mqdb.web.time_series import BrokerFigure, TimeSeries
from mqdb_client import Operation

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


@pytest.mark.parametrize(
    ("hour", "day", "found"),
    [
        ([(20, 5), (15, 10), (10, 30), (5, 40)], [], (15, False)),
        ([(15, 10), (10, 3), (5, 40)], [], (5, False)),
        ([(10, 30), (5, 3)], [], None),
        ([(10, 30), (5, 40)], [], (10, True)),
        ([(400, 30), (10, 30), (5, 40)], [], (10, True)),
        ([(10, 300), (5, 400)], [(250, 5), (190, 15), (130, 70), (72, 130), (12, 20)], (190, False)),
        ([], [(60, 30)], (60, True)),
        ([], [], None),
    ],
)
def test_a_group_is_late_since_the_first_of_its_late_samples_without_a_gap(
    hour: list[tuple[float, float]], day: list[tuple[float, float]], found: tuple[float, bool] | None
) -> None:
    since = late_since(ago(*hour), ago(*day))

    assert since == (None if found is None else (NOW - found[0], found[1]))


def test_a_late_group_has_the_rates_of_its_last_two_minutes() -> None:
    series = TimeSeries()
    for step in range(13):
        counters = {(BrokerFigure.DELIVERED, "slow"): 20.0 * step, (BrokerFigure.RETRIED, "slow"): 5.0 * step}
        counters[BrokerFigure.DEAD, "slow"] = 10.0 * step
        levels = {(BrokerFigure.LAG, "slow"): 100.0 + 80 * step, (BrokerFigure.LAG_SECONDS, "slow"): 4.0 * step}
        series.add(NOW - 120 + 10 * step, counters, levels | {(BrokerFigure.MEMBERS, "slow"): 1.0})

    [found] = groups_by_urgency(series, NOW)
    cause = cause_of_lag(series, found, NOW)

    assert (cause.arriving, cause.consumed, cause.failed) == pytest.approx((10, 2, 1.5))
    assert cause.late is not None
    assert (cause.late.seconds, cause.late.is_cut) == (90, False)


def test_messages_that_come_again_after_a_reset_have_not_arrived() -> None:
    series = TimeSeries()
    for seconds, lag, age in ((60, 0, 0), (50, 0, 0), (40, 5_000, 900), (30, 5_010, 910), (20, 5_020, 920)):
        levels = {(BrokerFigure.LAG, "reset"): float(lag), (BrokerFigure.LAG_SECONDS, "reset"): float(age)}
        series.add(NOW - seconds, {}, levels)

    [found] = groups_by_urgency(series, NOW)

    assert cause_of_lag(series, found, NOW).arriving == pytest.approx(1)


def operation(number: int, at: datetime) -> Operation:
    return Operation(number, at, "mqdb", "ada", "group.update", [], ["slow"], None, None, None, 1, None)


def test_the_change_before_a_lag_is_found_behind_newer_ones() -> None:
    begin = datetime(2026, 7, 14, 3, tzinfo=UTC)
    newest, cause, older = (operation(3 - step, begin + timedelta(minutes=1 - step, seconds=4)) for step in range(3))
    late = LateTime(begin, 600, is_cut=False)

    assert preceding([newest, cause, older], late) == [
        (newest, "64 s after the group became late"),
        (cause, "when the group became late"),
    ]
    assert preceding([older], late) == [(older, "56 s before the group became late")]
    assert preceding([newest], late) == [(newest, "64 s after the group became late")]
    assert preceding([newest, cause], late._replace(is_cut=True)) == [(newest, "")]
    assert preceding([], late) == []
