"""The decisions of retention."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqdb.service.retention import (
    RetentionRules,
    SegmentSizing,
    before_delays,
    expired,
    segment_size,
    to_make_room,
)
from mqdb.store.segments.segments import Log, Segment, SegmentState, needed_from

NOW = datetime(2024, 3, 1, 12, tzinfo=UTC)
DAY = timedelta(days=1)
ALWAYS = RetentionRules(delete_when=tuple(range(24)))


def segment(number: int, state: SegmentState, age: timedelta | None = None, lowest: int | None = None) -> Segment:
    """A segment of 100 records, closed `age` ago."""
    start = 1 + 100 * (number - 1)
    closed_at = None if age is None else NOW - age
    return Segment(number, start, start + 100, lowest or start, state, closed_at)


# -- which segments go --------------------------------------------------------------------------


def test_segments_older_than_the_reserved_time_go_oldest_first() -> None:
    segments = [segment(number, SegmentState.SEALED, age * DAY) for number, age in enumerate([5, 4, 2, 1], start=1)]

    assert expired(ALWAYS, NOW, segments, writes_to=9, disk_used_percent=None) == [1, 2]


def test_a_segment_is_kept_for_exactly_the_reserved_time() -> None:
    segments = [segment(1, SegmentState.SEALED, ALWAYS.file_reserved_time)]

    assert expired(ALWAYS, NOW, segments, writes_to=9, disk_used_percent=None) == []


@pytest.mark.parametrize("state", [SegmentState.OPEN, SegmentState.CLOSED])
def test_nothing_goes_behind_a_segment_that_is_not_sealed(state: SegmentState) -> None:
    segments = [segment(1, SegmentState.SEALED, 5 * DAY), segment(2, state), segment(3, SegmentState.SEALED, 5 * DAY)]

    assert expired(ALWAYS, NOW, segments, writes_to=9, disk_used_percent=99) == [1]
    assert to_make_room(ALWAYS, segments[1:], writes_to=9, disk_used_percent=99) == []


def test_the_segment_that_dispatch_writes_to_stays() -> None:
    """The segment that dispatch writes to is kept, because it holds the next offset of each queue."""
    segments = [segment(1, SegmentState.SEALED, 5 * DAY), segment(2, SegmentState.SEALED, 5 * DAY)]

    assert expired(ALWAYS, NOW, segments, writes_to=2, disk_used_percent=None) == [1]
    assert to_make_room(ALWAYS, segments[1:], writes_to=2, disk_used_percent=99) == []


def test_drained_segments_are_behind_us() -> None:
    segments = [segment(1, SegmentState.DRAINED, 6 * DAY), segment(2, SegmentState.SEALED, 5 * DAY)]

    assert expired(ALWAYS, NOW, segments, writes_to=9, disk_used_percent=None) == [2]
    assert to_make_room(ALWAYS, segments, writes_to=9, disk_used_percent=99) == [2]


@pytest.mark.parametrize(("hour", "goes"), [(3, False), (4, True), (5, False), (13, True)])
def test_segments_go_at_the_hours_of_delete_when_in_local_time(hour: int, goes: bool) -> None:
    zone = timezone(timedelta(hours=-6))
    rules = RetentionRules(delete_when=(4, 13), time_zone=zone)
    now = datetime(2024, 3, 1, hour, 59, tzinfo=zone)

    found = expired(rules, now, [segment(1, SegmentState.SEALED, 9 * DAY)], writes_to=9, disk_used_percent=75)

    assert found == ([1] if goes else [])


def test_on_a_fuller_disk_they_go_at_any_hour() -> None:
    rules = RetentionRules(delete_when=(4,), time_zone=UTC)
    segments = [segment(1, SegmentState.SEALED, 9 * DAY), segment(2, SegmentState.SEALED, DAY)]

    assert expired(rules, NOW, segments, writes_to=9, disk_used_percent=75.1) == [1]


@pytest.mark.parametrize(("disk_used", "going"), [(None, []), (85.0, []), (85.1, [1])])
def test_on_a_nearly_full_disk_the_oldest_goes_whatever_its_age(disk_used: float | None, going: list[int]) -> None:
    segments = [segment(1, SegmentState.SEALED, timedelta(0)), segment(2, SegmentState.SEALED, timedelta(0))]

    assert to_make_room(ALWAYS, segments, writes_to=9, disk_used_percent=disk_used) == going


def test_a_log_is_needed_from_the_lowest_position_that_a_retained_segment_points_to() -> None:
    segments = [
        segment(1, SegmentState.DRAINED, lowest=1),
        segment(2, SegmentState.SEALED, lowest=101),
        segment(3, SegmentState.SEALED, lowest=42),
    ]

    assert needed_from(segments) == 42


# -- how large segments are ---------------------------------------------------------------------


def test_a_quiet_broker_has_the_smallest_segments() -> None:
    log = Log(now=NOW, last_pos=5, segment_size=262_144, created_at=NOW - DAY)

    assert segment_size(SegmentSizing(), RetentionRules(), log, []) == 262_144


@pytest.mark.parametrize(("size", "next_size"), [(90_000, 90_000), (1_000_000, 92_848), (10_000, 92_848)])
def test_a_size_that_leads_to_a_fair_number_stays(size: int, next_size: int) -> None:
    """A segment size is kept if it leads to a fair number of segments.

    With 1 M records a day, 3 M to 4 M exist before they are deleted, so segments may hold 69,000 to 125,000.
    """
    log = Log(now=NOW, last_pos=1_000_001, segment_size=size, created_at=NOW - DAY)

    assert segment_size(SegmentSizing(smallest=1000), RetentionRules(), log, []) == next_size


def test_a_first_burst_is_taken_for_an_hour_of_it_at_most() -> None:
    log = Log(now=NOW, last_pos=1001, segment_size=1, created_at=NOW - timedelta(seconds=1))

    size = segment_size(SegmentSizing(smallest=1), RetentionRules(), log, [])

    assert 24 <= 72_000 / size <= 60


@pytest.mark.parametrize(("hours", "days"), [((4,), 1), ((0, 12), 0.5), ((1, 4), 21 / 24), (range(24), 1 / 24)])
def test_a_message_is_kept_until_the_next_hour_of_deletion(hours: tuple[int, ...], days: float) -> None:
    assert RetentionRules(delete_when=tuple(hours)).longest_kept == timedelta(hours=72) + days * DAY


@pytest.mark.parametrize(
    ("first_undelivered", "going"), [(1, []), (2, [1]), (3, [1, 2]), (9, [1, 2, 3])], ids=["1", "2", "3", "9"]
)
def test_segments_from_the_first_that_holds_a_delayed_message_on_stay(first_undelivered: int, going: list[int]) -> None:
    assert before_delays([1, 2, 3], first_undelivered) == going


@given(
    rate=st.floats(min_value=1, max_value=1_000_000),
    reserved=st.timedeltas(min_value=timedelta(hours=20), max_value=timedelta(days=10)),
)
def test_at_any_steady_rate_the_broker_holds_24_to_60_segments(rate: float, reserved: timedelta) -> None:
    broker = Broker(rate, RetentionRules(reserved, time_zone=UTC), smallest=1)
    broker.run(3 * reserved)

    # What was made while the rate was a guess is gone, and each day has its own number.
    assert all(24 <= broker.step() <= 60 for _ in range(100))


@given(
    rate=st.floats(min_value=1000, max_value=10_000),
    factor=st.sampled_from([0.1, 0.5, 2, 10]),
)
def test_after_a_change_of_the_rate_the_number_becomes_fair_again(rate: float, factor: float) -> None:
    broker = Broker(rate, RetentionRules(time_zone=UTC), smallest=1000)
    broker.run(6 * DAY)
    broker.rate *= factor
    broker.run(12 * DAY)

    assert all(24 <= broker.step() <= 60 for _ in range(100))


class Broker:
    """A log that grows at a steady rate, and its keeper."""

    def __init__(self, rate: float, rules: RetentionRules, smallest: int) -> None:
        self.rate, self.rules, self.sizing = rate, rules, SegmentSizing(smallest=smallest)
        self.log = Log(now=NOW, last_pos=1, segment_size=smallest, created_at=NOW)
        self.segments: list[Segment] = []

    def run(self, duration: timedelta) -> None:
        until = self.log.now + duration
        while self.log.now < until:
            self.step()

    def step(self) -> int:
        """Let a segment fill, for an hour at most; returns the number of segments that then hold messages."""
        self._keep()
        current = next(segment for segment in self.segments if segment.state is SegmentState.OPEN)
        filled = timedelta(seconds=(current.end_pos - self.log.last_pos) / self.rate)
        passed = min(filled, timedelta(hours=1))
        position = current.end_pos if passed == filled else self.log.last_pos + int(passed.total_seconds() * self.rate)
        self.log = self.log._replace(now=self.log.now + passed, last_pos=position)
        if passed == filled:
            closed = current._replace(state=SegmentState.SEALED, closed_at=self.log.now)
            self.segments[self.segments.index(current)] = closed
        return sum(segment.start_pos < self.log.last_pos for segment in self.segments)

    def _keep(self) -> None:
        old = expired(self.rules, self.log.now, self.segments, writes_to=1_000_000, disk_used_percent=None)
        self.segments = [segment for segment in self.segments if segment.number not in old]
        self.log = self.log._replace(segment_size=segment_size(self.sizing, self.rules, self.log, self.segments))
        while sum(segment.start_pos > self.log.last_pos for segment in self.segments) < 2:
            last = self.segments[-1] if self.segments else Segment(0, 0, 1, 0, SegmentState.SEALED, None)
            start, size = last.end_pos, self.log.segment_size
            self.segments.append(Segment(last.number + 1, start, start + size, start, SegmentState.OPEN, None))
