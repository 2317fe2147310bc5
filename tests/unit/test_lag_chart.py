"""The chart of a group's lag."""

from mqdb.drawing.charts import HEIGHT, WIDTH, Point, lag_chart


def test_a_line_is_drawn_by_time_and_lag_and_stops_where_samples_are_missing() -> None:
    ago = [(3_700, 999), (3_600, 0), (3_585, 3), (1_800, 4), (0, 1)]

    chart = lag_chart([Point(10_000.0 - seconds, messages) for seconds, messages in ago], 10_000.0)

    assert chart is not None
    assert chart.lines == [
        f"0.0,{HEIGHT}.0 3.0,{HEIGHT / 4}",
        f"{WIDTH / 2},0.0 {WIDTH / 2},0.0",
        f"{WIDTH}.0,{HEIGHT * 0.75} {WIDTH}.0,{HEIGHT * 0.75}",
    ]
    assert (chart.top, chart.most, chart.last, chart.last_seconds, chart.seconds) == (4, 4, 1, 0.0, 3_600.0)


def test_the_scale_ends_at_a_round_number() -> None:
    def top(most: int) -> int:
        chart = lag_chart([Point(0.0, most)], 1.0)
        assert chart is not None
        return chart.top

    assert [top(most) for most in (0, 2, 3, 10, 11, 100, 101, 2_001, 10**15 + 1)] == [
        *(2, 2, 4, 10, 20, 100, 200, 4_000, 2 * 10**15)
    ]


def test_without_a_sample_of_the_last_hour_there_is_no_chart() -> None:
    assert lag_chart([], 0.0) is None
    assert lag_chart([Point(0.0, 1)], 3_601.0) is None
