"""Bars of queues: shares of the longest queue, places of groups, and the effect of a reset."""

from datetime import UTC, datetime, timedelta

import pytest

from mqdb.common.group import ConsumeMode
from mqdb.dashboard.views.queue_bars import lag_bars, queue_bars, reset_bars, skewed
from mqdb.dashboard.views.retry_ladder import retry_delay, retry_ladder
from mqdb.store.consumers.groups import QueueProgress
from mqdb.store.consumers.offset_changes import OffsetChange
from mqdb.store.consumers.waiting_retries import RetryStep
from mqdb.store.dispatch.queues import QueueStats

NOW = datetime(2026, 7, 14, tzinfo=UTC)


def queue(queue_id: int, first: int, end: int) -> QueueStats:
    return QueueStats(queue_id, first, end, NOW)


def progress(group: str, queue_id: int, next_offset: int, end: int) -> QueueProgress:
    lag = end - next_offset
    return QueueProgress(group, "t", queue_id, next_offset, end, lag, 0, None, 0, 0, ConsumeMode.PULL, None, 1, NOW)


def test_bars_are_shares_of_the_longest_queue_with_a_mark_for_each_place() -> None:
    bars = queue_bars(
        [queue(0, 100, 200), queue(1, 0, 50)],
        [progress("a", 0, 150, 200), progress("b", 0, 200, 200), progress("c", 0, 40, 200), progress("a", 1, 50, 50)],
    )

    assert [(bar.messages, bar.share) for bar in bars] == [(100, 1.0), (50, 0.5)]
    # A group whose next message is gone stands at the beginning.
    assert [bar.marks for bar in bars] == [[0.0, 0.5, 1.0], [0.5]]
    assert bars[0].behind == [("c", 160), ("a", 50)]
    assert bars[1].behind == []


@pytest.mark.parametrize(
    ("ends", "times"), [([400, 50, 50, 50], 2.9), ([100, 90, 110], None), ([40, 0, 0], None), ([900], None), ([], None)]
)
def test_a_queue_with_many_times_the_mean_is_named(ends: list[int], times: float | None) -> None:
    found = skewed(queue_bars([queue(number, 0, end) for number, end in enumerate(ends)], []))

    assert (found and round(found[1], 1)) == times


def test_the_lag_of_a_group_is_a_share_of_its_greatest() -> None:
    assert [bar.share for bar in lag_bars([progress("a", 0, 0, 10), progress("a", 1, 5, 10)])] == [1.0, 0.5]
    assert [bar.share for bar in lag_bars([progress("a", 0, 10, 10)])] == [0.0]


def test_a_reset_is_drawn_between_the_old_and_the_new_offset() -> None:
    changes = [OffsetChange("t", 0, 80, 20, 0), OffsetChange("t", 1, 10, 100, 50), OffsetChange("t", 2, None, 30, 0)]

    bars = reset_bars(changes, [100, 100, 100])

    assert [(round(bar.begin, 2), round(bar.share, 2)) for bar in bars] == [(0.2, 0.6), (0.0, 0.5), (0.3, 0.0)]
    assert (bars[0].change.repeated, bars[1].change.skipped) == (60, 50)


def test_each_retry_on_which_messages_wait_is_a_step_with_its_delay() -> None:
    levels = [timedelta(seconds=seconds) for seconds in (1, 5, 10, 30)]

    steps = retry_ladder([RetryStep(1, 2, NOW), RetryStep(9, 4, NOW), RetryStep(None, 1, NOW)], None, levels)

    assert [(each.retry, each.waiting, each.share) for each in steps] == [(1, 2, 0.5), (9, 4, 1.0), (None, 1, 0.25)]
    # Level 3 comes first, and the last level repeats.
    assert [each.delay for each in steps] == [timedelta(seconds=10), timedelta(seconds=30), None]


def test_own_delays_of_a_group_win() -> None:
    own = [timedelta(seconds=1), timedelta(seconds=2)]

    assert [retry_delay(retry, own, [timedelta(hours=1)]) for retry in (1, 2, 70)] == [own[0], own[1], own[1]]
    assert retry_delay(1, None, []) is None


def test_a_group_without_waiting_retries_has_no_step() -> None:
    assert retry_ladder([], None, []) == []
