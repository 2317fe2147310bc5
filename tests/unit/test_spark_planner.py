"""The planner turns bounds into ranges, ranges into parts, and parts into tasks."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqdb.broker.topics.topic_ranges import Layout, missing_range
from mqdb.errors import QueueNotFound, TopicNotFound
from mqdb.pipeline.errors import DataLoss, LogReplaced, OffsetOutOfRange, OptionInvalid
from mqdb.pipeline.read import planner
from mqdb.pipeline.read.offsets import Queue, StreamOffset
from mqdb.pipeline.read.positions import EARLIEST, LATEST, Place, Position
from mqdb.pipeline.read.source_options import Splitting, Subscription
from mqdb.store.topics.topic_ranges import OffsetRange, Part, QueueBounds, SegmentRange, Span

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def bounds(*queues: tuple[str, int, int, int]) -> dict[Queue, QueueBounds]:
    """Queues (topic, queue id, min offset, max offset) with keys from 100 on; all topics have id 7."""
    rows = [QueueBounds(name, 7, queue_id, 100 + n, low, high) for n, (name, queue_id, low, high) in enumerate(queues)]
    return {Queue(row.topic, row.queue_id): row for row in rows}


def orders(*offsets: int) -> dict[Queue, int]:
    """Offsets of the queues of one topic."""
    return {Queue("orders", queue_id): offset for queue_id, offset in enumerate(offsets)}


TWO = bounds(("orders", 0, 10, 20), ("orders", 1, 0, 5))


# -- which queues ---------------------------------------------------------------------------------


def test_a_pattern_matches_whole_names_and_no_topic_of_the_broker() -> None:
    names = ["orders", "orders-2", "my-orders", "TBW102", "rmq_sys_x", "%RETRY%orders", "%DLQ%orders"]

    def matching(pattern: str) -> Sequence[str]:
        return planner.wanted_topics(Subscription(pattern=pattern), lambda: names)

    assert matching("orders.*") == ["orders", "orders-2"]
    assert matching(".*") == ["orders", "orders-2", "my-orders"]
    assert matching("%DLQ%.*") == ["%DLQ%orders"]


def test_what_is_named_has_to_exist() -> None:
    found = list(TWO.values())

    with pytest.raises(TopicNotFound, match="flights"):
        planner.subscribed(Subscription(topics=("orders", "flights")), found)
    with pytest.raises(QueueNotFound, match="queues 0 to 1, not 7"):
        planner.subscribed(Subscription(assigned={"orders": (0, 7)}), found)
    assert list(planner.subscribed(Subscription(assigned={"orders": (1,)}), found)) == [Queue("orders", 1)]


def test_a_stream_that_minds_no_loss_goes_on_without_a_topic_that_has_vanished() -> None:
    subscription = Subscription(topics=("orders", "flights"))

    assert planner.subscribed(subscription, list(TWO.values()), must_exist=False) == TWO


# -- where they start and end ---------------------------------------------------------------------


def resolve(position: Position, *, must_hold: bool = False, clip: bool = False) -> dict[Queue, int]:
    def offsets_of_time(keys: Sequence[int], time: datetime) -> Mapping[int, int]:
        return {100: 15, 101: 5}

    return planner.resolve(position, TWO, offsets_of_time, must_hold=must_hold, clip=clip)


def by_queue(first: Place, second: Place) -> Position:
    return Position("startingOffsets", by_queue={Queue("orders", 0): first, Queue("orders", 1): second})


def test_ends_times_and_offsets_become_offsets() -> None:
    assert resolve(EARLIEST) == orders(10, 0)
    assert resolve(LATEST) == orders(20, 5)
    assert resolve(by_queue(-1, 3)) == orders(20, 3)
    assert resolve(Position("startingTimestamp", everywhere=NOON)) == orders(15, 5)
    assert resolve(by_queue(NOON, -2)) == orders(15, 0)


def test_a_time_after_the_last_message_is_an_error_if_the_strategy_says_so() -> None:
    with pytest.raises(OptionInvalid, match="queue 1 has no message stored at or after"):
        resolve(Position("startingTimestamp", everywhere=NOON), must_hold=True)


def test_an_empty_queue_has_no_message_that_is_too_old() -> None:
    empty = bounds(("orders", 0, 20, 20), ("orders", 1, 0, 0))
    position = Position("startingTimestamp", everywhere=NOON)

    assert planner.resolve(position, empty, lambda *_: {}, must_hold=True) == orders(20, 0)


@pytest.mark.parametrize(("first", "second"), [(9, 0), (21, 0), (10, 6)])
def test_an_offset_that_is_not_stored_is_an_error(first: int, second: int) -> None:
    with pytest.raises(OffsetOutOfRange, match="the queue has offsets from"):
        resolve(by_queue(first, second))


def test_who_minds_no_loss_starts_at_what_is_left() -> None:
    assert resolve(by_queue(3, 0), clip=True) == orders(10, 0)


def test_every_queue_is_named_and_no_other() -> None:
    with pytest.raises(OptionInvalid, match="does not contain topic 'orders', queue 1"):
        resolve(Position("startingOffsets", by_queue={Queue("orders", 0): 12}))
    with pytest.raises(OptionInvalid, match="queue 2 is not among"):
        resolve(Position("startingOffsets", by_queue={**orders(12, 1, 1)}))


def test_a_read_that_ends_before_it_starts_is_refused() -> None:
    with pytest.raises(OptionInvalid, match="end at 12, before its start at 15"):
        planner.check_order("endingOffsets", orders(15, 0), orders(12, 5))


# -- ranges ---------------------------------------------------------------------------------------


def ranges(start: dict[Queue, int], end: dict[Queue, int], *, fail: bool = True) -> list[OffsetRange]:
    return planner.ranges(start, end, TWO, fail_on_data_loss=fail)


def test_only_what_has_messages_becomes_a_range() -> None:
    assert ranges(orders(12, 5), orders(20, 5)) == [OffsetRange(100, 12, 20)]


def test_a_new_queue_is_read_from_its_first_message() -> None:
    assert ranges(orders(20), orders(20, 3)) == [OffsetRange(101, 0, 3)]


def test_a_new_queue_that_has_lost_its_first_messages_is_a_loss_or_read_from_what_is_left() -> None:
    with pytest.raises(DataLoss, match="offsets 0 to before 20: retention has dropped messages below 10"):
        ranges({}, orders(20))
    assert ranges({}, orders(20), fail=False) == [OffsetRange(100, 10, 20)]


def test_a_new_queue_that_was_deleted_before_its_batch_was_read_is_a_loss() -> None:
    with pytest.raises(DataLoss, match="queue 2, offsets 0 to before 4: its topic was deleted"):
        ranges(orders(20, 5), orders(20, 5, 4))


@pytest.mark.parametrize(
    ("start", "end", "reason", "left"),
    [
        (orders(5, 5), orders(20, 5), "retention has dropped messages below 10", [OffsetRange(100, 10, 20)]),
        (orders(15, 5), orders(30, 5), "newest messages were lost", [OffsetRange(100, 15, 20)]),
        (orders(20, 5, 0), orders(20, 5, 4), "was deleted", []),
    ],
    ids=["retention", "newest-lost", "topic-gone"],
)
def test_what_is_gone_is_a_loss_or_left_out(
    start: dict[Queue, int],
    end: dict[Queue, int],
    reason: str,
    left: list[OffsetRange],
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(DataLoss, match=reason):
        ranges(start, end)
    assert ranges(start, end, fail=False) == left
    assert reason in caplog.text


def test_a_stream_cannot_go_on_where_its_next_message_is_gone() -> None:
    planner.check_kept(orders(10, 5), TWO)
    for lost in (orders(9, 5), orders(21, 5), orders(10, 5, 0)):
        with pytest.raises(DataLoss):
            planner.check_kept(lost, TWO)


def test_a_stream_cannot_go_on_where_a_new_queue_has_lost_its_first_messages() -> None:
    planner.check_kept(orders(10), TWO)
    with pytest.raises(DataLoss, match="queue 0, from offset 0 on: retention has dropped messages below 10"):
        planner.check_kept({Queue("orders", 1): 5}, TWO)


def test_offsets_of_a_topic_that_was_made_again_are_those_of_other_messages(caplog: pytest.LogCaptureFixture) -> None:
    before = StreamOffset("broker-a", {**orders(12), Queue("gone", 0): 4}, {"orders": 6, "gone": 2})

    with pytest.raises(DataLoss, match="queue 0, at offset 12: its topic was deleted and recreated"):
        planner.of_same_topics(before, TWO, fail_on_data_loss=True)
    assert planner.of_same_topics(before, TWO, fail_on_data_loss=False) == {Queue("gone", 0): 4}
    assert "recreated" in caplog.text
    same = StreamOffset("broker-a", orders(12), {"orders": 7})
    assert planner.of_same_topics(same, TWO, fail_on_data_loss=True) == orders(12)


@pytest.mark.parametrize("must_be_whole", [True, False])
def test_an_offset_needs_no_proof_if_nothing_before_it_is_kept(must_be_whole: bool) -> None:
    """An offset needs no proof if no older message is kept.

    This holds at or below the min offset of queue 0, and for a deleted queue, for which other queues give the proof.
    """
    for offsets in (orders(10), orders(3), {Queue("orders", 1): 0}, {Queue("gone", 0): 4}):
        assert planner.of_same_log(offsets, TWO, set(), fail_on_data_loss=must_be_whole) == offsets


def test_an_offset_that_the_log_does_not_prove_is_a_loss_or_forgotten(caplog: pytest.LogCaptureFixture) -> None:
    offsets = orders(12, 3)
    proven = {TWO[Queue("orders", 1)].queue_key}

    with pytest.raises(
        LogReplaced, match="topic 'orders', queue 0, at offset 12: the log does not have the previous message"
    ):
        planner.of_same_log(offsets, TWO, proven, fail_on_data_loss=True)
    assert planner.of_same_log(offsets, TWO, proven, fail_on_data_loss=False) == {Queue("orders", 1): 3}
    assert "read from its first message, topic 'orders', queue 0" in caplog.text


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 1000)), min_size=1, max_size=9), st.integers(1, 2000))
def test_a_limit_is_shared_in_proportion_and_never_passed(queues: list[tuple[int, int]], most: int) -> None:
    start = orders(*(first for first, _ in queues))
    end = orders(*(first + lag for first, lag in queues))
    total = sum(lag for _, lag in queues)

    limited = planner.limited(start, end, most)

    shares = [limited[queue] - start[queue] for queue in start]
    assert sum(shares) == min(most, total)
    assert all(0 <= share <= lag for share, (_, lag) in zip(shares, queues, strict=True))
    assert all(
        abs(share - min(most / total, 1) * lag) <= 1 for share, (_, lag) in zip(shares, queues, strict=True) if lag
    )


# -- tasks ----------------------------------------------------------------------------------------

NAMES = {100: Queue("orders", 0), 101: Queue("orders", 1)}
SIZE = 100_000


def layout(*spans: Span, last_pos: int = 2 * SIZE) -> Layout:
    """Two segments of 100,000 positions; the second one holds entries for the first."""
    segments = {
        1: SegmentRange(1, 1, SIZE + 1, 1),
        2: SegmentRange(2, SIZE + 1, 2 * SIZE + 1, SIZE - 9),
    }
    return Layout(list(spans), segments, last_pos)


def plan(where: Layout, **splitting: int | str) -> list[list[Part]]:
    return planner.tasks(where, NAMES, Splitting(**splitting))  # type: ignore[arg-type]


def read_by(tasks: Sequence[Sequence[Part]]) -> list[list[tuple[int, int, int, int]]]:
    """The segment, key, first offset and end of each range of each task."""
    return [[(part.segment, *span) for part in task for span in part.spans] for task in tasks]


def test_most_of_a_segment_is_read_as_a_slice_and_little_of_it_by_queue() -> None:
    tasks = plan(layout(Span(1, 100, 0, 50_000), Span(1, 101, 0, 50_000), Span(2, 100, 50_000, 50_010)))

    assert [[part.is_ordered for part in task] for task in tasks] == [[False], [True]]
    assert read_by(tasks) == [[(1, 100, 0, 50_000), (1, 101, 0, 50_000)], [(2, 100, 50_000, 50_010)]]


def test_entries_of_late_committers_are_looked_for_in_the_older_log_too() -> None:
    ((first,), (second,)) = plan(layout(Span(1, 100, 0, SIZE), Span(2, 100, SIZE, 2 * SIZE)))

    assert (first.log_segments, second.log_segments) == ((1,), (1, 2))
    assert (second.lowest_pos, second.past_pos, second.is_whole) == (SIZE - 9, 2 * SIZE + 1, True)


def test_small_ranges_share_a_task() -> None:
    spans = [Span(2, 100, 0, 30), Span(2, 101, 0, 50)]

    assert len(plan(layout(*spans))) == 1
    assert len(plan(layout(*spans), records_per_task=60)) == 2
    assert len(plan(layout(*spans), min_partitions=2)) >= 2


def test_a_slice_is_cut_by_position_and_its_cuts_leave_nothing_out() -> None:
    tasks = plan(layout(Span(2, 100, 0, SIZE)), max_records_per_partition=30_000)

    cuts = [(part.lowest_pos, part.past_pos) for (part,) in tasks]
    assert len(cuts) == 4
    assert cuts[0][0] == SIZE - 9
    assert cuts[-1][1] == 2 * SIZE + 1
    assert all(before[1] == after[0] for before, after in pairwise(cuts))
    assert [part.log_segments for (part,) in tasks] == [(1, 2), (2,), (2,), (2,)]
    assert not any(part.is_whole for (part,) in tasks)


def test_splitting_by_queue_keeps_the_order_of_each_queue() -> None:
    spans = [Span(1, 101, 0, 60), Span(1, 100, 0, 40), Span(2, 100, 40, 90)]

    (task,) = plan(layout(*spans), by="queue")

    assert read_by([task]) == [[(1, 100, 0, 40), (2, 100, 40, 90), (1, 101, 0, 60)]]


def test_splitting_by_segment_takes_slices_however_small() -> None:
    ((part,),) = plan(layout(Span(1, 100, 0, 5)), by="segment")

    assert not part.is_ordered


@given(
    st.lists(st.integers(1, 70_000), min_size=1, max_size=6),
    st.sampled_from(["auto", "segment", "queue"]),
    st.integers(1, 9),
    st.integers(1_000, 60_000),
)
def test_tasks_hold_every_range_once(sizes: list[int], by: str, partitions: int, largest: int) -> None:
    edges = [sum(sizes[:n]) for n in range(len(sizes) + 1)]
    spans = [Span(1 + n % 2, 100 + n, edges[n], edges[n + 1]) for n in range(len(sizes))]
    names = {100 + n: Queue("orders", n) for n in range(len(sizes))}
    splitting = Splitting(by=by, min_partitions=partitions, max_records_per_partition=largest)

    tasks = planner.tasks(layout(*sorted(spans)), names, splitting)

    ordered = sorted(
        (span.first, span.past) for task in tasks for part in task if part.is_ordered for span in part.spans
    )
    assert all(past - first <= largest for first, past in ordered)
    sliced = {span for task in tasks for part in task if not part.is_ordered for span in part.spans}
    covered = sum(past - first for first, past in ordered) + sum(span.past - span.first for span in sliced)
    assert covered == sum(sizes)


def test_a_range_that_no_segment_holds_any_more_is_found() -> None:
    wanted = [OffsetRange(100, 0, 30), OffsetRange(101, 5, 9)]

    assert missing_range(wanted, [Span(1, 100, 0, 20), Span(2, 100, 20, 30), Span(2, 101, 5, 9)]) is None
    assert missing_range(wanted, [Span(1, 100, 0, 20), Span(2, 101, 5, 9)]) == OffsetRange(100, 20, 30)
    assert missing_range(wanted, [Span(2, 100, 20, 30), Span(2, 101, 5, 9)]) == OffsetRange(100, 0, 30)
