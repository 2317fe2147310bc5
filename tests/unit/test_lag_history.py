"""The lag of groups in memory, and its drawing."""

from mqdb.drawing.charts import HEIGHT, WIDTH, LagPoint, lag_chart
from mqdb.store.consumers.groups import TopicLag
from mqdb.web.lag_history import LagHistory


def lag(group: str, messages: int, topic: str = "orders") -> TopicLag:
    return TopicLag(group, topic, messages, 0.0, 0, 0, 0, 0)


def test_the_last_samples_of_a_group_are_kept() -> None:
    history = LagHistory(samples=3)

    for number in range(5):
        history.add(float(number), [lag("billing", number), lag("billing", 10, "payments"), lag("reports", 0)])

    assert history.of("billing") == [LagPoint(2.0, 12), LagPoint(3.0, 13), LagPoint(4.0, 14)]
    assert history.of("reports") == [LagPoint(2.0, 0), LagPoint(3.0, 0), LagPoint(4.0, 0)]
    assert history.of("nobody") == []


def test_a_new_group_begins_with_its_first_sample_and_a_deleted_one_is_gone() -> None:
    history = LagHistory(samples=3)
    history.add(0.0, [lag("old", 1)])

    history.add(1.0, [lag("new", 2)])
    history.add(2.0, [lag("new", 3), lag("old", 4)])

    assert history.of("new") == [LagPoint(1.0, 2), LagPoint(2.0, 3)]
    assert history.of("old") == [LagPoint(2.0, 4)]


def test_no_more_groups_are_kept_than_may_be() -> None:
    history = LagHistory(samples=3, most_groups=2)
    history.add(0.0, [lag("b", 1), lag("c", 1)])

    history.add(1.0, [lag("a", 1), lag("b", 1), lag("c", 1)])

    assert [len(history.of(group)) for group in "abc"] == [0, 2, 2]


def test_a_line_is_drawn_by_time_and_lag_and_stops_where_samples_are_missing() -> None:
    ago = [(3_700, 999), (3_600, 0), (3_585, 3), (1_800, 4), (0, 1)]

    chart = lag_chart([LagPoint(10_000.0 - seconds, messages) for seconds, messages in ago], 10_000.0)

    assert chart is not None
    assert chart.lines == [
        f"0.0,{HEIGHT}.0 3.0,{HEIGHT / 4}",
        f"{WIDTH / 2},0.0 {WIDTH / 2},0.0",
        f"{WIDTH}.0,{HEIGHT * 0.75} {WIDTH}.0,{HEIGHT * 0.75}",
    ]
    assert (chart.top, chart.most, chart.last, chart.last_seconds, chart.seconds) == (4, 4, 1, 0.0, 3_600.0)


def test_the_scale_ends_at_a_round_number() -> None:
    def top(most: int) -> int:
        chart = lag_chart([LagPoint(0.0, most)], 1.0)
        assert chart is not None
        return chart.top

    assert [top(most) for most in (0, 2, 3, 10, 11, 100, 101, 2_001, 10**15 + 1)] == [
        *(2, 2, 4, 10, 20, 100, 200, 4_000, 2 * 10**15)
    ]


def test_without_a_sample_of_the_last_hour_there_is_no_chart() -> None:
    assert lag_chart([], 0.0) is None
    assert lag_chart([LagPoint(0.0, 1)], 3_601.0) is None
