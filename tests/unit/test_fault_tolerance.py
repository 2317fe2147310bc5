"""The time for which a producer avoids a broker that was slow or failed."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqdb_client.producer.queues.fault_tolerance import LatencyFaultTolerance, unavailable_seconds
from tests.fixtures.clocks import ManualClock

#: RocketMQ's own arrays, in its milliseconds: latencyMax and notAvailableDuration.
LATENCIES = [50, 100, 550, 1_800, 3_000, 5_000, 15_000]
DURATIONS = [0, 0, 2_000, 5_000, 6_000, 10_000, 30_000]
ERROR_LATENCY_SECONDS = 10.0


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(datetime(2024, 5, 1, tzinfo=UTC))


def test_each_latency_of_the_table_is_the_first_of_its_time() -> None:
    for number, (latency_ms, duration_ms) in enumerate(zip(LATENCIES, DURATIONS, strict=True)):
        assert unavailable_seconds(latency_ms / 1_000) * 1_000 == duration_ms
        below = DURATIONS[number - 1] if number else 0
        assert unavailable_seconds((latency_ms - 1) / 1_000) * 1_000 == below


@given(st.integers(0, 40_000))
def test_any_latency_counts_as_in_rocketmq(latency_ms: int) -> None:
    from_the_largest_down = reversed(list(zip(LATENCIES, DURATIONS, strict=True)))
    expected = next((duration for latency, duration in from_the_largest_down if latency <= latency_ms), 0)

    assert unavailable_seconds(latency_ms / 1_000) * 1_000 == expected


def test_an_error_keeps_a_broker_away_however_quick_it_was(clock: ManualClock) -> None:
    faults = LatencyFaultTolerance(clock.monotonic)

    faults.update("broker-a", latency_seconds=0.001, is_isolated=True)

    clock.advance(timedelta(seconds=10, milliseconds=-1))
    assert not faults.is_available("broker-a")
    clock.advance(timedelta(milliseconds=1))
    assert faults.is_available("broker-a")


def test_a_broker_that_nothing_is_known_of_is_available() -> None:
    assert LatencyFaultTolerance().is_available("broker-a")


def test_a_fast_send_makes_a_broker_available_at_once(clock: ManualClock) -> None:
    faults = LatencyFaultTolerance(clock.monotonic)
    faults.update("broker-a", 5.0, is_isolated=False)
    assert not faults.is_available("broker-a")

    faults.update("broker-a", 0.099, is_isolated=False)

    assert faults.is_available("broker-a")


def test_one_broker_says_nothing_about_another() -> None:
    faults = LatencyFaultTolerance()

    faults.update("broker-a", 0.0, is_isolated=True)

    assert faults.is_available("broker-b")


def test_a_removed_broker_is_unknown() -> None:
    faults = LatencyFaultTolerance()
    faults.update("broker-a", 0.0, is_isolated=True)

    faults.remove("broker-a")
    faults.remove("never-seen")

    assert faults.is_available("broker-a")
    assert faults.pick_one_at_least(["broker-a"]) is None


def test_of_unavailable_brokers_the_faster_is_picked() -> None:
    faults = LatencyFaultTolerance()
    faults.update("slow", 4.0, is_isolated=False)
    faults.update("slower", 14.0, is_isolated=False)

    assert {faults.pick_one_at_least(["slower", "slow"]) for _ in range(5)} == {"slow"}


def test_a_broker_that_fails_quickly_is_picked_after_one_that_is_slow() -> None:
    faults = LatencyFaultTolerance()
    faults.update("refuses", 0.001, is_isolated=True)
    faults.update("slow", 4.0, is_isolated=False)

    assert {faults.pick_one_at_least(["refuses", "slow"]) for _ in range(5)} == {"slow"}


def test_of_brokers_that_failed_the_one_that_is_back_sooner_is_picked(clock: ManualClock) -> None:
    faults = LatencyFaultTolerance(clock.monotonic)
    faults.update("first", 0.0, is_isolated=True)
    clock.advance(timedelta(seconds=1))
    faults.update("second", 0.0, is_isolated=True)

    assert {faults.pick_one_at_least(["second", "first"]) for _ in range(5)} == {"first"}


def test_an_available_broker_is_picked_before_a_faster_one_that_is_not(clock: ManualClock) -> None:
    faults = LatencyFaultTolerance(clock.monotonic)
    faults.update("slow, long ago", 2.9, is_isolated=False)
    clock.advance(timedelta(seconds=5))
    faults.update("less slow, just now", 0.6, is_isolated=False)

    assert {faults.pick_one_at_least(["less slow, just now", "slow, long ago"]) for _ in range(5)} == {"slow, long ago"}


def test_only_the_brokers_asked_about_are_picked() -> None:
    faults = LatencyFaultTolerance()
    faults.update("broker-a", 1.0, is_isolated=False)
    faults.update("broker-b", 2.0, is_isolated=False)

    assert faults.pick_one_at_least(["broker-b", "unknown"]) == "broker-b"
    assert faults.pick_one_at_least(["unknown"]) is None
    assert faults.pick_one_at_least([]) is None


@given(st.dictionaries(st.text(), st.tuples(st.floats(0, 20), st.booleans(), st.integers(0, 60)), min_size=1))
def test_each_broker_of_the_better_half_has_its_turn(sends: dict[str, tuple[float, bool, int]]) -> None:
    clock = ManualClock(datetime(2024, 5, 1, tzinfo=UTC))
    faults = LatencyFaultTolerance(clock.monotonic)
    ranks = {}
    for name, (latency, is_isolated, seconds_after) in sends.items():
        counted = ERROR_LATENCY_SECONDS if is_isolated else latency
        faults.update(name, latency, is_isolated)
        ranks[name] = (counted, clock.monotonic() + unavailable_seconds(counted))
        clock.advance(timedelta(seconds=seconds_after))
    half = max(len(sends) // 2, 1)

    picked = [faults.pick_one_at_least(sends) for _ in range(half)]

    def order(name: str | None) -> tuple[bool, float, float]:
        assert name is not None
        latency, available_from = ranks[name]
        return (available_from > clock.monotonic(), latency, available_from)

    assert sorted(map(order, picked)) == sorted(map(order, sends))[:half]
