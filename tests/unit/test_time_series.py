"""The time series of a broker: rates of counters, levels, an hour and a day, all of bounded size."""

import random
from itertools import pairwise

from mqdb.drawing.charts import Point
from mqdb.web.time_series import OTHERS, TOTAL, BrokerFigure, Key, SeriesSpan, TimeSeries


def stored(**messages: float) -> dict[Key, float]:
    return {(BrokerFigure.STORED, topic): count for topic, count in messages.items()}


def lag(**messages: float) -> dict[Key, float]:
    return {(BrokerFigure.LAG, group): count for group, count in messages.items()}


def test_a_counter_becomes_a_rate_from_the_second_sample_on() -> None:
    series = TimeSeries()

    series.add(100.0, stored(orders=1_000), {})
    series.add(105.0, stored(orders=1_050, payments=10), {})
    series.add(115.0, stored(orders=1_050, payments=40), {})

    assert series.of(BrokerFigure.STORED, "orders") == [Point(105.0, 10), Point(115.0, 0)]
    assert series.of(BrokerFigure.STORED, "payments") == [Point(105.0, 2), Point(115.0, 3)]
    assert series.of(BrokerFigure.STORED) == [Point(105.0, 12), Point(115.0, 3)]


def test_a_topic_that_was_made_again_counts_from_zero_and_an_offset_that_was_reset_counts_as_nothing() -> None:
    series = TimeSeries()
    series.add(0.0, stored(orders=1_000) | {(BrokerFigure.DELIVERED, "billing"): 1_000}, {})

    series.add(5.0, stored(orders=20) | {(BrokerFigure.DELIVERED, "billing"): 20}, {})

    assert series.of(BrokerFigure.STORED, "orders") == [Point(5.0, 4)]
    assert series.of(BrokerFigure.DELIVERED, "billing") == []


def test_a_level_is_kept_as_it_is_and_its_total_is_the_sum_or_for_an_age_the_highest() -> None:
    series = TimeSeries()

    series.add(
        1.0,
        {},
        lag(billing=3, mail=0) | {(BrokerFigure.LAG_SECONDS, "billing"): 7, (BrokerFigure.LAG_SECONDS, "mail"): 2},
    )

    assert [series.of(BrokerFigure.LAG, name) for name in ("billing", "mail", TOTAL, "nobody")] == [
        *([Point(1.0, 3)], [Point(1.0, 0)], [Point(1.0, 3)], [])
    ]
    assert series.of(BrokerFigure.LAG_SECONDS) == [Point(1.0, 7)]


def test_the_busiest_are_named_and_all_others_are_one_series() -> None:
    series = TimeSeries()
    series.add(0.0, stored(a=0, b=0, c=0, d=0), {})

    series.add(10.0, stored(a=10, b=40, c=30, d=20), {})

    assert series.busiest(BrokerFigure.STORED, 2) == {
        "b": [Point(10.0, 4)],
        "c": [Point(10.0, 3)],
        OTHERS: [Point(10.0, 3)],
    }
    assert list(series.busiest(BrokerFigure.STORED, 4)) == ["b", "c", "d", "a"]


def test_an_hour_has_each_sample_and_a_day_a_point_for_each_minute() -> None:
    series = TimeSeries()

    for number in range(2_000):
        series.add(number * 5.0, {}, lag(billing=number))

    hour, day = series.of(BrokerFigure.LAG, "billing"), series.of(BrokerFigure.LAG, "billing", SeriesSpan.DAY)
    assert [point.value for point in hour] == list(range(1_280, 2_000))
    assert [point.value for point in day[:3]] == [12, 24, 36]
    assert all(after.at - before.at == 60.0 for before, after in pairwise(day))


def test_a_deleted_group_goes_when_its_last_point_has_gone() -> None:
    series = TimeSeries()
    series.add(0.0, {}, lag(old=1))

    for number in range(1, 721):
        series.add(number * 5.0, {}, lag(new=number))

    assert series.of(BrokerFigure.LAG, "old") == []
    assert len(series.of(BrokerFigure.LAG, "new")) == 720


def test_names_beyond_the_bound_are_part_of_the_total_only() -> None:
    series = TimeSeries(most_series=3)
    rates = {f"topic-{number}": 10 for number in range(10)}
    series.add(0.0, stored(), {})

    series.add(1.0, stored(**rates), {})

    assert sum(len(series.of(BrokerFigure.STORED, name)) for name in rates) <= 3
    assert series.of(BrokerFigure.STORED) == [Point(1.0, 100)]


def test_the_total_is_the_sum_of_the_series_at_each_time() -> None:
    seed = random.randrange(1_000_000)
    chance = random.Random(seed)
    series, counts = TimeSeries(), dict.fromkeys("abcdefgh", 0)
    for number in range(100):
        for name in counts:
            counts[name] += chance.choice((0, 0, chance.randrange(1_000)))
        series.add(number * 5.0, stored(**counts), {})

    for most in (1, 3, 8):
        sums: dict[float, float] = {}
        for points in series.busiest(BrokerFigure.STORED, most).values():
            for point in points:
                sums[point.at] = sums.get(point.at, 0) + point.value
        for at, value in series.of(BrokerFigure.STORED):
            assert abs(sums[at] - value) < 0.01, f"seed {seed}"


def test_a_series_gives_its_newest_value_and_its_points_since_a_time() -> None:
    series = TimeSeries()
    for at in (0.0, 5.0, 10.0):
        series.add(at, {}, lag(billing=at))
    series.add(15.0, {}, lag(mail=1))

    assert series.of(BrokerFigure.LAG, "billing", since=5.0) == [Point(5.0, 5), Point(10.0, 10)]
    assert [series.last(BrokerFigure.LAG, name) for name in ("mail", "billing", "nobody")] == [1, None, None]


def test_the_busiest_are_those_of_the_points_that_are_kept() -> None:
    series, counts = TimeSeries(), {"early": 0, "late": 0}
    for number in range(790):
        counts["early"] += 1_000 if number < 100 else 0
        counts["late"] += 60 if number >= 100 else 0
        series.add(number * 5.0, stored(**counts), {})

    # 30 of the points of "early" are left, 6,000 in all, beside 8,280.
    assert list(series.busiest(BrokerFigure.STORED, 1)) == ["late", OTHERS]
